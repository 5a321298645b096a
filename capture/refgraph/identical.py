"""What is the same, as guards have it: nothing here runs Python code of the program's, or of a metaclass."""
from __future__ import annotations

import struct
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from capture._C import Classes, is_a

PROXIES = Classes(weakref.ProxyTypes)
LISTS, TEXTS, INTEGERS, NUMBERS = map(Classes, ((list, tuple), (str, bytes), (int, bool), (int, float)))
FORMS = Classes((torch.dtype, torch.device, torch.layout, torch.memory_format))         # what tensors are made as
# Their instances are immutable, and their operations run no foreign code.
BUILTIN_SCALARS = Classes({int, float, bool, complex, str, bytes, type(None)})
BY_EQUALITY = Classes({*BUILTIN_SCALARS, bytearray, torch.device})
SETS, RANGES = Classes((set, frozenset)), Classes((slice, range))
BOUNDS = "start", "stop", "step"        # what a slice or a range consists of


def is_one_of(x: object, *others: object) -> bool:
    """Whether an object is one of these. (`in` would ask Python code of its class, or of its metaclass, whether it equals them.)"""
    return any(x is other for other in others)


def place_of(x: object, items: Sequence[object]) -> int:
    """At which place an object is among these; behind the last one if it is not there."""
    return next((place for place, item in enumerate(items) if item is x), len(items))


def builtin_base(x: Any, bases: tuple[type, ...]) -> Any:
    """The builtin type among `bases` that x is an instance of, or None."""
    return next((base for base in bases if is_a(x, base)), None)


def items_in_c(x: Any) -> tuple[Any, ...] | list[Any]:
    """The items of a list or tuple as C code finds them, whatever its class says that they are; empty for anything else."""
    if is_a(x, tuple):
        return tuple.__getitem__(x, slice(None))
    return list.__getitem__(x, slice(None)) if is_a(x, list) else ()


def lists_in(values: Iterable[Any]) -> Iterator[Any]:
    """The lists and tuples among these values, and all that these hold, as C finds them."""
    for value in values:
        if is_a(value, (list, tuple)):
            yield value
            yield from lists_in(items_in_c(value))


CONTAINERS = (list, deque, tuple, dict, set, frozenset, str, bytes)


def contents_in_c(x: Any) -> list[Any]:
    """What a container of C holds, also of a class that has an `__iter__` of its own."""
    base = builtin_base(x, CONTAINERS)
    return list(x if base is None else base.__iter__(x))


def bytes_in_c(x: bytearray) -> bytes:
    """What a byte array holds, also of a class that has a `__bytes__` or `__index__` of its own."""
    return bytes(memoryview(x))


def length_in_c(x: Any) -> int:
    """How much a container of C holds, also of a class that has a `__len__` of its own."""
    base = builtin_base(x, CONTAINERS)
    return len(x) if base is None else base.__len__(x)


def same(x: Any, expected: Any) -> bool:
    """Exact type and value: floats bit for bit, containers recursively and in order; other objects by identity."""
    if x is expected:
        return True
    cls = type(expected)
    if type(x) is not cls:
        return False
    if cls is float:
        return struct.pack("d", x) == struct.pack("d", expected)
    if cls is complex:
        return same(x.real, expected.real) and same(x.imag, expected.imag)
    if cls in BY_EQUALITY:
        return bool(x == expected)
    if cls is dict:
        return len(x) == len(expected) and all(
            same(k, key) and same(v, value) for (k, v), (key, value) in zip(x.items(), expected.items()))
    if cls in SETS:
        return same_members(x, expected)
    if cls in RANGES:
        return all(same(getattr(x, part), getattr(expected, part)) for part in BOUNDS)
    base = builtin_base(expected, (tuple, list))
    if base is None:
        return False
    return base.__len__(x) == base.__len__(expected) and all(map(same, base.__iter__(x), base.__iter__(expected)))


def same_members(x: Any, expected: Any) -> bool:
    """Sets of builtin scalars with the same members, type by type."""
    base = builtin_base(x, (set, frozenset))
    if base is None or base.__len__(x) != len(expected):
        return False
    members = {member: member for member in expected if type(member) in BUILTIN_SCALARS}
    return all(type(member) in BUILTIN_SCALARS and member in members and same(member, members[member])
               for member in base.__iter__(x))
