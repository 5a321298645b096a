"""Callable objects of C, and functions that call what they are given."""
from __future__ import annotations

import functools
import operator
from typing import Any

from capture.interp.models import polyfill


def always(*args: Any, **kwargs: Any) -> bool:
    return True


@polyfill(functools.partial.__call__, applies=always)
def call_partial(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`partial(function, …)(…)`."""
    return self.func(*self.args, *args, **{**self.keywords, **kwargs})


@polyfill(operator.itemgetter.__call__, applies=always)
def call_itemgetter(self: Any, x: Any) -> Any:
    """`itemgetter(…)(x)`."""
    keys = self.__reduce__()[1]
    if len(keys) == 1:
        return x[keys[0]]
    items = []
    for key in keys:
        items.append(x[key])
    return tuple(items)


@polyfill(operator.attrgetter.__call__, applies=always)
def call_attrgetter(self: Any, x: Any) -> Any:
    """`attrgetter(…)(x)`."""
    paths = self.__reduce__()[1]
    if len(paths) == 1:
        return resolve(x, paths[0])
    items = []
    for path in paths:
        items.append(resolve(x, path))
    return tuple(items)


def resolve(x: Any, path: str) -> Any:
    """`x.a.b.c`."""
    for name in path.split("."):
        x = getattr(x, name)
    return x


@polyfill(operator.methodcaller.__call__, applies=always)
def call_methodcaller(self: Any, x: Any) -> Any:
    """`methodcaller(name, …)(x)`."""
    parts = self.__reduce__()
    if parts[0] is operator.methodcaller:
        return getattr(x, parts[1][0])(*parts[1][1:])
    wrapped = parts[0]      # with keywords, a partial methodcaller
    return getattr(x, wrapped.args[0])(*parts[1], **wrapped.keywords)


class Ordered:
    """What `cmp_to_key` wraps each item in."""

    __slots__ = ("compare", "obj")

    def __init__(self, compare: Any, obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) > 0


@polyfill(functools.cmp_to_key, applies=always)
def cmp_to_key(mycmp: Any) -> Any:
    """`functools.cmp_to_key(mycmp)`."""
    return functools.partial(Ordered, mycmp)


@polyfill(operator.call, applies=always)
def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`operator.call(function, …)`."""
    return function(*args, **kwargs)
