"""Builtins that consume an iterable written in Python, or that compare and call its items."""
from __future__ import annotations

import collections
import math
import operator
import sys
from typing import Any

from capture import _C
from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import (
    adds_first,
    are_keys,
    is_iterable,
    is_measured,
    is_native_iterable,
    is_native_iterator,
    is_plain,
)
from capture.refgraph.lookup import MISSING

# -- predicates --------------------------------------------------------------------------------------------------------

def is_walked(x: Any) -> bool:
    """Whether iterating `x` is no matter of C alone."""
    return is_iterable(x) and not is_native_iterable(x)


def is_walked_by_sets(x: Any) -> bool:
    """`is_walked`, for methods of sets: these take the members of another set past its `__iter__`."""
    return is_walked(x) and not is_a(x, (set, frozenset))


def is_generated(x: Any) -> bool:
    """Whether filling a list or tuple from `x` runs Python code."""
    return is_walked(x) and not is_native_iterator(x) or is_measured(x) and is_iterable(x)


def first_is_generated(*args: Any, **kwargs: Any) -> bool:
    return len(args) == 1 and is_generated(args[0])


def is_last_generated(container: Any, *args: Any) -> bool:
    return len(args) == 1 and is_generated(args[0])


def is_last_walked(container: Any, *args: Any) -> bool:
    return len(args) == 1 and is_walked(args[0])


# -- containers --------------------------------------------------------------------------------------------------------

def walked(iterable: Any) -> Any:
    """What a list is filled from: C asks for its iterator, and then how many items there may be."""
    if not is_measured(iterable):
        return iterable
    iterator = iter(iterable)
    operator.length_hint(iterable)
    return iterator


def iterator_of(iterable: Any, refusal: str) -> Any:
    """`iter(iterable)`, where C has words of its own for what has none."""
    iterator: Any
    try:
        iterator = iter(iterable)
    except TypeError:
        iterator = MISSING
    if iterator is MISSING:
        raise TypeError(refusal)
    return iterator


def gathered(iterable: Any) -> list[Any]:
    """The items of an iterable, which is not asked how many these may be."""
    result = []
    for item in iterable:
        result.append(item)
    return result


@polyfill(list, applies=first_is_generated)
def list_(iterable: Any) -> Any:
    """`list(iterable)`."""
    return gathered(walked(iterable))


@polyfill(tuple, applies=first_is_generated)
def tuple_(iterable: Any) -> Any:
    """`tuple(iterable)`."""
    return tuple(list_(iterable))


@polyfill(math.fsum, applies=first_is_generated)
def fsum(iterable: Any) -> Any:
    """`math.fsum(iterable)`: an item that is no number ends it there."""
    numbers = []
    for item in iterable:
        numbers.append(item if type(item) is float else math.fsum((item,)))
    return math.fsum(numbers)


def is_any_generated(*args: Any) -> bool:
    return len(args) == 2 and any(map(is_generated, args)) and all(map(is_iterable, args))


if sys.version_info >= (3, 12):
    @polyfill(math.sumprod, applies=is_any_generated)
    def sumprod(p: Any, q: Any) -> Any:
        """`math.sumprod(p, q)`."""
        left, right = iter(p), iter(q)
        first, second = [], []
        while True:
            item, other = next(left, MISSING), next(right, MISSING)
            if item is MISSING and other is MISSING:
                return math.sumprod(first, second)
            if item is MISSING or other is MISSING:
                raise ValueError("Inputs are not the same length")
            first.append(item)
            second.append(other)


@polyfill(tuple.__new__, applies=is_last_generated)
def new_tuple(cls: Any, iterable: Any) -> Any:
    """`tuple.__new__(cls, iterable)`."""
    return tuple.__new__(cls, list_(iterable))


def frozen(members: set[Any]) -> frozenset[Any]:
    """A frozenset whose members lie where they do in a set. A model gives its shadow."""
    kept, layout = _C.hashed_keys(members), _C.set_layout(members)
    slots = tuple(slot for slot, held in enumerate(layout) if held == _C.SET_MEMBER)
    result: frozenset[Any] = frozenset()
    _C.lay_set(result, tuple(member for member, _ in kept), slots, layout, 0, tuple(number for _, number in kept))
    return result


@polyfill(set, applies=lambda *args: len(args) == 1 and is_walked_by_sets(args[0]))
def set_(iterable: Any) -> Any:
    """`set(iterable)`."""
    result: set[Any] = set()
    for item in iterable:
        result.add(item)
    return result


@polyfill(frozenset, applies=lambda *args: len(args) == 1 and is_walked_by_sets(args[0]))
def frozenset_(iterable: Any) -> Any:
    """`frozenset(iterable)`: each item is added before the next one is asked for."""
    return frozen(set_(iterable))


@polyfill(collections.deque, applies=lambda *args, **kwargs: bool(args) and is_walked(args[0]))
def deque_(iterable: Any, maxlen: Any = None) -> Any:
    """`deque(iterable, maxlen)`."""
    result = collections.deque((), maxlen)
    for item in iterable:
        result.append(item)
    return result


@polyfill(list.__init__, applies=lambda self, *args: True)
def init_list(self: list[Any], iterable: Any = ()) -> None:
    """`list.__init__(self, iterable)`."""
    list.clear(self)
    list.extend(self, iterable)


@polyfill(list.extend, applies=is_last_generated)
def extend(self: list[Any], iterable: Any) -> None:
    """`self.extend(iterable)`."""
    for item in walked(iterable):
        list.append(self, item)


@polyfill(operator.iadd, applies=lambda a, b: is_a(a, list) and is_generated(b) and not adds_first(a, b))
@polyfill(list.__iadd__, applies=lambda a, b: is_a(a, list) and is_generated(b))
def iadd(a: Any, b: Any) -> Any:
    """`a += b`."""
    for item in walked(b):
        list.append(a, item)
    return a


# For steps and without; since 3.13 no longer told apart.
NOT_ASSIGNED = ["must assign iterable to extended slice",
                "can only assign an iterable" if sys.version_info < (3, 13) else "must assign iterable to extended slice"]


@polyfill(list.__setitem__, operator.setitem, applies=lambda self, index, value: is_a(self, list)
          and type(index) is slice and is_walked(value))
def set_slice(self: Any, index: slice, value: Any) -> None:
    """`self[i:j] = iterable`."""
    self[index] = list(iterator_of(value, NOT_ASSIGNED[index.step in (None, 1)]))


@polyfill(collections.deque.extend, applies=is_last_walked)
def extend_deque(self: Any, iterable: Any) -> None:
    """`self.extend(iterable)` of a deque."""
    for item in iterable:
        self.append(item)


@polyfill(collections.deque.extendleft, applies=is_last_walked)
def extend_deque_left(self: Any, iterable: Any) -> None:
    """`self.extendleft(iterable)`."""
    for item in iterable:
        self.appendleft(item)


@polyfill(set.update, applies=lambda self, *others: any(map(is_walked_by_sets, others)))
def update_set(self: set[Any], *others: Any) -> None:
    """`self.update(*iterables)`."""
    for other in others:
        if is_a(other, (set, frozenset)):
            set.update(self, other)
        else:
            for item in other:
                set.add(self, item)


@polyfill(set.union, frozenset.union, applies=lambda self, *others: any(map(is_walked_by_sets, others)))
def union(self: Any, *others: Any) -> Any:
    """`self.union(*iterables)`."""
    result = set(self)
    set.update(result, *others)
    return result if is_a(self, set) else frozen(result)


# -- joining ---------------------------------------------------------------------------------------------------------

@polyfill(str.join, bytes.join, applies=lambda separator, parts: is_walked(parts))
def join(separator: Any, parts: Any) -> Any:
    """`separator.join(parts)`."""
    return separator.join(list(iterator_of(parts, "can only join an iterable")))


# -- search ------------------------------------------------------------------------------------------------------------

SEQUENCES = (list, tuple, collections.deque)


def kept_by(sequence: Any) -> Any:
    """The class of C that keeps the items, and is asked for them past a subclass's own methods."""
    return next(cls for cls in SEQUENCES if is_a(sequence, cls))


def is_compared(sequence: Any, x: Any) -> bool:
    """Whether a search for `x` compares more than plain data."""
    return is_a(sequence, SEQUENCES) and not (is_plain(sequence) and is_plain(x))


@polyfill(operator.contains, *(cls.__contains__ for cls in SEQUENCES), applies=is_compared)
def contains(sequence: Any, x: Any) -> Any:
    """`x in sequence`."""
    for item in kept_by(sequence).__iter__(sequence):
        if item is x or item == x:
            return True
    return False


@polyfill(*(cls.count for cls in SEQUENCES), applies=is_compared)
def count(sequence: Any, x: Any) -> Any:
    """`sequence.count(x)`."""
    n = 0
    for item in kept_by(sequence).__iter__(sequence):
        if item is x or item == x:
            n += 1
    return n


@polyfill(*(cls.index for cls in SEQUENCES), applies=lambda sequence, x, *bounds: is_compared(sequence, x))
def index(sequence: Any, x: Any, start: int = 0, stop: int = 9223372036854775807) -> Any:
    """`sequence.index(x, start, stop)`."""
    kept = kept_by(sequence)
    first, last, _ = slice(start, stop).indices(kept.__len__(sequence))
    for i in range(first, last):
        if i >= kept.__len__(sequence):
            break
        item = kept.__getitem__(sequence, i)
        if item is x or item == x:
            return i
    raise ValueError("tuple.index(x): x not in tuple" if kept is tuple else f"{x!r} is not in {kept.__name__}")


@polyfill(list.remove, applies=is_compared)
def remove(self: list[Any], x: Any) -> None:
    """`self.remove(x)`."""
    for i in range(list.__len__(self)):
        item = list.__getitem__(self, i)
        if item is x or item == x:
            list.__delitem__(self, i)
            return
    raise ValueError("list.remove(x): x not in list")


# -- equality ----------------------------------------------------------------------------------------------------------

def are_unlike(cls: Any) -> Any:
    """A predicate: two containers of the type `cls`, which hold more than plain data."""
    def applies(a: Any, b: Any) -> bool:
        return is_a(a, cls) and is_a(b, cls) and not (is_plain(a) and is_plain(b))
    return applies


def iterators(a: Any, b: Any) -> Any:
    """Iterators over two sequences that are compared: deques are asked for theirs, others are not."""
    return (iter(a), iter(b)) if is_a(a, collections.deque) else (kept_by(a).__iter__(a), kept_by(b).__iter__(b))


def same_items(a: Any, b: Any) -> bool:
    """Whether two sequences are equal. Where comparing two items has shortened one of them, their lengths decide. Items of tuples
    are compared whatever the lengths."""
    kept = kept_by(a)
    if a is b or kept.__len__(a) != kept.__len__(b) and kept is not tuple:
        return a is b
    i = 0
    for x, y in zip(*iterators(a, b)):
        if not (x is y or x == y):
            return kept.__len__(a) == kept.__len__(b) and i >= kept.__len__(a)
        i += 1
    return kept.__len__(a) == kept.__len__(b)


def are_unlike_dicts(a: Any, b: Any) -> bool:
    """`are_unlike(dict)` of dicts whose keys C hashes and compares. It compares the values of an OrderedDict in the order that a
    dict keeps."""
    return are_unlike(dict)(a, b) and are_keys(a) and are_keys(b) and all(map(
        operator.is_, (collections.OrderedDict if is_a(a, collections.OrderedDict) else dict).__iter__(a), dict.__iter__(a)))


def under_key(a: Any, b: Any, key: Any) -> Any:
    """What a dict has under a key of another one, or MISSING."""
    return dict.get(b, key, MISSING)


def same_entries(a: Any, b: Any, found: Any = under_key) -> bool:
    """Whether two dicts are equal. `found(a, b, key)`: what `b` has under a key of `a`, or MISSING."""
    if dict.__len__(a) != dict.__len__(b):
        return False
    kept = collections.OrderedDict if is_a(a, collections.OrderedDict) else dict
    for key, x in list(kept.items(a)):      # comparing may change either of them
        y = found(a, b, key)
        if y is MISSING or not (x is y or x == y):
            return False
    return in_one_order(a, b)


def in_one_order(a: Any, b: Any) -> bool:
    """Whether two dicts of the same keys have these in one order, if that matters: if both keep an order of their own."""
    ordered = collections.OrderedDict
    return not (is_a(a, ordered) and is_a(b, ordered)) or list(ordered.__iter__(a)) == list(ordered.__iter__(b))


def eq_items(a: Any, b: Any) -> Any:
    """`a == b` of sequences."""
    return same_items(a, b)


def ne_items(a: Any, b: Any) -> Any:
    """`a != b` of sequences."""
    return not same_items(a, b)


def eq_entries(a: Any, b: Any) -> Any:
    """`a == b` of dicts."""
    return same_entries(a, b)


def ne_entries(a: Any, b: Any) -> Any:
    """`a != b` of dicts."""
    return not same_entries(a, b)


for _cls in SEQUENCES:
    polyfill(operator.eq, _cls.__eq__, applies=are_unlike(_cls))(eq_items)
    polyfill(operator.ne, _cls.__ne__, applies=are_unlike(_cls))(ne_items)
polyfill(operator.eq, dict.__eq__, applies=are_unlike_dicts)(eq_entries)
polyfill(operator.ne, dict.__ne__, applies=are_unlike_dicts)(ne_entries)


def first_difference(a: Any, b: Any) -> int:
    """The index of the first items that differ, or of the end of the shorter sequence."""
    i = 0
    for x, y in zip(*iterators(a, b)):
        if not (x is y or x == y):
            return i
        i += 1
    return i


def order_items(a: Any, b: Any, compare: Any) -> Any:
    i = first_difference(a, b)
    kept = kept_by(a)
    if i < kept.__len__(a) and i < kept.__len__(b):
        return compare(kept.__getitem__(a, i), kept.__getitem__(b, i))
    return compare(kept.__len__(a), kept.__len__(b))


def lt(a: Any, b: Any) -> Any:
    """`a < b` of sequences."""
    return order_items(a, b, operator.lt)


def le(a: Any, b: Any) -> Any:
    """`a <= b` of sequences."""
    return order_items(a, b, operator.le)


def gt(a: Any, b: Any) -> Any:
    """`a > b` of sequences."""
    return order_items(a, b, operator.gt)


def ge(a: Any, b: Any) -> Any:
    """`a >= b` of sequences."""
    return order_items(a, b, operator.ge)


for _cls in SEQUENCES:
    for _fn in (lt, le, gt, ge):
        polyfill(getattr(operator, _fn.__name__), getattr(_cls, f"__{_fn.__name__}__"), applies=are_unlike(_cls))(_fn)


# -- by the language itself --------------------------------------------------------------------------------------------

def taken(iterable: Any, limit: int) -> Any:
    """The items of `a, b = iterable`: up to `limit`, one more than there are names."""
    items = []
    for item in iterable:
        items.append(item)
        if len(items) == limit:
            break
    return items


def spread(function: Any, iterable: Any, /, **kwargs: Any) -> Any:
    """`function(*iterable, **kwargs)`"""
    return function(*tuple(iterable), **kwargs)
