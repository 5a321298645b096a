"""Tables of programs whose outside state changes between calls."""
from __future__ import annotations

import functools
import textwrap
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.arange(1.0, 7.0).reshape(2, 3)
Program = Callable[..., Any]
Change = Callable[[], Any]
Made = tuple[Program, Change, Change]
Factory = Callable[[], Made]


class Table(list):
    """Cases for `pytest.mark.parametrize`, each a factory of (program, change, undo), named by its function."""

    def add(self, captures: int | None = 2, fullgraph: bool = True) -> Callable[[Factory], Factory]:
        """Registers a factory. `captures`: how many a change and its undoing may cost; None where that is free."""
        def register(make: Factory) -> Factory:
            self.append(pytest.param(make, captures, fullgraph, id=make.__name__))
            return make
        return register


def run(factory: Factory, captures: int | None, fullgraph: bool = True, *args: Any) -> None:
    """Capture, hit, change, capture, hit, undo, hit: compared with eager at every call."""
    def make() -> tuple[Program, types.SimpleNamespace]:
        program, change, undo = factory()
        return program, types.SimpleNamespace(program=program, change=change, undo=undo)
    once = call(*args) if args else call(X)
    check(make, once, once, lambda state: state.change(), once, once, lambda state: state.undo(), once,
          captures=captures, fullgraph=fullgraph)


def user_module(source: str, name: str = "user_module", **namespace: Any) -> types.ModuleType:
    """A module of the user's: functions of it have globals of their own."""
    module = types.ModuleType(name)
    vars(module).update(namespace)
    exec(compile(textwrap.dedent(source), f"<{name}>", "exec"), vars(module))
    return module


def exchange(owner: Any, name: str, new: Any) -> tuple[Change, Change]:
    """A change of one attribute and its undoing; both leave `owner` with the very object it had before."""
    old = getattr(owner, name)
    return functools.partial(setattr, owner, name, new), functools.partial(setattr, owner, name, old)


def edits(owner: Any, name: str, new: Any) -> tuple[Change, Change]:
    """Setting an attribute that is not there, and deleting it. (`new` lives on: a trace dies with what it needs.)"""
    return functools.partial(setattr, owner, name, new), functools.partial(delattr, owner, name)
