"""A small sample of the universe; and that what differs there is told."""
from __future__ import annotations

import pytest
import torch

from tests.fuzz.case import Engine
from tests.universe import objects
from tests.universe.case import Case, World, compare, difference, draw, examine, misread
from tests.universe.outcome import describe
from tests.universe.programs import ONE, TWO, source

SEED, BATCHES, BATCH = 0, 3, 25


def look(number: int, engine: Engine) -> None:
    bug = examine(SEED, number, engine)
    assert bug is True, "\n".join([f"python -m tests.universe --seed {SEED} --case {number}", *bug.problems[:5], str(bug.case)])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_sample(batch: int) -> None:
    engine = Engine()
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        look(number, engine)
    assert engine.counts.hits > engine.counts.captures > BATCH // 2


def test_a_sample_with_kernels() -> None:
    engine = Engine({"backend": "native", "options": {"background": False}})
    for number in range(500, 510):
        look(number, engine)


def test_every_question_is_a_program() -> None:
    for question in ONE:
        compile(source(question, "a", "callee", "caught", True), "question", "exec")
    for question in TWO:
        compile(source(question, "ab", "packed", "twice", False), "question", "exec")
    assert draw(1, 2) == draw(1, 2) != draw(1, 3)


def test_no_call_is_one_that_takes_cpython_down() -> None:
    case = draw(12, 1000)
    assert case.question == "a.sort()"
    assert {("list_class",), ("generic",)}.isdisjoint(case.calls) and ("list_numbers",) in case.calls
    assert misread("a.pop()", ("generic",)) and not misread("a.pop(0)", ("generic",)) and not misread("a.pop()", ("List",))


def test_objects_are_made_anew_or_are_the_same() -> None:
    for name in objects.NAMES:
        made = describe({"object": objects.make(name)})
        assert made == describe({"object": objects.make(name)}), name


@pytest.mark.parametrize(("one", "other"), [
    (1, True), (0.0, -0.0), (2, 2.0), ("a", objects.Str("a")), ([1], (1,)), (objects.Number.TWO, 2), (int, float), ({1: 2}, {1: 3}),
    (torch.tensor(1), torch.tensor(1.0)), (objects.Plain(), objects.Hashed()), (ValueError("a"), ValueError("b"))])
def test_what_differs_is_told(one: object, other: object) -> None:
    left, right = describe({"error": None, "result": one}), describe({"error": None, "result": other})
    assert left != right and difference(left, right).startswith("result")


def test_what_is_changed_is_told() -> None:
    case = Case("a", "def program(x, a):\n return a.append(1)\n", "argument", (("list_two",),), (("list_two",),) * 3)
    world = World(case)
    assert describe(world.call(world.program, ("list_two",))) != describe(world.call(lambda x, a: None, ("list_two",)))
    assert compare(case, Engine()) == []
