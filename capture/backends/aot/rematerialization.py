"""What a training step that is one graph computes again in its backward pass, rather than keep it in memory from the forward pass.

The partition of least memory traffic, which divides other training graphs in two, decides this here as well. Then the two graphs
become one again.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture.backends.aot.aten import aten, outputs_of
from capture.backends.aot.partition import partition
from capture.backends.aot.two_passes import TANGENT, computed_from, late_draws


def rematerialized(gm: fx.GraphModule, seeds: Collection[str]) -> fx.GraphModule:
    """`gm`, with such operations twice. seeds: the names of nodes where backward passes begin."""
    graph = gm.graph
    begins = [node for node in graph.nodes if node.name in seeds]
    writes = list(filter(_writes_input, graph.nodes))
    if not begins:
        return gm
    returned = list(outputs_of(graph))
    values = [*returned, *(write.args[1] for write in writes)]
    later = computed_from([*begins, *late_draws(list(graph.nodes), begins)])
    order = sorted(range(len(values)), key=lambda place: values[place] in later)
    joint = _joint(graph, begins, [values[place] for place in order])
    first = sum(value not in later for value in values)
    forward, backward = partition(joint, first, joined_again=True)
    made = fx.Graph()
    nodes = {node.name: made.node_copy(node) for node in graph.nodes if node.op == "placeholder"}
    ends = [*_copied(made, forward, nodes)[:first]]
    nodes |= {_tangent(place): made.node_copy(node, lambda arg: nodes[arg.name]) for place, node in enumerate(begins)}
    ends += _copied(made, backward, dict(nodes))
    found = dict(zip(order, ends, strict=True))
    for place, write in enumerate(writes, len(returned)):
        copy = made.call_function(write.target, (nodes[write.args[0].name], found[place]))
        copy.meta = dict(write.meta)
    end = made.output(tuple(found[place] for place in range(len(returned))))
    end.meta = dict(graph.output_node().meta)
    return _LazyGraphModule(gm, made)


def _writes_input(node: fx.Node) -> bool:
    """Whether a node is one of those at the graph's end, by which inputs get their new values."""
    return node.target is aten.copy_.default and not node.users


def _tangent(place: int) -> str:
    return f"{TANGENT}{place + 1}"


def _joint(graph: fx.Graph, begins: Sequence[fx.Node], values: Sequence[fx.Node]) -> fx.Graph:
    """The graph that returns these values, and takes the tensors with which backward passes begin."""
    joint = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            copies[node] = joint.node_copy(node)
    for place, node in enumerate(begins):
        copies[node] = joint.placeholder(_tangent(place))
        copies[node].meta = dict(node.meta)
    for node in graph.nodes:
        if node not in copies and node.op != "output" and not _writes_input(node):
            copies[node] = joint.node_copy(node, copies.__getitem__)
    joint.output(tuple(copies[value] for value in values))
    return joint


def _copied(made: fx.Graph, part: fx.Graph, nodes: dict[str, fx.Node]) -> list[Any]:
    """Copies the nodes of a part, whose placeholders are `nodes`, and adds them to these; returns its outputs."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in part.nodes:
        if node.op == "output":
            nodes |= {node.name: copy for node, copy in copies.items()}
            return [copies[value] for value in outputs_of(part)]
        copies[node] = nodes[node.name] if node.op == "placeholder" else made.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph without output")
