"""Memory that nobody has written to: in deterministic mode eager mode fills it."""
from __future__ import annotations

import torch
from torch import fx

from capture.backends.native.nodes import insert_call, replace_each
from capture.operators.facts import facts_of

aten = torch.ops.aten


def fill_uninitialized(gm: fx.GraphModule) -> None:
    """Fills what the graph allocates as eager mode does under the modes in force."""
    if torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory:
        replace_each(gm, _filled)


def _filled(node: fx.Node) -> fx.Node | None:
    if not facts_of(node.target).is_unwritten:
        return None
    val = node.meta["val"]
    memory = insert_call(node, node.target, *node.args, val=val, **node.kwargs)
    value = torch.empty((), dtype=val.dtype, device="cpu").item()
    return insert_call(node, aten.fill.Scalar, memory, value, val=val)
