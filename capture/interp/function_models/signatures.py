"""`inspect.signature`: a constant, as long as the parts of functions, classes and objects that it looks at are what they were."""
from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import asks_python, in_python
from capture.interp.function_models.pinned_code import pin_code
from capture.refgraph.class_attributes import pin_mro, pin_special, type_attr
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import PARTS_OF_PARTIALS, has, is_mutable
from capture.refgraph.node import ABSENT, Build, Const, RefNode, Shadow

# Attributes that are asked for before all else.
ASKED_FIRST = "__wrapped__", "__signature__", "_partialmethod", "__partialmethod__"
OF_FUNCTIONS = "__defaults__", "__kwdefaults__", "__annotations__"


@model(inspect.signature, applies=lambda function, **options: not options and callable(function))
def signature(interp: Interpreter, result: inspect.Signature, function: Value) -> Shadow:
    """`inspect.signature(function)`, whatever object the function is bound to."""
    graph, real, shadow = interp.graph, function.real, function.shadow
    if isinstance(shadow, Build) and shadow.cls is types.MethodType:
        real, shadow = real.__func__, shadow.items[0]
    graph.depend(shadow, real)
    pin_signature(graph, real)
    graph.keep_derived(result)
    return Const(result)


def pin_signature(graph: RefGraph, x: Any) -> None:
    """Guards what the signature of an object, which is guarded to be this one, follows from. Raises Break where Python code that is
    not known takes part."""
    if type(x) is types.MethodType:
        return pin_signature(graph, x.__func__)
    if asks_python(x, "__signature__") or in_python(x, "__eq__"):
        raise Break("opaque-call", f"inspect.signature() of a {type(x).__qualname__}")
    wrapped, told, *partial = (attribute(graph, x, name) for name in ASKED_FIRST)
    if told is None and wrapped is not None:
        return pin_signature(graph, wrapped)
    if not is_one_of(type(told), types.NoneType, inspect.Signature) or not all(part is None for part in partial):
        raise Break("opaque-call", "inspect.signature() of an object that has one of its own")
    if told is None:
        pin_parts(graph, x)


def attribute(graph: RefGraph, x: Any, name: str) -> Any:
    """Guards what an object has under a name, which is None if that is nothing."""
    found, node = None, graph.constant(x)
    shadow: Shadow = ABSENT
    held = None if is_a(x, type) or not isinstance(node, RefNode) else graph.attributes(node)
    if held is not None:
        found, shadow = dict.get(held.real, name), graph.dict_get(held, name)
    if shadow is ABSENT and (is_a(x, type) or is_mutable(type(x))):
        _, found, shadow = type_attr(graph, x if is_a(x, type) else type(x), name)
        if has(type(found), "__get__"):
            raise Break("opaque-call", f"inspect.signature() of an object whose {name} is a {type(found).__qualname__}")
    graph.depend(shadow, found)
    return found


def pin_parts(graph: RefGraph, x: Any) -> None:
    """Guards the parts of a function, class or object from which a signature is made."""
    if type(x) is types.FunctionType:
        if (node := pin_code(graph, x)) is not None:
            pin_slots(graph, node, OF_FUNCTIONS)
    elif type(x) is functools.partial:
        pin_slots(graph, graph.constant(x), PARTS_OF_PARTIALS)  # type: ignore[arg-type]
        pin_signature(graph, x.func)
    elif is_a(x, type):
        pin_special(graph, type(x), "__call__")
        pin_mro(graph, x)
        for name in ("__new__", "__init__"):
            pin_method(graph, x, name)
    elif is_mutable(type(x)):
        pin_method(graph, type(x), "__call__")


def pin_method(graph: RefGraph, cls: type, name: str) -> None:
    """Guards a method of a class, and the parts of it."""
    _, found, shadow = type_attr(graph, cls, name)
    graph.depend(shadow, found)
    function = found.__func__ if type(found) is staticmethod else found
    if type(function) is types.FunctionType:
        pin_signature(graph, function)
    elif is_mutable(type(function)):
        raise Break("opaque-call", f"inspect.signature() of a class whose {name} is a {type(function).__qualname__}")


def pin_slots(graph: RefGraph, node: RefNode, names: Iterable[str]) -> None:
    """Guards attributes that C keeps, and what they hold if they are dicts."""
    for name in names:
        real = getattr(node.real, name)
        shadow = graph.slot(node, name, real)
        if isinstance(shadow, RefNode) and type(real) is dict:
            graph.dict_keys(shadow)
            for key, value in real.items():
                graph.depend(graph.dict_get(shadow, key), value)
        else:
            graph.depend(shadow, real)
