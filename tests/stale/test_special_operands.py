"""Operators on builtin data beside an object whose class derives from a number's, or from text, and has one method of Python."""
from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.ones(2)
SIGNS = {"add": "+", "mul": "*", "mod": "%", "pow": "**", "eq": "==", "lt": "<"}
REFLECTED = {"eq": "eq", "lt": "gt"}
LEFT = ["1", "True", "2.0", "1j", "'%s'", "b'a'", "bytearray(b'a')", "[1]", "(1,)", "None"]
BASES = {int: 4, float: 2.5, complex: 1j, str: "ab", bytes: b"ab"}


def attempt(ask: Any) -> Any:
    try:
        return ask()
    except TypeError as error:
        return str(error)


def world(base: type, questions: list[str]) -> Any:
    a = type("Derived", (base,), {})(BASES[base])       # type: ignore[call-arg]
    state = SimpleNamespace(cls=type(a), log=[])
    names = {"a": a, "attempt": attempt, "math": math}
    exec(f"def program(x): return x + 1, [{', '.join(f'attempt(lambda: {question})' for question in questions)}]", names)
    return names["program"], state


def noting(name: str, answer: Any) -> Any:
    def define(state: Any) -> None:
        def method(self: Any, *args: Any) -> Any:
            state.log.append((name, *map(type, args)))
            return answer
        setattr(state.cls, name, method)
    return define


def asked(base: type, name: str, questions: list[str], answer: Any = 77) -> None:
    """A class has a method from the first, or gets it later."""
    define = noting(name, answer)
    check(lambda: world(base, questions), define, call(X), call(X), captures=None, fullgraph=False)
    check(lambda: world(base, questions), call(X), call(X), define, call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("base", [int, float])
@pytest.mark.parametrize("name", SIGNS)
def test_operators(base: type, name: str) -> None:
    questions = [f"{left} {SIGNS[name]} a" for left in LEFT]
    for method in (name, REFLECTED.get(name, f"r{name}")):
        asked(base, f"__{method}__", questions)


@pytest.mark.parametrize("base", BASES)
def test_builtins_that_calculate(base: type) -> None:
    for method in ("__radd__", "__rmul__"):
        asked(base, method, ["sum([1, a])", "math.prod([2, a])", "sum((a,), 3)", "math.prod([], start=a)"])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("answer", [b"zz", "no bytes"])
def test_bytes(base: type, answer: Any) -> None:
    asked(base, "__bytes__", ["bytes(a)"], answer)


@pytest.mark.parametrize("base", [set, frozenset])
@pytest.mark.parametrize("later", [False, True])
def test_sets_take_members_of_sets_past_their_iter(base: type, later: bool) -> None:
    def make():
        cls = type("Derived", (base,), {})
        a = cls({1, 2})
        state = SimpleNamespace(cls=cls, log=[])

        def program(x):
            s = {1, 9}
            s.update(a, iter([5]))
            found = [set(a), frozenset(a), {5}.union(a), {1, 7}.intersection(a), {1, 7}.difference(a),
                     {1, 7}.symmetric_difference(a), frozenset({1}).union(a, iter([3])), {1, 7} | a, {1, 7} & a, a | {3}]
            return x + 1, s, found, {1}.issubset(a), {1, 2, 3}.issuperset(a), {7}.isdisjoint(a)
        return program, state
    define = noting("__iter__", iter(()))
    steps = [call(X), call(X), define, call(X), call(X)] if later else [define, call(X), call(X)]
    check(make, *steps, captures=None, fullgraph=False)
