"""Callables of libraries that only call something else: that is called in their place."""
from __future__ import annotations

import dataclasses
import reprlib
import types
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import scope
from capture.interp.core.frame import Args, Kwargs, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.polyfills.functional import DISPATCH_CODE, dispatch
from capture.refgraph.lookup import PARTS_OF_PARTIALS, args_of, func_of, is_hidden, keywords_of
from capture.refgraph.node import Build, Const, RefNode, Shadow

# That of dataclasses is one of its own until 3.12.
RECURSION_GUARDS = frozenset(guard(lambda self: "").__code__ for guard in (
    reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr())))
OF_MODULES = frozenset(item for item in vars(torch.nn.Module).values() if type(item) is types.FunctionType)
# torch wraps functions of its own that Dynamo must not see; to us the wrapper means nothing. The second is Dynamo's own wrapper.
DYNAMO_WRAPPER_CODE = torch._disable_dynamo(lambda: None).__code__
DISABLED = "torch._dynamo.eval_frame", "DisableContext.__call__.<locals>._fn"


# -- functions of Python -----------------------------------------------------------------------------------------------

def wrapped(interp: Interpreter, function: Value, args: Args) -> tuple[Value, Args] | None:
    """For a Python function that only wraps another one, the call that it makes; None for any other function."""
    real = function.real
    if is_recursion_guard(real, args):
        return variable(interp, function, "user_function"), args
    if hides_from_dynamo(real):
        return variable(interp, function, "fn"), args
    if is_dispatch(real) and len(args) == 1:
        return Value(dispatch, Const(dispatch)), [variable(interp, function, "registry"), *args]
    return None


def in_recursion(interp: Interpreter, function: Value, args: Args) -> Value | None:
    """What a guard against recursion (`reprlib.recursive_repr`) returns at once, if the function that it wraps is already running
    on the object; None otherwise."""
    if is_recursion_guard(function.real, args) and is_at_work(interp, function.real, args[0]):
        return recursion_mark(interp, function)
    return None


def is_dispatch(function: types.FunctionType) -> bool:
    """Whether a function finds an implementation of a `functools.singledispatch`."""
    return function.__code__ is DISPATCH_CODE


def hides_from_dynamo(function: types.FunctionType) -> bool:
    """Whether a function only wraps one of torch's own so that Dynamo does not see that. Loading Dynamo wraps the methods of
    optimizers; users wrap modules and their classes, and so what calls these. Which function it wraps is asked of its closure:
    `functools.wraps` gives a wrapper the attributes of any other function."""
    if function.__code__ is DYNAMO_WRAPPER_CODE:
        return True
    if (function.__globals__.get("__name__"), function.__code__.co_qualname) != DISABLED:
        return False
    original = wrapped_function(function, "fn")
    return type(original) is types.FunctionType and original not in OF_MODULES and str(original.__module__).startswith("torch.")


def wrapped_function(function: types.FunctionType, name: str) -> Any:
    """What a variable holds that a function closes over; None if it is not bound."""
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    return cell.cell_contents if scope.is_bound(Value(cell, None)) else None


def is_recursion_guard(function: types.FunctionType, args: list[Value]) -> bool:
    """Whether a call is one of a `__repr__` that is wrapped for objects which hold themselves, as data classes do. The wrapper
    keeps records of objects and threads, and so is left out."""
    return function.__code__ in RECURSION_GUARDS and len(args) == 1 and is_a(wrapped_function(function, "user_function"),
                                                                             types.FunctionType)


def is_at_work(interp: Interpreter, guard: types.FunctionType, self: Value) -> bool:
    """Whether what a guard against recursion wraps is at work on the same object."""
    code, frame = wrapped_function(guard, "user_function").__code__, interp.frame
    while frame is not None:
        if frame.code is code and frame.locals and frame.locals[0] is not None:
            held = frame.locals[0].real
            if held is self.real or type(held) is types.CellType and held.cell_contents is self.real:
                return True
        frame = frame.back
    return False


def recursion_mark(interp: Interpreter, function: Value) -> Value:
    """What a guard against recursion returns in place of what it wraps."""
    if "fillvalue" not in function.real.__code__.co_freevars:                # of a data class
        return Value("...", Const("..."))
    return variable(interp, function, "fillvalue")


def variable(interp: Interpreter, function: Value, name: str) -> Value:
    """What a variable holds that a function closes over."""
    return scope.load_cell(interp, scope.closure(interp, function)[function.real.__code__.co_freevars.index(name)], name)


# -- objects of C ------------------------------------------------------------------------------------------------------

def expand_partial(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> tuple[Value, Args, Kwargs] | None:
    """A call of functools.partial as a call of what it wraps; None where C refuses it, or finds other parts than its attributes."""
    node = function.shadow
    called, given, named = (field(function.real) for field in (func_of, args_of, keywords_of))
    if is_hidden(type(function.real), *PARTS_OF_PARTIALS) or not all(is_a(name, str) for name in named):
        return None

    def piece(name: str, value: Any) -> Shadow:
        if isinstance(node, RefNode):
            return interp.graph.slot(node, name, value)
        raise Break("opaque-call", "a functools.partial of unknown origin was called")
    inner = Value(called, interp.track(piece, "func", called))
    first = interp.track(piece, "args", given)
    keywords = interp.track(piece, "keywords", named)

    def key_shadow(key: str) -> Shadow:
        return interp.graph.dict_get(keywords, key)  # type: ignore[arg-type]
    if interp.tracking and isinstance(keywords, RefNode):
        interp.track(lambda: Const(interp.graph.dict_keys(keywords)))
    shadows = first.items if isinstance(first, Build) else map(Const, given) if isinstance(first, Const) else [None] * len(given)
    before = [Value(r, shadow) for r, shadow in zip(given, shadows, strict=True)]
    return inner, before + args, {**{k: Value(v, interp.track(key_shadow, k)) for k, v in named.items()}, **kwargs}
