"""What is told of a class that may be assigned: its names, its text, its documentation, its bases, all that it holds."""
from __future__ import annotations

import abc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.arange(3.0)


def error_of(fail: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What an error says that the program catches."""
    def told(s: Any) -> Any:
        try:
            fail(s)
        except (AttributeError, TypeError) as error:
            return str(error)
    return told


TOLD: dict[str, Callable[[Any], Any]] = {
    "names": lambda s: (s.cls.__name__, s.cls.__qualname__, s.cls.__module__),
    "names of the type": lambda s: (type(s.obj).__name__, s.obj.__class__.__qualname__, s.obj.__module__),
    "text": lambda s: (repr(s.cls), str(s.cls), f"{s.cls}", f"{s.cls!r}", "%s" % s.cls, "{}".format(s.cls), f"{[s.cls]}"),
    "text of an instance": lambda s: (repr(s.obj).split(" at")[0], str(s.obj).split(" at")[0], f"{s.obj}".split(" at")[0]),
    "documentation": lambda s: s.cls.__doc__,
    "bases": lambda s: (len(s.cls.__bases__), s.cls.__base__.__name__, len(s.cls.__mro__), len(s.cls.mro())),
    "what is abstract": lambda s: s.cls.__abstractmethods__,
    "how many": lambda s: (len(s.cls.__dict__), bool(vars(s.cls))),
    "keys": lambda s: ([*s.cls.__dict__], [*s.cls.__dict__.keys()], sorted(vars(s.cls))),
    "items": lambda s: [(name, value) for name, value in vars(s.cls).items() if not name.startswith("_")],
    "values": lambda s: [value for value in s.cls.__dict__.values() if isinstance(value, int)],
    "copies": lambda s: ([*s.cls.__dict__.copy()], [*dict(vars(s.cls))], [*(s.cls.__dict__ | {})], [*{**vars(s.cls)}]),
    "text of the namespace": lambda s: "'more'" in str(s.cls.__dict__),
    "look-up": lambda s: ("more" in s.cls.__dict__, s.cls.__dict__.get("more"), s.cls.__dict__["some"]),
    "error of an instance": error_of(lambda s: s.obj.missing),
    "error of a class": error_of(lambda s: s.cls.missing),
    "error of getattr": error_of(lambda s: getattr(s.obj, "missing")(3)),
    "error of a deletion": error_of(lambda s: delattr(s.obj, "missing")),
    "error of unpacking": error_of(lambda s: [*s.obj]),
    "error of a block": error_of(lambda s: s.obj.__enter__()),
    "metaclass": lambda s: (type(s.cls).__name__, repr(type(s.cls))),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "__name__": lambda s: setattr(s.cls, "__name__", "Other"),
    "__qualname__": lambda s: setattr(s.cls, "__qualname__", "Out.Other"),
    "__module__": lambda s: setattr(s.cls, "__module__", "elsewhere"),
    "__doc__": lambda s: setattr(s.cls, "__doc__", "Other."),
    "__bases__": lambda s: setattr(s.cls, "__bases__", (type("Between", s.cls.__bases__, {}), types.SimpleNamespace)[:1]),
    "__abstractmethods__": lambda s: setattr(s.cls, "__abstractmethods__", frozenset({"work"})),
    "added": lambda s: setattr(s.cls, "more", 7),
    "assigned": lambda s: setattr(s.cls, "some", 8),
    "deleted": lambda s: delattr(s.cls, "other"),
    "metaclass": lambda s: setattr(type(s.cls), "__qualname__", "OtherMeta"),
}


def make(told: Callable[[Any], Any]) -> Any:
    class Meta(abc.ABCMeta):
        pass

    class Base(metaclass=Meta):
        pass

    class Some(Base):
        """Some."""

        some = 1
        other = 2
    state = types.SimpleNamespace(cls=Some, obj=Some())
    return (lambda x: (x + 1, told(state))), state


@pytest.mark.parametrize("told", TOLD)
def test_what_is_told_of_a_class(told) -> None:
    steps = [part for change in CHANGES.values() for part in (change, call(X), call(X))]
    check(lambda: make(TOLD[told]), call(X), call(X), *steps, captures=None, fullgraph=False, hits=None, recompile_limit=20)


def test_names_that_are_not_read_do_not_matter() -> None:
    check(lambda: make(lambda s: (s.obj.some, isinstance(s.obj, s.cls))), call(X),
          *[part for name in ("__name__", "__qualname__", "__doc__") for part in (CHANGES[name], call(X))])


def test_a_namespace_after_the_call_has_changed_it() -> None:
    def told(state):
        before = len(vars(state.cls))
        state.cls.some = 5
        state.cls.fresh = 6
        return before, len(vars(state.cls)), vars(state.cls)["some"], "fresh" in vars(state.cls), [*vars(state.cls)][-1]
    check(lambda: make(told), call(X), call(X), CHANGES["added"], call(X), call(X), captures=None, fullgraph=False)


def test_a_namespace_that_outlives_the_call() -> None:
    def make_returning():
        program, state = make(lambda s: None)
        return (lambda x: (x + 1, state.cls.__dict__)), state
    check(lambda: (lambda p, s: ((lambda x: len(p(x)[1])), s))(*make_returning()), call(X), call(X), CHANGES["added"], call(X),
          captures=None, fullgraph=False)
