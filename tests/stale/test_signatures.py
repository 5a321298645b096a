"""What `inspect.signature` says follows from parts of functions, classes and objects that may change between two calls."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.ones(2)
OTHER = inspect.signature(lambda k: 0)
ASKED = "function", "wrapper", "cls", "derived", "instance", "method", "unbound", "partial", "slotted", "module", "forward", "made"
CHANGES: dict[str, Callable[[Any], Any]] = {
    "defaults": lambda state: setattr(state.function, "__defaults__", (9,)),
    "keyword defaults": lambda state: setattr(state.function, "__kwdefaults__", {"c": 8}),
    "a keyword default": lambda state: state.function.__kwdefaults__.update(c=8),
    "code": lambda state: setattr(state.function, "__code__", (lambda z: 0).__code__),
    "an annotation": lambda state: state.function.__annotations__.update(c=str),
    "one more annotation": lambda state: state.function.__annotations__.update(a=str),
    "annotations": lambda state: setattr(state.function, "__annotations__", {}),
    "signature": lambda state: setattr(state.function, "__signature__", OTHER),
    "what is wrapped": lambda state: setattr(state.wrapper, "__wrapped__", lambda w, v: 0),
    "defaults of what is wrapped": lambda state: setattr(state.wrapped, "__defaults__", (4,)),
    "no longer wrapped": lambda state: delattr(state.wrapper, "__wrapped__"),
    "__init__": lambda state: setattr(state.cls, "__init__", lambda self, p, q: None),
    "defaults of __init__": lambda state: setattr(state.cls.__init__, "__defaults__", (4,)),
    "__new__": lambda state: setattr(state.cls, "__new__", lambda cls, *n: object.__new__(cls)),
    "signature of the class": lambda state: setattr(state.cls, "__signature__", OTHER),
    "__init__ of the derived class": lambda state: setattr(state.derived, "__init__", lambda self, one: None),
    "__call__": lambda state: setattr(state.cls, "__call__", lambda self, y, z: None),
    "defaults of __call__": lambda state: setattr(state.cls.__call__, "__defaults__", (4,)),
    "__call__ of slots": lambda state: setattr(state.slotted, "__call__", lambda self, y, z: None),
    "method": lambda state: setattr(state.cls, "method", lambda self, a, b: None),
    "defaults of the method": lambda state: setattr(state.cls.method, "__defaults__", (4,)),
    "signature of the instance": lambda state: setattr(state.instance, "__signature__", OTHER),
    "keywords of the partial": lambda state: state.partial.keywords.update(b=3),
    "forward": lambda state: setattr(state.module, "forward", lambda u, v: u),
    "defaults of forward": lambda state: setattr(type(state.module).forward, "__defaults__", (5,))}


def world() -> Any:
    def function(a, b=1, *, c: int = 2): pass
    def wrapped(q): pass
    @functools.wraps(wrapped)
    def wrapper(*args): pass

    class Asked:
        def __init__(self, x): pass
        def __call__(self, z): pass
        def method(self, y=3): pass

    class Derived(Asked):
        pass

    class Slotted:
        __slots__ = ()
        def __call__(self, t): pass

    class Module(torch.nn.Module):
        def forward(self, u, w=0): return u

    state = SimpleNamespace(function=function, wrapped=wrapped, wrapper=wrapper, cls=Asked, derived=Derived, slotted=Slotted,
                            instance=Asked(1), partial=functools.partial(function, 1), module=Module())
    empty, found = Slotted(), {name: lambda name=name: vars(state)[name] for name in vars(state)}
    found |= {"method": lambda: state.instance.method, "unbound": lambda: Asked.method, "slotted": lambda: empty,
              "forward": lambda: state.module.forward, "made": lambda: functools.wraps(function)(lambda *args: None)}

    def program(x, name):
        try:
            signature = inspect.signature(found[name]())
        except (TypeError, ValueError) as error:
            return x, str(error)
        return x + len(signature.parameters), str(signature), "a" in signature.parameters
    return program, state


@pytest.mark.parametrize("name", ASKED)
def test_a_signature_that_changes(name: str) -> None:
    for change in CHANGES.values():
        calls = call(X, name), call(X, name)
        check(world, *calls, change, *calls, captures=None, fullgraph=False)


@pytest.mark.parametrize("name", [name for name in ASKED if name != "module"])
def test_a_signature_is_a_constant(name: str) -> None:
    check(world, call(X, name), call(X, name), captures=1)


def test_defaults_that_are_objects() -> None:
    def make():
        state = SimpleNamespace(first=[1], second=[1], function=lambda a, b=0: None)
        state.function.__defaults__ = (state.first,)

        def program(x):
            return x, inspect.signature(state.function).parameters["b"].default
        return program, state

    def other(state: Any) -> None:
        state.function.__defaults__ = (state.second,)
    check(make, call(X), call(X), lambda state: state.first.append(2), call(X), other, call(X), call(X), captures=None)


def test_objects_that_are_asked_for_their_signature() -> None:
    log: list[str] = []

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            log.append("eq")
            return cls is other
        __hash__ = type.__hash__

    class Compared(metaclass=Meta):
        def __init__(self, a): pass

    class Asking:
        def __getattr__(self, name: str) -> Any:
            log.append(name)
            raise AttributeError(name)
        def __call__(self, b): pass

    class Telling:
        @property
        def __signature__(self) -> Any:
            log.append("signature")
            return OTHER
        def __call__(self, b): pass

    def make():
        log.clear()
        objects = [Compared, Asking(), Telling()]

        def program(x):
            return x + 1, [str(inspect.signature(one)) for one in objects]
        return program, SimpleNamespace(log=log)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)
