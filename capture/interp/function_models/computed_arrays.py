"""Arrays of numpy that share the memory of the graph's results, and what numpy computes from them or from random numbers. Every hit
computes these after the graph.

Once such an array becomes a tensor, or is written to, they are computed within the graph (`graph_arrays.py`). Until then, the trace
writes to no tensor that has become an array.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Args, Kwargs, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import hashable
from capture.interp.function_models.effects import new_object
from capture.interp.function_models.replays import snapshot
from capture.interp.function_models.shadows import shadow_of
from capture.interp.recording import arrays, may_raise
from capture.interp.recording.graph_arrays import (
    as_operand,
    compute,
    enter,
    expect_as_it_is,
    is_in_graph,
    is_of_tensor,
    is_operand,
    why_not_written,
    wrote,
)
from capture.operators.facts import facts_of
from capture.refgraph.changes import Final
from capture.refgraph.effects import CallEffect, Replayed, user_stack
from capture.refgraph.entry_state import PINNED
from capture.refgraph.lookup import parts
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.ndarrays import is_array, is_ndarray, is_value
from capture.refgraph.node import SCALARS, Build, Const, Expr, ListState, RefNode, Shadow, TensorState

QUESTIONS = frozenset({int, float})         # of numbers, which need no call
MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


def is_exposed(real: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether the call of a method of tensors makes an array on the memory of one."""
    if real is not torch.Tensor.numpy or len(args) != 1 or kwargs:
        return False
    known = isinstance(args[0].shadow, RefNode) and type(args[0].shadow.state) is TensorState
    return known and type(args[0].real) in PLAIN_TENSORS and args[0].real.layout is torch.strided


def is_of_state(interp: Interpreter, real: Any, args: Args) -> bool:
    """Whether a call makes an array on the memory of a parameter or buffer."""
    return real is torch.Tensor.numpy and interp.recorder.arrays.lies_in(interp.graph, args[0].real) is not None


def expose(interp: Interpreter, result: Any, tensor: Value) -> Shadow:
    """The shadow of the array on the memory of a tensor."""
    graph, node = interp.graph, tensor.shadow
    graph.touch(node)  # type: ignore[arg-type]
    # Without gradients tensors that require them become arrays, too; the call is repeated where gradients may be on again.
    args, names = ((node,), ()) if torch.is_grad_enabled() else ((node, Const(True)), ("force",))
    call = graph.call_effect(Const(torch.Tensor.numpy), args, names, positions=interp.positions())
    storage = storage_id(tensor.real)
    graph.forbid_changes(Final(node, storage, call.serial, "numpy was given a tensor", user_stack(call.positions)))  # type: ignore[arg-type]
    interp.recorder.arrays.note_exposed(storage, call.serial)
    return _made(interp, result, call)


def _made(interp: Interpreter, result: Any, call: CallEffect) -> RefNode:
    """The node of an array or number that a call returned."""
    node = new_object(interp, result, Replayed(call, ()))
    movable = is_ndarray(result) or not is_array(result) and result.dtype.kind != "b"      # the truths are two objects
    interp.recorder.arrays.note_repeated(call, node if movable else None)
    return node


def is_repeated(shadow: Shadow | None, real: Any) -> bool:
    """Whether a hit makes an array or number of numpy anew, by a call or in the graph."""
    return isinstance(shadow, RefNode) and is_value(real) and (isinstance(shadow.origin, Replayed) or is_in_graph(shadow))


def repeats(interp: Interpreter, real: Any, values: list[Value]) -> bool:
    """Whether a call computes with such arrays, and its other arguments are plain data."""
    computes = hashable(real) and real in arrays.ASKING and real not in QUESTIONS or arrays.computes(real)
    return computes and any(_holds(is_repeated, v.shadow, v.real) for v in values) and all(
        _is_data(interp, v.shadow, v.real) for v in values)


def _items(shadow: Shadow | None, real: Any) -> list[tuple[Shadow, Any]] | None:
    """The items of a tuple, slice or list of the trace; None for anything else."""
    if isinstance(shadow, Build) and is_a(real, (tuple, slice)):
        return list(zip(shadow.items, parts(real), strict=True))
    if isinstance(shadow, RefNode) and type(real) is list and isinstance(shadow.state, ListState):
        return list(zip(shadow.state.items, real, strict=True))
    return None


def _holds(question: Callable[[Shadow | None, Any], bool], shadow: Shadow | None, real: Any) -> bool:
    items = _items(shadow, real)
    return question(shadow, real) if items is None else any(_holds(question, *item) for item in items)


def _is_data(interp: Interpreter, shadow: Shadow | None, real: Any) -> bool:
    items = _items(shadow, real)
    if items is not None:
        return all(_is_data(interp, *item) for item in items)
    constant = is_value(real) and interp.recorder.arrays.is_computed(real) or is_outside(interp, shadow, real)
    given = type(real) in SCALARS or isinstance(shadow, Const) or is_a(real, PINNED) or arrays.is_dtype(real)
    return is_repeated(shadow, real) or constant or given


def is_outside(interp: Interpreter, shadow: Shadow | None, real: Any) -> bool:
    """Whether an array is from outside, and as it was."""
    return isinstance(shadow, RefNode) and shadow.source is not None and is_ndarray(real) and real.flags.writeable and (
        interp.recorder.arrays.unshareable(interp.graph, shadow, real) is None)


def _is_scalar(result: Any) -> bool:
    """Whether a result is a number, or such numbers, which a call after the graph returns in any case."""
    return type(result) in SCALARS or is_value(result) and not is_array(result) or type(result) is tuple and all(
        type(item) in SCALARS for item in result)


def written_by(real: Any, args: Args, kwargs: Kwargs) -> list[Any]:
    """The arrays that a function of numpy writes to."""
    return arrays.may_be_written(real, args[:1] if getattr(real, "__name__", "").strip("_") in arrays.WRITING else args, kwargs)


def writes(real: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a function of numpy writes to what it is given."""
    name = getattr(real, "__name__", "").strip("_")
    return name in arrays.WRITING or "out" in kwargs or type(real).__name__ == "ufunc" and len(args) > real.nin


def refusal(interp: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Break | None:
    """Why such a call cannot be repeated."""
    name = getattr(real, "__name__", "")
    if writes(real, args, kwargs):
        written = written_by(real, args, kwargs)
        if not written or not all(is_repeated(interp.graph.find(array), array) for array in written):
            return Break("opaque-call", f"{name}() writes to an array")
        if (reason := why_not_written(interp.recorder)) is not None:
            return reason
    if may_raise.is_watched(interp.frame):
        return Break("failing-operation", f"{name}() of numpy where a handler is in force")
    if interp.early_breaks is not None and interp.early_breaks.is_too_early(interp):
        return Break("late-change", f"{name}() was given a tensor which changed after it")
    return None


def require_own(shadow: Shadow | None) -> None:
    """Raises Break for an array of the graph, whose attributes are about to be set."""
    if is_in_graph(shadow):
        raise Break("untracked-mutation", "an array of the graph was given another shape or type")


def attribute(interp: Interpreter, array: Value, name: str, result: Any) -> Shadow:
    """The shadow of an attribute of such an array or number."""
    known, shadow = interp.recorder.arrays, array.shadow
    whole = name in arrays.LAYOUT and is_ndarray(array.real)
    if whole and name == "dtype" and not is_of_tensor(shadow):          # which no call returns to a hit
        enter(interp.recorder)
    if whole and is_in_graph(shadow):
        expect_as_it_is(interp.recorder, array)
    elif not (whole and is_of_tensor(shadow)):
        return repeat(interp, getattr, [array, Value(name, Const(name))], {}, result)
    return known.fold(interp.graph, result, lambda item: shadow_of(interp, item, new=True))


def repeat(interp: Interpreter, real: Any, args: Args, kwargs: Kwargs, result: Any) -> Shadow:
    """The shadow of what numpy computed."""
    values, recorder = [*args, *kwargs.values()], interp.recorder
    if real is len and is_ndarray(args[0].real) and (is_in_graph(args[0].shadow) or is_of_tensor(args[0].shadow)):
        attribute(interp, args[0], "shape", args[0].real.shape)
        return Const(result)
    changes = writes(real, args, kwargs)
    constant = functools.partial(_holds, lambda shadow, real: is_value(real) and (
        recorder.arrays.is_computed(real) or is_outside(interp, shadow, real)))
    if changes or not _is_scalar(result) and (not is_value(result) or any(
            _holds(lambda shadow, real: is_in_graph(shadow), v.shadow, v.real) or constant(v.shadow, v.real) for v in values)):
        may_raise.may_raise(interp)
        enter(recorder)
        shadow = compute(recorder, real, args, kwargs, result)
        for array in written_by(real, args, kwargs) if changes else ():
            wrote(recorder, array)
        return shadow
    known = next((value.shadow for value in values if value.real is result and type(result) not in SCALARS), None)
    if known is not None:
        return known
    given = tuple(snapshot(interp, value) for value in values)
    call = interp.graph.call_effect(Const(real), given, tuple(kwargs), positions=interp.positions())
    recorder.arrays.note_repeated(call, None)
    whole = Replayed(call, (), None, result if type(result) in SCALARS else None)
    if type(result) is tuple:
        return Build(tuple, tuple(Expr(operator.getitem, (whole, Const(index))) for index in range(len(result))))
    return whole if type(result) in SCALARS else _made(interp, result, call)


def operands(interp: Interpreter, real: Any, args: list[Value]) -> list[Value]:
    """The arguments of a tensor operation, where it may calculate with numbers that numpy has computed."""
    numbers = [is_operand(interp.recorder, value) for value in args]
    if not any(numbers) or not (facts_of(real).calculates_with_numbers or real in MAKERS):
        return args
    if may_raise.is_watched(interp.frame):
        raise Break("failing-operation", "a tensor operation with a number of numpy's where a handler is in force")
    may_raise.may_raise(interp)
    return [as_operand(interp.recorder, value) if is_number else value for value, is_number in zip(args, numbers, strict=True)]
