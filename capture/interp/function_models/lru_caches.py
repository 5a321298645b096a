"""Models of `functools.lru_cache` of functions from outside. The cache is state, which a call reads: a trace holds as long as the
cache keeps this very call, so that eager mode would not run the function again."""
from __future__ import annotations

import ctypes
import functools
import gc
import types
import weakref
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import is_key, is_plain
from capture.interp.function_models.shadows import is_constant
from capture.operators.schemas import name_of
from capture.refgraph.entry_state import PINNED
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Build, Const, RefNode, Shadow
from capture.refgraph.source import Computed, Constant, Item, Literal

WRAPPER = type(functools.lru_cache(lambda: None))


class FoundResults:
    """The results that captures have found in bounded caches, by the hashes of their keys, without keeping them alive. A cache that
    is smaller than the number of calls which the program makes in turn drops a result before it is asked for again: where captures
    found a third result for a key, a guard that the cache keeps that one would hold as rarely."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Any, dict[int, tuple[Any, int]]] = weakref.WeakKeyDictionary()

    def loses(self, cached: Any, key: Any, result: Any) -> bool:
        """Notes a result. Returns whether earlier captures found two others."""
        known = self._found.setdefault(cached, {})
        noted = weakref.ref(result) if is_a(result, (torch.Tensor, types.FunctionType)) else id(result)
        before, others = known.get(hash(key), (noted, 0))
        is_same = before() is result if type(before) is weakref.ref else before == noted
        known[hash(key)] = noted, others + (not is_same)
        return known[hash(key)][1] > 1


FOUND = FoundResults()


def is_weak(part: Any) -> bool:
    """Whether a part of a key refers to an object weakly."""
    return type(part) is weakref.ref


def is_part_of_key(value: Value) -> bool:
    """Whether a guard can check that the cache has this argument in a key."""
    return is_part(value.shadow, value.real)


def is_part(shadow: Shadow | None, real: Any) -> bool:
    """Whether a part of a key is data, or an outside object that is found by its identity and is not a tensor. Generic types of
    `typing` count as such objects: the Python code that hashes them does nothing else."""
    if is_plain(real) or is_a(real, PINNED):
        return True
    if type(real) is weakref.ref and is_a(real(), PINNED):        # the one that there is without a callback, or equal to it
        return True
    if type(real) is tuple and isinstance(shadow, Build):
        return all(map(is_part, shadow.items, real))
    known = is_key(real) or type(real).__module__ == "typing"
    return known and isinstance(shadow, RefNode) and not shadow.created and not is_a(real, torch.Tensor)


def cached_result(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], result: Any) -> Shadow:
    """The shadow of the result that a cache keeps for this call; guards the arguments. A hit makes the call too, so that the cache
    counts it and keeps its result longer. Raises Break if the cache does not keep the result."""
    shadow = found_in_cache(interp, function.real, args, kwargs, result)
    target = function.shadow if isinstance(function.shadow, RefNode) else interp.graph.constant(function.real)
    given = tuple(value.shadow for value in (*args, *kwargs.values()))
    interp.graph.call_effect(target, given, tuple(kwargs), positions=interp.positions())
    return shadow


def found_in_cache(interp: Interpreter, cached: Any, args: list[Value], kwargs: dict[str, Value], result: Any) -> Shadow:
    """The shadow of the result that a cache keeps for a call."""
    graph, entries = interp.graph, entries_of(cached)
    keys = keys_of(cached, [value.real for value in args], {name: value.real for name, value in kwargs.items()})
    found = [] if entries is None else [key for key in keys if key in entries]
    if entries is None or len(found) != 1:
        raise Break("side-effect-call", f"{cached!r:.80} does not remember the call")
    path = path_to(entries, found[0])
    if not is_bounded(cached):
        if isinstance(path, Item):
            graph.require(path.base, "PRESENT", path.key)
        else:
            graph.require(path, "TYPE", type(result))
        return graph.external(result, path)
    held = Computed(held_by_link, (path,))
    if FOUND.loses(cached, found[0], result) and graph.context.can_cut():
        raise Break("changing-value", f"{name_of(cached)}() keeps its results for a short time only")
    graph.require(held, "ID", result)           # not the link, which may get another result for this key
    if type(result) is tuple:
        return graph.external(result, held)
    return Const(result) if is_constant(result) else graph.constant(result)


def path_to(entries: dict[Any, Any], key: Any) -> Item | Computed:
    """The path to the value that is kept under a key. A guard holds no weak references of the key, but the objects that they refer
    to."""
    if type(key) is not tuple or not any(type(part) is weakref.ref for part in key):
        return Item(Constant(entries), key)
    weak = tuple(type(part) is weakref.ref for part in key)
    parts = (Constant(part() if is_weak else part) for part, is_weak in zip(key, weak))
    return Computed(kept_under, (Constant(entries), Literal(weak), *parts))


def kept_under(entries: dict[Any, Any], weak: tuple[bool, ...], *parts: Any) -> Any:
    """The value under a key of these parts. weak: which of them the key refers to weakly."""
    return entries[tuple(weakref.ref(part) if is_weak else part for part, is_weak in zip(parts, weak))]


def is_bounded(cached: Any) -> bool:
    """Whether a cache drops the results that were used longest ago."""
    return WRAPPER.cache_info(cached).maxsize is not None


def entries_of(cached: Any) -> dict[Any, Any] | None:
    """The C dict in which a cache keeps results, or links that hold them, by the keys of calls. Only the garbage collector shows
    it, among the objects that the cache refers to. None if the cache is empty."""
    bounded, own = is_bounded(cached), cached.__dict__
    return next((found for found in gc.get_referents(cached) if type(found) is dict and found is not own and found
                 and (not bounded or all(type(link) is LINK for link in found.values()))), None)


def function_of(cached: Any) -> types.FunctionType | None:
    """The Python function that a cache calls, whatever its `__wrapped__` is now; None if that is no Python function."""
    found = gc.get_referents(cached)
    function = found[max(place for place, part in enumerate(found) if type(part) is object) - 1]        # before the mark
    return function if type(function) is types.FunctionType else None


def keys_of(cached: Any, args: list[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """The possible keys of a call: of a cache that does not distinguish types, and of one that does."""
    parts, types = tuple(args), tuple(map(type, (*args, *named.values())))
    if named:
        parts = (*args, mark_of(cached), *(part for pair in named.items() for part in pair))
    alone = parts[0] if len(parts) == 1 and is_one_of(type(parts[0]), int, str) else parts
    return (alone, (*parts, *types)) if types else (alone,)


def mark_of(cached: Any) -> Any:
    """What a cache puts before keywords in its keys. It shows it behind all results."""
    return next(found for found in reversed(gc.get_referents(cached)) if type(found) is object)


def kept_in(entries: dict[Any, Any], key: Any) -> Any:
    """The result that a cache keeps under a key. Raises KeyError if it keeps none."""
    kept = entries[key]
    return held_by_link(kept) if type(kept) is LINK else kept


def held_by_link(link: Any) -> Any:
    """The result that a link of a bounded cache holds: the last field of its C struct, which nothing else shows."""
    return ctypes.py_object.from_address(id(link) + LINK.__basicsize__ - RESULT_SIZE).value


def link_type() -> type:
    """The type of the links in a bounded cache."""
    cached = functools.lru_cache(maxsize=1)(lambda: None)
    cached()
    entries = next(found for found in gc.get_referents(cached) if type(found) is dict and found is not cached.__dict__)
    return type(next(iter(entries.values())))


LINK, RESULT_SIZE = link_type(), ctypes.sizeof(ctypes.py_object)

