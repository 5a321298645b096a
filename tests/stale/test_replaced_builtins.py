"""Builtins that a program replaces for all of Python: polyfills, which stand for C functions, go on with the former ones."""
from __future__ import annotations

import builtins
import functools
import itertools
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.ones(2)
REPLACED = sorted(name for name, value in vars(builtins).items() if type(value) is types.BuiltinFunctionType
                  and not name.startswith("_") and name not in ("isinstance", "issubclass", "open", "print", "exec"))


class Ordered:
    """Compares, and is converted, by code of Python."""

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value

    def __eq__(self, other):
        return self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __len__(self):
        return 3

    def __iter__(self):
        yield from (self.value, 1)


def of_polyfills(x: Any) -> Any:
    """What polyfills stand for, under names of no builtins that are replaced."""
    items = [Ordered(3), Ordered(1), Ordered(2)]
    first, *_ = ORDERED(items)
    found = {Ordered(1): "a", Ordered(2): "b"}
    pairs = [list(pair) for pair in zip(Ordered(5), items)]
    texts = f"{[first.value]}", "-".join(str(item.value) for item in items)
    return (x * first.value, GREATEST(items, key=lambda item: -item.value).value, found[Ordered(1)], Ordered(2) in items,
            pairs[0][0], texts, list(map(lambda item: item.value, items)), functools.reduce(lambda a, b: a + b.value, items, 0),
            [key for key, _ in itertools.groupby(items, lambda item: item.value > 1)], TOTAL(Ordered(2)), tuple(Ordered(4)))


ORDERED, GREATEST, TOTAL = sorted, max, sum


@pytest.mark.parametrize("name", REPLACED)
def test_a_builtin_that_the_program_replaces_is_not_for_polyfills(name: str) -> None:
    original = getattr(builtins, name)

    def make():
        log: list[str] = []

        def noting(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_code.co_filename == __file__:
                log.append(name)
            return original(*args, **kwargs)
        return of_polyfills, SimpleNamespace(log=log, noting=noting)

    def replace(state: Any) -> None:
        setattr(builtins, name, state.noting)

    def restore(state: Any) -> None:
        setattr(builtins, name, original)
    try:
        check(make, call(X), call(X), replace, call(X), call(X), restore, call(X), captures=None, fullgraph=False)
    finally:
        restore(None)


def test_what_exec_called_by_a_polyfill_gives_for_builtins() -> None:
    def make():
        def program(x):
            scopes: list[dict[str, Any]] = [{}, {}]
            list(map(exec, ["a = len([1])", "a = len([1, 2])"], scopes))
            return x * scopes[0]["a"], scopes[1]["a"], scopes[0]["__builtins__"] is vars(builtins)
        return program
    check(make, call(X), call(X), captures=None, fullgraph=False)
