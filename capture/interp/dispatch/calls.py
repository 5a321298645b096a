"""What a call means: reduced to a Python function, which is inlined, or to a C function, whose meaning is looked up."""
from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from capture import _C
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.binding import bind
from capture.interp.core.frame import Asked, Continuation, Cut, Frame, OnRaise, UserError, Value
from capture.interp.core.instructions import decoded
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import DISABLED, POLYFILLS, REDUCTIONS, exclusion, find_polyfill, hashable
from capture.interp.core.special import OF_TENSORS, PROTOCOLS, is_a
from capture.interp.dispatch import native_calls, overrides, wrappers
from capture.interp.dispatch.debuggers import is_debugger, stop
from capture.interp.lookasides.weakrefs import behind, is_proxy, through_proxies
from capture.interp.polyfills.functional import call_of_class
from capture.interp.polyfills.objects import instantiate
from capture.interp.polyfills.overrides import LEAVING_TO_OTHER, OPERATORS, ask_mode, ask_operator
from capture.interp.polyfills.overrides import ask as ask_classes
from capture.interp.polyfills.stand_ins import can_become, is_own, turn_all
from capture.interp.recording.tensors import is_operation
from capture.refgraph.class_attributes import pin_special, type_attr
from capture.refgraph.graph import BOUND_IN_C
from capture.refgraph.identical import PROXIES
from capture.refgraph.lookup import is_heap_type, is_mutable, lookup_class
from capture.refgraph.node import Build, Const, External, RefNode, Shadow
from capture.refgraph.source import Constant

FUNCTIONS = (types.FunctionType, _C.CompiledFunction)   # they bind alike

TRUTHS = frozenset({bool, operator.truth, operator.not_})


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value] | None = None,
         then: Continuation | None = None, on_raise: OnRaise | None = None, asked: Asked | None = None) -> None:
    """Calls any callable. The result goes to `then`, or on the stack: at once, or when the inlined frame returns.

    `on_raise(exception)` is asked first about an exception that leaves the call. asked: the attribute that the call computes.
    """
    kwargs = kwargs or {}
    if not interp.inlining:
        return call_native(interp, function, args, kwargs, then, on_raise)
    if interp.retreats is not None:
        cut_early(interp, function, args, kwargs, then, on_raise)
    while True:
        real = function.real
        cls = type(real)
        if cls is types.FunctionType:
            if is_debugger(real):
                return call_native(interp, function, args, kwargs, then, on_raise)
            if is_ordinary(real):
                return inline(interp, function, args, kwargs, then, on_raise, asked)
            if (mark := wrappers.in_recursion(interp, function, args)) is not None:
                return interp.deliver(mark, then)
            if (wrapped := wrappers.wrapped(interp, function, args)) is not None:
                function, args = wrapped
                continue
            if real in REDUCTIONS:
                interp.track(pin, interp, function)
                return call_native(interp, function, args, kwargs, then, on_raise)
            if is_operation(real) and overrides.is_overridden(interp, args, kwargs):
                return inline(interp, function, args, kwargs, then, on_raise, asked)
            if is_operation(real) or exclusion(real) or find_polyfill(real, args, kwargs) or (
                    native_calls.is_modelled(real) and not native_calls.is_left_to_python(real, [*args, *kwargs.values()])):
                return call_native(interp, function, args, kwargs, then, on_raise)
            return inline(interp, function, args, kwargs, then, on_raise, asked)
        if cls is types.MethodType:
            part = interp.track(composite, function, 2) or (None, None)
            args = [Value(real.__self__, part[1]), *args]
            function = Value(real.__func__, part[0])
        elif cls is _C.CompiledFunction:
            interp.track(pin, interp, function)
            if real.current is not None:
                function = Value(call_of_class, Const(call_of_class))
                continue
            function = Value(real.__wrapped__, interp.track(interp.graph.constant, real.__wrapped__))
        elif issubclass(cls, type):
            metacall = lookup_class(cls, "__call__")
            interp.track(pin_special, interp.graph, cls, "__call__")
            if type(metacall) is types.FunctionType and not native_calls.is_modelled(real):
                function, args = Value(metacall, interp.track(class_attribute, interp, cls, "__call__")), [function, *args]
            elif is_a(metacall, type):              # which binds to nothing
                function = Value(metacall, interp.track(class_attribute, interp, cls, "__call__"))
            elif native_calls.is_modelled(real) or find_polyfill(real, args, kwargs) or not (
                    has_python_constructor(real) and isinstance(metacall, types.WrapperDescriptorType)):
                return call_native(interp, function, args, kwargs, then, on_raise)
            else:
                interp.track(pin, interp, function)
                function, args = Value(instantiate, Const(instantiate)), [function, *args]
        elif issubclass(cls, BOUND_IN_C):
            bound = native_calls.unbind(interp, function)
            if bound is None:
                return call_native(interp, function, args, kwargs, then, on_raise)
            function, self = bound
            args = [self, *args]
        elif cls in PROXIES:
            found = behind(interp, function, on_raise)
            if found is None or not interp.inlining:
                return None if found is None else call_native(interp, found, args, kwargs, then, on_raise)
            function = found
        elif (expand := wrappers.EXPANSIONS.get(id(cls))) is not None:
            expanded = expand(interp, function, args, kwargs)
            if expanded is None:
                return call_native(interp, function, args, kwargs, then, on_raise)
            function, args, kwargs = expanded
        else:
            method = None if cls in native_calls.CALLABLES or is_operation(real) else lookup_class(cls, "__call__")
            if isinstance(method, types.WrapperDescriptorType) and (
                    native_calls.is_modelled(method) or find_polyfill(method, [function, *args], kwargs)):
                function, args = Value(method, Const(method)), [function, *args]
                continue
            if not isinstance(method, FUNCTIONS):
                return call_native(interp, function, args, kwargs, then, on_raise)
            interp.track(touch, interp, function)
            function, args = Value(method, interp.track(class_attribute, interp, cls, "__call__")), [function, *args]


def apply(interp: Interpreter, builtin: Callable[..., Any], *args: Value, then: Continuation | None = None,
          on_raise: OnRaise | None = None) -> None:
    """Calls a builtin that the interpreter itself names."""
    call_native(interp, Value(builtin, Const(builtin)), list(args), {}, then, on_raise)


def inline(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value],
           then: Continuation | None = None, on_raise: OnRaise | None = None, asked: Asked | None = None) -> None:
    """Enters a frame of ours for a Python function."""
    interp.check_depth()
    frame = make_frame(interp, function, args, kwargs)
    frame.then, frame.on_raise, frame.asked = then, on_raise, asked
    interp.enter(frame)


def in_use(interp: Interpreter) -> set[int]:
    """The identities of what methods of stand-ins work on."""
    found, frame = set(), interp.frame
    while frame is not None:
        if is_own(frame.code):
            found |= {id(value.real) for value in (*frame.locals, *frame.stack) if isinstance(value, Value)}
        frame = frame.back
    native: types.FrameType | None = sys._getframe()
    while native is not None:
        if is_own(native.f_code):
            found |= set(map(id, native.f_locals.values()))
        native = native.f_back
    return found


def call_native(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value],
                then: Continuation | None, on_raise: OnRaise | None) -> None:
    """Calls a callable for real, and finds the shadow of its result; a builtin that would call Python is inlined."""
    real = function.real
    if interp.tracking:
        interp.track(pin_protocols, interp, real, args)
    elif interp.broken is not None and any(can_become(arg.real) for arg in args) and not (
            type(real) is types.FunctionType and is_own(real.__code__)):
        turn_all([arg.real for arg in args], in_use(interp))
    if interp.inlining:
        if interp.retreats is not None:
            cut_early(interp, function, args, kwargs, then, on_raise)
        if is_debugger(real) and interp.can_cut and on_raise is None and is_resumable(then):
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
        if overrides.is_asking(real, args) and overrides.is_overridden(interp, args, kwargs):
            try:
                if ask(interp, real, args, kwargs, then, on_raise):
                    return
            except overrides.Performed as done:
                interp.give_up(Break("unsupported-tensor", f"{native_calls.name_of(real)}() asks no class"))
                return interp.deliver(Value(done.outcome, None), then)
    resumable = on_raise is None and is_resumable(then)
    try:
        value = interp.during_call(resumable, native_calls.call, interp, function, args, kwargs, resumable)
    except Cut as cut:
        cut.then = then
        raise
    except UserError as error:
        exception = error.exception
    else:
        return interp.deliver(value, then)
    unwind.settle(interp, exception, on_raise)


def ask(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value], then: Continuation | None,
        on_raise: OnRaise | None) -> bool:
    """Asks, in place of an operation, the classes or the mode that it would ask. Raises Performed where it asked nobody."""
    if function in OPERATORS and len(args) == 2 and overrides.asks(interp):
        operate = OPERATORS[function]
        call(interp, Value(operate, Const(operate)), args, None, then, on_raise)
        return True
    question = overrides.question_of(interp, function, args, kwargs)
    if question is None:
        return False
    call(interp, *asking(question, function), None, then, on_raise)
    return True


def asking(question: overrides.Question, function: Any) -> tuple[Value, list[Value]]:
    """What asks it in place of a function of C, and the arguments of that."""
    how: Any = ask_mode if question.of_mode else ask_classes
    known = Value(how, Const(how)), [question.asked, question.arguments]
    return (Value(ask_operator, Const(ask_operator)), [known[0], *known[1]]) if function in LEAVING_TO_OTHER else known


def cut_early(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], then: Continuation | None,
              on_raise: OnRaise | None) -> None:
    """Raises Cut before a call inside of which an earlier trace could not be cut."""
    if interp.retreats is None or on_raise is not None or not is_resumable(then) or not interp.can_cut:
        return
    reason = interp.retreats.here(interp)
    if reason is not None:
        raise Cut(reason, function, args, kwargs, then=then)


def is_resumable(then: Continuation | None) -> bool:
    """Whether a continuation can do in the place of `then` what it does with a value."""
    return then is None or hasattr(then, "resume")


def make_frame(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Frame:
    """A frame of a Python function with its arguments bound. Raises UserError with CPython's own TypeError."""
    real = function.real
    code = real.__code__
    interp.track(native_calls.pin_code, interp, function)
    layout = decoded(code)
    frame = Frame(code, layout.instructions, function, real.__globals__)
    frame.locals = bind(interp, function, args, kwargs, layout.size)
    return frame


def make_root_frame(interp: Interpreter, function: Value, args: list[Value]) -> Frame:
    """The frame of a call whose arguments CPython has bound already."""
    code = function.real.__code__
    interp.track(native_calls.pin_code, interp, function)
    layout = decoded(code)
    frame = Frame(code, layout.instructions, function, function.real.__globals__)
    frame.locals = [*args, *[None] * (layout.size - len(args))]
    return frame


def is_ordinary(function: types.FunctionType) -> bool:
    """Whether nothing is known of a Python function, as of most: whatever wraps or marks a function leaves a trace in its
    `__dict__`."""
    return not (function.__dict__ or wrappers.is_dispatch(function)
                or native_calls.is_modelled(function) or function in POLYFILLS
                or is_operation(function) or function in DISABLED)


# -- helpers -----------------------------------------------------------------------------------------------------------

def kwreals(kwargs: dict[str, Value]) -> dict[str, Any]:
    return {k: v.real for k, v in kwargs.items()}


def composite(value: Value, n: int) -> tuple[Shadow, ...]:
    """The shadows of the parts of a composite such as a bound method."""
    if isinstance(value.shadow, Build) and len(value.shadow.items) == n:
        return value.shadow.items
    raise Break("opaque-call", f"a {type(value.real).__name__} of unknown origin was called")


def class_attribute(interp: Interpreter, cls: type, name: str) -> Shadow:
    return type_attr(interp.graph, cls, name)[2]


def pin_protocols(interp: Interpreter, real: Any, args: list[Value]) -> None:
    """Guards the special methods by which a C function may treat its arguments: models and polyfills rest on them."""
    if hashable(real) and real not in CLASS_ONLY:
        for value in args:
            cls = type(value.real)
            if isinstance(value.real, torch.Tensor):
                pin_special(interp.graph, cls, *methods_of_tensors(real))
            elif is_mutable(cls):
                pin_special(interp.graph, cls, *PROTOCOLS, *operator_methods(real))


def touch(interp: Interpreter, value: Value) -> Shadow:
    if isinstance(value.shadow, RefNode):
        interp.graph.touch(value.shadow)
    return value.shadow


def pin(interp: Interpreter, value: Value) -> Shadow:
    interp.graph.depend(value.shadow, value.real)
    return value.shadow


def operator_methods(real: Any) -> tuple[str, ...]:
    """The special methods of a function of the `operator` module: `__iadd__`, `__add__`, `__radd__`."""
    if getattr(real, "__module__", None) != "_operator":
        return ()
    name = real.__name__.strip("_")
    plain = name[1:] if hasattr(operator, name[1:]) else name
    return f"__{name}__", f"__{plain}__", f"__r{plain}__"


def methods_of_tensors(real: Any) -> tuple[str, ...]:
    """The special methods by which a builtin may treat a tensor: its own, or that by which C walks over it."""
    if real in TRUTHS:
        return ("__bool__",)
    if getattr(real, "__module__", None) != "builtins":
        return operator_methods(real)
    own = f"__{real.__name__}__"
    return (own,) if own in OF_TENSORS else ("__iter__",)


class Stranger:
    """An object with every special method that C code may ask for, all of them written in Python."""

    __hash__ = None  # type: ignore[assignment]


def decline(self: Any, *args: Any) -> Any:
    """None of them is to be called."""
    raise TypeError("only the class of this object may be looked at")


for _name in {*PROTOCOLS, *(name for operation in vars(operator) for name in operator_methods(getattr(operator, operation)))}:
    setattr(Stranger, _name, decline)
STRANGERS = Value(object(), None), Value(Stranger(), None)


def depend_choice(interp: Interpreter, real: Any, substitute: Any, args: list[Value], kwargs: dict[str, Value]) -> Shadow:
    """Guards the types by which Python code stands for a C function: the trace may end before that code asks for them. They are
    those of arguments in the place of which some other object would have it done by other code."""
    for at, value in [*enumerate(args), *kwargs.items()]:
        source = value.shadow.source if isinstance(value.shadow, (External, RefNode)) else None
        if source is None or isinstance(source, Constant) or (source, "TYPE") in interp.graph.requirements:
            continue
        for stranger in STRANGERS:
            others, named = list(args), dict(kwargs)
            (others if isinstance(at, int) else named)[at] = stranger  # type: ignore[index, call-overload]
            if find_polyfill(real, others, named) is not substitute:
                interp.graph.require(source, "TYPE", type(value.real))
                break
    return Const(None)


# Builtins that look at the identity or the ancestry of an object and at nothing else, or guard themselves what they look at.
CLASS_ONLY = frozenset({isinstance, type, id, super, operator.is_, operator.is_not, getattr, hasattr, setattr, delattr, vars,
                        object.__new__, object.__init__, object.__setattr__, object.__delattr__, object.__getattribute__})


def has_python_constructor(cls: type) -> bool:
    """Whether creating an instance may run Python code, or makes a plain instance of a Python class."""
    return is_heap_type(cls) and not type.__getattribute__(cls, "__flags__") & NOT_CALLED


NOT_CALLED = 1 << 7         # a flag of types (object.h): without a constructor
