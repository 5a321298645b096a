"""The iterators that `iter` and `reversed` make for objects without `__iter__`. They are objects, not generators, since CPython's
can be resumed from within, copied and set back."""
from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

from capture.interp.polyfills.stand_ins import ENDED, Iterator, stand_in
from capture.refgraph import native_iterators


class Sequence:
    """Anything that is iterated by index."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


@stand_in(type(iter(Sequence())), native_iterators.sequence)
class SequenceIterator(Iterator):
    """`iter(x)` of an instance with `__getitem__` alone: its items until one is missing."""

    __slots__ = ("_index", "_sequence")
    _step = 1

    def begin(self, sequence: Any, index: int = 0) -> None:
        self._sequence, self._index = sequence, index

    def __next__(self) -> Any:
        item = ENDED
        if self._sequence is not ENDED and self._index >= 0:
            if self._index == sys.maxsize:
                raise OverflowError("iter index too large")
            try:
                item = self._sequence[self._index]
            except (IndexError, StopIteration):
                pass
        if item is ENDED:
            self._sequence = ENDED
            raise StopIteration
        self._index += self._step
        return item

    def __length_hint__(self) -> int:
        if self._sequence is ENDED:
            return 0
        return max(len(self._sequence) - self._index, 0) if hasattr(type(self._sequence), "__len__") else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return (iter, ((),)) if self._sequence is ENDED else (iter, (self._sequence,), self._index)

    def __setstate__(self, index: int) -> None:
        self._index = max(operator.index(index), 0)


@stand_in(reversed, native_iterators.backwards)
class ReversedIterator(SequenceIterator):
    """`reversed(x)` of a sequence."""

    __slots__ = ()
    _step = -1

    def __length_hint__(self) -> int:
        return 0 if self._sequence is ENDED or len(self._sequence) < self._index + 1 else self._index + 1

    def __reduce__(self) -> tuple[Any, ...]:
        return (reversed, ((),)) if self._sequence is ENDED else (reversed, (self._sequence,), self._index)

    def __setstate__(self, index: int) -> None:
        if self._sequence is not ENDED:
            self._index = max(min(operator.index(index), len(self._sequence) - 1), -1)


@stand_in(type(iter(int, None)), native_iterators.calls)
class CallableIterator(Iterator):
    """`iter(function, sentinel)`: what `function()` returns, until it is `sentinel`."""

    __slots__ = ("_function", "_sentinel")

    def begin(self, function: Callable[[], Any], sentinel: Any) -> None:
        self._function, self._sentinel = function, sentinel

    def __next__(self) -> Any:
        item = ENDED
        if self._function is not ENDED:
            try:
                item = self._function()
            except StopIteration:
                pass
        # The call may have used the iterator up.
        if item is ENDED or self._function is ENDED or item is self._sentinel or item == self._sentinel:
            self._function = ENDED  # type: ignore[assignment]
            raise StopIteration
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        return (iter, ((),)) if self._function is ENDED else (iter, (self._function, self._sentinel))
