"""Nodes of ATen graphs, made by passes over them."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true


def insert_call(before: fx.Node, op: OpOverload, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
    """A new call of `op`, before a node, with its fake result; `val` where the operator cannot compute that itself."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(op, args, kwargs)
    node.meta["val"] = fake_result(node) if val is None else val
    return node


def fake_result(node: fx.Node) -> Any:
    """What the call gives for the fake tensors of its arguments, and any numbers in the places of those that change. Where sizes
    change from call to call, as torch puts operators together in Python, since C++ takes many sizes for numbers."""
    fake = _fake if "number" in node.meta else _fake_or_number
    modes = [value.fake_mode for value in map(_fake, node.all_input_nodes) if isinstance(value, FakeTensor)]
    with contextlib.ExitStack() as stack:
        if modes and modes[0].shape_env is not None:
            stack.enter_context(modes[0])
            stack.enter_context(enable_python_dispatcher())
        return node.target(*fx.node.map_arg(node.args, fake), **fx.node.map_arg(dict(node.kwargs), fake))


def _fake(node: fx.Node) -> Any:
    return node.meta["val"]


def _fake_or_number(node: fx.Node) -> Any:
    return node.meta["number"](1) if "number" in node.meta else node.meta["val"]


def expected(size: int | torch.SymInt) -> int:
    """What a size is in the call that a graph is compiled for. For estimates alone: it may be another one in the next call."""
    return size if isinstance(size, int) else size.node.hint


def takes_sizes(node: fx.Node) -> bool:
    """Whether a size that changes from call to call, or a number calculated from such sizes, is among the arguments of a call."""
    found: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), lambda value: found.append(value) or value)
    return any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in found)


def same(sizes: Sequence[int | torch.SymInt], others: Sequence[int | torch.SymInt]) -> bool:
    """Whether two traced tensors have the same sizes, or strides, in each call."""
    return len(sizes) == len(others) and all(statically_known_true(a == b) for a, b in zip(sizes, others, strict=True))


def replace_each(gm: fx.GraphModule, substitute: Callable[[fx.Node], fx.Node | None]) -> int:
    """Puts what `substitute` makes of a node, before it, in the place of each node for which that is not None; returns how many."""
    count = 0
    for node in list(gm.graph.nodes):
        new = substitute(node)
        if new is not None:
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
            count += 1
    if count:
        gm.recompile()
    return count
