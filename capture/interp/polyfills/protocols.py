"""Builtins that ask an instance's special method, when it is a Python function."""
from __future__ import annotations

import math
import operator
import sys
import types
import typing
from collections import deque
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import (
    C_METHODS,
    asks_python,
    in_python,
    is_index_in_python,
    is_measured,
    method_or,
    special_method,
    type_name,
)
from capture.interp.polyfills.iterators import ENDED, CallableIterator, ReversedIterator, SequenceIterator
from capture.refgraph.identical import items_in_c
from capture.refgraph.lookup import lookup_class

# -- containers --------------------------------------------------------------------------------------------------------

@polyfill(len, applies=lambda x: in_python(x, "__len__"))
def length(x: Any) -> Any:
    """`len(x)`."""
    n = operator.index(special_method(x, "__len__")())
    if n < 0:
        raise ValueError("__len__() should return >= 0")
    if n > sys.maxsize:
        raise OverflowError("cannot fit 'int' into an index-sized integer")
    return n


@polyfill(operator.length_hint, applies=lambda x, default=0: is_measured(x))
def length_hint(x: Any, default: int = 0) -> Any:
    """`operator.length_hint(x, default)`, which C code asks for before it makes a list or tuple of `x`."""
    default = operator.index(default)
    if not -sys.maxsize <= default + 1 <= sys.maxsize + 1:
        raise OverflowError("Python int too large to convert to C ssize_t")
    if in_python(x, "__len__"):
        try:
            return len(x)
        except TypeError:
            pass
    if not in_python(x, "__length_hint__"):
        return default
    try:
        hint = special_method(x, "__length_hint__")()
    except TypeError:
        return default
    if hint is NotImplemented:
        return default
    if not is_a(hint, int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(hint).__name__}")
    if hint < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return hint


@polyfill(bool, operator.truth, applies=lambda *args: bool(args) and in_python(args[0], "__bool__"))
def truth(x: Any) -> Any:
    """`bool(x)`."""
    result = special_method(x, "__bool__")()
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def is_true_by_length(*args: Any) -> bool:
    return bool(args) and lookup_class(type(args[0]), "__bool__") is None and in_python(args[0], "__len__")


@polyfill(bool, operator.truth, applies=is_true_by_length)
def truth_by_length(x: Any) -> Any:
    """`bool(x)` of an instance that has a length."""
    return len(x) != 0


@polyfill(operator.not_, applies=lambda x: in_python(x, "__bool__") or is_true_by_length(x))
def not_(x: Any) -> Any:
    """`not x`."""
    return False if x else True


@polyfill(operator.getitem, applies=lambda x, key: in_python(x, "__getitem__"))
def getitem(x: Any, key: Any) -> Any:
    """`x[key]`."""
    return special_method(x, "__getitem__")(key)


def is_class_of_items(x: Any, key: Any) -> bool:
    """Whether `x[key]` calls a `__class_getitem__` of a class of Python's."""
    method = lookup_class(x, "__class_getitem__") if is_a(x, type) and not in_python(x, "__getitem__") else None
    return method is not None and not is_a(method, C_METHODS)


@polyfill(operator.getitem, applies=is_class_of_items)
def class_getitem(x: Any, key: Any) -> Any:
    """`cls[key]`."""
    return x.__class_getitem__(key)


def is_generic(x: Any, key: Any) -> bool:
    """Whether `x[key]` is left to `typing` by C."""
    method = lookup_class(x, "__class_getitem__") if is_a(x, type) else None
    if type(method) is not types.ClassMethodDescriptorType or method.__objclass__ is not typing.Generic:
        return False
    return hasattr(typing, "_generic_class_getitem")


@polyfill(operator.getitem, applies=is_generic)
def generic_getitem(x: Any, key: Any) -> Any:
    """`cls[key]` of a subclass of `typing.Generic`."""
    return typing._generic_class_getitem(x, key)  # type: ignore[attr-defined]


@polyfill(operator.getitem, applies=lambda x, key: is_a(x, (list, tuple, str, bytes, range, deque)) and is_index_in_python(key))
def getitem_by_index(x: Any, key: Any) -> Any:
    """`sequence[key]` of a key that tells its index."""
    return x[operator.index(key)]


@polyfill(operator.setitem, applies=lambda x, key, value: in_python(x, "__setitem__"))
def setitem(x: Any, key: Any, value: Any) -> Any:
    """`x[key] = value`."""
    special_method(x, "__setitem__")(key, value)


@polyfill(operator.delitem, applies=lambda x, key: in_python(x, "__delitem__"))
def delitem(x: Any, key: Any) -> Any:
    """`del x[key]`."""
    special_method(x, "__delitem__")(key)


@polyfill(operator.contains, applies=lambda x, item: in_python(x, "__contains__"))
def contains(x: Any, item: Any) -> Any:
    """`item in x`."""
    method = special_method(x, "__contains__")
    if method is None:
        raise TypeError(f"'{type(x).__name__}' object is not a container")
    return True if method(item) else False


def is_searched(x: Any, item: Any) -> bool:
    """Whether `item in x` walks over `x`."""
    return lookup_class(type(x), "__contains__") is None and (in_python(x, "__iter__") or is_sequence(x) or is_a(
        x, types.GeneratorType))


@polyfill(operator.contains, applies=lambda x, item: is_a(x, torch.Tensor)
          and is_a(item, (torch.Tensor, int, float, complex)) and not asks_python(item, "__class__"))
def holds(x: Any, item: Any) -> Any:
    """`item in tensor`: a number in the graph, until something is decided by it."""
    return (item == x).any().item()


@polyfill(operator.contains, applies=is_searched)
def contains_by_iteration(x: Any, item: Any) -> Any:
    """`item in x` of an iterable."""
    try:
        iterator = iter(x)
    except TypeError:
        iterator = None
    if iterator is None:
        raise TypeError(f"argument of type '{type(x).__name__}' is not iterable")
    for candidate in iterator:
        if candidate is item or candidate == item:
            return True
    return False


# -- iteration ---------------------------------------------------------------------------------------------------------

@polyfill(iter, applies=lambda x, *sentinel: not sentinel and in_python(x, "__iter__"))
def iter_(x: Any) -> Any:
    """`iter(x)`."""
    method = method_or(x, "__iter__", ENDED)
    if method is ENDED and has_special(x, "__getitem__"):
        return SequenceIterator(x)
    if method is ENDED or method is None:
        raise TypeError(f"'{type(x).__name__}' object is not iterable")
    iterator = method()
    if not hasattr(type(iterator), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type '{type(iterator).__name__}'")
    return iterator


def has_special(x: Any, name: str) -> bool:
    """Whether `x` has a special method that can be bound."""
    return lookup_class(type(x), name, ENDED) is not ENDED and method_or(x, name, ENDED) is not ENDED


def is_sequence(x: Any) -> bool:
    """Whether `x` is iterated by index."""
    return lookup_class(type(x), "__iter__", ENDED) is ENDED and in_python(x, "__getitem__")


@polyfill(iter, applies=lambda x, *sentinel: not sentinel and is_sequence(x))
def iter_by_index(x: Any) -> Any:
    """`iter(x)` of an instance with `__getitem__` alone."""
    return SequenceIterator(x)


@polyfill(iter, applies=lambda x, *sentinel: len(sentinel) == 1 and callable(x))
def iter_until(function: Any, sentinel: Any) -> Any:
    """`iter(function, sentinel)`."""
    return CallableIterator(function, sentinel)


@polyfill(next, applies=lambda iterator, *default: not default and in_python(iterator, "__next__"))
def next_(iterator: Any) -> Any:
    """`next(iterator)`."""
    return special_method(iterator, "__next__")()


@polyfill(next, applies=lambda iterator, *default: len(default) == 1)
def next_or(iterator: Any, default: Any) -> Any:
    """`next(iterator, default)`."""
    try:
        return next(iterator)
    except StopIteration:
        return default


@polyfill(reversed, applies=lambda x: in_python(x, "__reversed__"))
def reversed_(x: Any) -> Any:
    """`reversed(x)`."""
    method = special_method(x, "__reversed__")
    if method is None:
        raise TypeError(f"'{type(x).__name__}' object is not reversible")
    return method()


@polyfill(reversed, applies=lambda x: is_a(x, torch.Tensor))
def reversed_tensor(x: torch.Tensor) -> Any:
    """`reversed(tensor)`, which is a tensor."""
    return x.__reversed__()


def is_reversed_by_index(x: Any) -> bool:
    """Whether `reversed(x)` asks Python code for a length or items."""
    cls = type(x)
    return lookup_class(cls, "__reversed__", ENDED) is ENDED and lookup_class(cls, "__getitem__", ENDED) is not ENDED and (
        in_python(x, "__getitem__") or in_python(x, "__len__"))


@polyfill(reversed, applies=is_reversed_by_index)
def reversed_by_index(x: Any) -> Any:
    """`reversed(x)` of a sequence."""
    return ReversedIterator(x, len(x) - 1)


# -- numbers -----------------------------------------------------------------------------------------------------------

@polyfill(hash, applies=lambda x: in_python(x, "__hash__"))
def hash_(x: Any) -> Any:
    """`hash(x)`."""
    method = method_or(x, "__hash__", None)
    if method is None:
        raise TypeError(f"unhashable type: '{type_name(x)}'")
    result = method()
    if not is_a(result, int):
        raise TypeError("__hash__ method should return an integer")
    number = int(result)
    if not -1 << 63 <= number < 1 << 63:            # a number that fits a word is taken as it is, except the error code -1
        return hash(number)
    return number if number != -1 else -2


@polyfill(operator.index, applies=is_index_in_python)
def index(x: Any) -> Any:
    """`operator.index(x)`."""
    result = special_method(x, "__index__")()
    if not is_a(result, int):
        raise TypeError(f"__index__ returned non-int (type {type(result).__name__})")
    return result


@polyfill(int, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and in_python(args[0], "__int__"))
def int_(x: Any) -> Any:
    """`int(x)`."""
    result = special_method(x, "__int__")()
    if not is_a(result, int):
        raise TypeError(f"__int__ returned non-int (type {type(result).__name__})")
    return result if type(result) is int else int.__int__(result)


@polyfill(int, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs
          and lookup_class(type(args[0]), "__int__") is None
          and in_python(args[0], "__index__"))
def int_by_index(x: Any) -> Any:
    """`int(x)` of an instance that is an index."""
    return operator.index(x)


@polyfill(float, applies=lambda *args: len(args) == 1 and in_python(args[0], "__float__"))
def float_(x: Any) -> Any:
    """`float(x)`."""
    result = special_method(x, "__float__")()
    if not is_a(result, float):
        raise TypeError(f"{type(x).__name__}.__float__ returned non-float (type {type(result).__name__})")
    return result


@polyfill(float, applies=lambda *args: len(args) == 1 and lookup_class(type(args[0]), "__float__") is None
          and in_python(args[0], "__index__"))
def float_by_index(x: Any) -> Any:
    """`float(x)` of an instance that is an index."""
    return float(operator.index(x))


@polyfill(bytes, applies=lambda *args, **named: len(args) == 1 and not named and in_python(args[0], "__bytes__"))
def bytes_(x: Any) -> Any:
    """`bytes(x)`."""
    result = special_method(x, "__bytes__")()
    if not is_a(result, bytes):
        raise TypeError(f"__bytes__ returned non-bytes (type {type_name(result)})")
    return result


@polyfill(round, applies=lambda x, *digits, **named: in_python(x, "__round__"))
def round_(x: Any, ndigits: Any = None) -> Any:
    """`round(x, ndigits)`."""
    return special_method(x, "__round__")() if ndigits is None else special_method(x, "__round__")(ndigits)


@polyfill(math.floor, applies=lambda x: in_python(x, "__floor__"))
def floor(x: Any) -> Any:
    """`math.floor(x)`."""
    return special_method(x, "__floor__")()


@polyfill(math.ceil, applies=lambda x: in_python(x, "__ceil__"))
def ceil(x: Any) -> Any:
    """`math.ceil(x)`."""
    return special_method(x, "__ceil__")()


@polyfill(math.trunc, applies=lambda x: in_python(x, "__trunc__"))
def trunc(x: Any) -> Any:
    """`math.trunc(x)`."""
    return special_method(x, "__trunc__")()


# -- classes -----------------------------------------------------------------------------------------------------------

def checks_in_python(info: Any, name: str) -> bool:
    """Whether a class decides by Python code what belongs to it. Abstract base classes do so by a fixed rule."""
    if is_a(info, tuple):
        return any(checks_in_python(part, name) for part in items_in_c(info))
    method = lookup_class(type(info), name)
    return is_a(info, type) and not is_a(method, C_METHODS) and getattr(method, "__module__", "") != "abc"


@polyfill(isinstance, applies=lambda x, info: not is_a(info, tuple)
          and checks_in_python(info, "__instancecheck__"))
def isinstance_(x: Any, info: Any) -> Any:
    """`isinstance(x, info)` of a class with a say in it."""
    if type(x) is info:
        return True
    return True if special_method(info, "__instancecheck__")(x) else False


@polyfill(isinstance, applies=lambda x, info: is_a(info, tuple) and checks_in_python(info, "__instancecheck__"))
def isinstance_of_any(x: Any, info: Any) -> Any:
    """`isinstance(x, (a, b, …))`."""
    for part in tuple.__iter__(info):
        if isinstance(x, part):
            return True
    return False


@polyfill(issubclass, applies=lambda cls, info: not is_a(info, tuple)
          and checks_in_python(info, "__subclasscheck__"))
def issubclass_(cls: Any, info: Any) -> Any:
    """`issubclass(cls, info)` of a class with a say in it."""
    return True if special_method(info, "__subclasscheck__")(cls) else False


@polyfill(issubclass, applies=lambda cls, info: is_a(info, tuple) and checks_in_python(info, "__subclasscheck__"))
def issubclass_of_any(cls: Any, info: Any) -> Any:
    """`issubclass(cls, (a, b, …))`."""
    for part in tuple.__iter__(info):
        if issubclass(cls, part):
            return True
    return False
