"""What a class has of a name says what reading, assigning and deleting an attribute of that name does: it may come, go and
change between two calls."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call_with, check

X = torch.ones(2)


class Reads:
    def __get__(self, instance, owner):
        return 11


class Writes(Reads):
    def __set__(self, instance, value):
        instance.__dict__["written"] = value


class Deletes(Reads):
    def __delete__(self, instance):
        instance.__dict__["deleted"] = True


class Refuses(Reads):
    def __set__(self, instance, value):
        raise AttributeError("not here")


def assign(x: Any) -> None:
    x.name = 1


def delete(x: Any) -> None:
    del x.name


WAYS: dict[str, Callable[[Any], Any]] = {
    "read": lambda x: x.name, "getattr": lambda x: getattr(x, "name", None), "get": lambda x: object.__getattribute__(x, "name"),
    "assign": assign, "setattr": lambda x: setattr(x, "name", 1), "set": lambda x: object.__setattr__(x, "name", 1),
    "delete": delete, "delattr": lambda x: delattr(x, "name"), "remove": lambda x: object.__delattr__(x, "name")}
HELD: dict[str, Callable[[], Any] | None] = {
    "nothing": None, "a property": lambda: property(lambda self: 2), "a number": lambda: 5, "a function": lambda: lambda self: 3,
    "a reader": Reads, "a writer": Writes, "a deleter": Deletes, "a refuser": Refuses}


def holding(kind: str, base: bool) -> Callable[[Any], None]:
    """Has the class, or its base, hold such a thing from now on."""
    def step(state: Any) -> None:
        owner, make = state.owner.__base__ if base else state.owner, HELD[kind]
        if make is not None:
            owner.name = make()
        elif "name" in vars(owner):
            del owner.name
    return step


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_class_holds_comes_and_goes(way: str, own: bool) -> None:
    def program(x, owner):
        instance = owner()
        if own:
            instance.__dict__["name"] = 77
        try:
            found = WAYS[way](instance)
        except (AttributeError, TypeError) as error:
            return x + 1, type(error), str(error), dict(vars(instance))
        return x + 1, found if type(found) is int else type(found), dict(vars(instance))

    def make() -> tuple[Callable[..., Any], Any]:
        base = type("Base", (), {})
        return program, SimpleNamespace(owner=type("Owner", (base,), {}))

    ask = call_with(lambda state: (X, state.owner))
    for n, (first, second) in enumerate(itertools.permutations(HELD, 2)):
        before, after = holding(first, bool(n % 2)), holding(second, bool(n % 2))
        check(make, before, ask, ask, after, ask, before, ask, captures=None, hits=None, breaks=None, fullgraph=False)


METHODS: dict[str, Callable[..., Any]] = {
    "__getattribute__": lambda self, name: object.__getattribute__(self, name) if name.startswith("__") else "told",
    "__getattr__": lambda self, name: "missing",
    "__setattr__": lambda self, name, value: object.__setattr__(self, "other", value),
    "__delattr__": lambda self, name: object.__setattr__(self, "other", name)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", HELD)
def test_a_class_gets_a_say_in_what_it_holds(kind: str, method: str) -> None:
    """Whatever that is, and whichever way the attribute is asked for: the class's own method comes first."""
    def program(x, owner, way):
        instance = owner()
        instance.__dict__["name"] = 77
        try:
            found = WAYS[way](instance)
        except (AttributeError, TypeError) as error:
            return x + 1, type(error), dict(instance.__dict__)
        return x + 1, found if type(found) in (int, str) else type(found), dict(instance.__dict__)

    def make() -> tuple[Callable[..., Any], Any]:
        return program, SimpleNamespace(owner=type("Owner", (type("Base", (), {}),), {}))

    def given(state: Any) -> None:
        setattr(state.owner, method, METHODS[method])

    def taken(state: Any) -> None:
        delattr(state.owner, method)

    for way in WAYS:
        ask = call_with(lambda state, way=way: (X, state.owner, way))
        check(make, holding(kind, False), ask, ask, given, ask, ask, taken, ask, captures=None, hits=None, breaks=None,
              fullgraph=False)
