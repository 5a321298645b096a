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

from capture.backends.aot.aten import aten, is_random
from capture.backends.aot.min_cut import SINK, SOURCE, Network
from capture.backends.aot.two_passes import TwoPasses
from capture.backends.native.nodes import expected
from capture.operators.facts import facts_of

NEARER, FARTHEST = 1.1, 100     # the weight for each operation between a value and the backward pass, of so many at most
NOT_READ = 10**9                # that distance, for what the backward pass does not read
REDUCTION = 4                   # what is so many times smaller than its operands is kept
CHAIN = 100                     # of a chain of operations that can be one kernel, one of so many is kept
VIEWS = frozenset({"squeeze", "unsqueeze", "alias", "view", "slice", "t", "broadcast_in_dim", "expand", "as_strided", "permute",
                   "select", "split"})
# What costs little, and can be one kernel with what reads it, besides operations on single elements.
CHEAP = VIEWS | {
    "sum", "mean", "max", "min", "amax", "argmax", "any", "var", "std", "var_mean", "_grad_sum_to_size", "sum_to_size", "index",
    "gather", "to", "_to_copy", "type_as", "clone", "convert_element_type", "_unsafe_view", "reshape", "broadcast_tensors", "triu",
    "full", "full_like", "zeros", "zeros_like", "new_zeros", "ones", "empty", "empty_like", "scalar_tensor", "arange", "iota",
    "lift_fresh_copy", "div", "_low_memory_max_pool_offsets_to_indices"}
DRAWN = frozenset({"native_dropout", "rand_like", "randn_like"})        # … but not computed again
FRESH = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})


def partition(joint: fx.Graph, results: int, are_one: bool = False) -> tuple[fx.Graph, fx.Graph]:
    """The graphs of both passes. results: how many of the outputs belong to the forward pass, which returns after them what is
    kept; the backward pass takes that, and then the inputs named "tangents…". are_one: whether they become one graph again."""
    joint.eliminate_dead_code()
    _keep_what_is_drawn(joint)
    _keep_between_checkpoints(joint)
    passes = TwoPasses(joint, results, are_one)
    return passes.divided(_Cut(passes).kept())


def _keep_what_is_drawn(joint: fx.Graph) -> None:
    for node in joint.nodes:
        if is_random(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _keep_between_checkpoints(joint: fx.Graph) -> None:
    """Keeps what an activation checkpoint hands to a later one."""
    for node in joint.nodes:
        if _must_recompute(node) and any(_must_recompute(user) and user.meta["ac_graph_id"] > node.meta["ac_graph_id"]
                                         for user in node.users):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


class _Cut:
    """Chooses what is kept. nodes: those that the forward pass needs; order: their places; distance: how many operations lie
    between each and the backward pass. fixed: those that may not be computed again."""

    def __init__(self, passes: TwoPasses) -> None:
        self.passes = passes
        self.nodes = [node for node in passes.nodes if node in passes.earlier]
        self.order = {node: place for place, node in enumerate(self.nodes)}
        self.fuses = {node: _fuses(node) for node in passes.nodes}
        self.distance: dict[fx.Node, int] = {}
        for node in reversed(passes.nodes):
            self.distance[node] = 0 if node not in self.order else min(
                (self.distance.get(user, NOT_READ) + 1 for user in node.users), default=NOT_READ)
        self.fixed = {node for node in self.order if _may_be_fixed(node) and (node.op == "placeholder" or self._is_costly(node))}
        self._fix_what_is_used_far_apart()
        self._fix_long_chains()

    def kept(self) -> list[fx.Node]:
        """The values that are kept, in their order. Raises ValueError if one can neither be kept nor be computed again."""
        network = Network()
        returned = {node for node in self.passes.gradients if node is not None}
        nodes = self.passes.nodes
        # of each value two vertices: the edge between them is cut where it is kept; what the source leads to is not computed again
        made = {node: SINK if node in self.passes.later or _must_recompute(node) else SOURCE if node in self.fixed
                else network.vertex() for node in nodes}
        read = {node: network.vertex() for node in nodes if made[node] != SINK}
        for node, vertex in read.items():
            network.edge(made[node], vertex, self._weight(node))
            if node in returned:
                network.edge(vertex, SINK, math.inf)
            for user in node.users:
                if user in made:
                    network.edge(vertex, made[user], math.inf)
        side = network.sink_side()
        return [node for node, vertex in read.items() if vertex in side and made[node] not in side]

    def _weight(self, node: fx.Node) -> float:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return math.inf
        far = NEARER ** max(min(self.distance[node], FARTHEST), 1)
        return int(_size(node) * far) * (1 if self._is_in_memory(node) else 2)

    def _is_in_memory(self, node: fx.Node) -> bool:
        """Whether a value is written to memory, kept or not."""
        return node.op == "placeholder" or not all(self._fuse(node, user) for user in node.users)

    def _fuse(self, node: fx.Node, user: fx.Node) -> bool:
        """Whether both can be one kernel."""
        return _name(user) == "cat" or self.fuses[node] and self.fuses.get(user, False)

    def _is_costly(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node.target is operator.getitem:
            return False
        if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
            return True
        if node.target in FRESH:
            return False
        if not self.fuses[node] or _name(node) in DRAWN or self._is_written_later(node):
            return True
        return _size(node) * REDUCTION < sum(_size(arg) for arg in node.args if isinstance(arg, fx.Node))

    def _is_written_later(self, node: fx.Node) -> bool:
        """Whether the backward pass would have to write a value to memory: to compute that again is not free."""
        waiting = [] if _is_view(node) else [node]
        while waiting:
            one = waiting.pop()
            if any(user not in self.order and not self._fuse(one, user) for user in one.users):
                return True
            waiting += filter(_is_view, one.users)
        return False

    def _fix_what_is_used_far_apart(self) -> None:
        """What reads a value only after an operation that ends a kernel is one kernel with others than what reads it before."""
        for node in self.order:
            users = [user for user in node.users if user in self.order]
            if len(users) > 1:
                last = self._end_of_kernel(users)
                behind = [user for user in users if self.order[user] > last and self._fuse(node, user)]
                self.fixed.update(filter(_may_be_fixed, behind))

    def _end_of_kernel(self, users: list[fx.Node]) -> int:
        """The place of the first node, of those computed from `users` up to the last of these, that is no kernel with what it
        reads."""
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
                if self.order.get(user, end + 1) <= end and (entry := (self.order[user], self._fuse(node, user))) not in seen:
                    seen.add(entry)
                    heapq.heappush(waiting, entry)
        return end

    def _fix_long_chains(self) -> None:
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
                if place > start + CHAIN and not waiting:
                    if _may_be_fixed(node):
                        self.fixed.add(node)
                    break
                for user in node.users:
                    if user in self.order and user not in self.fixed and self._fuse(node, user):
                        heapq.heappush(waiting, self.order[user])


def _must_recompute(node: fx.Node) -> bool:
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _may_be_fixed(node: fx.Node) -> bool:
    return not _is_view(node) and not _must_recompute(node)


def _name(node: fx.Node) -> str:
    """What ATen calls an operation; "" if it is none of ATen's."""
    target = node.target
    return target._opname if isinstance(target, OpOverload) and target.namespace in ("aten", "prims") else ""


def _is_view(node: fx.Node) -> bool:
    return _name(node) in VIEWS


def _fuses(node: fx.Node) -> bool:
    """Whether an operation can be one kernel with others."""
    if not isinstance(node.target, OpOverload):
        return node.op == "call_function" and not isinstance(node.target, HigherOrderOperator)      # a part, or sizes
    name = _name(node)
    return name in CHEAP or name in DRAWN or node.target.namespace == "aten" and facts_of(node.target).is_pointwise


def _size(node: fx.Node) -> int:
    """What a node's value takes in memory, in bytes."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    return sum(_elements(part) * part.itemsize for part in parts if isinstance(part, Tensor))


def _elements(tensor: Tensor) -> int:
    return math.prod(map(expected, tensor.shape))
