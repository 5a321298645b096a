"""What a call means: reduced to a Python function, which is inlined, or to a C function, whose meaning is looked up."""
from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.binding import bind
from capture.interp.core.frame import Asked, Continuation, Cut, Frame, OnRaise, UserError, Value
from capture.interp.core.instructions import decoded
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import POLYFILLS, REDUCTIONS, find_polyfill, hashable
from capture.interp.core.special import OF_TENSORS, PROTOCOLS
from capture.interp.dispatch import native_calls, overrides
from capture.interp.dispatch.call_kinds import name_of
from capture.interp.dispatch.callables import HANDLERS, How, handler_of
from capture.interp.dispatch.debuggers import is_debugger, stop
from capture.interp.function_models import long_work
from capture.interp.function_models.shadows import pin_protocols_of
from capture.interp.function_models.weakrefs import is_proxy, through_proxies
from capture.interp.polyfills.overrides import LEAVING_TO_OTHER, OPERATORS, ask_mode, ask_operator
from capture.interp.polyfills.overrides import ask as ask_classes
from capture.interp.polyfills.stand_ins import can_become, is_code_of_stand_in, turn_all
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Const, External, FunctionState, RefNode, Shadow
from capture.refgraph.source import Constant

TRUTHS = frozenset({bool, operator.truth, operator.not_})


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value] | None = None,
         then: Continuation | None = None, on_raise: OnRaise | None = None, asked: Asked | None = None) -> None:
    """Calls any callable. The result goes to `then`, or on the stack: at once, or when the inlined frame returns.

    `on_raise(exception)` is asked first about an exception that leaves the call. asked: the attribute that the call computes.
    """
    kwargs = kwargs or {}
    if interp.is_idle():
        long_work.leave_call(interp)
    if not interp.inlining:
        return call_native(interp, function, args, kwargs, then, on_raise)
    if interp.early_breaks is not None and on_raise is None and is_resumable(then):
        cut_early(interp, function, args, kwargs, then)
    how = How.BEHIND
    while how is How.BEHIND:
        reduce = HANDLERS.get(id(type(function.real))) or handler_of(type(function.real))
        try:
            how, function, args, kwargs = reduce(interp, function, args, kwargs)
        except UserError as error:
            exception = error.exception
            break
    else:
        if how is How.INLINED:
            return inline(interp, function, args, kwargs, then, on_raise, asked)
        if how is How.KNOWN:
            return interp.deliver(function, then)
        return call_native(interp, function, args, kwargs, then, on_raise)
    unwind.hand_on(interp, exception, on_raise)


def apply(interp: Interpreter, builtin: Callable[..., Any], *args: Value, then: Continuation | None = None,
          on_raise: OnRaise | None = None) -> None:
    """Calls a builtin that the interpreter itself names."""
    call_native(interp, Value(builtin, Const(builtin)), list(args), {}, then, on_raise)


def inline(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value],
           then: Continuation | None = None, on_raise: OnRaise | None = None, asked: Asked | None = None) -> None:
    """Enters a frame of ours for a Python function."""
    interp.check_depth()
    interp.note_work()
    frame = make_frame(interp, function, args, kwargs)
    frame.then, frame.on_raise, frame.asked = then, on_raise, asked
    interp.enter(frame)


def in_use(interp: Interpreter) -> set[int]:
    """The identities of the objects on which methods of stand-ins are running."""
    found, frame = set(), interp.frame
    while frame is not None:
        if is_code_of_stand_in(frame.code):
            found |= {id(value.real) for value in (*frame.locals, *frame.stack) if isinstance(value, Value)}
        frame = frame.back
    native: types.FrameType | None = sys._getframe()
    while native is not None:
        if is_code_of_stand_in(native.f_code):
            found |= set(map(id, native.f_locals.values()))
        native = native.f_back
    return found


def call_native(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value],
                then: Continuation | None, on_raise: OnRaise | None) -> None:
    """Calls a callable for real, and finds the shadow of its result; a builtin that would call Python is inlined."""
    real, resumable = function.real, on_raise is None and is_resumable(then)
    interp.note_work()
    if interp.tracking:
        interp.track(pin_protocols, interp, real, args)
    elif interp.broken is not None and any(can_become(arg.real) for arg in args) and not (
            type(real) is types.FunctionType and is_code_of_stand_in(real.__code__)):
        turn_all([arg.real for arg in args], in_use(interp))
    if interp.inlining:
        if resumable and interp.early_breaks is not None:
            cut_early(interp, function, args, kwargs, then)
        if is_debugger(real) and resumable and interp.can_cut:
            raise stop(function, args, kwargs, then)
        substitute = None
        if hashable(real):
            for arg in args[:2]:
                if is_proxy(arg.real):
                    args = through_proxies(interp, real, args)
                    break
            if real in REDUCTIONS and REDUCTIONS[real](interp, args, kwargs, then, on_raise):
                return
            if real in POLYFILLS:
                substitute = find_polyfill(real, args, kwargs)
        if substitute is not None:
            interp.track(depend_choice, interp, real, substitute, args, kwargs)
            return call(interp, Value(substitute, Const(substitute)), args, kwargs, then, on_raise)
        if overrides.may_be_overridden(real, args) and overrides.is_overridden(interp, args, kwargs):
            try:
                if call_override(interp, real, args, kwargs, then, on_raise):
                    return
            except overrides.Performed as done:
                interp.give_up(Break("unsupported-tensor", f"{name_of(real)}() asks no class"))
                return interp.deliver(Value(done.outcome, None), then)
    try:
        value = interp.during_call(resumable, native_calls.call, interp, function, args, kwargs, resumable)
    except Cut as cut:
        cut.then = then
        raise
    except UserError as error:
        exception = error.exception
    else:
        return interp.deliver(value, then)
    unwind.hand_on(interp, exception, on_raise)


def call_override(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value], then: Continuation | None,
        on_raise: OnRaise | None) -> bool:
    """Calls the overrides of an operation in its place. Raises Performed if there were none."""
    if function in OPERATORS and len(args) == 2 and overrides.overrides_enabled(interp):
        operate = OPERATORS[function]
        call(interp, Value(operate, Const(operate)), args, None, then, on_raise)
        return True
    override = overrides.override_call_of(interp, function, args, kwargs)
    if override is None:
        return False
    call(interp, *override_arguments(override, function), None, then, on_raise)
    return True


def override_arguments(override: overrides.OverrideCall, function: Any) -> tuple[Value, list[Value]]:
    """The function that calls an override in place of a C function, and its arguments."""
    how: Any = ask_mode if override.of_mode else ask_classes
    known = Value(how, Const(how)), [override.asked, override.arguments]
    return (Value(ask_operator, Const(ask_operator)), [known[0], *known[1]]) if function in LEAVING_TO_OTHER else known


def cut_early(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], then: Continuation | None) -> None:
    """Raises Cut before a call in which an earlier trace could not be cut. A continuation can take the call's result."""
    if interp.can_cut and (reason := interp.early_breaks.here(interp)) is not None:  # type: ignore[union-attr]
        raise Cut(reason, function, args, kwargs, then=then)


def is_resumable(then: Continuation | None) -> bool:
    """Whether a continuation can do with a value what `then` does."""
    return then is None or hasattr(then, "resume")


def pin_code(interp: Interpreter, function: Value) -> Shadow:
    """Guards that a function still has the code that is about to be inlined."""
    node = function.shadow
    if isinstance(node, RefNode) and not isinstance(node.state, FunctionState):
        return interp.graph.slot(node, "__code__", function.real.__code__)
    if isinstance(node, (RefNode, Const)):
        return node
    raise Break("opaque-call", f"function {function.real.__qualname__} of unknown origin was called")


def make_frame(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Frame:
    """A frame of a Python function with its arguments bound. Raises UserError with CPython's own TypeError."""
    real = function.real
    code = real.__code__
    interp.track(pin_code, interp, function)
    layout = decoded(code)
    frame = Frame(code, layout.instructions, function, real.__globals__)
    frame.locals = bind(interp, function, args, kwargs, layout.size)
    return frame


def make_root_frame(interp: Interpreter, function: Value, args: list[Value]) -> Frame:
    """The frame of a call whose arguments CPython has bound already."""
    code = function.real.__code__
    interp.track(pin_code, interp, function)
    layout = decoded(code)
    frame = Frame(code, layout.instructions, function, function.real.__globals__)
    frame.locals = [*args, *[None] * (layout.size - len(args))]
    return frame


# -- helpers -----------------------------------------------------------------------------------------------------------

def kwreals(kwargs: dict[str, Value]) -> dict[str, Any]:
    return {k: v.real for k, v in kwargs.items()}


def pin_protocols(interp: Interpreter, real: Any, args: list[Value]) -> None:
    """Guards the special methods by which a C function may treat its arguments, on which models and polyfills depend."""
    if hashable(real) and real not in CLASS_ONLY:
        for value in args:
            if is_a(value.real, torch.Tensor):
                pin_special(interp.graph, type(value.real), *methods_of_tensors(real))
            else:
                pin_protocols_of(interp.graph, value.real, *operator_methods(real))


def operator_methods(real: Any) -> tuple[str, ...]:
    """The special methods of a function of the `operator` module: `__iadd__`, `__add__`, `__radd__`; of builtins and `math`:
    `__round__`, `__bytes__`."""
    if real is bytes:
        return ("__bytes__",)
    if type(real) is not types.BuiltinFunctionType or real.__module__ not in ("_operator", "builtins", "math"):
        return ()
    return _operator_methods(real.__name__)


@functools.cache
def _operator_methods(function: str) -> tuple[str, ...]:
    name = function.strip("_")
    plain = name[1:] if hasattr(operator, name[1:]) else name
    return f"__{name}__", f"__{plain}__", f"__r{plain}__"


def methods_of_tensors(real: Any) -> tuple[str, ...]:
    """The special methods by which a builtin may treat a tensor: its own method, or the one by which C iterates over the tensor."""
    if real in TRUTHS:
        return ("__bool__",)
    if not is_one_of(type(real), types.BuiltinFunctionType, type) or real.__module__ != "builtins":
        return operator_methods(real)
    own = f"__{real.__name__}__"
    return (own,) if own in OF_TENSORS else ("__iter__",)


class EverySpecialMethod:
    """An object with every special method that C code may call, each a Python function."""

    __hash__ = None  # type: ignore[assignment]


def decline(self: Any, *args: Any) -> Any:
    """None of them is to be called."""
    raise TypeError("only the class of this object may be looked at")


for _name in {*PROTOCOLS, *(name for operation in vars(operator) for name in operator_methods(getattr(operator, operation)))}:
    setattr(EverySpecialMethod, _name, decline)
STRANGERS = Value(object(), None), Value(EverySpecialMethod(), None)


def depend_choice(interp: Interpreter, real: Any, substitute: Any, args: list[Value], kwargs: dict[str, Value]) -> Shadow:
    """Guards the types that decide whether Python code takes the place of a C function: the trace may end before that code asks for
    them. They are the types of those arguments for which another object would choose other code."""
    for at, value in [*enumerate(args), *kwargs.items()]:
        source = value.shadow.source if isinstance(value.shadow, (External, RefNode)) else None
        if source is None or isinstance(source, Constant) or (source, "TYPE") in interp.graph.requirements:
            continue
        for stranger in STRANGERS:
            others, named = list(args), dict(kwargs)
            (others if is_a(at, int) else named)[at] = stranger  # type: ignore[index, call-overload]
            if find_polyfill(real, others, named) is not substitute:
                interp.graph.require(source, "TYPE", type(value.real))
                break
    return Const(None)


# Builtins that look at the identity or the ancestry of an object and at nothing else, or guard themselves what they look at.
CLASS_ONLY = frozenset({isinstance, type, id, super, operator.is_, operator.is_not, getattr, hasattr, setattr, delattr, vars,
                        object.__new__, object.__init__, object.__setattr__, object.__delattr__, object.__getattribute__})

