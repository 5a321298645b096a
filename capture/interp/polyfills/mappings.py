"""Dicts that are filled from Python code, or that ask it for what is missing."""
from __future__ import annotations

import collections
import operator
from typing import Any

from capture.interp.models import polyfill
from capture.interp.special import in_python, is_iterable, is_key, is_native_iterable
from capture.refgraph.graph import lookup_class


def is_foreign(x: Any) -> bool:
    """Whether a dict takes up `x` by running Python code, or item by item."""
    if isinstance(x, dict):
        return in_python(x, "__iter__") or in_python(x, "keys") or in_python(x, "__getitem__")
    return lookup_class(type(x), "keys") is not None or is_iterable(x) and not is_native_iterable(x)


def is_construction(*others: Any, **named: Any) -> bool:
    return len(others) == 1 and is_foreign(others[0])


@polyfill(dict, applies=is_construction)
def dict_(other: Any, /, **named: Any) -> Any:
    """`dict(other, **named)`."""
    result: dict[Any, Any] = {}
    take(result, other)
    result.update(named)
    return result


@polyfill(collections.OrderedDict, applies=is_construction)
def ordered_dict(other: Any, /, **named: Any) -> Any:
    """`OrderedDict(other, **named)`."""
    result: Any = collections.OrderedDict()
    take(result, other)
    result.update(named)
    return result


@polyfill(dict.update, dict.__init__, applies=lambda self, *others, **named: len(others) == 1 and is_foreign(others[0]))
def update(self: Any, other: Any, /, **named: Any) -> None:
    """`dict.update(self, other, **named)`."""
    for key, value in items_of(other):
        dict.__setitem__(self, key, value)
    dict.update(self, named)


def has_python_items(self: Any) -> bool:
    return in_python(self, "__setitem__") or in_python(self, "__getitem__")


@polyfill(collections.OrderedDict.update, collections.OrderedDict.__init__,
          applies=lambda self, *others, **named: len(others) <= 1
          and (any(map(is_foreign, others)) or has_python_items(self)))
def update_ordered(self: Any, /, *others: Any, **named: Any) -> None:
    """`OrderedDict.update(self, other, **named)`, which goes through the item methods."""
    for other in others:
        take(self, other)
    for key in named:
        self[key] = named[key]


def take(self: Any, other: Any) -> None:
    """`self[key] = value` for all that `other` has."""
    for key, value in items_of(other):
        self[key] = value


def items_of(other: Any) -> Any:
    """Keys and values of a mapping, or the pairs of an iterable."""
    if hasattr(other, "keys"):
        for key in other.keys():
            yield key, other[key]
    else:
        i = 0
        for pair in other:
            parts = list(pair)
            if len(parts) != 2:
                raise ValueError(f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required")
            yield parts[0], parts[1]
            i += 1


@polyfill(dict.fromkeys, applies=lambda keys, *value: is_iterable(keys) and not is_native_iterable(keys))
def fromkeys(keys: Any, value: Any = None) -> Any:
    """`dict.fromkeys(keys, value)`."""
    result = {}
    for key in keys:
        result[key] = value
    return result


# -- missing keys ------------------------------------------------------------------------------------------------------

def lacks(self: Any, key: Any) -> bool:
    """Whether looking up `key` asks `__missing__`."""
    return isinstance(self, dict) and is_key(key) and not dict.__contains__(self, key)


@polyfill(operator.getitem, dict.__getitem__, applies=lambda self, key: lacks(self, key)
          and in_python(self, "__missing__"))
def getitem_or_missing(self: Any, key: Any) -> Any:
    """`self[key]` where the class has a `__missing__`."""
    if dict.__contains__(self, key):
        return dict.get(self, key)
    return type(self).__missing__(self, key)


@polyfill(operator.getitem, dict.__getitem__, collections.defaultdict.__missing__,
          applies=lambda self, key: lacks(self, key)
          and lookup_class(type(self), "__missing__") is collections.defaultdict.__missing__)
def getitem_or_default(self: Any, key: Any) -> Any:
    """`self[key]` of a defaultdict."""
    if dict.__contains__(self, key):
        return dict.get(self, key)
    factory = self.default_factory
    if factory is None:
        raise KeyError(key)
    value = factory()
    self[key] = value
    return value


@polyfill(collections._count_elements, applies=lambda mapping, iterable: True)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Any) -> None:
    """What `Counter` counts with."""
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1
