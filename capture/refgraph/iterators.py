"""Iterators of C: copying them where they are, looking ahead, moving them on. No call here runs Python code of the user's.

Those of builtin types tell by `__reduce__` what they walk over and how far they are.
"""
from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from capture import _C
from capture.refgraph.identical import CONTAINERS as BASES
from capture.refgraph.identical import NUMBERS, Classes, builtin_base

END = object()
SEQUENCES = Classes((list, tuple, range, str, bytes, deque))
FORWARD = Classes(type(iter(x)) for x in ([], (), range(0), range(1 << 70), "", "\u0100", b""))
BACKWARD = Classes((type(reversed([])), reversed))
DICTS = tuple(type(f(view)) for view in ({}, {}.values(), {}.items()) for f in (iter, reversed))
SETS = (type(iter(set())),)
DEQUES = Classes((type(iter(deque())), type(reversed(deque()))))
WALKING_ALONE = (*FORWARD, *BACKWARD, *DICTS, *SETS, *DEQUES)       # over no other iterator
CONTAINERS = Classes({*SEQUENCES, dict, set, frozenset})
LONGEST_CHAIN = 10_000      # what a chain walks over may be without end


def fork(iterator: Any) -> Iterator[Any]:
    """A new iterator over the remaining items of `iterator`, which does not move. Raises TypeError if that cannot be told."""
    return _Fork().of(iterator)


def are_apart(left: Any, right: Any) -> bool:
    """Whether two iterators share no iterator that can be copied."""
    return met_by(left).isdisjoint(met_by(right))


def met_by(iterator: Any) -> set[int]:
    """The identities of an iterator and of the iterators that it walks over."""
    fork = _Fork()
    fork.of(iterator)
    return set(fork.copies)


class _Fork:
    """Copies of iterators. Those that walk over the same one have copies that walk over the same copy."""

    __slots__ = ("copies",)

    def __init__(self) -> None:
        self.copies: dict[int, Iterator[Any] | None] = {}       # by the identity of what is copied; None: a chain's has ended

    def of(self, iterator: Any) -> Iterator[Any]:
        known = id(iterator)
        if known not in self.copies:
            copy = KINDS.get(type(iterator))
            if copy is None:
                raise TypeError(f"a {type(iterator).__name__} cannot be copied")
            self.copies[known] = copy(self, iterator)
        found = self.copies[known]
        if found is None:
            raise TypeError("what a chain walks over cannot be copied for others")
        return found

    def rest(self, iterator: Any) -> Iterator[Any]:
        return iter(iterator.__reduce__()[1][0])            # it tells a list of what is left

    def over_sequence(self, iterator: Any) -> Iterator[Any]:
        cls = type(iterator)
        _, args, state = reduced(iterator)
        if type(args[0]) not in SEQUENCES:                  # it might be walked over by Python code
            raise TypeError(f"an iterator over a {type(args[0]).__name__} cannot be copied")
        if cls in DEQUES:
            return cls(*args)
        copy = (reversed if cls in BACKWARD else iter)(args[0])
        if state is not None:
            copy.__setstate__(state)
        return copy

    def zip(self, iterator: Any) -> Iterator[Any]:
        _, args, state = reduced(iterator)
        return zip(*map(self.of, args), strict=bool(state))

    def enumerate(self, iterator: Any) -> Iterator[Any]:
        part, number = reduced(iterator)[1]
        return enumerate(self.of(part), number)

    def repeat(self, iterator: Any) -> Iterator[Any]:
        return _C.clone(iterator)

    def count(self, iterator: Any) -> Iterator[Any]:
        if any(type(number) not in NUMBERS for number in _held(iterator)):     # which Python code might add
            raise TypeError("an itertools.count of other numbers than integers and floats cannot be copied")
        return _C.clone(iterator)

    def slice(self, iterator: Any) -> Iterator[Any]:
        return _clone_over(iterator, [(part, self.of(part)) for part in _held(iterator)])

    def chain(self, iterator: Any) -> Iterator[Any]:
        source, *active = _held(iterator) or (None,)
        if source is None:                              # it has ended
            return iter(())
        parts, over = [(part, self.of(part)) for part in active], _Fork()
        walked = list(itertools.islice(over.of(source), LONGEST_CHAIN + 1))
        if len(walked) > LONGEST_CHAIN or not self.copies.keys().isdisjoint(over.copies):
            raise TypeError("a chain over that much, or over what others walk over, cannot be copied")
        self.copies |= dict.fromkeys(over.copies)
        return _clone_over(iterator, [(source, iter(list(map(self.walk, walked)))), *parts])

    def walk(self, iterable: Any) -> Iterator[Any]:
        """An iterator over what a chain walks over. Raises TypeError for what Python code might walk over."""
        return iter(iterable) if type(iterable) in CONTAINERS else self.of(iterable)

    def cycle(self, iterator: Any) -> Iterator[Any]:
        *left, seen = _held(iterator)
        copy = _clone_over(iterator, [(part, self.of(part)) for part in left])
        _C.exchange(copy, seen, list(seen))             # to which it adds
        return copy


# What makes a copy, by type. Those of itertools are cloned: from Python 3.14 on none tells by `__reduce__` how far it is.
KINDS: dict[type, Callable[[_Fork, Any], Iterator[Any]]] = {
    **dict.fromkeys((*DICTS, *SETS), _Fork.rest), **dict.fromkeys((*FORWARD, *BACKWARD, *DEQUES), _Fork.over_sequence),
    zip: _Fork.zip, enumerate: _Fork.enumerate, itertools.repeat: _Fork.repeat, itertools.count: _Fork.count,
    itertools.islice: _Fork.slice, itertools.chain: _Fork.chain, itertools.cycle: _Fork.cycle}


def _clone_over(iterator: Any, parts: list[tuple[Any, Iterator[Any]]]) -> Iterator[Any]:
    """A clone of an iterator that walks over other parts. parts: what it walks over, and what the clone does."""
    copy = _C.clone(iterator)
    for part, other in parts:
        _C.exchange(copy, part, other)
    return copy


def _held(iterator: Any) -> list[Any]:
    """The objects that an iterator of itertools refers to. Since Python 3.12 its class comes first."""
    held = gc.get_referents(iterator)
    return held[1:] if held and held[0] is type(iterator) else held


def reduced(iterator: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """How to make an iterator of a builtin type anew: `make(*args)`, and the argument for `__setstate__`, or None."""
    make, args, *state = iterator.__reduce__()
    return make, args, state[0] if state else None


def position(iterator: Any) -> tuple[Any, int] | None:
    """The sequence that an iterator walks over, from the beginning, and how far it is; None for other iterators."""
    if type(iterator) not in FORWARD:
        return None
    _, (sequence,), *state = iterator.__reduce__()
    return (sequence, state[0] or 0 if state else 0) if type(sequence) in SEQUENCES else None


def peek(iterator: Any, ahead: int) -> Any:
    """The item that `iterator` will yield after `ahead` others. Raises StopIteration at its end."""
    known = position(iterator)
    if known is None:
        return next(itertools.islice(fork(iterator), ahead, None))
    sequence, at = known
    if at + ahead >= len(sequence):
        raise StopIteration
    return sequence[at + ahead]


def has_item(iterator: Any, ahead: int) -> bool:
    """Whether `iterator` will yield another item after `ahead` others."""
    known = position(iterator)
    if known is None:
        return next(itertools.islice(fork(iterator), ahead, None), END) is not END
    return known[1] + ahead < len(known[0])


def looking_ahead_of(iterator: Any) -> tuple[Callable[[Any, int], bool], Callable[[Any, int], Any]]:
    """`has_item` and `peek` for iterators like this one: written in C for the most usual kinds."""
    return (_C.has_item, _C.peek) if _C.can_look_ahead(iterator) else (has_item, peek)


def _make_in_c(make: Callable[[Any], Any], container: Any) -> Any:
    """`iter(container)` or `reversed(container)` of a builtin type, also of a class with a method of its own for that."""
    base = None if type(container) in CONTAINERS else builtin_base(container, BASES)
    return (make if base is None else getattr(base, "__iter__" if make is iter else "__reversed__", make))(container)


def resume_at(make: Callable[[Any], Any], container: Any, state: Any) -> Any:
    """An iterator `make(container)` at the position that its `__setstate__` understands."""
    iterator = _make_in_c(make, container)
    iterator.__setstate__(state)
    return iterator


def resume_after(make: Callable[[Any], Any], container: Any, count: int) -> Any:
    """An iterator `make(container)` of which `count` items were taken."""
    iterator = _make_in_c(make, container)
    _C.skip(iterator, count)
    return iterator


def resume_choices(kind: Callable[..., Any], sizes: tuple[Any, ...], count: int) -> Any:
    """An iterator of itertools over choices, of which `count` were taken."""
    iterator = kind(*sizes)
    _C.skip(iterator, count)
    return iterator


def resume_view(mapping: Any, view: Callable[[Any], Any], backwards: bool, count: int) -> Any:
    """An iterator over a view of a dict, of which `count` items were taken."""
    return resume_after(reversed if backwards else iter, view(mapping), count)


def position_of(iterator: Any) -> int | None:
    """Where an iterator over a list or tuple is in it, as `__setstate__` understands; None when it is exhausted."""
    return reduced(iterator)[2]


def zip_of(strict: bool, *parts: Any) -> Any:
    """`zip(*parts)` over iterators as they are."""
    return zip(*parts, strict=strict)
