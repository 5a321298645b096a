"""Backward passes that start at some of the results only: which parts of the backward graph they share. Eager mode's autograd graph
on fake tensors and the traced backward graph show it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from capture.backends.aot.aten import aten, is_view
from capture.backends.aot.observed import Eager, below
from capture.backends.native.signature import PartialPasses

# Operators that make zeros of zeros, whatever else there is, besides views.
PLAIN = frozenset({aten._to_copy.default, aten.clone.default, aten.neg.default, aten.sum.dim_IntList, aten.sum.default,
                   aten.slice_backward.default, aten.select_backward.default, aten.constant_pad_nd.default,
                   aten._reshape_copy.default})
ADDING = frozenset({aten.add.Tensor, aten.sub.Tensor})


def partial_passes(roots: Sequence[torch.Tensor], joined: Any, eager: Eager) -> PartialPasses:
    """The partial passes of a graph with differentiable results that are computed from the same inputs. roots: the tensors of eager
    mode for the results. joined: see `flow`."""
    holding = [set(filter(eager.holds, below(root))) for root in roots]
    made = [(root.grad_fn._sequence_nr(), -root.output_nr) for root in roots]       # a node's own results come in turn
    return PartialPasses(
        order=tuple(sorted(range(len(roots)), key=made.__getitem__)),
        freed=tuple(tuple(other for other, nodes in enumerate(holding) if not own.isdisjoint(nodes)) for own in holding),
        joined=joined)


def flow(backward: fx.GraphModule, tangents: Sequence[fx.Node]) -> tuple[tuple[tuple[int, ...], ...] | None, ...]:
    """`PartialPasses.joined`, of a backward graph with these placeholders."""
    sources = _sources(backward, tangents)
    return tuple(_joined(i, node, sources) for i, node in enumerate(tangents))


def _sources(backward: fx.GraphModule, roots: Sequence[fx.Node]) -> dict[fx.Node, frozenset[int]]:
    """For each node, which of the roots it is computed from."""
    sources: dict[fx.Node, frozenset[int]] = {node: frozenset({i}) for i, node in enumerate(roots)}
    for node in backward.graph.nodes:
        if node not in sources and node.op != "output":
            sources[node] = frozenset().union(*(sources[arg] for arg in node.all_input_nodes))
    return sources


def _joined(index: int, tangent: fx.Node, sources: dict[fx.Node, frozenset[int]]) -> tuple[tuple[int, ...], ...] | None:
    found, stack, alone = [], [tangent], frozenset({index})
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                continue
            if sources[user] == alone and (is_view(user) or user.target in PLAIN):
                stack.append(user)
            elif user.target in ADDING and sources[user] != alone:
                found.append(tuple(sorted(sources[user] - alone)))
            else:
                return None
    return tuple(sorted(set(found)))

