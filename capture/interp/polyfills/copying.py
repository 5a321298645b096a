"""What `copy` and `pickle` ask of an object, in Python."""
from __future__ import annotations

import collections
import copyreg
import types
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.refgraph.lookup import MISSING, is_heap_type

C_STATE = (int, float, complex, str, bytes, bytearray, tuple, set, frozenset, type, BaseException)


def is_plain_instance(obj: Any, *rest: Any) -> bool:
    """Whether all state of an object is its `__dict__` and its slots, and
    the items of a list or dict, so that the default protocol of `object` can be spelled out."""
    cls = type(obj)
    return is_heap_type(cls) and not issubclass(cls, C_STATE)


def reduces_itself(obj: Any, protocol: int) -> bool:
    """Whether the default protocol leaves it to the class."""
    return is_a(obj, (set, frozenset, collections.deque)) and protocol >= 2


@polyfill(object.__reduce_ex__, applies=reduces_itself)
def container_reduce_ex(self: Any, protocol: int) -> Any:
    """`object.__reduce_ex__` of a container that has a `__reduce__` of its own."""
    return self.__reduce__()


@polyfill(set.__reduce__, frozenset.__reduce__, applies=lambda self: True)
def set_reduce(self: Any) -> Any:
    """`set.__reduce__`."""
    return type(self), (list(self),), getattr(self, "__dict__", None) or None


@polyfill(object.__reduce_ex__, applies=lambda obj, protocol: is_plain_instance(obj) and protocol >= 2)
def object_reduce_ex(self: Any, protocol: int) -> Any:
    """`object.__reduce_ex__`, protocol 2 and later."""
    cls, own = type(self), getattr(self, "__reduce__", None)
    if cls.__reduce__ is not object.__reduce__:
        return own()  # type: ignore[misc]
    args, kwargs = arguments_of(self, cls)
    items = iter(self) if is_a(self, list) else None
    entries = iter(self.items()) if is_a(self, dict) else None
    if kwargs:
        return copyreg.__newobj_ex__, (cls, args, kwargs), self.__getstate__(), items, entries  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls, *args), self.__getstate__(), items, entries  # type: ignore[attr-defined]


def arguments_of(obj: Any, cls: Any) -> tuple[Any, Any]:
    """The arguments with which a copy of an object is made, from `__getnewargs_ex__` or `__getnewargs__`."""
    if hasattr(cls, "__getnewargs_ex__"):
        told = obj.__getnewargs_ex__()
        if not is_a(told, tuple):
            raise TypeError(f"__getnewargs_ex__ should return a tuple, not '{type(told).__name__}'")
        if len(told) != 2:
            raise ValueError(f"__getnewargs_ex__ should return a tuple of length 2, not {len(told)}")
        args, kwargs = told
        if not is_a(args, tuple):
            raise TypeError(f"first item of the tuple returned by __getnewargs_ex__ must be a tuple, not '{type(args).__name__}'")
        if not is_a(kwargs, dict):
            raise TypeError(f"second item of the tuple returned by __getnewargs_ex__ must be a dict, not '{type(kwargs).__name__}'")
        return args, kwargs
    if not hasattr(cls, "__getnewargs__"):
        return (), None
    args = obj.__getnewargs__()
    if not is_a(args, tuple):
        raise TypeError(f"__getnewargs__ should return a tuple, not '{type(args).__name__}'")
    return args, None


def slot_names(cls: type) -> list[str]:
    """The attributes that a class and its bases keep in slots, by the names by which they are set. A model gives its shadow."""
    return list(copyreg._slotnames(cls) or ())  # type: ignore[attr-defined]


@polyfill(object.__reduce_ex__, types.SimpleNamespace.__reduce__, applies=lambda obj, *protocol: type(obj) is types.SimpleNamespace)
def namespace_reduce(self: Any, *protocol: int) -> Any:
    """`SimpleNamespace.__reduce__`."""
    return types.SimpleNamespace, (), self.__dict__


@polyfill(object.__getstate__, applies=is_plain_instance)
def object_getstate(self: Any) -> Any:
    """`object.__getstate__`."""
    try:
        attributes = object.__getattribute__(self, "__dict__") or None
    except AttributeError:
        attributes = None
    slots = {}
    for name in slot_names(type(self)):
        value = getattr(self, name, MISSING)
        if value is not MISSING:
            slots[name] = value
    return (attributes, slots) if slots else attributes


@polyfill(object.__reduce_ex__, collections.OrderedDict.__reduce__,
          applies=lambda obj, *protocol: type(obj) is collections.OrderedDict)
def ordered_dict_reduce(self: Any, *protocol: int) -> Any:
    """`OrderedDict.__reduce__`."""
    return collections.OrderedDict, (), self.__dict__ or None, None, iter(self.items())
