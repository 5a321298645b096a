"""Calls of C functions: each is made for real, and the trace takes of it what the handler of its kind says."""
from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Cut, UserError, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.program_frames import in_full_sight, in_place, in_sight
from capture.interp.core.registry import LAZY, PURE, SIDE_EFFECTS, hashable
from capture.interp.dispatch.call_kinds import TENSOR_KINDS, Call, Kind, acts, is_pure, name_of, understand
from capture.interp.dispatch.caller_frames import FRAME_READERS, frame_reader, must_see, with_scope
from capture.interp.dispatch.debuggers import is_debugger
from capture.interp.dispatch.kind_handlers import HANDLERS, Handler, hold_all
from capture.interp.function_models.shadows import is_constant, shadow_of
from capture.refgraph.lookup import arguments_of
from capture.refgraph.node import Build, Const, IteratorState, RefNode, Shadow

WALKING = frozenset({iter, reversed, zip, enumerate})        # which make iterators, and advance none
MAY_RUN_PYTHON = (types.FunctionType, types.ClassMethodDescriptorType)      # the latter that of a class of the program's


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], resumable: bool = False) -> Value:
    """Calls a callable for real and returns its result with its shadow. Raises UserError; and Cut if the trace cannot hold the call
    and a continuation can take its result (`resumable`)."""
    real = function.real
    if hashable(real) and real in FRAME_READERS:
        special = frame_reader(interp, real, args, kwargs)
        if special is not None:
            return special
    perform, sees = interp.real, must_see(interp, real, len(args))
    if is_debugger(real):
        perform, sees = functools.partial(in_full_sight, interp), True
    elif sees:
        perform = functools.partial(in_sight, interp)
        args = with_scope(interp, real, args, kwargs)
    reals = [a.real for a in args]
    kwreals = {k: v.real for k, v in kwargs.items()}
    if not interp.tracking:
        return Value(perform(real, *reals, **kwreals), None)
    with interp.unasked():
        known = understand(interp, function, args, kwargs)
        handler = HANDLERS[known.kind]
        reason: Any = refused(handler, interp, known)
    if not sees and is_a(real, MAY_RUN_PYTHON):           # it may look at its callers, and warn
        perform = functools.partial(in_sight, interp)
    elif not sees and not handler.plain:
        perform = functools.partial(in_place, interp)
    perform = handler.performing(interp, known, perform)
    prepare = handler.prepare if known.meaning is None else known.meaning.prepare
    if reason is None and prepare is not None:
        reason = interp.track(unprepared, interp, prepare, args, kwargs)
    if reason is not None and resumable and interp.can_cut:
        raise Cut(reason, function, args, kwargs)
    if reason is not None and interp.tries:
        interp.give_up(reason)                      # which raises, before anything is done
    if interp.recorder.bodies and args and acts(real, args[0].real):
        interp.about_to_change(args[0].real)
    try:
        result = perform(real, *reals, **kwreals)
    except UserError as error:
        interp.track(raised, interp, known, error.exception)
        if resumable and interp.can_cut and interp.is_unrepeatable(error.exception) and unwind.is_handled(interp):
            raise Cut(interp.unrepeatable[1], function, args, kwargs, error.with_traceback(None)) from None  # type: ignore[index]
        raise
    if reason is not None:
        interp.give_up(reason)
    model = functools.partial(shadow, interp, known, result)
    if resumable and changes_nothing(known):
        return Value(result, interp.describe(model, function, args, kwargs, result))
    return Value(result, interp.track(model))


def changes_nothing(call: Call) -> bool:
    """Whether a call changes nothing that the trace describes. Of tensors the trace describes the layout, not the values. Calls
    that act on the world change nothing else."""
    real = call.real
    return call.kind is not Kind.MODEL or hashable(real) and any(
        real in known for known in (LAZY, PURE, SIDE_EFFECTS, WALKING)) or all(
        is_a(v.real, torch.Tensor) or is_constant(v.real) for v in call.values)


def refused(handler: Handler, interp: Interpreter, call: Call) -> Break | None:
    """Why the trace cannot hold a call; also where a value decides that which no trace can hold."""
    try:
        return handler.refuse(interp, call)
    except Break as reason:
        return reason.with_traceback(None)      # as in `unprepared`


def unprepared(interp: Interpreter, prepare: Callable[..., None], args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Why the trace does not know the state that a call is about to change or read; None if it does."""
    try:
        prepare(interp, *args, **kwargs)
    except Break as reason:
        return reason.with_traceback(None)      # which leads to the frames that will hold it
    except TypeError:
        if fit(prepare, interp, *args, **kwargs):       # else it is the call that does not fit, and raises
            raise
    return None


def fit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a function accepts these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The shadow of a C function's result, after the real call."""
    if not isinstance(call.function.shadow, Const):
        interp.graph.depend(call.function.shadow, call.real)
    return HANDLERS[call.kind].shadow(interp, call, result)


def raised(interp: Interpreter, call: Call, exception: BaseException) -> Shadow:
    """A C function has raised. Its exception must follow from guarded values, or the trace ends where a handler takes it."""
    args = call.args
    iterator = args[0].shadow if args and is_a(exception, StopIteration) else None
    if isinstance(iterator, RefNode) and isinstance(iterator.state, IteratorState):
        iterator.state.ended()
    # a getter raises for want of a device or driver, for the life of the process
    known = hashable(call.real)
    follows = call.kind in (Kind.MODEL, Kind.GETTER) or known and is_pure(call.real)
    if call.kind in TENSOR_KINDS or known and call.real in SIDE_EFFECTS or not follows:
        reason = "tensor-op-raised" if call.kind in TENSOR_KINDS else "opaque-call"
        interp.cannot_repeat(exception, Break(reason, f"{name_of(call.real)}() raised"))
    elif call.meaning is None or call.meaning.prepare is None or not fit(call.meaning.prepare, interp, *args, **call.kwargs):
        # Else what prepares the call has seen to that.
        hold_all(interp, *args, **call.kwargs)
    return interp.graph.find(exception) or new_exception(interp, exception)


def new_exception(interp: Interpreter, exception: BaseException) -> Shadow:
    """The node of an exception that C code made, if its arguments follow from guarded values."""
    if type(exception).__module__ != "builtins":
        return interp.graph.create(exception)
    items = tuple(shadow_of(interp, item) for item in arguments_of(exception))
    node = interp.graph.create(exception, origin=Build(type(exception), items))
    node.slots["args"] = Build(tuple, items)
    return node
