"""Lazy iterators over what Python code yields or decides: map, filter, zip, enumerate, and most of itertools."""
from __future__ import annotations

import itertools
import operator
import sys
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import is_native_iterable, is_native_iterator
from capture.interp.polyfills.stand_ins import ENDED, Iterator, stand_in
from capture.refgraph import native_iterators
from capture.refgraph.lookup import lookup_class


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def iterators(iterables: Any) -> tuple[Any, ...]:
    """`iter` of each."""
    result = []
    for iterable in iterables:
        result.append(iter(iterable))
    return tuple(result)


# -- builtins ----------------------------------------------------------------------------------------------------------

@stand_in(map, native_iterators.map_of, applies=lambda function, iterable, *iterables: True)
class Map(Iterator):
    """`map(function, *iterables)`."""

    __slots__ = ("_function", "_parts")

    def begin(self, function: Any, *iterables: Any) -> None:
        self._function, self._parts = function, iterators(iterables)

    def __next__(self) -> Any:
        if len(self._parts) == 1:
            return self._function(next(self._parts[0]))
        items = []
        for part in self._parts:
            items.append(next(part))
        return self._function(*items)

    def __reduce__(self) -> tuple[Any, ...]:
        return map, (self._function, *self._parts)


class Selection(Iterator):
    """The items for which a function returns the wanted answer."""

    __slots__ = ("_function", "_iterator")
    _wanted = True

    def begin(self, function: Any, iterable: Any) -> None:
        self._function, self._iterator = function, iter(iterable)

    def __next__(self) -> Any:
        while True:
            item = next(self._iterator)
            if (True if (item if self._function is None else self._function(item)) else False) is self._wanted:
                return item


@stand_in(filter, native_iterators.selection, filter, applies=lambda function, iterable, /: True)
class Filter(Selection):
    """`filter(function, iterable)`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return filter, (self._function, self._iterator)


@stand_in(itertools.filterfalse, native_iterators.selection, itertools.filterfalse, applies=lambda function, iterable, /: True)
class FilterFalse(Selection):
    """`itertools.filterfalse(function, iterable)`."""

    __slots__ = ()
    _wanted = False

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.filterfalse, (self._function, self._iterator)


def is_zipped_in_python(*iterables: Any, **strict: Any) -> bool:
    """Whether C cannot walk over the iterables in step, as far as the trace can follow."""
    shared = [x for x in iterables if is_native_iterator(x)]
    if not all(is_native_iterable(x) or is_native_iterator(x) for x in iterables):
        return True
    return len(set(map(id, shared))) < len(shared)


@stand_in(zip, native_iterators.zip_of, applies=lambda *iterables, strict=False: is_zipped_in_python(*iterables))
class Zip(Iterator):
    """`zip(*iterables, strict=strict)`."""

    __slots__ = ("_parts", "_strict")

    def begin(self, *iterables: Any, strict: Any = False) -> None:
        self._strict = True if strict else False
        self._parts = iterators(iterables)

    def __next__(self) -> Any:
        items = []
        for part in self._parts:
            item = next(part, ENDED)
            if item is ENDED:
                if self._strict:
                    check_ends(self._parts, len(items))
                raise StopIteration
            items.append(item)
        if not items:
            raise StopIteration
        return tuple(items)

    def __reduce__(self) -> tuple[Any, ...]:
        return (zip, self._parts, True) if self._strict else (zip, self._parts)

    def __setstate__(self, state: Any) -> None:
        self._strict = True if state else False


def check_ends(parts: Any, ended: int) -> None:
    """Raises the error of `zip(strict=True)` unless all iterators end with number `ended`, the first that does."""
    if ended:
        raise ValueError(f"zip() argument {ended + 1} is shorter than argument{'s 1-' if ended > 1 else ' '}{ended}")
    for i in range(1, len(parts)):
        if next(parts[i], ENDED) is not ENDED:
            raise ValueError(f"zip() argument {i + 1} is longer than argument{'s 1-' if i > 1 else ' '}{i}")


@stand_in(enumerate, native_iterators.enumeration,
          applies=lambda iterable, start=0: is_zipped_in_python(iterable) or type(start) is not int)
class Enumerate(Iterator):
    """`enumerate(iterable, start)`."""

    __slots__ = ("_iterator", "_number")

    def begin(self, iterable: Any, start: Any = 0) -> None:
        self._number = operator.index(start)
        self._iterator = iter(iterable)

    def __next__(self) -> Any:
        item = next(self._iterator)
        number = self._number
        self._number = number + 1
        return number, item

    def __reduce__(self) -> tuple[Any, ...]:
        return enumerate, (self._iterator, self._number)


# -- without end -------------------------------------------------------------------------------------------------------

def is_number(x: Any) -> bool:
    """Whether C takes `x` for a number."""
    return is_a(x, complex) or any(lookup_class(type(x), name) is not None for name in ("__index__", "__int__", "__float__"))


@stand_in(itertools.count, itertools.count, applies=lambda start=0, step=1: is_number(start) and is_number(step))
class Count(Iterator):
    """`itertools.count(start, step)`."""

    __slots__ = ("_number", "_step")

    def begin(self, start: Any = 0, step: Any = 1) -> None:
        self._number, self._step = start, step

    def __next__(self) -> Any:
        number = self._number
        self._number = number + self._step
        return number

    def __repr__(self) -> str:
        return f"count({self._number!r})" if is_one(self._step) else f"count({self._number!r}, {self._step!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.count, (self._number,) if is_one(self._step) else (self._number, self._step)


def is_one(step: Any) -> bool:
    """Whether a step is the default, 1."""
    return is_a(step, int) and step == 1


@stand_in(itertools.cycle, native_iterators.cycle, applies=lambda iterable, /: True)
class Cycle(Iterator):
    """`itertools.cycle(iterable)`. `_again`: what is taken from the iterator has been seen already."""

    __slots__ = ("_iterator", "_seen", "_index", "_again")

    def begin(self, iterable: Any, /) -> None:
        self._iterator, self._index, self._again = iter(iterable), 0, False
        self._seen: list[Any] = []

    def __next__(self) -> Any:
        if self._iterator is not ENDED:
            item = next(self._iterator, ENDED)
            if item is not ENDED:
                if not self._again:
                    self._seen.append(item)
                return item
            self._iterator = ENDED
        if not self._seen:
            raise StopIteration
        item = self._seen[self._index]
        self._index = (self._index + 1) % len(self._seen)
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        if self._iterator is not ENDED:
            return itertools.cycle, (self._iterator,), (self._seen, self._again)
        rest = iter(self._seen)
        if self._index:
            rest.__setstate__(self._index)  # type: ignore[attr-defined]
        return itertools.cycle, (rest,), (self._seen, True)

    def __setstate__(self, state: Any) -> None:
        if not is_a(state, tuple):
            raise TypeError("state is not a tuple")
        if len(state) != 2 or not is_a(state[0], list):
            raise TypeError("cycle() state must be a list and an integer")
        self._again = True if operator.index(state[1]) else False
        self._seen, self._index = state[0], 0


@stand_in(itertools.repeat, native_iterators.repeat, applies=lambda object, times=None: True)
class Repeat(Iterator):
    """`itertools.repeat(object, times)`. `_left`: -1 without end."""

    __slots__ = ("_object", "_left")

    def begin(self, object: Any, times: Any = ENDED) -> None:
        self._object, self._left = object, -1 if times is ENDED else max(operator.index(times), 0)

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        if self._left > 0:
            self._left -= 1
        return self._object

    def __length_hint__(self) -> int:
        if self._left < 0:
            raise TypeError("len() of unsized object")
        return self._left

    def __repr__(self) -> str:
        return f"repeat({self._object!r})" if self._left < 0 else f"repeat({self._object!r}, {self._left})"

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.repeat, (self._object,) if self._left < 0 else (self._object, self._left)


# -- one after another -------------------------------------------------------------------------------------------------

@stand_in(itertools.chain, native_iterators.chain, applies=lambda *iterables: True)
class Chain(Iterator):
    """`itertools.chain(*iterables)`."""

    __slots__ = ("_source", "_current")

    def begin(self, *iterables: Any) -> None:
        self._source: Any = iter(iterables)
        self._current: Any = ENDED

    def __next__(self) -> Any:
        while self._source is not ENDED:
            if self._current is ENDED:
                source, self._source = self._source, ENDED
                self._current = iter(next(source))
                self._source = source
            item = next(self._current, ENDED)
            if item is not ENDED:
                return item
            self._current = ENDED
        raise StopIteration

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source is ENDED:
            return itertools.chain, ()
        return itertools.chain, (), (self._source,) if self._current is ENDED else (self._source, self._current)

    def __setstate__(self, state: Any) -> None:
        if not is_a(state, tuple):
            raise TypeError("state is not a tuple")
        if not 1 <= len(state) <= 2:
            raise TypeError(f"function takes 1 or 2 arguments ({len(state)} given)")
        for part in state:
            if not hasattr(type(part), "__next__"):
                raise TypeError("Arguments must be iterators.")
        self._source, self._current = state if len(state) == 2 else (*state, ENDED)


@polyfill(itertools.chain.from_iterable, applies=lambda iterables: True)
def chain_from_iterable(iterables: Any) -> Any:
    """`itertools.chain.from_iterable(iterables)`."""
    result = Chain()
    result._source = iter(iterables)
    return result


@stand_in(itertools.accumulate, native_iterators.accumulate, applies=lambda iterable, func=None, *, initial=None: True)
class Accumulate(Iterator):
    """`itertools.accumulate(iterable, func, initial=initial)`."""

    __slots__ = ("_iterator", "_function", "_initial", "_total")

    def begin(self, iterable: Any, func: Any = None, *, initial: Any = None) -> None:
        self._iterator, self._function, self._initial, self._total = iter(iterable), func, initial, ENDED

    def __next__(self) -> Any:
        if self._initial is not None:
            self._total, self._initial = self._initial, None
            return self._total
        item = next(self._iterator)
        if self._total is ENDED:
            self._total = item
        else:
            self._total = self._total + item if self._function is None else self._function(self._total, item)
        return self._total

    def __reduce__(self) -> tuple[Any, ...]:
        if self._initial is not None:
            return itertools.accumulate, (itertools.chain((self._initial,), self._iterator), self._function), None
        if self._total is None:         # which as a state would say that there is none
            return itertools.islice, (itertools.accumulate(itertools.chain((None,), self._iterator), self._function), 1, None)
        return itertools.accumulate, (self._iterator, self._function), None if self._total is ENDED else self._total

    def __setstate__(self, total: Any) -> None:
        self._total = total


@stand_in(itertools.islice, native_iterators.islice, applies=lambda iterable, first, *bounds: len(bounds) < 3)
class Slice(Iterator):
    """`itertools.islice(iterable, start, stop, step)`: the item number `_wanted` is next, `_taken` have been taken."""

    __slots__ = ("_iterator", "_wanted", "_stop", "_step", "_taken")

    def begin(self, iterable: Any, *bounds: Any) -> None:
        limits = slice(*bounds)
        stop = -1 if limits.stop is None else place(limits.stop)
        if stop < 0 and limits.stop is not None:
            raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
        start = 0 if limits.start is None else place(limits.start)
        if start < 0:
            raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
        step = 1 if limits.step is None else place(limits.step)
        if step < 1:
            raise ValueError("Step for islice() must be a positive integer or None.")
        self._iterator, self._wanted, self._stop, self._step, self._taken = iter(iterable), start, stop, step, 0

    def __next__(self) -> Any:
        iterator, self._iterator = self._iterator, ENDED        # gone, unless there is an item
        if iterator is ENDED:
            raise StopIteration
        while self._taken < self._wanted:
            next(iterator)
            self._taken += 1
        if 0 <= self._stop <= self._taken:
            raise StopIteration
        item = next(iterator)
        self._taken += 1
        self._wanted += self._step
        if 0 <= self._stop < self._wanted:
            self._wanted = self._stop
        self._iterator = iterator
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        if self._iterator is ENDED:
            return itertools.islice, (iter([]), 0), 0
        stop = None if self._stop < 0 else self._stop
        return itertools.islice, (self._iterator, self._wanted, stop, self._step), self._taken

    def __setstate__(self, taken: Any) -> None:
        self._taken = operator.index(taken)


def place(bound: Any) -> int:
    """A bound as a number, -1 for what is none."""
    try:
        number = operator.index(bound)
    except Exception:
        return -1
    return number if 0 <= number <= sys.maxsize else -1


@stand_in(itertools.starmap, native_iterators.selection, itertools.starmap, applies=lambda function, iterable, /: True)
class StarMap(Iterator):
    """`itertools.starmap(function, iterable)`."""

    __slots__ = ("_function", "_iterator")

    def begin(self, function: Any, iterable: Any) -> None:
        self._function, self._iterator = function, iter(iterable)

    def __next__(self) -> Any:
        return self._function(*tuple(next(self._iterator)))

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.starmap, (self._function, self._iterator)


class Turning(Iterator):
    """What changes its mind at the first item of which the predicate is false. `_turned`: it has met that."""

    __slots__ = ("_predicate", "_iterator", "_turned")

    def begin(self, predicate: Any, iterable: Any) -> None:
        self._predicate, self._iterator, self._turned = predicate, iter(iterable), False

    def __setstate__(self, turned: Any) -> None:
        self._turned = True if turned else False


@stand_in(itertools.takewhile, native_iterators.turning, itertools.takewhile, applies=lambda predicate, iterable, /: True)
class TakeWhile(Turning):
    """`itertools.takewhile(predicate, iterable)`."""

    __slots__ = ()

    def __next__(self) -> Any:
        if self._turned:
            raise StopIteration
        item = next(self._iterator)
        if self._predicate(item):
            return item
        self._turned = True
        raise StopIteration

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.takewhile, (self._predicate, self._iterator), self._turned


@stand_in(itertools.dropwhile, native_iterators.turning, itertools.dropwhile, applies=lambda predicate, iterable, /: True)
class DropWhile(Turning):
    """`itertools.dropwhile(predicate, iterable)`."""

    __slots__ = ()

    def __next__(self) -> Any:
        item = next(self._iterator)
        while not self._turned:
            if self._predicate(item):
                item = next(self._iterator)
            else:
                self._turned = True
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.dropwhile, (self._predicate, self._iterator), self._turned


# -- side by side ------------------------------------------------------------------------------------------------------

@stand_in(itertools.compress, native_iterators.compress, applies=lambda data, selectors: True)
class Compress(Iterator):
    """`itertools.compress(data, selectors)`."""

    __slots__ = ("_data", "_selectors")

    def begin(self, data: Any, selectors: Any) -> None:
        self._data, self._selectors = iter(data), iter(selectors)

    def __next__(self) -> Any:
        while True:
            item = next(self._data)
            if next(self._selectors):
                return item

    def __reduce__(self) -> tuple[Any, ...]:
        return itertools.compress, (self._data, self._selectors)


@stand_in(itertools.pairwise, native_iterators.pairwise, applies=lambda iterable, /: True)
class Pairwise(Iterator):
    """`itertools.pairwise(iterable)`."""

    __slots__ = ("_iterator", "_last")

    def begin(self, iterable: Any) -> None:
        self._iterator: Any = iter(iterable)
        self._last: Any = ENDED

    def __next__(self) -> Any:
        if self._iterator is not ENDED and self._last is ENDED:
            self._last = next(self._iterator, ENDED)
            if self._last is ENDED:
                self._iterator = ENDED
        if self._iterator is ENDED:         # which asking for the last item may have done
            self._last = ENDED
            raise StopIteration
        last, item = self._last, next(self._iterator, ENDED)
        self._last = item
        if item is ENDED:
            self._iterator = ENDED
            raise StopIteration
        return last, item


@stand_in(itertools.zip_longest, native_iterators.zip_longest, applies=lambda *iterables, fillvalue=None: True)
class ZipLongest(Iterator):
    """`itertools.zip_longest(*iterables, fillvalue=fillvalue)`. `_active`: how many parts have not ended; none after an error. The
    one that ends last is kept."""

    __slots__ = ("_parts", "_fillvalue", "_active")

    def begin(self, *iterables: Any, fillvalue: Any = None) -> None:
        self._parts, self._fillvalue, self._active = iterators(iterables), fillvalue, len(iterables)

    def __next__(self) -> Any:
        active, self._active = self._active, 0
        if active == 0:
            raise StopIteration
        items = []
        for i in range(len(self._parts)):
            part = self._parts[i]
            item = ENDED if part is ENDED else next(part, ENDED)
            if item is ENDED and part is not ENDED:
                active -= 1
                if active == 0:
                    raise StopIteration
                self._parts = (*self._parts[:i], ENDED, *self._parts[i + 1:])
            items.append(self._fillvalue if item is ENDED else item)
        self._active = active
        return tuple(items)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = []
        for part in self._parts:
            parts.append(() if part is ENDED else part)
        return itertools.zip_longest, tuple(parts), self._fillvalue

    def __setstate__(self, fillvalue: Any) -> None:
        self._fillvalue = fillvalue
