"""CPython's own iterators, made in any state that they can be in.

No call here runs code of the program. Where making an iterator would call the program (`iter` of a part, the length of a sequence,
the first call of a function), one of our objects takes the place of the program's, and is exchanged for it afterwards.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

from capture import _C

ENDED = object()        # in the place of what an iterator has let go of


class _Long:
    """A sequence that is long enough for every index."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError

    def __len__(self) -> int:
        return sys.maxsize


def _over(make: Callable[..., Any], *parts: Any) -> Any:
    """`make(*parts)`, where the parts are iterators, which are not asked for an iterator."""
    places = [iter(()) if part is ENDED else iter([None]) for part in parts]
    return _instead(make(*places), places, parts)


def _instead(made: Any, places: Any, parts: Any) -> Any:
    """`made`, which holds `parts` in the place of `places`."""
    for place, part in zip(places, parts, strict=True):
        if part is not ENDED:
            _C.exchange(made, place, part)
    return made


def _end(iterator: Any) -> Any:
    """An iterator that has come to its end."""
    next(iterator, None)
    return iterator


# -- by index, by calls --------------------------------------------------------------------------------------------------

def sequence(index: int, items: Any) -> Any:
    """`iter(x)` of what has a `__getitem__` alone."""
    return _by_index(iter, index, items)


def backwards(index: int, items: Any) -> Any:
    """`reversed(x)` of a sequence."""
    return _by_index(reversed, index, items)


def _by_index(make: Any, index: int, items: Any) -> Any:
    place = _Long()
    made = make(place)
    if items is ENDED:
        return _end(made)
    made.__setstate__(index)
    return _instead(made, [place], [items])


def calls(function: Any, sentinel: Any) -> Any:
    """`iter(function, sentinel)`."""
    return _end(iter(int, 0)) if function is ENDED else iter(function, sentinel)


# -- builtins --------------------------------------------------------------------------------------------------------------

def map_of(function: Any, parts: tuple[Any, ...]) -> Any:
    """`map(function, *parts)`."""
    return _over(functools.partial(map, function), *parts)


def selection(kind: Callable[..., Any], function: Any, iterator: Any) -> Any:
    """`filter(function, iterator)` and its like: `kind`."""
    return _over(functools.partial(kind, function), iterator)


def zip_of(parts: tuple[Any, ...], strict: bool) -> Any:
    """`zip(*parts, strict=strict)`."""
    return _over(functools.partial(zip, strict=strict), *parts)


def enumeration(iterator: Any, number: Any) -> Any:
    """`enumerate(iterator, number)`."""
    return _over(lambda place: enumerate(place, number), iterator)


# -- itertools -------------------------------------------------------------------------------------------------------------

def cycle(iterator: Any, seen: list[Any], index: int, again: bool) -> Any:
    """`itertools.cycle`, which has `seen` items. again: and seen them before it was made."""
    if iterator is not ENDED:
        place = iter([None])
        made = itertools.cycle(place)
        if again:               # which only its `__setstate__` tells a cycle, as the program did
            made.__setstate__((seen, True))  # type: ignore[attr-defined]
            return _instead(made, [place], [iterator])
    else:
        place, known = ENDED, index + 1     # of one item, which leads back to the first
        made = itertools.cycle([None] * known)
        _C.skip(made, known + (index or 1))
    return _instead(made, [place, gc.get_referents(made)[-1]], [iterator, seen])


def repeat(item: Any, left: int) -> Any:
    """`itertools.repeat(item, left)`."""
    return itertools.repeat(item) if left < 0 else itertools.repeat(item, left)


def chain(source: Any, current: Any) -> Any:
    """`itertools.chain.from_iterable(source)`, which is in the midst of `current`."""
    if source is ENDED:
        return _end(itertools.chain())
    inner = iter([None, None])
    outer = iter([inner])
    made = itertools.chain.from_iterable(outer)
    if current is not ENDED:
        next(made)
    return _instead(made, [outer, inner], [source, current])


def accumulate(iterator: Any, function: Any, initial: Any, total: Any) -> Any:
    """`itertools.accumulate(iterator, function, initial=initial)`, which has come to `total`."""
    place = iter([total])
    made = itertools.accumulate(place, function, initial=initial)
    if total is not ENDED:
        next(made)
    return _instead(made, [place], [iterator])


def islice(iterator: Any, wanted: int, stop: int, step: int, taken: int) -> Any:
    """`itertools.islice`, which waits for the item number `wanted` and has taken `taken`."""
    if iterator is ENDED:
        return _end(itertools.islice(iter(()), 0))
    place, limit = itertools.repeat(None), None if stop < 0 else stop
    following = taken - 1 + step if limit is None else min(taken - 1 + step, limit)
    if taken and wanted == following:       # the last item that it took, it yielded
        made = itertools.islice(place, taken - 1, limit, step)
        next(made)
    else:
        made = itertools.islice(place, wanted, limit, step)
        if taken:               # as the program told it by `__setstate__`
            made.__setstate__(taken)  # type: ignore[attr-defined]
    return _instead(made, [place], [iterator])


def _refuse(item: Any) -> bool:
    return False


def turning(kind: Callable[..., Any], predicate: Any, iterator: Any, turned: bool) -> Any:
    """`itertools.takewhile(predicate, iterator)` or `dropwhile`. turned: it has met an item that the predicate refuses."""
    place = iter([None])
    made = kind(_refuse, place)
    if turned:
        next(made, None)
    return _instead(made, [_refuse, place], [predicate, iterator])


def compress(data: Any, selectors: Any) -> Any:
    """`itertools.compress(data, selectors)`."""
    return _over(itertools.compress, data, selectors)


def pairwise(iterator: Any, last: Any) -> Any:
    """`itertools.pairwise(iterator)`, after the item `last`."""
    if iterator is ENDED:
        return _end(itertools.pairwise(iter(())))
    place = iter([last, last])
    made = itertools.pairwise(place)
    if last is not ENDED:
        next(made)
    return _instead(made, [place], [iterator])


def zip_longest(parts: tuple[Any, ...], fillvalue: Any, active: int) -> Any:
    """`itertools.zip_longest(*parts, fillvalue=fillvalue)`, of which some parts have ended. active: how many have not."""
    places = [iter(()) if part is ENDED else map(int, ("0", "")) for part in parts]
    made = itertools.zip_longest(*places, fillvalue=fillvalue)
    if any(part is ENDED for part in parts):       # asking whether one is equal might ask the program
        next(made)
    if active == 0:
        with contextlib.suppress(ValueError):
            _C.skip(made, 2)
    return _instead(made, places, parts)


def choices(kind: Callable[..., Any], pools: tuple[Any, ...], size: tuple[Any, ...], taken: int) -> Any:
    """An iterator of itertools over choices, of which `taken` were taken. size: how many items a choice has, if that is given."""
    made = kind(*pools, *size)
    _C.skip(made, taken)
    return made


def choices_as_told(kind: Callable[..., Any], pools: tuple[Any, ...], indices: Any) -> Any:
    """… as far as `indices`, the same over places, has come, to which the program has told its state by `__setstate__`."""
    _, args, *state = indices.__reduce__()
    made: Any = kind(*(pool if arg else () for pool, arg in zip(pools, args)), *args[len(pools):])      # an empty one: it has ended
    if state:
        made.__setstate__(*state)
    return made


def groups(iterator: Any, function: Any, target: Any, key: Any, value: Any, mark: Any = None) -> Any:
    """`itertools.groupby(iterator, function)`, which has yielded the group of `target`, and taken `value`, whose key is `key`."""
    keys, values = (object(), object()), (object(), object())
    place = iter(values)
    known = dict(zip(values, keys)).__getitem__
    made: Any = itertools.groupby(place, known)
    places, parts = [place, known], [iterator, function]
    if target is not ENDED:
        group = next(made)[1]
        places, parts = [*places, keys[0]], [*parts, target]
        next(group)
    if target is not ENDED and key is not ENDED:
        next(group, None)           # is at its end where the next begins, whose item is known then
        places, parts = [*places, keys[1], values[1]], [*parts, key, value]
    return _instead(made, places, parts)


def group(parent: Any, target: Any) -> Any:
    """The group of `target` that a groupby has yielded last."""
    return itertools._grouper(parent, target)  # type: ignore[attr-defined]


def past_group(parent: Any, target: Any) -> Any:
    """… or has yielded before."""
    other: Any = itertools.groupby(())
    return _end(itertools._grouper(other, target))  # type: ignore[attr-defined]


# -- what stands for them ----------------------------------------------------------------------------------------------------

def turn_into(stand_in: Any, make: Callable[..., Any], *state: Any) -> None:
    """Makes a stand-in, wherever it is held, the iterator that it has been standing for."""
    _C.become(stand_in, make(*state), state[0] if make is group else None)
