"""Containers whose keys Python code hashes or compares: what `polyfills.keys` leaves to C, once it knows hash and key."""
from __future__ import annotations

from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models.shadows import NONE, depend_plain, dict_node, elements_unordered, members, node_of, shadow_of
from capture.interp.polyfills import keys
from capture.refgraph.keys import KeyTable, put, take_out
from capture.refgraph.node import Const, ListState, SetState, Shadow
from capture.refgraph.state_queries import keys_of

SETS = (set, frozenset)


def look(interp: Interpreter, container: Value, *rest: Value) -> None:
    """Before an operation: all keys there are."""
    elements_unordered(interp, container)


@model(keys.candidates, prepare=look)
def candidates(interp: Interpreter, result: list[Any], container: Value, number: Value) -> Shadow:
    """The keys with a hash."""
    interp.graph.depend(number.shadow, number.real)
    known = members(interp, container) if is_a(container.real, SETS) else KeyTable()
    return interp.graph.create(result, ListState([known.get(item) or shadow_of(interp, item) for item in result]))


@model(keys.keeps, prepare=look)
def keeps(interp: Interpreter, result: bool, container: Value, key: Value, number: Value) -> Shadow:
    """Whether a key is still there."""
    return Const(result)


@model(keys.kept_hash, prepare=look)
def kept_hash(interp: Interpreter, result: int, container: Value, key: Value) -> Shadow:
    """The hash of a key that is there."""
    return Const(result)


@model(keys.is_by_python)
def is_by_python(interp: Interpreter, result: bool, mapping: Value, key: Value) -> Shadow:
    """Whether Python code decides. (What that follows from is guarded where the key is looked up, in either way.)"""
    return Const(result)


@model(keys.stored, prepare=look)
def stored(interp: Interpreter, result: Any, mapping: Value, key: Value) -> Shadow:
    """What is under a key."""
    return interp.graph.dict_get(dict_node(mapping), key.real)


@model(keys.hash_of_parts)
def hash_of_parts(interp: Interpreter, result: int, numbers: Value) -> Shadow:
    """The hash of a tuple."""
    depend_plain(interp, numbers.shadow, numbers.real)
    return Const(result)


@model(keys.store, prepare=look)
def store(interp: Interpreter, result: None, container: Value, key: Value, value: Value, number: Value) -> Shadow:
    """A value goes under a key, or a member is added."""
    interp.graph.depend(number.shadow, number.real)
    if not is_a(container.real, set):
        interp.graph.dict_set(dict_node(container), key.real, value.shadow, number=number.real)
        return NONE
    change_members(interp, container, key)
    interp.graph.effect(put, node_of(container), key.shadow, NONE, Const(number.real))
    return NONE


@model(keys.roomy_set)
def roomy_set(interp: Interpreter, result: set[Any], number: Value) -> Shadow:
    """A new set, of some size."""
    interp.graph.depend(number.shadow, number.real)
    return interp.graph.create(result, SetState(KeyTable()))


@model(keys.drop, prepare=look)
def drop(interp: Interpreter, result: None, container: Value, key: Value, number: Value) -> Shadow:
    """A key or member is taken out."""
    if not is_a(container.real, set):
        interp.graph.dict_delete(dict_node(container), key.real, number.real)
        return NONE
    change_members(interp, container, key)
    interp.graph.effect(take_out, node_of(container), key.shadow, Const(number.real))
    return NONE


def change_members(interp: Interpreter, container: Value, key: Value) -> None:
    """The state of a set that has one member more, or less."""
    before, held = KeyTable(members(interp, container)), KeyTable((member, None) for member in keys_of(container.real))
    now = KeyTable((member, shadow) for member, shadow in before.items() if member in held)     # in the order in which they came
    if key.real in held and key.real not in now:
        now[key.real] = key.shadow
    node_of(container).state = SetState(now, node_of(container).state.follows)
