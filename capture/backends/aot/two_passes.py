"""The graphs of the forward and of the backward pass, taken out of a joint graph."""
from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from torch import fx

from capture.backends.aot.aten import is_random, is_write, outputs_of


class TwoPasses:
    """A joint graph, whose inputs named "tangents…" only the backward pass takes. results, gradients: what each pass returns.
    later: the nodes that are computed from gradients, or belong to the backward pass. earlier: those that the forward pass
    computes, whatever is kept."""

    def __init__(self, joint: fx.Graph, results: int, are_one: bool = False) -> None:
        """are_one: whether the graphs become one again: of that all belongs to the forward pass which needs no gradients."""
        self.nodes = [node for node in joint.nodes if node.op != "output"]
        self.order = {node: place for place, node in enumerate(self.nodes)}
        returned = list(outputs_of(joint))
        self.results, self.gradients = returned[:results], returned[results:]
        placeholders = joint.find_nodes(op="placeholder")
        self.inputs = [node for node in placeholders if not _is_tangent(node)]
        self.tangents = [node for node in placeholders if _is_tangent(node)]
        end = len(self.nodes)
        self._begin = min((self.order.get(user, end) for tangent in self.tangents for user in tangent.users), default=end)
        self.later = self._later()
        possible = self._possible(self.inputs, _must_be_in_backward)
        self._effects = {node for node in possible if _does_more(node) and not self._draws_late(node)}
        ends = set(self.nodes) - self.later if are_one else [*_nodes(self.results), *self._effects]
        self.earlier = {*self.inputs, *_needed(ends, set(self.inputs))}

    def _later(self) -> set[fx.Node]:
        found = set(self.tangents)
        for node in self.nodes:
            if _must_be_in_backward(node):
                found.add(node)
            if node in found:
                found.update(node.users)
        return found

    def _possible(self, inputs: Iterable[fx.Node], is_excluded: Callable[[fx.Node], bool]) -> set[fx.Node]:
        """What can be computed of these inputs without the nodes that are excluded."""
        found = set(inputs)
        for node in self.nodes:
            if node.op != "placeholder" and not is_excluded(node) and found.issuperset(node.all_input_nodes):
                found.add(node)
        return found

    def _draws_late(self, node: fx.Node) -> bool:
        """Whether random numbers are drawn after the backward pass has begun: so they are, whatever they are drawn for."""
        return is_random(node) and self.order[node] > self._begin

    def divided(self, kept: Sequence[fx.Node]) -> tuple[fx.Graph, fx.Graph]:
        """The forward graph, which takes the inputs, and returns the results and then what is kept, if the backward pass reads it;
        and the backward graph, which takes that and then the tangents."""
        later = self._again_and_later([*kept, *self.tangents])
        read = {*_nodes(self.gradients), *(arg for node in later for arg in node.all_input_nodes)}
        kept = [node for node in kept if node in read]
        returned = [*self.results, *kept]
        earlier = _needed([*_nodes(returned), *self._effects], set(self.inputs))
        return (_graph([node for node in self.nodes if node in earlier], self.inputs, returned),
                _graph(later, [*kept, *self.tangents], self.gradients))

    def _again_and_later(self, inputs: Sequence[fx.Node]) -> list[fx.Node]:
        """What the backward pass computes of its inputs. Operations of the forward pass that it does again come late: so their
        results are held for a short time."""
        possible, made = self._possible(inputs, _must_be_in_forward), set(inputs)
        effects = [node for node in possible - made if is_write(node) or self._draws_late(node)]
        needed = _needed([*_nodes(self.gradients), *effects], made)
        if not needed <= possible:
            raise AssertionError(f"the backward pass cannot compute {sorted(map(str, needed - possible))}")
        ordered: list[fx.Node] = []
        for node in [*self.nodes[self._begin:], *self.nodes[:self._begin]]:
            if node in needed and node not in made:
                before = _needed([node], made)
                ordered += sorted(before, key=self.order.__getitem__)
                made |= before
        return ordered


def _is_tangent(node: fx.Node) -> bool:
    return "tangents" in str(node.target)


def _must_be_in_forward(node: fx.Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    return tag == "must_be_in_forward" or tag not in ("is_backward", "must_be_in_backward") and is_write(node)


def _must_be_in_backward(node: fx.Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    return tag == "must_be_in_backward" or tag == "is_backward" and is_write(node)


def _does_more(node: fx.Node) -> bool:
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
    """The nodes, with parts of what an operation returns right behind it: what is no part of that is used is freed there."""
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
