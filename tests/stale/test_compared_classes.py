"""Classes that Python code of their metaclass hashes and compares: captured code asks it as often as eager mode does."""
from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import capture
from tests.helpers import call, check
from tests.stale import test_implicit_calls
from tests.stale.test_implicit_calls import PROGRAMS, X, attempt, function

LOG: list[str] = []


class Noting(type):
    """Notes which of its classes are hashed and compared."""

    def __eq__(cls, other: object) -> bool:
        LOG.append("eq")
        return cls is other

    def __hash__(cls) -> int:
        LOG.append("hash")
        return id(cls) >> 4


def noted(bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """A class of that metaclass, if its bases allow it."""
    return (Noting if all(type(base) is type for base in bases) else type)("Owner", bases, namespace)


@pytest.mark.parametrize("name", PROGRAMS)
def test_classes_of_implicitly_called_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_implicit_calls, "owner", lambda name, f, base=object, **more: noted((base,), {name: f, **more}))
    parameters, result, build = PROGRAMS[name]

    def make():
        act = build(function(parameters, result, []))
        LOG.clear()
        return lambda x: attempt(lambda: act(x)), SimpleNamespace(log=LOG)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


class Base(metaclass=Noting):
    factor = 2

    def __init__(self, n: int = 1) -> None:
        self.n = n

    def scale(self, x):
        return x * self.factor * self.n

    def __iadd__(self, other):
        return type(self)(self.n + other)

    def __getitem__(self, key):
        return (key, self.n)


class Middle(Base):
    pass


class Sub(Middle):
    def __init__(self, n: int = 2) -> None:
        super().__init__(n)

    def scale(self, x):
        return super().scale(x) + super(Middle, self).scale(x)


@dataclasses.dataclass
class Data(metaclass=Noting):
    n: int = 3


class Numbers(list, metaclass=Noting):
    def append(self, item):
        super().append(item + 1)


class Pair(tuple, metaclass=Noting):
    def __new__(cls, *items):
        return super().__new__(cls, items)


class Number(int, metaclass=Noting):
    def __add__(self, other):
        return type(self)(super().__add__(other))


def made(x):
    class Local(Sub):
        factor = 5
    return Local(2).scale(x)


def extended(x):
    items = Numbers([1, 2])
    items.append(3)
    return x * items[2], items


def matched(x):
    match Sub(4):
        case Data(n=n):
            return x - n
        case Base(n=n):
            return x * n


def raised(x):
    class Failure(Exception):
        pass
    try:
        raise Failure("text")
    except (ValueError, Failure) as error:
        return x, str(error)


def changed(x):
    Base.factor = 3
    try:
        return Sub().scale(x)
    finally:
        Base.factor = 2


def looked_up(x):
    table = {Base: 1.0, Sub: 2.0}
    return x * table[Sub] if Data not in table else x


CALLS: dict[str, Callable[[Any], Any]] = {
    "super": lambda x: Sub().scale(x), "class": made, "list": extended, "tuple": lambda x: (x[Pair(0)], Pair(x, 1)),
    "number": lambda x: x * (Number(2) + 1), "index": lambda x: x[Number(1)], "match": matched, "exception": raised,
    "changed": changed, "key": looked_up, "equal": lambda x: (x, Base == Sub, Sub in (Base, Data), Base() == Sub()),
    "is": lambda x: x if type(Sub()) is Sub and isinstance(Sub(), Base) and issubclass(Sub, Base) else -x,
    "copy": lambda x: x * copy.deepcopy(Sub()).n + copy.copy(Data()).n, "replace": lambda x: x * dataclasses.replace(Data(), n=5).n,
    "text": lambda x: (x, f"{Data()}", Base.__name__), "vars": lambda x: (x, vars(Sub()), sorted(vars(Data))),
    "partial": lambda x: functools.partial(Sub, 4)().scale(x), "subscript": lambda x: (x, Sub()[1:2]),
    "type": lambda x: type(Sub())(3).scale(x), "bases": lambda x: (x, [*Sub.__mro__], *Sub.__bases__, Sub.__base__),
    "new": lambda x: Base.__new__(Sub).__class__.factor * x, "attribute": lambda x: x * getattr(Sub, "factor") * hasattr(Sub, "no"),
    "sorted": lambda x: (x, sorted([Sub(3), Sub(1)], key=lambda item: item.n)[0].n), "identity": lambda x: (x, Sub() in [Sub(), 1]),
    "keys": lambda x: (x, {Sub(): 1, Sub(): 2}), "print": lambda x: (print(Data()), x)[1]}


@pytest.mark.parametrize("name", CALLS)
def test_uses_of_classes(name: str) -> None:
    def make():
        LOG.clear()
        return CALLS[name], SimpleNamespace(log=LOG)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("is_bound", [True, False])
def test_an_object_that_is_called_is_not_compared(is_bound: bool) -> None:
    """Also where its class has no function to call it by."""
    def make():
        log: list[str] = []
        held: dict[str, Any] = {}

        class Called:
            def __call__(self, x):
                log.append("call")
                return held["function"](x)
            if not is_bound:
                __call__ = functools.partial(held.pop, "none")

            def __eq__(self, other: object) -> bool:
                log.append("eq")
                return True

            def __hash__(self) -> int:
                return 1
        called = Called()
        held["function"] = staticmethod(capture.disable(lambda x: x * 2))

        def program(x):
            return called(x + 1) - 1 if is_bound else called(x)
        return program, SimpleNamespace(log=log)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)
