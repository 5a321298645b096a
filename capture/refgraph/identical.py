"""Sets of classes that are asked for by identity."""
from __future__ import annotations

import weakref
from collections.abc import Iterable


class Classes(frozenset[type]):
    """A set of classes. To ask whether it has one runs no Python code of a metaclass, which may hash and compare its classes."""

    _numbers: frozenset[int]

    def __new__(cls, classes: Iterable[type]) -> Classes:
        made = super().__new__(cls, classes)
        made._numbers = frozenset(map(id, made))
        return made

    def __contains__(self, cls: object) -> bool:
        return id(cls) in self._numbers


PROXIES = Classes(weakref.ProxyTypes)
LISTS, TEXTS, INTEGERS, NUMBERS = map(Classes, ((list, tuple), (str, bytes), (int, bool), (int, float)))
