"""Methods of data classes, named tuples and enums, whose own are generated, and may be replaced after a capture."""
from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.tensor([1.0, 2.0])


def data(**options: Any) -> Callable[[], type]:
    def make() -> type:
        class Point:
            a: int
            b: int = 2
            items: list = dataclasses.field(default_factory=list)
        return dataclasses.dataclass(**options)(Point)
    return make


def named() -> type:
    class Point(typing.NamedTuple):
        a: int
        b: int = 2
    return Point


def enumerated(base: type) -> Callable[[], type]:
    return lambda: base("Kind", {"A": 1, "B": 2})


def made(cls: Any, x: Any) -> Any:
    point = cls(3)
    return x * point.a, point.b, repr(point), point == cls(3), point != cls(4)


def hashed(cls: Any, x: Any) -> Any:
    return x, {cls(3): 5}[cls(3)], cls(3) in [cls(4), cls(3)]


def ordered(cls: Any, x: Any) -> Any:
    return x, cls(1) < cls(2), max(cls(1), cls(2)).a, sorted([cls(2), cls(1)])[0].a


def changed(cls: Any, x: Any) -> Any:
    point = cls(3)
    point.a = 5
    del point.b
    return x * point.a


def derived(cls: Any, x: Any) -> Any:
    return (x * dataclasses.replace(cls(3), a=4).a, dataclasses.asdict(cls(3)), dataclasses.astuple(cls(3)),
            dataclasses.fields(cls)[0].name)


def taken(cls: Any, x: Any) -> Any:
    first, *rest = cls(3)
    return x * first, rest, cls(3)[1], cls(3)._replace(a=5).a, cls(3)._asdict(), len(cls(3)), cls._make([1, 2])


def found(cls: Any, x: Any) -> Any:
    member = cls(1)
    return (x * member.value, member.name, cls["B"].value, [item.name for item in cls], len(cls), member in cls, str(member),
            f"{member}")


def compared(cls: Any, x: Any) -> Any:
    return x, cls.A == cls(1), cls.A != cls.B, {cls.A: 1}[cls.A], cls.A is cls(1), bool(cls.A), repr(cls.B)


CASES: list[tuple[str, Callable[[], type], list[Callable[[Any, Any], Any]]]] = [
    ("data", data(), [made, changed, derived]), ("frozen", data(frozen=True, unsafe_hash=False), [made, derived]),
    ("ordered", data(order=True), [made, ordered]), ("hashed", data(unsafe_hash=True), [made]),
    ("slots", data(slots=True), [made, changed, derived]), ("frozen slots", data(frozen=True, slots=True), [made]),
    ("named", named, [made, hashed, ordered, taken]), ("enum", enumerated(enum.Enum), [found, compared]),
    ("whole", enumerated(enum.IntEnum), [found, compared]), ("flag", enumerated(enum.Flag), [found, compared])]
SPECIAL = """__init__ __new__ __post_init__ __setattr__ __delattr__ __getattribute__ __getattr__ __repr__ __str__ __format__ __eq__
    __ne__ __hash__ __lt__ __gt__ __le__ __iter__ __getitem__ __len__ __bool__ __contains__ __replace__ _replace _asdict _missing_
    __reduce_ex__ __call__""".split()


def noted(name: str, cls: type, log: list[str]) -> Any:
    """What does the same as the method of this name, and notes that it does."""
    original = getattr(cls, name, None)
    if name == "__getattr__":
        return lambda self, name: log.append(name)
    if name in ("__post_init__", "__bool__", "__contains__") and original is None:
        return lambda self, *args: log.append(name) or (None if name == "__post_init__" else True)
    if original is None:
        return None

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        log.append(name)
        return original(*args[1 if name == "_missing_" else 0:], **kwargs) if name != "__new__" or original is not object.__new__ \
            else object.__new__(args[0])
    return classmethod(method) if name == "_missing_" else staticmethod(method) if name == "__new__" else method


def cases() -> Iterator[Any]:
    for kind, build, uses in CASES:
        yield from (pytest.param(build, use, id=f"{kind}-{use.__name__}") for use in uses)


@pytest.mark.parametrize("build, use", cases())
def test_a_generated_method_is_replaced(build: Callable[[], type], use: Callable[[Any, Any], Any]) -> None:
    def make():
        cls = build()

        def program(x):
            try:
                return use(cls, x)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                return str(error)
        return program, SimpleNamespace(cls=cls, log=[])
    for name in SPECIAL:
        if noted(name, build(), []) is None:
            continue

        def replace(state: Any, name: str = name) -> None:
            new = noted(name, state.cls, state.log)
            if new is not None:
                type.__setattr__(state.cls, name, new)
        check(make, call(X), call(X), replace, call(X), call(X), captures=None, fullgraph=False)
