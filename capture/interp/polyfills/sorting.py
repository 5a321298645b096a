"""Sorting by comparisons in Python code: CPython's own algorithm (`listsort.txt`), so that the same items are compared in the same
order. That decides the result where the comparisons are no total order, and what they do besides."""
from __future__ import annotations

import operator
import sys
from typing import Any

from capture.interp.core.registry import polyfill
from capture.interp.core.special import in_python, is_index_in_python, is_iterable, is_plain, special_method

LEAST_GALLOP = 7        # items from one run in a row, after which the rest is searched for
SHORT = 64              # runs are extended to between half of this and this


def is_sorted_by_python(iterable: Any, *, key: Any = None, reverse: Any = False) -> bool:
    return is_iterable(iterable) and not (key is None and is_plain(iterable) and not is_index_in_python(reverse))


def as_flag(reverse: Any) -> bool:
    """How C reads `reverse`: as a C int, before Python 3.12."""
    if sys.version_info < (3, 12):
        reverse = operator.index(reverse)
        sorted([], reverse=reverse)             # which must fit
    return True if reverse else False


@polyfill(sorted, applies=is_sorted_by_python)
def sorted_(iterable: Any, /, *, key: Any = None, reverse: Any = False) -> Any:
    """`sorted(iterable, key=key, reverse=reverse)`."""
    items = list(iterable)
    arrange(items, key, as_flag(reverse))
    return items


@polyfill(list.sort, applies=is_sorted_by_python)
def sort(self: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    """`self.sort(key=key, reverse=reverse)`, meanwhile empty. Raises ValueError where something was put into it."""
    descending = as_flag(reverse)
    items = list.copy(self)
    list.clear(self)
    try:
        arrange(items, key, descending)
    finally:
        put = list.copy(self)
        list.__setitem__(self, slice(None), items)
    if put:
        raise ValueError("list modified during sort")


def arrange(items: list[Any], key: Any, reverse: bool) -> None:
    """Sorts `items`, as far as it comes if a comparison raises."""
    if key is None:
        keys = list.copy(items)
    else:
        keys = []
        for item in items:
            keys.append(key(item))
    order = list(range(len(keys)))
    former = list.copy(items)
    try:
        sort_indices(order, keys, reverse)
    finally:
        place = 0
        for i in order:
            items[place] = former[i]
            place += 1


def sort_indices(order: list[int], keys: list[Any], reverse: bool) -> None:
    """Sorts `order`, the indices of `keys`, equal ones as they come."""
    order[:] = order_of(keys, reverse)


def order_of(keys: list[Any], reverse: bool) -> list[int]:
    """The indices of `keys` in ascending or descending order, equal ones as they come. Plain data has a model."""
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)


@polyfill(sort_indices, applies=lambda order, keys, reverse: not is_plain(keys))
def merge_sort(order: list[int], keys: list[Any], reverse: bool) -> None:
    """`sort_indices` by keys that compare by Python code."""
    if reverse:
        order.reverse()
    try:
        merge_runs(order, as_compared(keys))
    finally:
        if reverse:
            order.reverse()


class Tried:
    """A key among ones of one class. C calls the `__lt__` of that class itself, and compares as usual where that declines, which
    calls it once more."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: Any) -> Any:
        return tried(self.key, other.key)


class TriedFirst(Tried):
    """A tuple among ones whose first items are of one class."""

    __slots__ = ()

    def __lt__(self, other: Any) -> Any:
        for i in range(min(len(self.key), len(other.key))):
            mine, yours = self.key[i], other.key[i]
            if mine is not yours and not mine == yours:
                return mine < yours if i else tried(mine, yours)
        return len(self.key) < len(other.key)


def tried(a: Any, b: Any) -> Any:
    """`a < b`, as C compares two keys of a class."""
    answer = special_method(a, "__lt__")(b)
    return a < b if answer is NotImplemented else answer


def as_compared(keys: list[Any]) -> list[Any]:
    """Keys that compare as C compares these."""
    tuples = True
    for key in keys:
        tuples = tuples and type(key) is tuple and len(key) > 0
    kind: Any = None
    for key in keys:
        compared = key[0] if tuples else key
        if kind is None:
            kind = type(compared)
        if type(compared) is not kind or not in_python(compared, "__lt__"):
            return keys
    wrapped = []
    for key in keys:
        wrapped.append(TriedFirst(key) if tuples else Tried(key))
    return wrapped


def merge_runs(order: list[int], keys: list[Any]) -> None:
    """Finds runs in `order`, makes short ones longer, and merges them in pairs (powersort)."""
    size = len(order)
    least = least_run(size)
    runs: list[list[int]] = []          # start, length and power of each run that waits
    gallop = [LEAST_GALLOP]             # … of all merges: it adapts to the data
    start = 0
    while start < size and size > 1:
        length = count_run(order, keys, start, size)
        if length < least:
            longer = min(least, size - start)
            insert_each(order, keys, start, start + longer, start + length)
            length = longer
        if runs:
            power = power_of(runs[-1][0], runs[-1][1], length, size)
            while len(runs) > 1 and runs[-2][2] > power:
                merge_at(order, keys, runs, len(runs) - 2, gallop)
            runs[-1][2] = power
        runs.append([start, length, 0])
        start += length
    while len(runs) > 1:
        at = len(runs) - 2
        if at > 0 and runs[at - 1][1] < runs[at + 1][1]:
            at -= 1
        merge_at(order, keys, runs, at, gallop)


def least_run(size: int) -> int:
    """How long runs should at least be."""
    odd = 0
    while size >= SHORT:
        odd |= size & 1
        size >>= 1
    return size + odd


def power_of(start: int, first: int, second: int, size: int) -> int:
    """The depth, in the ideal tree of merges, of that of a run with the next; `first` and `second` are their lengths."""
    a = 2 * start + first
    b = a + first + second
    power = 1
    while a >= size or b < size:
        if a >= size:
            a -= size
            b -= size
        a <<= 1
        b <<= 1
        power += 1
    return power


def count_strict_run(order: list[int], keys: list[Any], start: int, stop: int) -> int:
    """The length of the run that begins at `start`, ascending or strictly descending; the latter is reversed. So CPython does
    before 3.13."""
    if start + 1 == stop:
        return 1
    end = start + 2
    if keys[order[start + 1]] < keys[order[start]]:
        while end < stop and keys[order[end]] < keys[order[end - 1]]:
            end += 1
        order[start:end] = order[start:end][::-1]
    else:
        end = ascent(order, keys, end, stop)
    return end - start


def count_run_with_equals(order: list[int], keys: list[Any], start: int, stop: int) -> int:
    """The same since 3.13: equal items do not end a descending run. Each group of them is reversed beforehand, so that they are in
    their order again when the run is. What follows on the reversed run belongs to it."""
    end = ascent(order, keys, start + 1, stop)
    if end == stop:
        return end - start
    if end - start > 1:
        if keys[order[start]] < keys[order[end - 1]]:
            return end - start
        order[start:end] = order[start:end][::-1]       # all of them are equal
    end += 1
    equal = 0                                           # items before `end` that equal the one before them
    while end < stop:
        if keys[order[end]] < keys[order[end - 1]]:
            reverse_last(order, end, equal)
            equal = 0
        elif keys[order[end - 1]] < keys[order[end]]:
            break
        else:
            equal += 1
        end += 1
    reverse_last(order, end, equal)
    order[start:end] = order[start:end][::-1]
    return ascent(order, keys, end, stop) - start


def ascent(order: list[int], keys: list[Any], end: int, stop: int) -> int:
    """Where a run that goes on at `end` ceases to ascend."""
    while end < stop:
        if keys[order[end]] < keys[order[end - 1]]:
            break
        end += 1
    return end


def reverse_last(order: list[int], end: int, equal: int) -> None:
    """Reverses a group of equal items before `end`: `equal` of them, and the one before."""
    if equal:
        order[end - equal - 1:end] = order[end - equal - 1:end][::-1]


count_run = count_strict_run if sys.version_info < (3, 13) else count_run_with_equals


def insert_each(order: list[int], keys: list[Any], start: int, stop: int, at: int) -> None:
    """Inserts the items from `at` to `stop` one by one into the run that begins at `start`."""
    if at == start:
        at += 1
    while at < stop:
        pivot = order[at]
        low, high = start, at
        while low < high:
            middle = low + ((high - low) >> 1)
            if keys[pivot] < keys[order[middle]]:
                high = middle
            else:
                low = middle + 1
        order.pop(at)
        order.insert(low, pivot)
        at += 1


def merge_at(order: list[int], keys: list[Any], runs: list[list[int]], at: int, gallop: list[int]) -> None:
    """Merges two neighbouring runs, without what is in its place already."""
    start, first, _ = runs[at]
    middle, second, _ = runs[at + 1]
    runs[at][1] = first + second
    runs.pop(at + 1)
    left = order[start:middle]
    right = order[middle:middle + second]
    skipped = place_after(keys, right[0], left, 0)
    left = left[skipped:]
    if not left:
        return
    right = right[:place_before(keys, left[-1], right, second - 1)]
    if not right:
        return
    merged: list[int] = []
    taken = [0, 0] if len(left) <= len(right) else [len(left), len(right)]
    try:
        if len(left) <= len(right):
            merge_forward(keys, left, right, merged, taken, gallop)
        else:
            merge_backward(keys, left, right, merged, taken, gallop)
    finally:
        start += skipped
        if len(left) <= len(right):
            merged = merged + left[taken[0]:] + right[taken[1]:]
        else:
            merged = left[:taken[0]] + right[:taken[1]] + merged[::-1]
        order[start:start + len(merged)] = merged


def merge_forward(keys: list[Any], left: list[int], right: list[int], merged: list[int], taken: list[int],
                  gallop: list[int]) -> None:
    """Merges from the front. taken: how many items of each run are in `merged`; the rest follows in order."""
    take(right, merged, taken, 1, 1)
    if taken[1] == len(right):
        return
    if len(left) == 1:
        return take(right, merged, taken, 1, len(right) - 1)
    least = gallop[0]
    while True:
        from_left = from_right = 0
        while True:
            if keys[right[taken[1]]] < keys[left[taken[0]]]:
                take(right, merged, taken, 1, 1)
                from_right += 1
                from_left = 0
                if taken[1] == len(right):
                    return
                if from_right >= least:
                    break
            else:
                take(left, merged, taken, 0, 1)
                from_left += 1
                from_right = 0
                if taken[0] == len(left) - 1:
                    return take(right, merged, taken, 1, len(right) - taken[1])
                if from_left >= least:
                    break
        least += 1
        while True:
            least -= least > 1
            gallop[0] = least
            from_left = place_after(keys, right[taken[1]], left[taken[0]:], 0)
            take(left, merged, taken, 0, from_left)
            if from_left and taken[0] == len(left) - 1:
                return take(right, merged, taken, 1, len(right) - taken[1])
            if from_left and taken[0] == len(left):
                return
            take(right, merged, taken, 1, 1)
            if taken[1] == len(right):
                return
            from_right = place_before(keys, left[taken[0]], right[taken[1]:], 0)
            take(right, merged, taken, 1, from_right)
            if from_right and taken[1] == len(right):
                return
            take(left, merged, taken, 0, 1)
            if taken[0] == len(left) - 1:
                return take(right, merged, taken, 1, len(right) - taken[1])
            if from_left < LEAST_GALLOP and from_right < LEAST_GALLOP:
                break
        least += 1
        gallop[0] = least


def take(run: list[int], merged: list[int], taken: list[int], which: int, count: int) -> None:
    """Moves the next items of a run to `merged`."""
    merged += run[taken[which]:taken[which] + count]
    taken[which] += count


def merge_backward(keys: list[Any], left: list[int], right: list[int], merged: list[int], kept: list[int],
                   gallop: list[int]) -> None:
    """Merges from the back. kept: how many items of each run are not yet in `merged`, which holds the last ones first."""
    take_last(left, merged, kept, 0, 1)
    if kept[0] == 0:
        return
    if kept[1] == 1:
        return take_last(left, merged, kept, 0, kept[0])
    least = gallop[0]
    while True:
        from_left = from_right = 0
        while True:
            if keys[right[kept[1] - 1]] < keys[left[kept[0] - 1]]:
                take_last(left, merged, kept, 0, 1)
                from_left += 1
                from_right = 0
                if kept[0] == 0:
                    return
                if from_left >= least:
                    break
            else:
                take_last(right, merged, kept, 1, 1)
                from_right += 1
                from_left = 0
                if kept[1] == 1:
                    return take_last(left, merged, kept, 0, kept[0])
                if from_right >= least:
                    break
        least += 1
        while True:
            least -= least > 1
            gallop[0] = least
            from_left = kept[0] - place_after(keys, right[kept[1] - 1], left[:kept[0]], kept[0] - 1)
            take_last(left, merged, kept, 0, from_left)
            if from_left and kept[0] == 0:
                return
            take_last(right, merged, kept, 1, 1)
            if kept[1] == 1:
                return take_last(left, merged, kept, 0, kept[0])
            from_right = kept[1] - place_before(keys, left[kept[0] - 1], right[:kept[1]], kept[1] - 1)
            take_last(right, merged, kept, 1, from_right)
            if from_right and kept[1] == 1:
                return take_last(left, merged, kept, 0, kept[0])
            if from_right and kept[1] == 0:
                return
            take_last(left, merged, kept, 0, 1)
            if kept[0] == 0:
                return
            if from_left < LEAST_GALLOP and from_right < LEAST_GALLOP:
                break
        least += 1
        gallop[0] = least


def take_last(run: list[int], merged: list[int], kept: list[int], which: int, count: int) -> None:
    """Moves the last items of a run to `merged`."""
    end = kept[which]
    merged += run[end - count:end][::-1]
    kept[which] = end - count


def place_before(keys: list[Any], key: int, run: list[int], hint: int) -> int:
    """Where an index belongs in a run, before those with equal keys: searched for from `hint` on, in steps that double."""
    last, offset = 0, 1
    if keys[run[hint]] < keys[key]:
        most = len(run) - hint
        while offset < most and keys[run[hint + offset]] < keys[key]:
            last, offset = offset, 2 * offset + 1
        last, offset = last + hint, min(offset, most) + hint
    else:
        most = hint + 1
        while offset < most:
            if keys[run[hint - offset]] < keys[key]:
                break
            last, offset = offset, 2 * offset + 1
        last, offset = hint - min(offset, most), hint - last
    last += 1
    while last < offset:
        middle = last + ((offset - last) >> 1)
        if keys[run[middle]] < keys[key]:
            last = middle + 1
        else:
            offset = middle
    return offset


def place_after(keys: list[Any], key: int, run: list[int], hint: int) -> int:
    """Where an index belongs in a run, after those with equal keys: searched for from `hint` on, in steps that double."""
    last, offset = 0, 1
    if keys[key] < keys[run[hint]]:
        most = hint + 1
        while offset < most and keys[key] < keys[run[hint - offset]]:
            last, offset = offset, 2 * offset + 1
        last, offset = hint - min(offset, most), hint - last
    else:
        most = len(run) - hint
        while offset < most:
            if keys[key] < keys[run[hint + offset]]:
                break
            last, offset = offset, 2 * offset + 1
        last, offset = last + hint, min(offset, most) + hint
    last += 1
    while last < offset:
        middle = last + ((offset - last) >> 1)
        if keys[key] < keys[run[middle]]:
            offset = middle
        else:
            last = middle + 1
    return offset
