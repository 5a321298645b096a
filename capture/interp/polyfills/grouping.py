"""Iterators of itertools that share an underlying iterator: groups and copies."""
from __future__ import annotations

import itertools
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.polyfills.stand_ins import ENDED, Iterator, class_of, stand_in
from capture.refgraph import native_iterators

# -- groups ------------------------------------------------------------------------------------------------------------

@stand_in(itertools.groupby, native_iterators.groups, applies=lambda iterable, key=None: True)
class GroupBy(Iterator):
    """`itertools.groupby(iterable, key)`. `_target`: the key of the group that was yielded last, `_group`; `_key` and `_value`: of
    the item that was taken last, ENDED once it was yielded."""

    __slots__ = ("_iterator", "_function", "_target", "_key", "_value", "_group")

    def begin(self, iterable: Any, key: Any = None) -> None:
        self._iterator, self._function = iter(iterable), key
        self._target: Any = ENDED
        self._key: Any = ENDED
        self._value: Any = ENDED
        self._group: Any = None

    def __next__(self) -> Any:
        self._group = None
        while self._key is ENDED or self._target is not ENDED and (self._target is self._key or self._target == self._key):
            self.take()
        self._target = self._key
        self._group = mark = object()
        return self._key, Group(self, self._key, mark)

    def take(self) -> None:
        """The next item, and its key."""
        value = next(self._iterator)
        key = value if self._function is None else self._function(value)
        self._value, self._key = value, key

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._iterator, self._function
        if ENDED is self._target or ENDED is self._key or ENDED is self._value:
            return itertools.groupby, arguments
        return itertools.groupby, arguments, (self._key, self._value, self._target)

    def __setstate__(self, state: Any) -> None:
        if not is_a(state, tuple):
            raise TypeError("state is not a tuple")
        self._key, self._value, self._target = state


@stand_in(itertools._grouper, native_iterators.group,  # type: ignore[attr-defined]
          applies=lambda parent, target, /: type(parent) is GroupBy)
class Group(Iterator):
    """The items of one group, until its parent goes on to the next."""

    __slots__ = ("_parent", "_target", "_mark")
    comes_first = False

    def begin(self, parent: GroupBy, target: Any, mark: Any = None) -> None:
        if mark is None:        # a copy
            parent._group = mark = object()
        self._parent, self._target, self._mark = parent, target, mark

    def __next__(self) -> Any:
        parent = self._parent
        if parent._group is not self._mark:
            raise StopIteration
        if parent._value is ENDED:
            parent.take()
        if not (self._target is parent._key or self._target == parent._key):
            raise StopIteration
        value = parent._value
        parent._value = parent._key = ENDED
        return value

    def made_anew(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        is_last = self._parent._group is self._mark
        return (native_iterators.group if is_last else native_iterators.past_group,), ("_parent", "_target")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._parent._group is not self._mark:
            return iter, ((),)
        return itertools._grouper, (self._parent, self._target)  # type: ignore[attr-defined]


# -- copies ------------------------------------------------------------------------------------------------------------

CELL = 57       # how many items `_tee_dataobject` holds


class Link:
    """An item that some copies have still to yield, and the link of the next."""

    __slots__ = ("iterator", "item", "following", "running")

    def __init__(self, iterator: Any) -> None:
        self.iterator, self.running = iterator, False
        self.item: Any = None
        self.following: Any = None

    def take(self) -> None:
        """Takes the item, if that is yet to be done."""
        if self.following is None:
            if self.running:
                raise RuntimeError("cannot re-enter the tee iterator")
            self.running = True
            try:
                self.item = next(self.iterator)
            finally:
                self.running = False
            self.following = Link(self.iterator)


TEE = type(itertools.tee(())[0])


@stand_in(TEE, applies=lambda iterable, /: type(iterable) is not TEE)
class Tee(Iterator):
    """One of the iterators that `itertools.tee` returns."""

    __slots__ = ("_link",)

    def begin(self, iterable: Any) -> None:
        iterator = iter(iterable)
        self._link: Link = iterator._link if class_of(iterator) is Tee else Link(iterator)

    def __next__(self) -> Any:
        link = self._link
        link.take()
        self._link = link.following
        return link.item

    def __copy__(self) -> Any:
        return Tee(self)

    def __reduce__(self) -> tuple[Any, ...]:
        items = []
        link = self._link
        while link.following is not None:
            items.append(link.item)
            link = link.following
        return TEE, ((),), (cells(link.iterator, items), 0)

    def __setstate__(self, state: Any) -> None:
        cell, index = state
        items: list[Any] = []
        while cell is not None:
            iterator, held, cell = cell.__reduce__()[1]
            items = items + held
        link = Link(iterator)
        self._link = link
        for i in range(index, len(items)):
            link.item, link.following = items[i], Link(iterator)
            link = link.following


def cells(iterator: Any, items: list[Any]) -> Any:
    """The cells in which C keeps items that it has taken from an iterator."""
    start = len(items) // CELL * CELL
    cell = itertools._tee_dataobject(iterator, items[start:], None)  # type: ignore[attr-defined]
    while start:
        start -= CELL
        cell = itertools._tee_dataobject(iterator, items[start:start + CELL], cell)  # type: ignore[attr-defined]
    return cell


@polyfill(itertools.tee, applies=lambda iterable, n=2, /: type(n) is int and n >= 0)
def tee(iterable: Any, n: int = 2) -> Any:
    """`itertools.tee(iterable, n)`."""
    if n == 0:
        return ()
    iterator = iter(iterable)
    if not hasattr(iterator, "__copy__"):
        iterator = Tee(iterator)
    results = [iterator]
    for _ in range(n - 1):
        results.append(iterator.__copy__())
    return tuple(results)
