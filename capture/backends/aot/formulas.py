"""Gradients of which torch has another formula for tensors without data than eager mode has: put right in the traced graph."""
from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten


def use_eager_formulas(graph: fx.Graph) -> None:
    """The gradient of a maximum, minimum or median of all elements: eager mode fills the places of those that are equal to it
    (`evenly_distribute_backward` of ATen's FunctionsManual.cpp), and leaves zeros; torch multiplies where there are no values to
    look at, which makes NaN of zeros if the gradient is infinite."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        found = _mask_and_share(node)
        if found is not None:
            mask, share = found
            with graph.inserting_before(node):
                zero = graph.call_function(aten.scalar_tensor.default, (0.0,), {
                    "dtype": node.meta["val"].dtype, "device": node.meta["val"].device})
                chosen = graph.call_function(aten.where.self, (mask, share, zero))
            with node.meta["val"].fake_mode:
                zero.meta["val"] = torch.zeros((), dtype=node.meta["val"].dtype, device=node.meta["val"].device)
            chosen.meta = dict(node.meta)
            zero.meta = {**node.meta, "val": zero.meta["val"]}
            node.replace_all_uses_with(chosen)
            graph.erase_node(node)


def _mask_and_share(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Which elements are equal to the result, and the share of the gradient that each of these gets."""
    for mask, share in (node.args, node.args[::-1]):
        if not (isinstance(mask, fx.Node) and isinstance(share, fx.Node)) or share.target is not aten.div.Tensor:
            continue
        count = share.args[1]
        if (mask.target is aten.logical_or.default and isinstance(count, fx.Node) and count.target is aten.sum.dim_IntList
                and count.args[0] is mask and not count.args[1]):
            return mask, share
    return None
