"""What a forward pass keeps for the backward pass, which computes all else again: the partition of least memory traffic.

Each value of the forward pass weighs what it takes of memory, and what is kept is the minimum cut before the backward pass. The
method, weights and rules are those of torch's `min_cut_rematerialization_partition` (He, "Min-cut optimal(*) recomputation (i.e.
activation checkpointing) with AOTAutograd", 2022), which takes several times as long, and imports Inductor.
"""
from __future__ import annotations

import heapq
import math
import operator

from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from capture.backends.aot.aten import is_random
from capture.backends.aot.min_cut import SINK, SOURCE, Network
from capture.backends.aot.saving import is_recomputed
from capture.backends.aot.two_passes import TwoPasses
from capture.backends.native.nodes import expected
from capture.backends.native.signature import Unsupported
from capture.operators.facts import facts_of

NEARER, MOST_STEPS = 1.1, 100   # the weight for each operation between a value and the backward pass, of so many at most
NOT_READ = 10**9                # that distance, for what the backward pass does not read
REDUCTION = 4                   # what is so many times smaller than its operands is not computed again
LONGEST_CHAIN = 100             # of operations that can be one kernel, and are computed again


def partition(joint: fx.Graph, results: int, joined_again: bool = False) -> tuple[fx.Graph, fx.Graph]:
    """The graphs of both passes. results: how many of the outputs belong to the forward pass, which returns after them what is
    kept; the backward pass takes that, and then the inputs named TANGENT. joined_again: whether the graphs are put one behind the
    other afterwards. Raises Unsupported if a value can neither be kept nor be computed again."""
    joint.eliminate_dead_code()
    _keep_what_is_drawn(joint)
    _keep_between_checkpoints(joint)
    passes = TwoPasses(joint, results, joined_again)
    return passes.divided(_Cut(passes).kept())


def _keep_what_is_drawn(joint: fx.Graph) -> None:
    for node in joint.nodes:
        if is_random(node) or node.target is operator.getitem and is_random(node.args[0]):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _keep_between_checkpoints(joint: fx.Graph) -> None:
    """Keeps what an activation checkpoint hands to a later one."""
    for node in joint.nodes:
        if is_recomputed(node) and any(is_recomputed(user) and user.meta["ac_graph_id"] > node.meta["ac_graph_id"]
                                       for user in node.users):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


class _Cut:
    """Chooses what is kept. nodes: those that the forward pass needs; order: their places; distance: how many operations lie
    between each and the backward pass. not_repeated: those that may not be computed again."""

    def __init__(self, passes: TwoPasses) -> None:
        self.passes = passes
        self.nodes = [node for node in passes.nodes if node in passes.earlier]
        self.order = {node: place for place, node in enumerate(self.nodes)}
        self.fusible = {node: _is_fusible(node) for node in passes.nodes}
        self.distance: dict[fx.Node, int] = {}
        for node in reversed(passes.nodes):
            self.distance[node] = 0 if node not in self.order else min(
                (self.distance.get(user, NOT_READ) + 1 for user in node.users), default=NOT_READ)
        self.not_repeated = {node for node in self.order if _may_be_excluded(node) and (
            node.op == "placeholder" or self._is_not_worth_repeating(node))}
        self._do_not_repeat_what_is_used_far_apart()
        self._do_not_repeat_long_chains()

    def kept(self) -> list[fx.Node]:
        """The values that are kept, in their order."""
        network = Network()
        returned = {node for node in self.passes.gradients if node is not None}
        # Each value has two vertices. The edge between them is cut where the value is kept.
        before = {node: self._first_vertex(node, network) for node in self.passes.nodes}
        after = {node: network.vertex() for node, vertex in before.items() if vertex != SINK}
        for node, vertex in after.items():
            network.edge(before[node], vertex, self._weight(node))
            if node in returned:
                network.edge(vertex, SINK, math.inf)
            for user in node.users:
                if user in before:
                    network.edge(vertex, before[user], math.inf)
        try:
            side = network.sink_side()
        except ValueError:
            raise Unsupported("the backward pass needs a value that can neither be kept nor be computed again") from None
        return [node for node, vertex in after.items() if vertex in side and before[node] not in side]

    def _first_vertex(self, node: fx.Node, network: Network) -> int:
        """The sink for what the backward pass computes in any case, the source for what it may not compute again."""
        if node in self.passes.later or is_recomputed(node):
            return SINK
        return SOURCE if node in self.not_repeated else network.vertex()

    def _weight(self, node: fx.Node) -> float:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return math.inf
        far = NEARER ** max(min(self.distance[node], MOST_STEPS), 1)
        return int(_size(node) * far) * (1 if self._is_in_memory(node) else 2)

    def _is_in_memory(self, node: fx.Node) -> bool:
        """Whether the forward pass puts a value into memory, kept or not."""
        return node.op == "placeholder" or not all(self._can_join(node, user) for user in node.users)

    def _can_join(self, node: fx.Node, user: fx.Node) -> bool:
        """Whether both can be one kernel."""
        return facts_of(user.target).joins or self.fusible[node] and self.fusible.get(user, False)

    def _is_not_worth_repeating(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node.target is operator.getitem:
            return False
        if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
            return True
        if not self.fusible[node] or self._backward_materializes(node):
            return True
        return _size(node) * REDUCTION < sum(_size(arg) for arg in node.args if isinstance(arg, fx.Node))

    def _backward_materializes(self, node: fx.Node) -> bool:
        """Whether the backward pass would have to put a value into memory: to compute that again is not free."""
        waiting = [] if _is_free_view(node) else [node]
        while waiting:
            one = waiting.pop()
            if any(user not in self.order and not self._can_join(one, user) for user in one.users):
                return True
            waiting += filter(_is_free_view, one.users)
        return False

    def _do_not_repeat_what_is_used_far_apart(self) -> None:
        """If a value is read both before and after an operation that ends a kernel, its later readers could not join the kernel of
        the earlier ones: they are not computed again."""
        for node in self.order:
            users = [user for user in node.users if user in self.order]
            if len(users) > 1:
                last = self._end_of_kernel(users)
                behind = [user for user in users if self.order[user] > last and self._can_join(node, user)]
                self.not_repeated.update(filter(_may_be_excluded, behind))

    def _end_of_kernel(self, users: list[fx.Node]) -> int:
        """The place of the first node that is reached from `users` and cannot be one kernel with its operand; that of the last user
        if there is none."""
        end = max(map(self.order.__getitem__, users))
        waiting = [(self.order[user], True) for user in users]
        heapq.heapify(waiting)
        seen = set(waiting)
        while waiting:
            place, is_one_kernel = heapq.heappop(waiting)
            if not is_one_kernel:
                return place
            node = self.nodes[place]
            for user in node.users:
                if self.order.get(user, end + 1) <= end and (entry := (self.order[user], self._can_join(node, user))) not in seen:
                    seen.add(entry)
                    heapq.heappush(waiting, entry)
        return end

    def _do_not_repeat_long_chains(self) -> None:
        """What is computed from one value by operations that can all be one kernel would all be computed again from that."""
        seen: set[int] = set()
        for start in range(len(self.nodes)):
            waiting = [start]
            while waiting:
                place = heapq.heappop(waiting)
                if place in seen:
                    continue
                seen.add(place)
                node = self.nodes[place]
                if place > start + LONGEST_CHAIN and not waiting:
                    if _may_be_excluded(node):
                        self.not_repeated.add(node)
                    break
                for user in node.users:
                    if user in self.order and user not in self.not_repeated and self._can_join(node, user):
                        heapq.heappush(waiting, self.order[user])


def _may_be_excluded(node: fx.Node) -> bool:
    """Whether a node may be one that is not computed again: what is part of a checkpoint always is, and views cost nothing."""
    return not _is_free_view(node) and not is_recomputed(node)


def _is_free_view(node: fx.Node) -> bool:
    return facts_of(node.target).is_free_view


def _is_fusible(node: fx.Node) -> bool:
    """Whether an operation can be one kernel with others."""
    if isinstance(node.target, OpOverload):
        return facts_of(node.target).is_fusible
    return node.op == "call_function" and not isinstance(node.target, HigherOrderOperator)      # a part of a result, or sizes


def _size(node: fx.Node) -> int:
    """What a node's value takes in memory, in bytes."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    return sum(_elements(part) * part.itemsize for part in parts if isinstance(part, Tensor))


def _elements(tensor: Tensor) -> int:
    return math.prod(map(expected, tensor.shape))
