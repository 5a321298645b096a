"""Combinatorics of itertools: C iterators over indices decide which items are chosen."""
from __future__ import annotations

import itertools
from typing import Any

from capture.interp.polyfills.stand_ins import Iterator, stand_in
from capture.refgraph import native_iterators


def index_choices(kind: Any, *args: Any) -> Any:
    """An iterator of C over tuples of indices. A model gives its shadow."""
    return kind(*args)


def at_indices(pool: Any, indices: Any) -> tuple[Any, ...]:
    """The items of a pool at these indices. A model gives its shadow."""
    return tuple([pool[i] for i in indices])


def one_of_each(pools: Any, indices: Any) -> tuple[Any, ...]:
    """The item of each pool at its index. A model gives its shadow."""
    return tuple([pool[i] for pool, i in zip(pools, indices)])


class Choosing(Iterator):
    """`_pools`: the items to choose from, and how many items a choice has, if that is given (`_size`). `_taken`: how many choices
    were taken; None if the program has set the state."""

    __slots__ = ("_pools", "_size", "_indices", "_taken")
    _indices: Any
    _taken: int | None

    def choice(self) -> Any:
        """The indices of the next choice."""
        if self._taken is not None:
            self._taken += 1
        return next(self._indices)

    def made_anew(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        if self._taken is None:
            return (native_iterators.choices_as_told, self.stands_for), ("_pools", "_indices")
        return (native_iterators.choices, self.stands_for), ("_pools", "_size", "_taken")

    def __setstate__(self, state: Any) -> None:
        self._taken = None
        self._indices.__setstate__(state)

    def __sizeof__(self) -> int:
        return self._indices.__sizeof__()


class Choices(Choosing):
    """The items of a pool at indices that are told one tuple after the other."""

    __slots__ = ()

    def begin(self, iterable: Any, *r: Any) -> None:
        pool = tuple(iterable)
        self._pools, self._size, self._taken = (pool,), r, 0
        self._indices = index_choices(self.stands_for, range(len(pool)), *r)

    def __next__(self) -> Any:
        return at_indices(self._pools[0], self.choice())

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args, *state = self._indices.__reduce__()
        return kind, (self._pools[0] if args[0] else (), *args[1:]), *state     # an empty pool says that it has ended


@stand_in(itertools.permutations, native_iterators.choices, applies=lambda iterable, r=None: True)
class Permutations(Choices):
    """`itertools.permutations(iterable, r)`."""

    __slots__ = ()

    def begin(self, iterable: Any, r: Any = None) -> None:
        Choices.begin(self, iterable, r)


@stand_in(itertools.combinations, native_iterators.choices, applies=lambda iterable, r: True)
class Combinations(Choices):
    """`itertools.combinations(iterable, r)`."""

    __slots__ = ()

    def begin(self, iterable: Any, r: Any) -> None:
        Choices.begin(self, iterable, r)


@stand_in(itertools.combinations_with_replacement, native_iterators.choices, applies=lambda iterable, r: True)
class CombinationsWithReplacement(Choices):
    """`itertools.combinations_with_replacement(iterable, r)`."""

    __slots__ = ()

    def begin(self, iterable: Any, r: Any) -> None:
        Choices.begin(self, iterable, r)


@stand_in(itertools.product, native_iterators.choices, applies=lambda *iterables, repeat=1: type(repeat) is int and repeat >= 0)
class Product(Choosing):
    """`itertools.product(*iterables, repeat=repeat)`."""

    __slots__ = ()

    def begin(self, *iterables: Any, repeat: int = 1) -> None:
        pools, sizes = [], []
        for iterable in iterables:
            pool = tuple(iterable)
            pools.append(pool)
            sizes.append(range(len(pool)))
        self._pools, self._size, self._taken = tuple(pools) * repeat, (), 0
        self._indices = index_choices(itertools.product, *sizes * repeat)

    def __next__(self) -> Any:
        return one_of_each(self._pools, self.choice())

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args, *state = self._indices.__reduce__()
        return kind, args if args == ((),) else self._pools, *state      # one empty pool says that it has ended
