"""The backward graph in segments: one for each set of results whose backward passes come to the same places.

Each becomes a node of autograd. From the gradient of its result a node computes gradients for inputs of the graph, for the results
that its own is computed from, and for nodes of larger sets. torch's engine does the rest: hooks, `retain_grad`, which tensors a
pass comes to. Where sets join, gradients are added (or lie side by side): a set that a pass does not come to counts as zeros there.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture.backends.aot.aten import aten
from capture.backends.aot.inner import Inner
from capture.backends.aot.observed import overlaps_itself
from capture.backends.aot.symbols import sizes_of
from capture.backends.native.signature import Input, Part, Result, Signature, Tangent, Unsupported

Label = frozenset[int]      # differentiable results
NONE: Label = frozenset()


@dataclass(slots=True)
class _Segment:
    """The part of the backward graph with one label."""

    results: list[int] = field(default_factory=list)        # with this very label
    joined: list[fx.Node] = field(default_factory=list)     # nodes of other segments whose values it takes, in order
    nodes: list[fx.Node] = field(default_factory=list)      # its own, in order
    # By place among the inputs: the gradient that it passes to an input; None for one that it only reaches through others.
    gradients: dict[int, fx.Node | None] = field(default_factory=dict)


def divide(backward: fx.GraphModule, signature: Signature, inner: Inner,
           results: Sequence[Tensor]) -> tuple[list[fx.GraphModule], tuple[Part, ...]]:
    """The segments' graphs, and how they are called: those first that others hand gradients to. signature: of the whole graph.
    results: tensors like the differentiable ones. Raises Unsupported where the graph does not tell what autograd does."""
    return _Division(backward, signature, inner, results).run()


class _Division:
    def __init__(self, backward: fx.GraphModule, signature: Signature, inner: Inner, results: Sequence[Tensor]) -> None:
        self.backward, self.signature, self.inner, self.checks = backward, signature, inner, signature.checks
        placeholders = backward.graph.find_nodes(op="placeholder")
        self.saved = placeholders[:len(signature.saved)]
        tangents = zip(signature.tangents, placeholders[len(self.saved):], strict=True)
        self.tangents = {tangent.index: node for tangent, node in tangents}
        for _, gradient in signature.gradients:     # some are only handed on
            if isinstance(gradient, Tangent) and gradient.index not in self.tangents:
                with backward.graph.inserting_before(next(iter(backward.graph.nodes))):
                    self.tangents[gradient.index] = backward.graph.placeholder(f"tangent_{gradient.index}")
                self.tangents[gradient.index].meta["val"] = results[gradient.index]
        self.results = list(backward.graph.output_node().args[0])
        self.labels: dict[fx.Node, Label] = dict.fromkeys(self.saved, NONE)
        self.segments: dict[Label, _Segment] = {}

    def run(self) -> tuple[list[fx.GraphModule], tuple[Part, ...]]:
        self._label()
        self._collect()
        if not {frozenset(check.results) for check in self.checks} <= self.segments.keys():
            raise Unsupported("the traced backward pass does not tell which results it takes a saved tensor for")
        order = sorted(self.segments, key=lambda label: (-len(label), sorted(label)))
        numbers = {label: number for number, label in enumerate(order)}
        made = [self._make(label, numbers) for label in order]
        return [gm for gm, _ in made], tuple(part for _, part in made)

    # --- which node belongs where

    def _label(self) -> None:
        labels = self.labels
        labels |= {node: self.inner.sources[index] for index, node in self.tangents.items()}
        nodes = [node for node in self.backward.graph.nodes if node.op not in ("placeholder", "output")]
        for node in nodes:
            labels[node] = NONE.union(*(labels[arg] for arg in node.all_input_nodes))
        for node in reversed(nodes):        # sums of three and more are one join
            user = next(iter(node.users), None)
            if (node.target is aten.add.Tensor and len(node.users) == 1 and user is not None and user.target is aten.add.Tensor
                    and all(labels[arg] != labels[node] for arg in node.all_input_nodes)):
                labels[node] = labels[user]

    def _collect(self) -> None:
        for index, label in enumerate(self.inner.sources):
            self._segment(label).results.append(index)
        for node in self.backward.graph.nodes:
            label = self.labels.get(node, NONE)
            if not label or node.op == "placeholder":
                continue
            segment = self._segment(label)
            segment.nodes.append(node)
            segment.joined += [arg for arg in node.all_input_nodes
                               if self.labels[arg] not in (NONE, label) and arg not in segment.joined]
        gradients = {place: self._node_of(gradient) for place, gradient in self.signature.gradients if gradient is not None}
        for place in set(gradients).union(*self.inner.reached):
            label = self.labels[gradients[place]] if place in gradients else NONE
            expected = NONE.union(*(self.inner.sources[i] for i, places in enumerate(self.inner.reached) if place in places))
            if label != expected:
                raise Unsupported("the traced backward pass does not tell from which results autograd comes to an input")
            if not label:
                continue
            for segment in self.segments.values():      # in passes with `create_graph` each result's node does all by itself
                if any(place in self.inner.reached[result] for result in segment.results):
                    segment.gradients[place] = None
            self._segment(label).gradients[place] = gradients[place]

    def _segment(self, label: Label) -> _Segment:
        return self.segments.setdefault(label, _Segment())

    def _node_of(self, gradient: Result | Tangent) -> fx.Node:
        return self.tangents[gradient.index] if isinstance(gradient, Tangent) else self.results[gradient.index]

    # --- one segment

    def _make(self, label: Label, numbers: Mapping[Label, int]) -> tuple[fx.GraphModule, Part]:
        segment = self.segments[label]
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        needed = self._needed(segment)
        taken = [*(self.tangents.get(result) for result in segment.results), *segment.joined]
        saved = [place for place, node in enumerate(self.saved) if node in needed]
        used = [place for place, node in enumerate(taken) if node in needed]
        for source in (*(self.saved[place] for place in saved), *(taken[place] for place in used)):
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
        for place in used:
            copies[taken[place]].meta["val"] = _full(taken[place].meta["val"])
        for node in self.backward.graph.nodes:
            if node in needed and node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        handed = {(Input(place), None): node for place, node in sorted(segment.gradients.items())}
        handed |= {(Result(numbers[other]), place): node for other, one in self.segments.items()
                   for place, node in enumerate(one.joined) if self.labels[node] == label}
        results: list[fx.Node] = []
        gradients: list[Result | Tangent | None] = []
        for node in handed.values():
            if node is None:
                gradients.append(None)
            elif node in taken:
                gradients.append(_tangent(taken.index(node), node))
            else:
                if node not in results:
                    results.append(node)
                gradients.append(Result(results.index(node)))
        graph.output(tuple(copies[node] for node in results))
        part = Part(
            results=tuple(segment.results),
            joined=tuple(_tangent(len(segment.results) + place, node) for place, node in enumerate(segment.joined)),
            edges=tuple((name.index, -1) if place is None else (name.index, place) for name, place in handed),
            saved=tuple(self.signature.saved[place] for place in saved),
            tangents=tuple(_tangent(place, taken[place]) for place in used),
            gradients=tuple(gradients),
            checks=tuple(replace(check, results=(0,)) for check in self.checks if frozenset(check.results) == label))
        return _LazyGraphModule(self.backward, graph), part

    def _needed(self, segment: _Segment) -> set[fx.Node]:
        """The nodes of a segment's graph, including those that are computed again from saved values alone."""
        taken = {*segment.joined, *(self.tangents[result] for result in segment.results if result in self.tangents)}
        stack = [*segment.nodes]
        needed = set(stack)
        while stack:
            node = stack.pop()
            new = set() if node in taken else set(node.all_input_nodes) - needed
            needed |= new
            stack += new
        return needed


def _full(value: Tensor) -> Tensor:
    """A tensor like a tangent that a segment takes: one expanded from fewer elements is full, since another may be added to it on
    the way."""
    return torch.empty_like(value, memory_format=torch.contiguous_format) if overlaps_itself(value) else value


def _tangent(index: int, node: fx.Node) -> Tangent:
    value = _full(node.meta["val"])
    return Tangent(index, sizes_of(value.shape), sizes_of(value.stride()), value.dtype, value.device)
