"""Binding of arguments to parameters, as CPython does when it calls a Python function."""
from __future__ import annotations

import types
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.refgraph.node import Build, Const, DictState, FunctionState, RefNode, Shadow

VARARGS, VARKW = 0x04, 0x08


def bind(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], size: int) -> list[Value | None]:
    """The `size` fast locals of a new frame of `function`: arguments first, then unbound.

    Raises UserError with CPython's own TypeError when the arguments do not fit.
    """
    real: types.FunctionType = function.real
    code = real.__code__
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    named = positional + keyword_only
    slots: list[Value | None] = [None] * size
    if len(args) == named and not keyword_only and not kwargs and not code.co_flags & (VARARGS | VARKW):
        slots[:named] = args
        return slots
    names = code.co_varnames
    slots[:min(len(args), positional)] = args[:positional]
    extra: dict[str, Value] = {}
    if len(args) > positional and not code.co_flags & VARARGS:
        mismatch(interp, function, args, kwargs)
    for name, value in kwargs.items():
        index = _parameter(names, name, code.co_posonlyargcount, named)
        if index is None and code.co_flags & VARKW:
            extra[name] = value
        elif index is None or slots[index] is not None:
            mismatch(interp, function, args, kwargs)
        else:
            slots[index] = value
    if None in slots[:named]:
        _defaults(interp, function, slots, args, kwargs)
    at = named
    if code.co_flags & VARARGS:
        rest = args[positional:]
        slots[at] = Value(tuple([v.real for v in rest]), Build(tuple, tuple([v.shadow for v in rest])) if interp.tracking else None)
        at += 1
    if code.co_flags & VARKW:
        real_extra = {k: v.real for k, v in extra.items()}
        slots[at] = Value(real_extra, interp.track(
            lambda: interp.graph.create(real_extra, DictState({k: v.shadow for k, v in extra.items()}, complete=True))))
    return slots


def _parameter(names: tuple[str, ...], name: str, first: int, end: int) -> int | None:
    for index in range(first, end):
        if names[index] == name:
            return index
    return None


def _defaults(interp: Interpreter, function: Value, slots: list[Value | None], args: list[Value], kwargs: dict[str, Value]) -> None:
    """Fills unbound parameters from `__defaults__` and `__kwdefaults__`."""
    real: types.FunctionType = function.real
    code = real.__code__
    defaults, kwdefaults = real.__defaults__ or (), real.__kwdefaults__ or {}
    first = code.co_argcount - len(defaults)
    for index in range(code.co_argcount):
        if slots[index] is None:
            if index < first:
                mismatch(interp, function, args, kwargs)
            slots[index] = Value(defaults[index - first], interp.track(positional_default, interp, function, index - first))
    for index in range(code.co_argcount, code.co_argcount + code.co_kwonlyargcount):
        if slots[index] is None:
            name = code.co_varnames[index]
            if name not in kwdefaults:
                mismatch(interp, function, args, kwargs)
            slots[index] = Value(kwdefaults[name], interp.track(keyword_default, interp, function, name))


def mismatch(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Lets CPython word the error: the call fails before any of the function's code runs. What is missing follows from which
    parameters have defaults."""
    interp.track(pin_defaults, interp, function)
    interp.real(function.real, *[a.real for a in args], **{k: v.real for k, v in kwargs.items()})
    raise AssertionError(f"CPython accepts a call of {function.real!r} which we do not")


def pin_defaults(interp: Interpreter, function: Value) -> None:
    """Guards which parameters have defaults."""
    if not isinstance(function.shadow, Const):
        defaults_of(interp, function, "__defaults__")
        by_keyword = defaults_of(interp, function, "__kwdefaults__")
        if isinstance(by_keyword, RefNode):
            interp.graph.dict_keys(by_keyword)


def defaults_of(interp: Interpreter, function: Value, name: str) -> Shadow:
    """The shadow of all defaults of a function, or of those of parameters that are given by keyword alone."""
    node: RefNode = function.shadow  # type: ignore[assignment]
    if isinstance(node.state, FunctionState):
        return node.state.defaults if name == "__defaults__" else node.state.kwdefaults
    return interp.graph.slot(node, name, getattr(function.real, name))


def positional_default(interp: Interpreter, function: Value, index: int) -> Shadow:
    real = function.real.__defaults__
    if isinstance(function.shadow, Const):
        return interp.graph.constant(real[index])
    return item(interp, defaults_of(interp, function, "__defaults__"), index, real)


def keyword_default(interp: Interpreter, function: Value, name: str) -> Shadow:
    if isinstance(function.shadow, Const):
        return interp.graph.constant(function.real.__kwdefaults__[name])
    whole = defaults_of(interp, function, "__kwdefaults__")
    if isinstance(whole, RefNode):
        return interp.graph.dict_get(whole, name)
    raise Break("opaque-call", f"the keyword defaults of {function.real.__qualname__} are not known")


def item(interp: Interpreter, whole: Shadow, index: int, real: tuple[Any, ...]) -> Shadow:
    """An item of a tuple's shadow."""
    if isinstance(whole, Build):
        return whole.items[index]
    return interp.graph.constant(real[index])
