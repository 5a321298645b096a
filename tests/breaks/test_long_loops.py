"""Code of packages that know nothing of torch, and that goes on for long, is left to CPython: capturing it takes a thousand times
as long."""
from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from capture.interp.core import interpreter
from tests.helpers import call, check

ROUNDS = 200
PACKAGE = '''
def counted(seen, rounds):
    table = {}
    for number in range(rounds):
        table[number] = str(number)
        seen.append(len(table))
    return len(table)

def numbers(rounds):
    number = 0
    while True:
        yield number
        number += len(str(number))
        if number > rounds:
            return

def failing(seen, rounds):
    for number in range(rounds):
        seen.append(str(number))
    raise KeyError(rounds)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "counting_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(interpreter, "MOST_IDLE_WORK", ROUNDS)
    import counting_package  # type: ignore[import-not-found]
    yield counting_package
    del sys.modules["counting_package"]


def a_call(package: ModuleType, state: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + package.counted(state.seen, ROUNDS) + len(state.seen)


def a_generator(package: ModuleType, state: Any, x: torch.Tensor) -> torch.Tensor:
    return x.sin() + sum(number for number in package.numbers(4 * ROUNDS) if number % 2)


def an_error(package: ModuleType, state: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        package.failing(state.seen, ROUNDS)
    except KeyError as error:
        return x * error.args[0]
    return x


def a_block(package: ModuleType, state: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x + package.counted(state.seen, ROUNDS)


def in_a_function(package: ModuleType, state: Any, x: torch.Tensor) -> torch.Tensor:
    return a_call(package, state, x.cos()).sum() + len(state.seen)


@pytest.mark.parametrize("program", [a_call, a_generator, an_error, a_block, in_a_function], ids=lambda program: program.__name__)
def test_results_are_eager_modes(program: Any, package: Any) -> None:
    def make() -> Any:
        state = SimpleNamespace(seen=[])
        return lambda x: program(package, state, x), state

    x = torch.ones(3, requires_grad=True)
    check(make, *[call(x)] * 3, lambda state: state.seen.clear(), call(x), call(x), captures=None, fullgraph=False)


def reasons(compiled: Any) -> set[str]:
    return {broken.reason for frame in capture.report(compiled).frames for each in frame.walk() for broken in each.breaks}


@pytest.mark.parametrize("program", [a_call, in_a_function], ids=lambda program: program.__name__)
def test_what_is_around_the_call_is_captured(program: Any, package: Any) -> None:
    state = SimpleNamespace(seen=[])
    compiled = capture.compile(program, backend="eager")
    for _ in range(4):
        state.seen.clear()
        compiled(package, state, torch.ones(3))
    stats = capture.stats(compiled)
    assert "long-loop" in reasons(compiled) and stats.graphs >= 2 and stats.hits >= 2 and not stats.bailouts


def test_short_loops_of_the_program_and_those_with_operations_go_on(package: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for number in range(ROUNDS):
            x = x + package.counted([], 4)
        return x + len([str(number) for number in range(ROUNDS // 2)])

    compiled = capture.compile(program, backend="eager")
    compiled(torch.ones(3))
    assert capture.stats(compiled).operations == ROUNDS + 1 and not reasons(compiled)


def test_one_graph_that_is_asked_for_has_them(package: Any) -> None:
    check(lambda: (lambda x: x + package.counted([], ROUNDS)), call(torch.ones(3)), call(torch.ones(3)))
