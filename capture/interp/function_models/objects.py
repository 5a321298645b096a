"""What creating and initialising instances by C code means."""
from __future__ import annotations

import collections
import sys
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models.shadows import node_of
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.lookup import arguments_of
from capture.refgraph.node import Build, Const, DictState, ListState, SetState, Shadow
from capture.refgraph.source import Computed

ALL_EXCEPTIONS = [cls for cls in vars(__import__("builtins")).values() if is_a(cls, type) and issubclass(cls, BaseException)]
EXCEPTIONS = [cls for cls in ALL_EXCEPTIONS if not issubclass(cls, BaseExceptionGroup)]


def empty_state(real: Any) -> Any:
    """The state of a container that has just been made by `__new__`."""
    if is_a(real, dict):
        return DictState({}, complete=True)
    if is_a(real, (list, collections.deque)):
        return ListState([])
    return SetState({}) if is_a(real, set) else None


@model(object.__new__, dict.__new__, list.__new__, set.__new__, collections.OrderedDict.__new__, collections.defaultdict.__new__,
       collections.deque.__new__, types.SimpleNamespace.__new__)
def new_instance(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """An instance in its initial state."""
    interp.graph.depend(cls.shadow, cls.real)
    pin_special(interp.graph, type(result), "__del__")
    return interp.graph.create(result, empty_state(result))


@model(*{cls.__new__ for cls in EXCEPTIONS})
def new_exception(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """An exception, whose arguments are what it was called with."""
    interp.graph.depend(cls.shadow, cls.real)
    shadow = Build(tuple, tuple(a.shadow for a in args))
    node = interp.graph.create(result, origin=Build(type(result), shadow.items))
    node.slots["args"] = shadow
    return node


@model(*{cls.__init__ for cls in ALL_EXCEPTIONS})
def init_exception(interp: Interpreter, result: None, exception: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`BaseException.__init__` sets the arguments anew; those of subclasses keep to them."""
    node, now = node_of(exception), arguments_of(exception.real)
    if len(now) == len(args) and all(real is value.real for real, value in zip(now, args)):
        interp.graph.touch(node)
        interp.graph.set_slot(node, "args", Build(tuple, tuple(value.shadow for value in args)))
    return Const(None)


@model(object.__init__)
def no_effect(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
    """Initialisers which do no more than `__new__` did."""
    return Const(None)


@model(*set(EXCEPTIONS))
def make_exception(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
    """`ValueError("…")`."""
    return new_exception(interp, result, Value(type(result), Const(type(result))), *args)


@model(sys.exception)
def handled(interp: Interpreter, result: BaseException | None) -> Shadow:
    """The exception being handled: one of the trace, or none at all."""
    if result is None:
        interp.graph.require(Computed(sys.exception, ()), "VALUE", None)
        return Const(None)
    node = interp.graph.find(result)
    if node is None:
        raise Break("opaque-call", "the exception being handled was raised before the call")
    return node


@model(sys.exc_info)
def handled_info(interp: Interpreter, result: tuple[Any, ...]) -> Shadow:
    """The same, with its type and traceback."""
    node = handled(interp, result[1])
    if isinstance(node, Const):
        return Const(result)
    traceback = interp.graph.find(result[2]) or interp.graph.create(result[2])
    return Build(tuple, (interp.graph.constant(result[0]), node, traceback))


@model(super)
def make_super(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    """`super(cls, self)`."""
    return Build(super, tuple(a.shadow for a in args))
