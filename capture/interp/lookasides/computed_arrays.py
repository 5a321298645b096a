"""Arrays of numpy on the memory of tensors that the graph computes, and what numpy computes from them, or from random numbers: it
is computed again on every hit, after the graph.

No such array is written to in the trace, and no tensor that has become one. Where one becomes a tensor again, the trace ends.
"""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture.errors import Break
from capture.interp import arrays, failing
from capture.interp.frame import Args, Kwargs, Value
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides.effects import new_object
from capture.interp.lookasides.replays import snapshot
from capture.interp.models import hashable
from capture.refgraph.effects import Replayed, user_stack
from capture.refgraph.graph import PINNED
from capture.refgraph.lookup import parts
from capture.refgraph.memory import PLAIN_TENSORS, storage_of
from capture.refgraph.ndarrays import is_value
from capture.refgraph.node import SCALARS, Build, Const, Expr, ListState, RefNode, Shadow, TensorState

QUESTIONS = frozenset({int, float})         # of numbers, which need no call


def is_exposed(real: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether the call of a method of tensors makes an array on the memory of one."""
    if real is not torch.Tensor.numpy or len(args) != 1 or kwargs:
        return False
    known = isinstance(args[0].shadow, RefNode) and type(args[0].shadow.state) is TensorState
    return known and type(args[0].real) in PLAIN_TENSORS and args[0].real.layout is torch.strided


def expose(interp: Interpreter, result: Any, tensor: Value) -> Shadow:
    """The shadow of the array on the memory of a tensor."""
    graph, node = interp.graph, tensor.shadow
    graph.touch(node)  # type: ignore[arg-type]
    call = graph.call_effect(Const(torch.Tensor.numpy), (node,), positions=interp.positions())
    graph.unwritten.setdefault((storage_of(tensor.real) or (None,))[0], (call.serial, "numpy was given a tensor",
                                                                         user_stack(call.positions)))
    return new_object(interp, result, Replayed(call, ()))


def is_repeated(shadow: Shadow | None, real: Any) -> bool:
    """Whether a hit makes an array or number of numpy anew by a call."""
    return isinstance(shadow, RefNode) and isinstance(shadow.origin, Replayed) and is_value(real)


def repeats(real: Any, values: list[Value]) -> bool:
    """Whether a call computes with such arrays, and is given nothing but data besides."""
    computes = hashable(real) and real in arrays.ASKING and real not in QUESTIONS or arrays.computes(real)
    return computes and any(_holds_repeated(v.shadow, v.real) for v in values) and all(_is_data(v.shadow, v.real) for v in values)


def _items(shadow: Shadow | None, real: Any) -> list[tuple[Shadow, Any]] | None:
    """What a tuple, slice or list of the trace holds; None for what is no such container."""
    if isinstance(shadow, Build) and isinstance(real, (tuple, slice)):
        return list(zip(shadow.items, parts(real), strict=True))
    if isinstance(shadow, RefNode) and type(real) is list and isinstance(shadow.state, ListState):
        return list(zip(shadow.state.items, real, strict=True))
    return None


def _holds_repeated(shadow: Shadow | None, real: Any) -> bool:
    items = _items(shadow, real)
    return is_repeated(shadow, real) if items is None else any(_holds_repeated(*item) for item in items)


def _is_data(shadow: Shadow | None, real: Any) -> bool:
    items = _items(shadow, real)
    if items is not None:
        return all(_is_data(*item) for item in items)
    return is_repeated(shadow, real) or type(real) in SCALARS or isinstance(shadow, Const) or isinstance(real, PINNED)


def refusal(interp: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Break | None:
    """Why such a call cannot be repeated."""
    name = getattr(real, "__name__", "")
    if name.strip("_") in arrays.WRITING or "out" in kwargs or type(real).__name__ == "ufunc" and len(args) > real.nin:
        return Break("opaque-call", f"{name}() writes to an array that is another on each call")
    if failing.is_watched(interp.frame):
        return Break("failing-operation", f"{name}() of numpy where a handler is in force")
    if interp.retreats is not None and interp.retreats.is_too_early(interp):
        return Break("late-change", f"{name}() was given a tensor which changed after it")
    return None


def repeat(interp: Interpreter, real: Any, args: Args, kwargs: Kwargs, result: Any) -> Shadow:
    """The shadow of what numpy computed."""
    values = [*args, *kwargs.values()]
    known = next((value.shadow for value in values if value.real is result and type(result) not in SCALARS), None)
    if known is not None:
        return known
    scalars = type(result) is tuple and all(type(item) in SCALARS for item in result)
    if not (scalars or is_value(result) or type(result) in SCALARS):
        raise Break("opaque-call", f"{getattr(real, '__name__', 'a function')}() of numpy returned a {type(result).__name__}")
    given = tuple(snapshot(interp, value) for value in values)
    call = interp.graph.call_effect(Const(real), given, tuple(kwargs), positions=interp.positions())
    whole = Replayed(call, (), None, result if type(result) in SCALARS else None)
    if scalars:
        return Build(tuple, tuple(Expr(operator.getitem, (whole, Const(index))) for index in range(len(result))))
    return whole if type(result) in SCALARS else new_object(interp, result, whole)
