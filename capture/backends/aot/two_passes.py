"""The graphs of the forward and of the backward pass, taken out of a joint graph."""
from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

from torch import fx

from capture.backends.aot.aten import is_random, is_write, outputs_of
from capture.backends.native.signature import Unsupported

TANGENT = "tangents_"       # how the names of inputs begin that only the backward pass takes


class TwoPasses:
    """A joint graph. results, gradients: what each pass returns. later: the nodes that depend on a tangent, or belong to the
    backward pass for another reason. earlier: those that the forward pass computes for its results."""

    def __init__(self, joint: fx.Graph, results: int, joined_again: bool = False) -> None:
        """joined_again: whether the graphs are put one behind the other afterwards. Then all that is not later is earlier."""
        self.nodes = [node for node in joint.nodes if node.op != "output"]
        self.order = {node: place for place, node in enumerate(self.nodes)}
        returned = list(outputs_of(joint))
        self.results, self.gradients = returned[:results], returned[results:]
        placeholders = joint.find_nodes(op="placeholder")
        self.inputs = [node for node in placeholders if not is_tangent(node)]
        self.tangents = [node for node in placeholders if is_tangent(node)]
        self.later = computed_from([
            *self.tangents, *late_draws(self.nodes, self.tangents), *filter(_belongs_to_backward, self.nodes)])
        computable = self._computable(self.inputs, self.later)
        self._effects = list(filter(_has_effect, computable))
        ends = set(self.nodes) - self.later if joined_again else [*_nodes(self.results), *self._effects]
        self.earlier = {*self.inputs, *_needed(ends, set(self.inputs))}

    def _computable(self, inputs: Iterable[fx.Node], excluded: Set[fx.Node]) -> set[fx.Node]:
        """What can be computed of these inputs without the nodes that are excluded."""
        found = set(inputs)
        for node in self.nodes:
            if node.op != "placeholder" and node not in excluded and found.issuperset(node.all_input_nodes):
                found.add(node)
        return found

    def divided(self, kept: Sequence[fx.Node]) -> tuple[fx.Graph, fx.Graph]:
        """The forward graph, which takes the inputs, and returns the results and then what is kept, if the backward pass reads it;
        and the backward graph, which takes that and then the tangents. Raises Unsupported if that is not enough."""
        later = self._repeated_and_later([*kept, *self.tangents])
        read = {*_nodes(self.gradients), *(arg for node in later for arg in node.all_input_nodes)}
        kept = [node for node in kept if node in read]
        returned = [*self.results, *kept]
        earlier = _needed([*_nodes(returned), *self._effects], set(self.inputs))
        return (_graph([node for node in self.nodes if node in earlier], self.inputs, returned),
                _graph(later, [*kept, *self.tangents], self.gradients))

    def _repeated_and_later(self, inputs: Sequence[fx.Node]) -> list[fx.Node]:
        """The nodes of the backward pass in order. An operation of the forward pass that is repeated comes right before its first
        reader, so that its result lives briefly."""
        computable = self._computable(inputs, set(filter(_belongs_to_forward, self.nodes)))
        made = set(inputs)
        effects = [node for node in computable - made if _has_effect(node) and (node in self.later or is_write(node))]
        needed = _needed([*_nodes(self.gradients), *effects], made)
        if not needed <= computable:
            raise Unsupported("the backward pass needs what only the forward pass can compute, and that is not kept")
        begin = _begin(self.nodes, self.tangents)
        ordered: list[fx.Node] = []
        for node in [*self.nodes[begin:], *self.nodes[:begin]]:
            if node in needed and node not in made:
                before = _needed([node], made)
                ordered += sorted(before, key=self.order.__getitem__)
                made |= before
        return ordered


def is_tangent(node: fx.Node) -> bool:
    """Whether an input of a joint graph is the gradient of a result."""
    return str(node.target).startswith(TANGENT)


def computed_from(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """These nodes, and those that depend on them."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.users
    return found


def late_draws(nodes: Sequence[fx.Node], tangents: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that draw random numbers after the backward pass has begun. They stay there, whatever the numbers are for: so they
    are drawn in eager mode's order."""
    return list(filter(is_random, nodes[_begin(nodes, tangents):]))


def _begin(nodes: Sequence[fx.Node], tangents: Iterable[fx.Node]) -> int:
    """The place of the first node that takes a tangent."""
    takers = {user for tangent in tangents for user in tangent.users}
    return next((place for place, node in enumerate(nodes) if node in takers), len(nodes))


def _belongs_to_forward(node: fx.Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    return tag == "must_be_in_forward" or tag not in ("is_backward", "must_be_in_backward") and is_write(node)


def _belongs_to_backward(node: fx.Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    return tag == "must_be_in_backward" or tag == "is_backward" and is_write(node)


def _has_effect(node: fx.Node) -> bool:
    """Whether a node does more than to compute its value."""
    return node.op == "call_function" and (is_write(node) or is_random(node))


def _nodes(values: Iterable[fx.Node | None]) -> list[fx.Node]:
    return [value for value in values if value is not None]


def _needed(ends: Iterable[fx.Node], given: Set[fx.Node]) -> set[fx.Node]:
    """What has to be computed for these nodes, where some are given."""
    found: set[fx.Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found and node not in given:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _graph(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], returned: Sequence[fx.Node | None]) -> fx.Graph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = node.meta
    for node in _parts_first(nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(node and copies[node] for node in returned))
    return graph


def _parts_first(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """The nodes, with the parts of what an operation returns right behind it: what nobody uses is freed there."""
    parts: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in nodes:
        if node.target is operator.getitem:
            parts[node.all_input_nodes[0]].append(node)
    for node in nodes:
        if node.target is not operator.getitem:
            waiting = [node]
            while waiting:
                yield (following := waiting.pop())
                waiting += reversed(parts[following])
