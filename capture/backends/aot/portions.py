"""What backward passes that start at some of a graph's results have in common: eager mode's own graph of autograd is asked, on
tensors without data, and the traced backward graph."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from capture.backends.aot.aliases import INTERMEDIATE_BASES, Eager
from capture.backends.aot.aten import aten, is_view
from capture.backends.aot.joint import Joint, is_differentiable
from capture.backends.native.signature import Portions, Result, Tangent

# Operators that make zeros of zeros, whatever else there is, besides views.
PLAIN = frozenset({aten._to_copy.default, aten.clone.default, aten.neg.default, aten.sum.dim_IntList, aten.sum.default,
                   aten.slice_backward.default, aten.select_backward.default, aten.constant_pad_nd.default,
                   aten._reshape_copy.default})
ADDING = frozenset({aten.add.Tensor, aten.sub.Tensor})


def portions(joint: Joint, eager: Eager, gradients: Sequence[tuple[int, Result | Tangent]], joined: Any, used: Any) -> Portions:
    """What is to be known of a graph with several differentiable results. joined, used: of `flow`."""
    below = [_below(root) for root in _roots(joint, eager)]
    holding = [{node for node in nodes if _saves(type(node))} for nodes in below]
    inputs = [{id(node.variable) for node in nodes if hasattr(node, "variable")} for nodes in below]
    return Portions(
        reached=tuple(tuple(i for i, leaves in enumerate(inputs) if id(eager.inputs[place]) in leaves) for place, _ in gradients),
        freed=tuple(tuple(other for other, nodes in enumerate(holding) if not own.isdisjoint(nodes)) for own in holding),
        joined=joined, used=used)


def flow(backward: fx.GraphModule, saved: Sequence[fx.Node], tangents: Sequence[fx.Node]) -> tuple[Any, Any]:
    """`Portions.joined` and `Portions.used`, of a backward graph with these placeholders."""
    tangent_sources, saved_sources = _sources(backward, tangents), _sources(backward, saved)
    users: list[set[int]] = [set() for _ in saved]
    for node, results in tangent_sources.items():
        for arg in node.all_input_nodes if results else ():
            if not tangent_sources[arg]:        # else it has taken what it is computed from
                for place in saved_sources[arg]:
                    users[place] |= results
    joined = tuple(_joined(i, node, tangent_sources) for i, node in enumerate(tangents))
    return joined, tuple(tuple(sorted(places)) for places in users)


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


def _roots(joint: Joint, eager: Eager) -> list[torch.Tensor]:
    """Eager mode's tensors for the differentiable results."""
    known = list(zip(eager.outputs, joint.metadata.output_info, strict=True))
    bases = {info.base_idx: out._base for out, info in known if info.output_type in INTERMEDIATE_BASES}
    own = [out for out, info in known if is_differentiable(info)]
    return own + [bases[i] for i in range(len(joint.bases))]


def _below(tensor: torch.Tensor) -> set[Any]:
    """The nodes of autograd that a backward pass from a tensor comes to."""
    found: set[Any] = set()
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack += [following for following, _ in node.next_functions]
    return found


@functools.cache
def _saves(cls: type) -> bool:
    """Whether nodes of a class save tensors, and so can be passed but once."""
    return any(name.startswith("_raw_saved_") for name in dir(cls))
