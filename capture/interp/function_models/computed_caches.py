"""Calls of `functools.lru_cache` of functions that only compute, with arguments that change from call to call: sizes.

What such a cache keeps for a call equals what its function computes. So the trace knows it from that (`polyfills.functional
.call_cached`), and holds for arguments that the cache has not met. A hit makes the call of the cache too, so that the cache counts
it, keeps it, and has the very objects that the program gets. A guard looks, without a call, whether the cache keeps another
result: one that was computed when other things held, that was changed since, or that is kept under an equal key of another type.
"""
from __future__ import annotations

import itertools
import operator
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import SIDE_EFFECTS, model
from capture.interp.function_models import lru_caches
from capture.interp.function_models.pure_functions import CONSTANTS, MOST_LEVELS, only_computes
from capture.interp.function_models.shadows import depend_plain, items_of
from capture.interp.polyfills.functional import call_of_cache, matched_with
from capture.refgraph.effects import Replayed
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Build, Const, DictState, Expr, External, Kept, ListState, RefNode, Shadow, source_of
from capture.refgraph.source import Computed, Constant, Source

LONGEST = 1e-3      # seconds of a call that is made once more, by our interpreter, which takes many times as long
LONG: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()       # functions of which a call took longer


def computing_function(interp: Interpreter, cached: Any, args: list[Value], kwargs: dict[str, Value]) -> types.FunctionType | None:
    """The function of a cache, if a call is given sizes that change and all that it does is to compute what the cache keeps."""
    values = [*args, *kwargs.values()]
    sizes = interp.graph.sizes
    if not interp.tracking or not sizes or not any(sizes.is_free_in(value.shadow) for value in values):
        return None
    function, entries = lru_caches.function_of(cached), lru_caches.entries_of(cached)
    if any(interp.recorder.seen.changes_often(source, "VALUE") for value in values for source in paths(value.shadow)):
        return None             # the function decides by a size: better the trace ends before the call than in the midst of it
    reals, named = [value.real for value in args], {name: value.real for name, value in kwargs.items()}
    if function is None or function in LONG or entries is None or not all(map(is_part, values)):
        return None
    if not only_computes(function, reals, named):
        return None
    began = time.thread_time()
    try:
        made = function(*reals, **named)
    except Exception:       # the cache's own call will raise it
        return None
    if time.thread_time() - began > LONGEST:
        LONG.add(function)
        return None
    if not is_described(made):
        return None
    kept = [lru_caches.kept_in(entries, key) for key in lru_caches.keys_of(cached, reals, named) if key in entries]
    return function if all(are_same(made, found) for found in kept) else None


def is_part(value: Value) -> bool:
    """Whether a guard can look for a key with this argument."""
    return lru_caches.is_part_of_key(value) and not any(lru_caches.is_weak(part) for part in leaves(value.real))


def paths(shadow: Shadow | None) -> Iterator[Source]:
    """Where the numbers in an argument come from."""
    if isinstance(shadow, Build):
        for part in shadow.items:
            yield from paths(part)
    elif isinstance(shadow, (External, Expr)) and (source := source_of(shadow)) is not None:
        yield source


def leaves(real: Any) -> Iterator[Any]:
    """The items of tuples in tuples."""
    if is_a(real, tuple):
        for item in real:
            yield from leaves(item)
    else:
        yield real


# -- what is known of results --------------------------------------------------------------------------------------------

def is_described(real: Any, fixed: bool = True, depth: int = MOST_LEVELS) -> bool:
    """Whether a result is numbers and the like, in tuples, and in lists and dicts that no list or dict holds (fixed): so where the
    latter are cannot change."""
    cls = type(real)
    if cls in CONSTANTS:
        return True
    if depth == 0 or not (cls is tuple or fixed and is_one_of(cls, list, dict)):
        return False
    if cls is dict and not all(type(key) in CONSTANTS for key in real):
        return False
    return all(is_described(item, fixed and cls is tuple, depth - 1) for item in (real.values() if cls is dict else real))


def are_same(made: Any, kept: Any) -> bool:
    """Whether a result holds the same as another one for which `is_described` holds, of the same types."""
    cls = type(made)
    if made is kept:
        return True
    if cls is not type(kept):
        return False
    if cls is int:
        return made == kept
    if is_one_of(cls, tuple, list):
        return len(made) == len(kept) and all(map(are_same, made, kept))
    if cls is dict:
        return len(made) == len(kept) and all(map(are_same, made, kept)) and all(map(are_same, made.values(), kept.values()))
    return cls in CONSTANTS and made == kept and (not is_one_of(cls, float, complex) or repr(made) == repr(kept))


class Layout:
    """How arguments and a result are made of scalars, which guards read: an entry is an index among the `paths`, a class with the
    entries of its items, or `Held`."""

    def __init__(self) -> None:
        self.paths: list[Source] = []

    def at(self, shadow: Shadow | None, real: Any) -> Any:
        """The entry of something at a path. Raises Break if it has none."""
        source = None if shadow is None else shadow.source if isinstance(shadow, RefNode) else source_of(shadow)
        if isinstance(shadow, Const) or source is None and isinstance(shadow, Build) and not shadow.items:
            return Held(real)
        if source is None:
            raise Break("changing-result", f"a key of a functools.lru_cache, or what it keeps, is a {type(real).__name__} which "
                                           f"only a hit computes")
        self.paths.append(source)
        return len(self.paths) - 1

    def of_argument(self, shadow: Shadow | None, real: Any) -> Any:
        """The entry of an argument."""
        if isinstance(shadow, Build):
            return shadow.cls, *map(self.of_argument, shadow.items, real)
        return self.at(shadow, real)


@dataclass(frozen=True, slots=True)
class Held:
    """A constant in a layout."""

    value: Any


def key_of(args: list[Any], names: tuple[str, ...], given: tuple[Any, ...], mark: Any, typed: bool) -> Any:
    """The entry of a call's key, of those of its arguments (`lru_caches.keys_of`)."""
    split = len(args) - len(names)
    named = itertools.chain.from_iterable((Held(name), arg) for name, arg in zip(names, args[split:]))
    parts = [*args[:split], *([Held(mark)] if names else []), *named]
    if typed:
        return tuple, *parts, *(Held(type(real)) for real in given)
    return parts[0] if len(parts) == 1 and is_one_of(type(given[0]), int, str) else (tuple, *parts)


class Written:
    """Functions of scalars that follow from entries of a layout. Guards call them on each hit, so they are compiled."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def making(self, entry: Any) -> Callable[[tuple[Any, ...]], Any]:
        """`scalars` to what the entry stands for."""
        return self._compiled(["scalars"], self._made(entry))

    def matching(self, entry: Any) -> Callable[[tuple[Any, ...], Any], bool]:
        """`scalars` and an object to whether it is the same as what the entry stands for, as in `are_same`."""
        return self._compiled(["scalars", "kept"], self._matched(entry, "kept"))

    def _compiled(self, parameters: list[str], body: str) -> Callable[..., Any]:
        return eval(compile(f"lambda {', '.join(parameters)}: {body}", "<capture layout>", "eval"), self._held)

    def _named(self, value: Any) -> str:
        self._held[name := f"held_{len(self._held)}"] = value
        return name

    def _made(self, entry: Any) -> str:
        if type(entry) is int:
            return f"scalars[{entry}]"
        if type(entry) is Held:
            return self._named(entry.value)
        cls, *items = entry
        made = f"({''.join(self._made(item) + ', ' for item in items)})"
        return made if cls is tuple else f"{self._named(cls)}({made})"

    def _matched(self, entry: Any, kept: str) -> str:
        if type(entry) is int or type(entry) is Held:
            made = self._made(entry)
            return f"({made} is {kept} or {self._named(are_same)}({made}, {kept}))"
        cls, *items = entry
        tests = [f"type({kept}) is {self._named(cls)}", f"len({kept}) == {len(items) // (2 if cls is dict else 1)}"]
        if cls is dict:
            keys = [key.value for key in items[::2]]
            tests.append(f"all(map({self._named(are_same)}, {self._named(keys)}, {kept}))")
            tests += [self._matched(item, f"{kept}[{self._named(key)}]") for key, item in zip(keys, items[1::2], strict=True)]
        else:
            tests += [self._matched(item, f"{kept}[{place}]") for place, item in enumerate(items)]
        return " and ".join(tests)


@dataclass(frozen=True, slots=True, eq=False)
class CacheCall(Replayed):
    """What the call of a cache returned. given: its arguments in the capture."""

    cached: Any = None
    given: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a cache is expected to keep for a call, if it keeps anything. key: of the call, from scalars. matches: whether scalars
    make what the cache keeps."""

    entries: dict[Any, Any]
    key: Callable[[tuple[Any, ...]], Any]
    matches: Callable[[tuple[Any, ...], Any], bool]


def agrees(expected: Expected, *scalars: Any) -> bool:
    """Whether a cache keeps nothing for the arguments that scalars make, or what they make of its result."""
    try:
        kept = lru_caches.kept_in(expected.entries, expected.key(scalars))
    except KeyError:
        return True
    return expected.matches(scalars, kept)


def paired(one: Shadow, other: Shadow, real: Any) -> Iterator[tuple[Shadow, Shadow, Any]]:
    """The numbers in two arguments that are the same in this call."""
    if isinstance(one, Build) and isinstance(other, Build):
        for parts in zip(one.items, other.items, real, strict=True):
            yield from paired(*parts)
    else:
        yield one, other, real


# -- the calls -----------------------------------------------------------------------------------------------------------

@model(call_of_cache)
def model_of_call(interp: Interpreter, result: Any, cached: Value, *args: Value, **kwargs: Value) -> Shadow:
    """The call of the cache, which hits make too."""
    values = (*args, *kwargs.values())
    for value in values:
        hold_fixed(interp, value.shadow, value.real)
    target = cached.shadow if isinstance(cached.shadow, RefNode) else interp.graph.constant(cached.real)
    shadows = tuple(value.shadow for value in values)
    call = interp.graph.call_effect(target, shadows, tuple(kwargs), positions=interp.positions())
    return CacheCall(call, (), cached=cached.real, given=tuple(value.real for value in values))


SIDE_EFFECTS.update({call_of_cache, matched_with})


def hold_fixed(interp: Interpreter, shadow: Shadow | None, real: Any) -> None:
    """Guards all parts of an argument but sizes that change."""
    if isinstance(shadow, Build):
        for part, item in zip(shadow.items, real, strict=True):
            hold_fixed(interp, part, item)
    elif not interp.graph.sizes.is_free(shadow):
        depend_plain(interp, shadow, real)      # type: ignore[arg-type]


@model(matched_with)
def model_of_match(interp: Interpreter, result: Any, kept: Value, computed: Value) -> Shadow:
    """What the cache keeps: equal to what was computed, of which more is known, on each hit."""
    if not isinstance(kept.shadow, CacheCall):
        raise Break("side-effect-call", "a functools.lru_cache, of whose call nothing is known")
    if not is_described(kept.real) or not are_same(computed.real, kept.real):
        raise Break("side-effect-call", "a functools.lru_cache keeps something else than its function returns")
    call, cached, given, layout = kept.shadow.op, kept.shadow.cached, kept.shadow.given, Layout()
    split = len(given) - len(call.names)
    keys = lru_caches.keys_of(cached, list(given[:split]), dict(zip(call.names, given[split:])))
    entries = lru_caches.entries_of(cached)
    which = [place for place, key in enumerate(keys) if entries is not None and key in entries]
    if entries is None or len(which) != 1:
        raise Break("side-effect-call", f"{cached!r:.80} does not remember the call")
    key = key_of(list(map(layout.of_argument, call.args, given)), call.names, given, lru_caches.mark_of(cached), typed=which == [1])
    shadow, entry = _Result(interp, layout, kept.shadow).of(computed.shadow, computed.real, kept.real, kept.shadow)
    written = Written()
    expected = Expected(entries, written.making(key), written.matching(entry))
    interp.graph.require(Computed(agrees, (Constant(expected), *layout.paths)), "VALUE", True)
    return shadow


class _Result:
    """The shadows of a result, and its layout."""

    def __init__(self, interp: Interpreter, layout: Layout, call: CacheCall) -> None:
        self.interp, self.layout, self.call = interp, layout, call

    def of(self, shadow: Shadow | None, made: Any, kept: Any, path: Shadow) -> tuple[Shadow, Any]:
        """The shadow and the entry of a part of a result. path: how a hit finds it."""
        graph, cls = self.interp.graph, type(kept)
        if cls in CONSTANTS and cls is not torch.Size:
            return shadow, self.layout.at(shadow, made)     # type: ignore[return-value]
        value = Value(made, shadow)
        if is_one_of(cls, tuple, torch.Size):
            parts = [self.of(item, made[place], kept[place], Expr(operator.getitem, (path, Const(place))))
                     for place, item in enumerate(items_of(self.interp, value))]
            return Kept(cls, tuple(part for part, _ in parts), whole=path), (cls, *(entry for _, entry in parts))
        if made is kept and isinstance(shadow, RefNode) and shadow.source is not None:      # an object from outside
            return shadow, self.layout.at(shadow, made)
        if not isinstance(shadow, RefNode) or not shadow.created:
            raise Break("side-effect-call", f"a functools.lru_cache keeps a {cls.__name__} which is known otherwise")
        state, entries = self.content(shadow, made, kept, path)
        node = self.earlier(kept)
        if node is None:
            node = graph.create(kept, state, origin=self.origin(path))
            graph.note_kept(node, self.call)
        return node, (cls, *entries)

    def earlier(self, kept: Any) -> RefNode | None:
        """The node of an object that an earlier call has returned too, whose arguments are the same on each hit."""
        node, sizes = self.interp.graph.find(kept), self.interp.graph.sizes
        if node is None:
            return None
        before = self.interp.graph.kept.get(node) if isinstance(node, RefNode) else None
        if not isinstance(before, CacheCall) or before.cached is not self.call.cached:
            raise Break("side-effect-call", f"a functools.lru_cache keeps a {type(kept).__name__} which is known otherwise")
        pairs = map(paired, before.op.args, self.call.op.args, self.call.given)
        for one, other, real in itertools.chain.from_iterable(pairs):
            if sizes.is_free(one) or sizes.is_free(other):
                sizes.decide(operator.eq, sizes.of(one, real), sizes.of(other, real))
        return node

    def content(self, shadow: RefNode, made: Any, kept: Any, path: Shadow) -> tuple[ListState | DictState, Iterable[Any]]:
        """The state of a list or dict, and the entries of what it holds."""
        if type(made) is list and type(shadow.state) is ListState:
            parts = [self.of(item, made[place], kept[place], Expr(operator.getitem, (path, Const(place))))
                     for place, item in enumerate(shadow.state.items)]
            return ListState([part for part, _ in parts]), [entry for _, entry in parts]
        state = shadow.state
        if type(made) is not dict or not isinstance(state, DictState) or type(state.items) is not dict or not state.complete:
            raise Break("side-effect-call", f"a functools.lru_cache keeps a {type(made).__name__} of which not all is known")
        found = {key: self.of(state.items[key], made[key], kept[key], Expr(operator.getitem, (path, Const(key)))) for key in made}
        return (DictState({key: part for key, (part, _) in found.items()}, complete=True),
                [item for key, (_, entry) in found.items() for item in (Held(key), entry)])

    def origin(self, path: Shadow) -> Replayed:
        """How a hit finds a list or dict: it takes it out of what the cache has returned."""
        if isinstance(path, Replayed):
            return path
        assert isinstance(path, Expr)
        return Replayed(self.interp.graph.call_effect(Const(operator.getitem), path.args), ())
