"""Iterators of C: copying them where they are, looking ahead, moving them on. No call here runs Python code of the user's.

They tell by `__reduce__` what they walk over and how far they are.
"""
from __future__ import annotations

import gc
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from capture import _C

END = object()
SEQUENCES = (list, tuple, range, str, bytes, deque)
FORWARD = tuple(type(iter(x)) for x in ([], (), range(0), range(1 << 70), "", "\u0100", b""))
BACKWARD = (type(reversed([])), reversed)
DICTS = tuple(type(f(view)) for view in ({}, {}.values(), {}.items()) for f in (iter, reversed))
SETS = (type(iter(set())),)
DEQUES = (type(iter(deque())), type(reversed(deque())))


def fork(iterator: Any) -> Iterator[Any]:
    """An iterator over what is left to `iterator`, which stays where it is. Raises TypeError for one that does not tell."""
    cls = type(iterator)
    if cls in DICTS or cls in SETS:                 # they tell a list of what is left
        return iter(iterator.__reduce__()[1][0])
    if cls in CHAINED:
        return CHAINED[cls](iterator)
    if cls not in (*FORWARD, *BACKWARD, *DEQUES, zip, enumerate, itertools.count):
        raise TypeError(f"a {cls.__name__} cannot be copied")
    if cls is itertools.count:
        return itertools.count(*count_of(iterator))
    _, args, state = reduced(iterator)
    if cls is enumerate:
        return enumerate(fork(args[0]), args[1])
    if cls is zip:
        return zip(*map(fork, args), strict=bool(state))
    if type(args[0]) not in SEQUENCES:              # it might be walked over by Python code
        raise TypeError(f"an iterator over a {type(args[0]).__name__} cannot be copied")
    if cls in DEQUES:
        return cls(*args)
    copy = (iter if cls in FORWARD else reversed)(args[0])
    if state is not None:
        copy.__setstate__(state)
    return copy


def _repeated(iterator: Any) -> Iterator[Any]:
    return itertools.repeat(*reduced(iterator)[1])


def _sliced(iterator: Any) -> Iterator[Any]:
    _, (left, *bounds), taken = reduced(iterator)
    copy = itertools.islice(fork(left), *bounds)
    copy.__setstate__(taken)  # type: ignore[attr-defined]
    return copy


def _chained(iterator: Any) -> Iterator[Any]:
    _, _, state = reduced(iterator)
    if state is None:                               # it has ended
        return iter(())
    source, *active = state
    return itertools.chain(*map(fork, active), *map(_walk, fork(source)))


def _walk(iterable: Any) -> Iterator[Any]:
    """An iterator over what a chain walks over. Raises TypeError for what Python code might walk over."""
    return iter(iterable) if type(iterable) in (*SEQUENCES, dict, set, frozenset) else fork(iterable)


def _cycled(iterator: Any) -> Iterator[Any]:
    _, (left,), (seen, complete) = reduced(iterator)
    return _in_rounds(fork(left), list(seen), complete)


def _in_rounds(left: Iterator[Any], seen: list[Any], complete: Any) -> Iterator[Any]:
    """What is left of a round, and then all that was seen, over and over. complete: all rounds after the first are known."""
    for item in left:
        if not complete:
            seen.append(item)
        yield item
    while seen:
        yield from seen


# Iterators over others, and what makes a copy of one.
CHAINED: dict[type, Callable[[Any], Iterator[Any]]] = {
    itertools.repeat: _repeated, itertools.islice: _sliced, itertools.chain: _chained, itertools.cycle: _cycled}


def count_of(counter: Any) -> tuple[Any, Any]:
    """The next number of an `itertools.count` of integers or floats, and its step. (Python 3.12 warns of asking for `__reduce__`.)
    Raises TypeError for other numbers, which may be of classes of Python, and for those that no number written out is."""
    held = (part for part in gc.get_referents(counter) if part is not itertools.count)      # which Python 3.12 tells as well
    plain = all(type(number) in (int, float) for number in held)
    known = re.fullmatch(r"count\((-?\d[^,]*)(?:, (-?\d[^,]*))?\)", repr(counter)) if plain else None
    if known is None:
        raise TypeError("an itertools.count of other numbers than integers and floats cannot be copied")
    start, step = (int(text) if re.fullmatch(r"-?\d+", text) else float(text) for text in (known[1], known[2] or "1"))
    return start, step


def reduced(iterator: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """How an iterator is made anew: `make(*args)`, and what `__setstate__` takes then, or None. Raises TypeError where the program
    takes warnings for errors, of which Python 3.12 has one for those of itertools."""
    try:
        make, args, *state = iterator.__reduce__()
    except DeprecationWarning as warning:
        raise TypeError(str(warning)) from None
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
    """`has_item` and `peek` for iterators like this one: C does for the most usual kinds what these do for all."""
    return (_C.has_item, _C.peek) if _C.can_look_ahead(iterator) else (has_item, peek)


def resume_at(make: Callable[[Any], Any], container: Any, state: Any) -> Any:
    """An iterator `make(container)` at the position that its `__setstate__` understands."""
    iterator = make(container)
    iterator.__setstate__(state)
    return iterator


def resume_after(make: Callable[[Any], Any], container: Any, count: int) -> Any:
    """An iterator `make(container)` of which `count` items were taken."""
    iterator = make(container)
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
