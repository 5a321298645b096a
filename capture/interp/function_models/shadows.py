"""What models of containers share: reading the shadows of items, depending on keys, shadows of known values."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NoReturn

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import BUILTIN_DATA, OF_DATA, PROTOCOLS, VIEWS
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.effects import decision
from capture.refgraph.entry_state import PINNED, VALUES
from capture.refgraph.graph import RefGraph, is_composite
from capture.refgraph.identical import bytes_in_c, contents_in_c
from capture.refgraph.keys import held_by, table
from capture.refgraph.lookup import has, is_mutable, parts
from capture.refgraph.node import (
    SCALARS,
    Build,
    BytesState,
    Const,
    DictState,
    Expr,
    External,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
    WrittenDict,
    source_of,
)
from capture.refgraph.set_orders import require_order
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import keys_of
from capture.refgraph.value_types import DERIVED, decimal_flags, has_decimal_flags, in_own_decimals, is_record

NONE = Const(None)


class ViewState:
    """A dict view: `keys()`, `values()`, `items()` of the dict `mapping`."""

    __slots__ = ("mapping",)

    def __init__(self, mapping: RefNode) -> None:
        self.mapping = mapping


# -- values ------------------------------------------------------------------------------------------------------------

def is_constant(real: Any) -> bool:
    """Whether a value without identity is known by itself. A tuple of a class of Python's is made anew where it is wanted."""
    cls = type(real)
    if cls in SCALARS or is_a(real, (*VALUES, *DERIVED)) or is_record(real):
        return True
    is_of_c = cls is tuple or cls is frozenset or is_a(real, tuple) and has(cls, "n_sequence_fields")     # a structseq
    return is_of_c and all(map(is_constant, real))


def holds_identity(graph: RefGraph, real: Any) -> bool:
    """Whether a tuple holds a number that `id` returned of an object."""
    return bool(graph.numbers) and any(graph.number(part) is not None or type(part) is tuple and holds_identity(graph, part)
                                       for part in real)


def shadow_of(interp: Interpreter, real: Any, new: bool = False) -> Shadow:
    """The shadow of a known value, which follows from guarded values: the one that the trace has for it, else a constant; for a
    list, dict, set or bytearray a new object. new: a function has just made the value, so objects of other classes are new, too."""
    graph, cls = interp.graph, type(real)
    if (number := graph.number(real)) is not None:
        return number
    known = graph.find(real)            # also of what is a constant elsewhere, such as an alias of a class of the trace's own
    if known is not None and is_a(real, DERIVED):
        return known
    held = known or graph.noted_composite(real)
    if held is not None and cls is tuple:
        return held                     # as the object that it is, though its parts may be constants
    if is_constant(real) and not (cls is tuple and holds_identity(graph, real)) or cls is slice:
        return Const(real)
    if held is not None:
        return held
    if cls is list:
        return graph.create(real, ListState([shadow_of(interp, item, new) for item in real]))
    if cls is dict:
        return graph.create(real, DictState({key: shadow_of(interp, item, new) for key, item in real.items()}, complete=True))
    if cls is bytearray:
        return graph.create(real, BytesState(bytes(real)))
    if cls is set:
        return graph.create(real, SetState({item: shadow_of(interp, item, new) for item in real}))
    if is_composite(real) and (is_a(real, tuple) or not new):
        return graph.composed(real, lambda item: shadow_of(interp, item, new))
    return graph.create(real) if new and not is_a(real, PINNED) else graph.constant(real)


def compose(interp: Interpreter, real: tuple[Any, ...], items: list[Shadow]) -> Shadow:
    """The shadow of a new tuple."""
    cls = type(real)
    if is_a(real, VALUES):
        # Parts of a shape that depends on values, or that follows from sizes which change.
        if any(source_of(shadow) is None or interp.graph.sizes.is_free(shadow) for shadow in items):
            return Build(cls, tuple(items))
        for shadow, item in zip(items, real, strict=True):
            interp.graph.depend(shadow, item)
        return Const(real)
    if cls is tuple or has(cls, "_fields"):
        constant = cls is tuple and all(isinstance(item, Const) for item in items)
        return Const(real) if constant else interp.graph.build(cls, items)
    return interp.graph.create(real, ListState(items))


def depend_type(interp: Interpreter, value: Value) -> None:
    """Guards the type of a value."""
    shadow = value.shadow
    if isinstance(shadow, RefNode):
        interp.graph.touch(shadow)
    elif isinstance(shadow, (External, Expr)):
        source = source_of(shadow)
        if source is not None:
            interp.graph.require(source, "TYPE", type(value.real))
        elif interp.graph.type_of(shadow) is None:
            raise decision("Python code that asks for its type", [shadow])


def pin_protocols_of(graph: RefGraph, real: Any, *names: str) -> None:
    """Guards the special methods by which C code may treat an object that is no tensor, and those of these names."""
    cls = type(real)
    if is_mutable(cls) and not is_a(real, torch.Tensor):
        pin_special(graph, cls, *(OF_DATA if is_a(real, BUILTIN_DATA) else PROTOCOLS), *names)


def refuse(interp: Interpreter, exception: BaseException, *values: Value) -> NoReturn:
    """Raises a TypeError as CPython does for values of these types, which are guarded, with their special methods, since a handler
    may catch it."""
    for value in values:
        interp.track(depend_type, interp, value)
        interp.track(pin_protocols_of, interp.graph, value.real)
    unwind.throw(exception)


def note_constant(graph: RefGraph, shadow: Build, real: Any) -> None:
    """Notes where a tuple of constants comes from that a function is given: it may return the very object. (Others, whose items may
    run code as they die, are not kept for that.)"""
    if is_constant(real):
        graph.note_composite(real, shadow)


def depend_plain(interp: Interpreter, shadow: Shadow, real: Any) -> None:
    """Guards all of a value for which `is_plain` holds."""
    graph = interp.graph
    pin_protocols_of(graph, real)
    if type(real) is Decimal and not in_own_decimals(graph):     # after the operation: what it noted must be noted already
        graph.require(Computed(has_decimal_flags, (Literal(decimal_flags()),)), "VALUE", True)
    if not isinstance(shadow, RefNode):
        if isinstance(shadow, Build):
            note_constant(graph, shadow, real)
            for part, item in zip(shadow.items, parts(real), strict=True):
                depend_plain(interp, part, item)
        else:
            graph.depend(shadow, real)
        return
    value = Value(real, shadow)
    if is_a(real, dict):
        mapping = dict_node(value)
        held = held_by(real)
        for key in graph.dict_keys(mapping):
            depend_plain(interp, graph.dict_get(mapping, key), held[key])
    elif is_a(real, (set, frozenset)):
        members(interp, value)
    elif is_a(real, bytearray):
        if not isinstance(shadow.state, BytesState):
            graph.require(shadow.source, "VALUE", bytearray(bytes_in_c(real)))
    elif is_a(real, VIEWS):
        for item, part in zip(elements(interp, value), real, strict=True):
            depend_plain(interp, item, part)
    elif is_a(real, (list, tuple, deque)):
        for item, part in zip(items_of(interp, value), contents_in_c(real), strict=True):
            depend_plain(interp, item, part)
    else:
        graph.depend(shadow, real)


# -- items -------------------------------------------------------------------------------------------------------------

def node_of(value: Value) -> RefNode:
    """The node of a mutable container. Raises Break for one that is not tracked."""
    if not isinstance(value.shadow, RefNode):
        raise Break("opaque-call", f"a {type(value.real).__name__} of unknown origin was used")
    return value.shadow


def dict_node(value: Value) -> RefNode:
    """The node of a dict. Raises Break for one whose items cannot be known."""
    node = node_of(value)
    if node.created and not isinstance(node.state, (DictState, WrittenDict)):
        raise Break("opaque-call", f"the items of a new {node.cls.__name__} are not known")
    return node


def items_of(interp: Interpreter, value: Value) -> list[Shadow]:
    """The shadows of the items of a list, deque or tuple; of a mutable one, its state's own list, to be changed."""
    shadow = value.shadow
    if isinstance(shadow, Build):
        return list(shadow.items)
    if isinstance(shadow, Const):
        return [shadow_of(interp, item) for item in contents_in_c(shadow.value)]
    node = node_of(value)
    if node.created and not isinstance(node.state, ListState):
        raise Break("opaque-call", f"the items of a new {node.cls.__name__} are not known")
    return interp.graph.list_state(node).items


def elements(interp: Interpreter, value: Value) -> list[Shadow]:
    """The shadows that iteration over a container of a builtin type yields, before any change of this call."""
    real, graph = value.real, interp.graph
    if is_a(real, dict):
        return [shadow_of(interp, key) for key in graph.dict_keys(dict_node(value))]
    if is_a(real, VIEWS):
        mapping = view_mapping(value.shadow)
        keys = graph.dict_keys(mapping)
        return [view_item(interp, type(real), mapping, key) for key in keys]
    if is_a(real, (set, frozenset)):
        known = members(interp, value)
        if isinstance(value.shadow, RefNode):
            require_order(graph, value.shadow.state)
        return [known[member] for member in keys_of(real)]
    if type(real) in SCALARS or is_a(real, (str, bytes)):
        graph.depend(value.shadow, real)
        return [Const(item) for item in contents_in_c(real)]
    return list(items_of(interp, value))


def elements_unordered(interp: Interpreter, value: Value) -> Iterable[tuple[Shadow, Any]]:
    """The shadows and the values of a container of keys, in no particular order."""
    if is_a(value.real, (set, frozenset)):
        return [(shadow, member) for member, shadow in members(interp, value).items()]
    return list(zip(elements(interp, value), contents_in_c(value.real), strict=True))


def members(interp: Interpreter, value: Value) -> dict[Any, Shadow]:
    """The members of a set or frozenset, and their shadows."""
    real, shadow, graph = value.real, value.shadow, interp.graph
    if isinstance(shadow, (Const, Build)):
        return table(keys_of(real), ((member, shadow_of(interp, member)) for member in keys_of(real)))
    node = node_of(value)
    if node.created and not isinstance(node.state, SetState):
        raise Break("opaque-call", f"the members of a new {node.cls.__name__} are not known")
    if node.state is None and is_a(real, frozenset) and not all(type(member) in SCALARS for member in keys_of(real)):
        graph.depend(node, real)
        node.state = SetState(table(keys_of(real), ((member, shadow_of(interp, member)) for member in keys_of(real))))
    return graph.set_state(node).items


def view_mapping(shadow: Shadow | None) -> RefNode:
    """The node of the dict that a view shows."""
    if isinstance(shadow, RefNode) and isinstance(shadow.state, ViewState):
        return shadow.state.mapping
    raise Break("opaque-call", "a dict view from outside was used")


def view_item(interp: Interpreter, cls: type, mapping: RefNode, key: Any) -> Shadow:
    """What a view of type `cls` shows for `key`."""
    name = cls.__name__
    if name.endswith("keys"):
        return shadow_of(interp, key)
    value = interp.graph.dict_get(mapping, key)
    if name.endswith("values"):
        return value
    return Build(tuple, (shadow_of(interp, key), value))


# -- keys --------------------------------------------------------------------------------------------------------------

def key_of(interp: Interpreter, key: Value, among: Iterable[Any] = (), outside: bool = False) -> Any:
    """Depends on what decides where `key` goes in a dict or set with the keys `among`, and returns the key itself.

    A tensor counts by identity alone: in a container from `outside`, which object it is; in one of ours, that it is
    not one of the tensors which are keys already.
    """
    depend_key(interp, key.shadow, key.real, among, outside)
    interp.graph.note_composite(key.real, key.shadow)
    return key.real


def depend_key(interp: Interpreter, shadow: Shadow | None, real: Any, among: Iterable[Any], outside: bool) -> None:
    graph = interp.graph
    pin_special(graph, type(real), "__hash__", "__eq__")
    if isinstance(shadow, Build) and issubclass(shadow.cls, tuple):
        others = [item for other in among if is_a(other, tuple) for item in tuple.__iter__(other)]
        for part, item in zip(shadow.items, tuple.__iter__(real), strict=True):
            depend_key(interp, part, item, others, outside)
    elif isinstance(shadow, RefNode) and isinstance(shadow.state, TensorState):
        if shadow.source is not None and outside:
            graph.require(shadow.source, "ID", real)
        elif shadow.source is not None:
            graph.require(shadow.source, "TYPE", shadow.cls)            # else it is compared by value
            others = (graph.find(other) for other in among if is_a(other, torch.Tensor) and other is not real)  # type: ignore[assignment]
            for other in others:
                if other is not None and other.source is not None:
                    graph.require(shadow.source, "DISTINCT", other.source)
    elif isinstance(shadow, Expr) and shadow.op is id and isinstance(shadow.args[0], RefNode) and not outside:
        own = shadow.args[0]            # `memo[id(x)]`: which of the objects whose numbers are keys it is
        for other in graph.numbered(among):
            if own.source is not None and other.source is not None and other is not own:
                graph.require(own.source, "DISTINCT", other.source)
    else:
        graph.depend(shadow, real)  # type: ignore[arg-type]
