"""Data that is read through objects of C: mapping proxies, views and byte arrays."""
from __future__ import annotations

import operator
import types
from collections import OrderedDict
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import PURE, model
from capture.interp.core.special import VIEWS, is_plain
from capture.interp.function_models.shadows import depend_plain, node_of, shadow_of, view_mapping
from capture.interp.polyfills.mappings import mapping_of, proxied
from capture.refgraph.class_attributes import type_attr
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes, bytes_in_c
from capture.refgraph.lookup import UNBOUND_IN_C
from capture.refgraph.node import ABSENT, SCALARS, BytesState, ClassState, Const, DictState, Expr, RefNode, Shadow
from capture.refgraph.source import Constant

PLAIN_DICTS = Classes((dict, OrderedDict))


def is_look_up(container: Any, key: Any, *default: Any) -> bool:
    return type(container) is types.MappingProxyType and type(proxied(container)) in PLAIN_DICTS and type(key) in SCALARS


def made_class(graph: RefGraph, namespace: dict[Any, Any]) -> RefNode | None:
    """The class of the trace's own that has this namespace."""
    classes = (node for node in graph.nodes if isinstance(node.state, ClassState))
    return next((node for node in classes if proxied(node.real.__dict__) is namespace), None)


def look_up(interp: Interpreter, proxy: Value, key: Value) -> Shadow:
    """What is under a key of the dict behind a proxy, which always stands for the same dict; or ABSENT."""
    graph = interp.graph
    graph.depend(proxy.shadow, proxy.real)
    graph.depend(key.shadow, key.real)
    mapping = proxied(proxy.real)
    if isinstance(proxy.shadow, RefNode) and "mapping" in proxy.shadow.slots:
        return graph.dict_get(proxy.shadow.slots["mapping"], key.real)  # type: ignore[arg-type]
    owner = made_class(graph, mapping)
    if owner is not None:
        return ABSENT if key.real not in mapping else type_attr(graph, owner.real, key.real)[2]
    return graph.dict_get(graph.find(mapping) or graph.external(mapping, Constant(mapping)), key.real)  # type: ignore[arg-type]


@model(operator.getitem, types.MappingProxyType.get, applies=is_look_up)
def read(interp: Interpreter, result: Any, proxy: Value, key: Value, *default: Value) -> Shadow:
    """`proxy[key]`, `proxy.get(key, default)`."""
    found = look_up(interp, proxy, key)
    if found is not ABSENT:
        return found
    return default[0].shadow if default else Const(result)


@model(operator.contains, applies=is_look_up)
def contains(interp: Interpreter, result: bool, proxy: Value, key: Value) -> Shadow:
    """`key in proxy`."""
    look_up(interp, proxy, key)
    return Const(result)


@model(types.MappingProxyType, applies=lambda mapping: type(mapping) in PLAIN_DICTS)
def make_proxy(interp: Interpreter, result: Any, mapping: Value) -> Shadow:
    """`MappingProxyType(mapping)`."""
    node = interp.graph.create(result, origin=Expr(types.MappingProxyType, (mapping.shadow,)))
    node.slots["mapping"] = mapping.shadow
    return node


@model(mapping_of, applies=lambda shown: is_a(shown, VIEWS))
def viewed_mapping(interp: Interpreter, result: dict[Any, Any], view: Value) -> Shadow:
    """The dict behind a view."""
    return view_mapping(view.shadow)


@model(mapping_of)
def show_mapping(interp: Interpreter, result: dict[Any, Any], proxy: Value) -> Shadow:
    """The dict behind a proxy."""
    graph, node = interp.graph, proxy.shadow
    if isinstance(node, RefNode) and "mapping" in node.slots:
        return node.slots["mapping"]
    owner = made_class(graph, result)
    if owner is None and not isinstance(node, Const):
        graph.depend(node, proxy.real)
        return graph.find(result) or graph.external(result, Constant(result))
    entries = {name: shadow_of(interp, result[name]) if owner is None else type_attr(graph, owner.real, name)[2] for name in result}
    return RefNode(result, None, graph.mark, DictState(entries, complete=True))      # as it is now: only looked at


# -- byte arrays -------------------------------------------------------------------------------------------------------

def content(interp: Interpreter, data: Value) -> BytesState:
    """The content of a byte array, as a whole. Must be called before the first change to one from outside."""
    node, graph = node_of(data), interp.graph
    if node.state is None:
        if node.source is None:
            raise Break("opaque-call", "the content of a new byte array is not known")
        graph.touch(node)
        node.state = BytesState(bytes_in_c(data.real))
        graph.require(node.source, "VALUE", bytearray(node.state.content))
    return node.state


def replace(data: bytearray, content: bytes) -> None:
    """Gives a byte array another content, for the mock function."""
    data[:] = content


CHANGES = ("append", "extend", "insert", "pop", "remove", "reverse", "clear", "__setitem__", "__delitem__", "__iadd__", "__imul__")


def is_change(data: Any, *args: Any) -> bool:
    return type(data) is bytearray and all(map(is_plain, args))


def look(interp: Interpreter, data: Value, *args: Value) -> None:
    content(interp, data)


@model(operator.setitem, operator.delitem, operator.iadd, operator.imul, *(vars(bytearray)[name] for name in CHANGES),
       prepare=look, applies=is_change)
def change(interp: Interpreter, result: Any, data: Value, *args: Value) -> Shadow:
    """A method that changes a byte array."""
    for value in args:
        depend_plain(interp, value.shadow, value.real)
    node = node_of(data)
    after = bytes_in_c(data.real)
    if after != node.state.content:
        node.state = BytesState(after)
        interp.graph.effect(replace, node, Const(after))
    return node if result is data.real else Const(result)


@model(bytearray, applies=lambda *args, **kwargs: all(map(is_plain, (*args, *kwargs.values()))))
def make_bytes(interp: Interpreter, result: bytearray, *args: Value, **kwargs: Value) -> Shadow:
    """`bytearray(source)`."""
    for value in (*args, *kwargs.values()):
        depend_plain(interp, value.shadow, value.real)
    return shadow_of(interp, result)


PURE.update(method for name, method in vars(bytearray).items()
            if type(method) in UNBOUND_IN_C and name not in (*CHANGES, "__init__", "__iter__"))
