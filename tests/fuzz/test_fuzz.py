"""A small budget of random cases; that wrong engines are found, and that what is found is made small."""
from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

import capture
from tests.fuzz import case as cases
from tests.fuzz.case import Case, Engine, compare, draw, first_difference, is_deterministic
from tests.fuzz.hunt import examine
from tests.fuzz.shrink import shrink

SEED, BATCHES, BATCH = 0, 2, 12         # `python -m tests.fuzz` goes on for hours


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_cases(batch: int) -> None:
    engine = Engine()
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        bug = examine(SEED, number, engine)
        assert bug in (True, False), "\n".join([f"python -m tests.fuzz --seed {SEED} --case {number}", *bug.problems[:5],
                                                str(bug.case)])
    assert engine.counts.hits > BATCH // 2 and engine.counts.captures > BATCH // 2
    assert engine.counts.native < engine.counts.calls


def test_the_same_numbers_draw_the_same_case() -> None:
    assert draw(1, 2) == draw(1, 2) != draw(1, 3)
    for number in range(40):
        case = draw(2, number)
        compile(case.source, "world", "exec")
        for step in case.steps:
            compile(step, "step", "exec")


WORLD = """
import torch

class Box:
    scale = 2.0
box, log = Box(), []

def program(x):
    log.append(box.scale)
    unused = [k for k in range(3)]
    if box.scale > 1:
        print('big')
        return x * box.scale
    return x
"""
STEPS = ("x = torch.ones(3)", "result = program(x)", "log.clear()", "result = program(x)", "Box.scale = 0.5", "result = program(x)",
         "log.append(1)", "result = program(x)")


def frozen(program):
    """An engine that never looks again: it keeps the first result."""
    results = []

    def compiled(x):
        if not results:
            results.append(program(x))
        return results[0]
    return compiled


def silent(program):
    scope = program.__globals__

    def compiled(x):
        scope["print"] = lambda *args: None
        try:
            return program(x)
        finally:
            del scope["print"]
    return compiled


def forgetful(program):
    def compiled(x):
        result = program(x)
        program.__globals__["log"] = []
        return result
    return compiled


@pytest.mark.parametrize(("engine", "found"), [
    (frozen, "result"), (silent, "output"), (forgetful, "log"), (lambda program: lambda x: program(x).double(), "dtype"),
    (lambda program: lambda x: x.missing, "exception"), (lambda program: lambda x: (program(x), torch.rand(1))[0], "torch RNG"),
])
def test_a_wrong_engine_is_found(engine, found: str) -> None:
    case = Case(WORLD, STEPS)
    assert is_deterministic(case)
    problems = first_difference(case, cases.run(case), cases.run(case, engine))
    assert problems and any(found in line for line in problems), problems


def test_a_failing_case_is_made_small() -> None:
    def fails(case: Case) -> bool:
        try:
            return bool(first_difference(case, cases.run(case), cases.run(case, frozen)))
        except Exception:
            return False
    small = shrink(Case(WORLD, STEPS), fails)
    assert fails(small) and len(small.source.splitlines()) <= 4 and len(small.steps) <= 2, str(small)


def test_captured_and_eager_worlds_are_compared() -> None:
    """The steps change what was captured: a hit, a new capture, and the counts that are told."""
    engine = Engine()
    assert compare(Case(WORLD, STEPS), engine) == []
    assert dataclasses.astuple(engine.counts) == (4, 2, 2, 0)


def test_what_one_case_leaves_behind_does_not_change_another() -> None:
    """A generator that waits in a world that is gone draws a number as the garbage collector finds it."""
    source = "import random\ndef draws():\n    try: yield\n    finally: random.random()\nkept = draws()\nnext(kept)\n" \
             "def program(x): return x"
    case = Case(source, ("result = program(1)", "import gc; gc.collect()", "result = program(2)"))
    for _ in range(2):
        assert compare(case, Engine()) == []
    assert gc.isenabled()


def test_no_mode_of_a_case_outlives_it() -> None:
    case = Case("import torch\ndef program(x): return x", ("torch.set_default_dtype(torch.float64)",
                                                           "torch.set_grad_enabled(False)",
                                                           "torch.nn.modules.module.register_module_forward_hook(print)"))
    cases.run(case, capture.compile)
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
    assert not torch.nn.modules.module._global_forward_hooks
