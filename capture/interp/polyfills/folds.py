"""Builtins that make one value of an iterable which Python code walks over, or whose items Python code compares or adds."""
from __future__ import annotations

import functools
import math
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import is_iterable, is_plain
from capture.interp.polyfills.iteration import iterator_of
from capture.refgraph.lookup import MISSING, is_mutable


@polyfill(any, applies=lambda iterable: is_iterable(iterable))
def any_(iterable: Any) -> Any:
    """`any(iterable)`."""
    for item in iterable:
        if item:
            return True
    return False


@polyfill(all, applies=lambda iterable: is_iterable(iterable))
def all_(iterable: Any) -> Any:
    """`all(iterable)`."""
    for item in iterable:
        if not item:
            return False
    return True


def is_folded_by_python(iterable: Any, start: Any = 0) -> bool:
    """Whether code of Python may calculate with what is iterated over: that of a class derived from a number's, or of another."""
    return is_iterable(iterable) and not (is_plain(iterable) and is_plain(start) and not any(
        is_mutable(type(item)) for item in iterable))


@polyfill(math.prod, applies=lambda iterable, *, start=1: is_folded_by_python(iterable, start))
def prod(iterable: Any, /, *, start: Any = 1) -> Any:
    """`math.prod(iterable, start=…)`."""
    result = start
    for item in iterable:
        result = result * item
    return result


# Since Python 3.12 a sum of floats keeps what rounding takes off, until something else is added to it.
IS_COMPENSATED = sum([1.0, 1e100, 1.0, -1e100]) != 0.0


@polyfill(sum, applies=is_folded_by_python)
def sum_(iterable: Any, /, start: Any = 0) -> Any:
    """`sum(iterable, start)`."""
    if is_a(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if is_a(start, (bytes, bytearray)):
        raise TypeError("sum() can't sum bytes [use b''.join(seq) instead]")
    result, compensates = start, IS_COMPENSATED
    rest: list[Any] = []            # numbers behind a float, to which C adds them all together
    for item in iterable:
        if compensates and type(result) is float:
            if type(item) is float or type(item) is bool or type(item) is int and -(1 << 63) <= item < 1 << 63:
                rest.append(item)
                continue
            compensates = False     # from here on C adds one after the other
        result = (sum(tuple(rest), result) if rest else result) + item
        rest = []
    return sum(tuple(rest), result) if rest else result


def is_searched(*args: Any, key: Any = None, default: Any = None) -> bool:
    return key is not None or not all(map(is_plain, args)) and (len(args) > 1 or is_iterable(args[0]))


@polyfill(max, applies=is_searched)
def max_(*args: Any, key: Any = None, default: Any = MISSING) -> Any:
    """`max(iterable)`, `max(a, b, …)`."""
    if len(args) > 1 and default is not MISSING:
        raise TypeError("Cannot specify a default for max() with multiple positional arguments")
    best = best_key = MISSING
    for item in args[0] if len(args) == 1 else args:
        rank = item if key is None else key(item)
        if best is MISSING or rank > best_key:
            best, best_key = item, rank
    if best is not MISSING:
        return best
    if default is MISSING:
        raise ValueError("max() arg is an empty sequence")
    return default


@polyfill(min, applies=is_searched)
def min_(*args: Any, key: Any = None, default: Any = MISSING) -> Any:
    """`min(iterable)`, `min(a, b, …)`."""
    if len(args) > 1 and default is not MISSING:
        raise TypeError("Cannot specify a default for min() with multiple positional arguments")
    best = best_key = MISSING
    for item in args[0] if len(args) == 1 else args:
        rank = item if key is None else key(item)
        if best is MISSING or rank < best_key:
            best, best_key = item, rank
    if best is not MISSING:
        return best
    if default is MISSING:
        raise ValueError("min() arg is an empty sequence")
    return default


@polyfill(functools.reduce, applies=lambda *args: len(args) in (2, 3) and is_iterable(args[1]))
def reduce(function: Any, iterable: Any, initial: Any = MISSING) -> Any:
    """`functools.reduce(function, iterable, initial)`."""
    result = initial
    for item in iterator_of(iterable, "reduce() arg 2 must support iteration"):
        result = item if result is MISSING else function(result, item)
    if result is MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    return result


@polyfill(functools.reduce, applies=lambda *args: len(args) in (2, 3) and not is_iterable(args[1]))
def cannot_reduce(*args: Any) -> Any:
    """`functools.reduce(function, x)` of what is not iterable."""
    raise TypeError("reduce() arg 2 must support iteration")
