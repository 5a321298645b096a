"""Attributes of classes that a trace reads, changes and reads again: what it remembers of a class is what the class has by then."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture

STEPS = {
    "read from the instance": "seen.append(s.a.x)",
    "read from the class": "seen.append(s.A.x)",
    "read from the base": "seen.append(s.B.x)",
    "read past the class": "seen.append(super(s.A, s.a).x)",
    "assign": "s.A.x = len(seen) + 10",
    "assign to the base": "s.B.x = len(seen) + 20",
    "assign a property": "s.B.x = property(lambda self: 'told')",
    "delete": "del s.A.x",
    "delete from the base": "del s.B.x",
    "assign to the instance": "s.a.x = len(seen) + 30",
    "through C": "type.__setattr__(s.A, 'x', 40)",
    "ask": "seen.append(hasattr(s.A, 'x'))",
}
BETWEEN: dict[str, Callable[[Any], None]] = {
    "nothing": lambda s: None,
    "the base has another": lambda s: setattr(s.B, "x", 50),
    "the class has another": lambda s: setattr(s.A, "x", 60),
    "the class has none": lambda s: delattr(s.A, "x") if "x" in vars(s.A) else None,
    "the instance has one": lambda s: vars(s.a).update(x=70),
}


def world() -> SimpleNamespace:
    class B:
        x = "of the base"

    class A(B):
        pass
    return SimpleNamespace(A=A, B=B, a=A())


def program(steps: tuple[str, ...]) -> Callable[[Any, torch.Tensor], Any]:
    lines = [f" try: {STEPS[step]}\n except AttributeError: seen.append('none')" for step in steps]
    names: dict[str, Any] = {}
    exec("def program(s, x):\n seen = []\n" + "\n".join(lines) + "\n return x + 1, seen", names)
    return names["program"]


def answers(function: Callable[..., Any], change: Callable[[Any], None]) -> list[str]:
    s, x = world(), torch.zeros(1)
    found = []
    for between in (BETWEEN["nothing"], BETWEEN["nothing"], change, BETWEEN["nothing"]):
        between(s)
        result, seen = function(s, x)
        held = [vars(owner).get("x", "none") for owner in (s.A, s.B, s.a)]
        found.append(repr([result, *("a property" if type(value) is property else value for value in (*seen, *held))]))
    return found


READS = [step for step in STEPS if step.startswith("read")]


@pytest.mark.parametrize("first", READS)
def test_every_read_tells_what_is_there_by_then(first: str) -> None:
    """The changes between the calls take turns."""
    wrong = []
    for (step, then), between in zip(itertools.product(STEPS, READS), itertools.cycle(BETWEEN)):
        run = program((first, step, then))
        if answers(capture.compile(run, backend="eager"), BETWEEN[between]) != answers(run, BETWEEN[between]):
            wrong.append((step, then, between))
    assert not wrong


def test_an_attribute_that_code_of_c_changes_is_read_anew() -> None:
    """What `sorted` calls may break the trace, or be followed; what it changes is not remembered as it was."""
    def run(s: Any, x: torch.Tensor) -> Any:
        before = s.a.x
        sorted([2, 1], key=lambda item: setattr(s.A, "x", item) or item)
        return x + 1, [before, s.a.x]
    assert answers(capture.compile(run, backend="eager"), BETWEEN["the base has another"]) == answers(
        run, BETWEEN["the base has another"])
