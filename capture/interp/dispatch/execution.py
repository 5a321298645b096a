"""Code that runs on a namespace of its own: the bodies of classes, and `exec` and `eval`; and the classes that result."""
from __future__ import annotations

import functools
import operator
import types

from capture._C import is_a
from capture.interp.core import program_frames, scope, unwind
from capture.interp.core.frame import BUILTINS, NONE_VALUE, ORIGINALS, Args, Catch, Frame, Kwargs, Then, UserError, Value
from capture.interp.core.instructions import Does, decode, decoded, does
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import reduction
from capture.interp.dispatch import callables, caller_frames, calls, native_calls
from capture.interp.dispatch.call_kinds import Call, Kind
from capture.interp.function_models.classes import class_made
from capture.interp.polyfills.classes import bare_class, run_body
from capture.refgraph.node import Const, FunctionState, RefNode, Shadow

SETITEM = Value(operator.setitem, Const(operator.setitem))


@reduction(run_body)
def _run_body(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    function, namespace = args
    enter(interp, calls.make_frame(interp, function, [], {}), namespace, then, on_raise)
    return True


def enter(interp: Interpreter, frame: Frame, namespace: Value, then: Then, on_raise: Catch) -> None:
    """Runs a frame whose names are stored into `namespace`."""
    interp.check_depth()
    frame.namespace, frame.then, frame.on_raise = namespace, then, on_raise
    interp.enter(frame)


@reduction(bare_class)
def _bare_class(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    meta, name, bases, namespace = args
    try:
        real = program_frames.in_sight(interp, bare_class, meta.real, name.real, bases.real, namespace.real,
                                       **calls.kwreals(kwargs))
    except UserError as error:
        exception = error.exception
    else:
        interp.deliver(Value(real, interp.track(class_made, interp, real, *args)), then)
        return True
    interp.track(native_calls.raised, interp, Call(Value(type.__new__, None), args, kwargs, Kind.MODEL), exception)
    unwind.hand_on(interp, exception, on_raise)
    return True


# -- exec and eval -----------------------------------------------------------------------------------------------------

@reduction(exec)
def _exec(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return not kwargs and run_source(interp, "exec", args, then, on_raise)


@reduction(eval)
def _eval(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return not kwargs and run_source(interp, "eval", args, then, on_raise)


@functools.lru_cache(maxsize=256)
def code_of(source: str, mode: str, flags: int) -> types.CodeType | None:
    """The code of a piece of source, as `exec` and `eval` compile it; None for one with an error, which they raise."""
    try:
        return compile(source.lstrip(" \t") if mode == "eval" else source, "<string>", mode, flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


@functools.cache
def is_of_functions(code: types.CodeType) -> bool:
    """Whether code does only what the code of a function may do: it imports no `*`, and echoes no expressions."""
    return not any(does(instruction) & (Does.PRINTS | Does.STORES_ANY_NAME) for instruction in decode(code))


def run_source(interp: Interpreter, mode: str, args: Args, then: Then, on_raise: Catch) -> bool:
    """`exec(source, globals, locals)` or `eval(…)` of a string or a code object. False for calls that only C can make."""
    if not 1 <= len(args) <= 3 or interp.frame is None:
        return False
    source, caller = args[0], interp.frame
    globals_, locals_ = (*args[1:], NONE_VALUE, NONE_VALUE)[:2]
    code = source.real if is_a(source.real, types.CodeType) else (
        code_of(source.real, mode, caller.code.co_flags & program_frames.FUTURE) if type(source.real) is str else None)
    if code is None or code.co_freevars or not is_of_functions(code):
        return False
    if globals_.real is not None and type(globals_.real) is not dict:
        return False
    interp.track(callables.pin, interp, source)
    if globals_.real is None:
        locals_ = caller_frames.local_variables(interp, caller) if locals_.real is None else locals_
        globals_ = Value(caller.globals, interp.track(scope.globals_node, interp, caller))
    elif locals_.real is None:
        locals_ = globals_
    if "__builtins__" not in globals_.real:
        found = BUILTINS if caller.builtins is ORIGINALS else caller.builtins     # called by a polyfill: `map(exec, …)`
        known = Value(found, interp.track(interp.graph.external, found, scope.BUILTINS))
        native_calls.call(interp, SETITEM, [globals_, Value("__builtins__", Const("__builtins__")), known], {})
    made = types.FunctionType(code, globals_.real)
    function = Value(made, interp.track(function_shadow, interp, made, globals_.shadow))
    layout = decoded(code)
    frame = Frame(code, layout.instructions, function, globals_.real)
    frame.locals = [None] * layout.size
    enter(interp, frame, locals_, then, on_raise)
    return True


def function_shadow(interp: Interpreter, real: types.FunctionType, scope_node: RefNode) -> Shadow:
    """Of the function that code is made into, for its frame."""
    return interp.graph.create(real, FunctionState(real.__code__, scope_node, Const(None), Const(None), ()))
