"""Outside data that is read through objects of C: mapping proxies and byte arrays."""
from __future__ import annotations

import gc
import operator
import types
from typing import Any

from capture.errors import Break
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.interp.models import model
from capture.refgraph.node import ABSENT, SCALARS, Const, RefNode, Shadow
from capture.refgraph.source import Constant


def proxied(proxy: Any) -> Any:
    """The mapping behind a mapping proxy, which Python code cannot ask for."""
    return next(iter(gc.get_referents(proxy)), None)


def is_look_up(container: Any, key: Any, *default: Any) -> bool:
    return type(container) is types.MappingProxyType and type(proxied(container)) is dict and type(key) in SCALARS


def look_up(interp: Interpreter, proxy: Value, key: Value) -> Shadow:
    """What is under a key of the dict behind a proxy, which always stands for the same dict; or ABSENT."""
    graph = interp.graph
    graph.depend(proxy.shadow, proxy.real)  # type: ignore[arg-type]
    graph.depend(key.shadow, key.real)  # type: ignore[arg-type]
    mapping = proxied(proxy.real)
    return graph.dict_get(graph.find(mapping) or graph.external(mapping, Constant(mapping)), key.real)  # type: ignore[arg-type]


@model(operator.getitem, types.MappingProxyType.get, applies=is_look_up)
def read(interp: Interpreter, result: Any, proxy: Value, key: Value, *default: Value) -> Shadow:
    """`proxy[key]`, `proxy.get(key, default)`."""
    found = look_up(interp, proxy, key)
    if found is not ABSENT:
        return found
    return default[0].shadow if default else Const(result)  # type: ignore[return-value]


@model(operator.contains, applies=is_look_up)
def contains(interp: Interpreter, result: bool, proxy: Value, key: Value) -> Shadow:
    """`key in proxy`."""
    look_up(interp, proxy, key)
    return Const(result)


@model(operator.getitem, len, applies=lambda data, *index: type(data) is bytearray)
def read_bytes(interp: Interpreter, result: Any, data: Value, *index: Value) -> Shadow:
    """What an outside byte array holds is guarded as a whole."""
    node = data.shadow
    if not isinstance(node, RefNode) or node.source is None:
        raise Break("opaque-call", "a byte array of the trace was read")
    for i in index:
        interp.graph.depend(i.shadow, i.real)  # type: ignore[arg-type]
    interp.graph.require(node.source, "VALUE", bytearray(data.real))
    return Const(result)
