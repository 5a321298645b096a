"""Subclasses of builtin types that add nothing: what asks for the exact type tells them from these."""
from __future__ import annotations

import collections


class Int(int):
    pass


class Float(float):
    pass


class Complex(complex):
    pass


class Str(str):
    pass


class Bytes(bytes):
    pass


class List(list):
    pass


class Tuple(tuple):
    pass


class Dict(dict):
    pass


class Set(set):
    pass


class FrozenSet(frozenset):
    pass


class ByteArray(bytearray):
    pass


class Deque(collections.deque):
    pass


class Ordered(collections.OrderedDict):
    pass
