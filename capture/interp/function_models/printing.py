"""Printing, logging, and warnings: calls that every hit repeats, and what logging is asked."""
from __future__ import annotations

import inspect
import logging
import sys
import traceback
import types
import warnings
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model, polyfill
from capture.interp.core.special import in_python
from capture.interp.function_models import effect_callbacks
from capture.interp.function_models.effects import effect, methods, note_change
from capture.interp.function_models.replays import snapshot
from capture.interp.recording import may_raise
from capture.refgraph.effects import Replayed
from capture.refgraph.lookup import lookup_class
from capture.refgraph.node import Const, Shadow
from capture.refgraph.runtime import text_of_exception
from capture.refgraph.source import Computed, Literal

# -- printing ----------------------------------------------------------------------------------------------------------

def is_open(stream: Any) -> bool:
    """Whether a stream of C is known to be open, for guards. Raises ValueError for one without a buffer."""
    closed = lookup_class(type(stream), "closed")
    return type(closed) is types.GetSetDescriptorType and not closed.__get__(stream)


def is_output_open() -> bool:
    """Whether what is printed goes to a stream that is known to be open."""
    return is_open(sys.stdout)


def require_open(interp: Interpreter, *args: Value, file: Value | None = None, **kwargs: Value) -> None:
    """Guards that no code of the program's writes to the stream and, where a handler of the program's is in force, that it is open,
    or not."""
    source = None if file is None else getattr(file.shadow, "source", None)
    if file is None or file.real is None:
        interp.graph.require(Computed(effect_callbacks.writes_by_own_code, ()), "VALUE", False)
        if in_python(sys.stdout, "write"):
            names = interp.graph.attributes(interp.graph.constant(sys))  # type: ignore[arg-type]
            note_change(interp, Value(sys.stdout, interp.graph.dict_get(names, "stdout")))  # type: ignore[arg-type]
    elif source is not None:
        interp.graph.require(source, "TYPE", type(file.real))
    if file is not None and in_python(file.real, "write"):
        if source is None:
            raise Break("side-effect-call", f"print() to a {type(file.real).__name__} that the call makes")
        interp.graph.require(Computed(effect_callbacks.is_own_stream, (source,)), "VALUE", False)
        note_change(interp, file)
    if may_raise.is_watched(interp.frame):
        if file is None or file.real is None:
            interp.graph.require(Computed(is_output_open, ()), "VALUE", is_output_open())
        elif source is not None:
            interp.graph.require(Computed(is_open, (source,)), "VALUE", is_open(file.real))


effect(print, returns=type(None), require=require_open)


@polyfill(print, applies=effect_callbacks.writes_by_own_code)
def print_(*args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    """`print`, to a stream that the program has written."""
    stream = sys.stdout if file is None else file
    for index, arg in enumerate(args):
        if index:
            stream.write(" " if sep is None else sep)
        stream.write(str(arg))
    stream.write("\n" if end is None else end)
    if flush:
        stream.flush()


def prints_own_text(*args: Any, **kwargs: Any) -> bool:
    return any(map(effect_callbacks.has_own_text, args))


@polyfill(print, applies=prints_own_text)
def print_texts(*args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    """`print` of objects whose text code of the program's writes."""
    stream = sys.stdout if file is None else file
    if stream is None:
        return
    for index, arg in enumerate(args):
        if index:
            print(end=" " if sep is None else sep, file=stream)
        print(str(arg), end="", file=stream)
    print(end="\n" if end is None else end, file=stream, flush=flush)


# -- logging and warnings ----------------------------------------------------------------------------------------------

effect(*methods(logging.Logger, "debug", "info", "warning", "warn", "error", "critical", "fatal", "log"), returns=type(None),
       callers=True, owner=True)
effect(*methods(logging.Logger, "exception"), returns=type(None), callers=True, owner=True)
effect(logging.exception, returns=type(None), callers=True)
effect(logging.debug, logging.info, logging.warning, logging.warn, logging.error, logging.critical, logging.fatal, logging.log,
       returns=type(None), callers=True)
effect(warnings.warn, returns=type(None), callers=True, fails=True)
effect(warnings._filters_mutated, returns=type(None))  # type: ignore[attr-defined]


def no_exception(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
    """Why a call that tells of the exception being handled cannot be repeated, if it cannot."""
    known = interp.graph.find(sys.exception()) is not None
    return None if known else Break("side-effect-call", "the exception being handled was raised before the call")


@model(traceback.print_exc, traceback.format_exc, refuses=no_exception)
def tell_of_handled(interp: Interpreter, result: str | None, *args: Value, **kwargs: Value) -> Shadow:
    """`traceback.print_exc()` and `format_exc()`: the same of the exception itself, since on a hit none is being handled."""
    graph, function = interp.graph, traceback.print_exc if result is None else traceback.format_exc
    given = {**dict(zip(inspect.signature(function).parameters, args)), **kwargs}
    exception: Shadow = graph.find(sys.exception())  # type: ignore[assignment]
    target = Const(traceback.print_exception if result is None else text_of_exception)
    shown = exception, *(snapshot(interp, value) for value in given.values())
    call = graph.call_effect(target, shown, tuple(given), (exception,), positions=interp.positions())
    return Const(None) if result is None else Replayed(call, (), str, result)


def is_enabled(name: str, level: int) -> bool:
    """`logging.getLogger(name).isEnabledFor(level)`, for guards."""
    return logging.getLogger(name).isEnabledFor(level)


def can_be_found(logger: logging.Logger, level: Any) -> bool:
    return type(level) is int and logging.getLogger(logger.name) is logger


@model(logging.Logger.isEnabledFor, applies=can_be_found)
def is_enabled_for(interp: Interpreter, result: bool, logger: Value, level: Value) -> Shadow:
    """`logger.isEnabledFor(level)` is state that is read."""
    for value in (logger, level):
        interp.graph.depend(value.shadow, value.real)
    interp.graph.require(Computed(is_enabled, (Literal(logger.real.name), Literal(level.real))), "VALUE", result)
    return Const(result)


@model(logging.getLogger, applies=lambda name: type(name) is str)
def get_logger(interp: Interpreter, result: logging.Logger, name: Value) -> Shadow:
    """`logging.getLogger(name)`: always the same object."""
    interp.graph.depend(name.shadow, name.real)
    return interp.graph.external(result, Computed(logging.getLogger, (Literal(name.real),)))
