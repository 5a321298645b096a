"""Attention that a program writes out, as one `scaled_dot_product_attention`.

Works on the torch-level graph, before autograd sees it, so that the backward pass is the kernel's own as well. Only attention
without a mask and without dropout is replaced: a row that a mask leaves empty is NaN when written out and zero in the kernel, and
dropout draws other numbers.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx

KERNEL_DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}


@dataclass(frozen=True, slots=True)
class Attention:
    """`softmax(query @ key.transpose(-2, -1) * scale, -1) @ value`, ending in node `result`."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    scale: float
    result: fx.Node


def fuse_attention(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> int:
    """Replaces every written-out attention in `gm` for which the kernel computes the same. Returns how many.

    inputs: fake tensors for the placeholders; they are propagated only when there is a candidate.
    """
    candidates = [found for node in gm.graph.nodes if (found := _attention(node)) is not None]
    if not candidates:
        return 0
    shapes = _shapes(gm, inputs)
    count = 0
    for found in candidates:
        if _same_in_kernel(*(shapes.get(node) for node in (found.query, found.key, found.value))):
            with gm.graph.inserting_before(found.result):
                new = gm.graph.call_function(F.scaled_dot_product_attention, (found.query, found.key, found.value),
                                             {"scale": found.scale})
                new.meta.update(found.result.meta)
            found.result.replace_all_uses_with(new)
            gm.graph.erase_node(found.result)
            count += 1
    if count:
        gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or name_of(node) not in PART_NAMES)
        gm.recompile()
    return count


PART_NAMES = {"matmul", "transpose", "softmax", "truediv", "div", "mul", "dropout"}


def name_of(node: fx.Node) -> str:
    """What a node does, by the name of its function or method."""
    return (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).strip("_")


def _attention(result: fx.Node) -> Attention | None:
    if name_of(result) != "matmul" or len(result.args) != 2:
        return None
    weights, value = result.args
    weights = _without_dropout(weights)
    if not (_is_part(weights, "softmax") and _over_last(weights)):
        return None
    scores, scale = weights.args[0], 1.0
    if _is_part(scores, "truediv", "div", "mul") and len(scores.args) == 2 and not scores.kwargs:
        scores, factor = scores.args
        if not isinstance(factor, (int, float)) or not math.isfinite(factor) or factor == 0:
            return None
        scale = float(factor) if name_of(weights.args[0]) == "mul" else 1.0 / factor
    if not (_is_part(scores, "matmul") and len(scores.args) == 2):
        return None
    query, transposed = scores.args
    if not (_is_part(transposed, "transpose") and sorted(transposed.args[1:]) in ([-2, -1], [2, 3])):
        return None
    if not all(isinstance(node, fx.Node) for node in (query, transposed.args[0], value)):
        return None
    return Attention(query, transposed.args[0], value, scale, result)


def _is_part(node: object, *names: str) -> bool:
    """A node of one of these names whose result nothing else uses."""
    return isinstance(node, fx.Node) and name_of(node) in names and len(node.users) == 1


def _over_last(softmax: fx.Node) -> bool:
    dims = [*softmax.args[1:], softmax.kwargs.get("dim")]
    return -1 in dims and softmax.kwargs.get("dtype") is None


def _without_dropout(node: object) -> object:
    """Through a dropout that does nothing."""
    if _is_part(node, "dropout"):
        p = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
        if p == 0 or training is False:
            return node.args[0]
    return node


def _shapes(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
    """The fake value of each node that has one."""
    class Propagation(fx.Interpreter):
        def run_node(self, node: fx.Node) -> object:
            value = super().run_node(node)
            if isinstance(value, torch.Tensor):
                found[node] = value
            return value
    found: dict[fx.Node, torch.Tensor] = {}
    Propagation(gm).run(*inputs)
    return found


def _same_in_kernel(query: torch.Tensor | None, key: torch.Tensor | None, value: torch.Tensor | None) -> bool:
    """Whether shapes and dtypes are such that the kernel computes what the program does, without broadcasting."""
    if query is None or key is None or value is None or query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return False
    return (query.dtype == key.dtype == value.dtype and query.dtype in KERNEL_DTYPES
            and query.shape[:2] == key.shape[:2] == value.shape[:2]
            and key.shape[2] == value.shape[2] and query.shape[3] == key.shape[3] == value.shape[3])
