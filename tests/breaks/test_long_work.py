"""What the program itself does for long without an operation of torch is left to CPython: the rest of a loop, and functions that
only call one another."""
from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import capture
from capture.interp.core import interpreter
from tests.breaks.test_long_loops import reasons
from tests.helpers import call, check

WORK = 60
LONG = 12 * WORK


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MOST_IDLE_WORK", WORK)


def a_sum(state: Any, x: Tensor) -> Tensor:
    total = 0
    for number in range(LONG):
        total += number % 7
    return x.sin() * total


def behind_an_operation(state: Any, x: Tensor) -> Tensor:
    y, total = x.exp(), 0
    for number in range(LONG):
        total += number % 7
    return x.sin() * total + y


def a_table(state: Any, x: Tensor) -> Tensor:
    table: dict[str, int] = {}
    for number in range(LONG):
        key = f"w{number % 10}"
        table[key] = table.get(key, 0) + 1
    return x * table["w3"] + len(table)


def outside_objects(state: Any, x: Tensor) -> Tensor:
    for number in range(LONG):
        state.seen.append(number)
        state.last = number, state.seen
    return x + len(state.seen)


def with_a_condition_at_its_end(state: Any, x: Tensor) -> Tensor:
    primes, number = [], 2
    while len(primes) < WORK:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return x * primes[-1]


def two_loops(state: Any, x: Tensor) -> Tensor:
    rows = []
    for i in range(WORK):
        row = []
        for j in range(WORK // 4):
            row.append(math.hypot(i, j))
        rows.append(row)
    return x + torch.tensor(rows).sum()


def left_in_the_middle(state: Any, x: Tensor) -> Tensor:
    for number in range(10 * LONG):
        if number > LONG and number % 11 == 3:
            break
    else:
        return x
    return x + number


def returned_from(state: Any, x: Tensor) -> Tensor:
    number = 0
    while True:
        number += 1
        if number > LONG:
            return x.cos() + number


def in_a_function(state: Any, x: Tensor) -> Tensor:
    return behind_an_operation(state, x * 2).sum() + a_sum(state, x)


def with_handlers(state: Any, x: Tensor) -> Tensor:
    found = 0
    for number in range(LONG):
        try:
            found += 10 // (number % 5)
        except ZeroDivisionError as error:
            state.seen.append(str(error))
        finally:
            found += 1
    return x + found + len(state.seen)


def that_raises(state: Any, x: Tensor) -> Tensor:
    y = x * 3
    try:
        for number in range(LONG):
            state.seen.append(10 / (LONG - 5 - number))
    except ZeroDivisionError:
        y = y + len(state.seen)
    return y.cos()


def in_a_block(state: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y, total = x * 2, 0
        for number in range(LONG):
            total += number % 3
        y = y + total
    return y * x


def with_cells(state: Any, x: Tensor) -> Tensor:
    total = 0

    def add(number: int) -> None:
        nonlocal total
        total += number
    for number in range(LONG):
        add(number % 5)
    return x * total


def in_a_comprehension(state: Any, x: Tensor) -> Tensor:
    return x + len([str(number) for number in range(LONG)]) + sum({number: number % 3 for number in range(LONG)}.values())


def in_a_generator(state: Any, x: Tensor) -> Tensor:
    return x * sum(number % 7 for number in range(2 * LONG))


def with_tensors_in_variables(state: Any, x: Tensor) -> Tensor:
    y = x.exp()
    kept = [x, y, x.sin()]
    for number in range(LONG):
        kept.append(kept.pop(number % 3))
    return kept[0] * 2 + kept[1] + y


def with_an_operation_at_last(state: Any, x: Tensor) -> Tensor:
    for number in range(LONG):
        if number == LONG - 7:
            x = x * 2
    return x.sin()


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def calls_that_call(state: Any, x: Tensor) -> Tensor:
    return x.exp() * fibonacci(state.size)


def is_even(number: int) -> bool:
    return number == 0 or is_odd(number - 1)


def is_odd(number: int) -> bool:
    return number != 0 and is_even(number - 1)


def calls_in_turn(state: Any, x: Tensor) -> Tensor:
    y = x.exp()
    evens = [is_even(number) for number in (90, 91, 92, 93)]
    return y + evens.count(True)


PROGRAMS = [a_sum, behind_an_operation, a_table, outside_objects, with_a_condition_at_its_end, two_loops, left_in_the_middle,
            returned_from, in_a_function, with_handlers, that_raises, in_a_block, with_cells, in_a_comprehension, in_a_generator,
            with_tensors_in_variables, with_an_operation_at_last, calls_that_call, calls_in_turn]
LEFT_AS_A_WHOLE = (calls_that_call,)        # from the next capture on


def state_and(program: Callable[[Any, Tensor], Tensor]) -> Callable[[], Any]:
    def make() -> Any:
        state = SimpleNamespace(seen=[], size=12)
        return lambda x: program(state, x), state
    return make


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("fullgraph", [False, True], ids=["", "one graph"])
def test_results_are_eager_modes(program: Any, fullgraph: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    check(state_and(program), *[call(x)] * 4, lambda state: state.seen.clear(), lambda state: setattr(state, "size", 9),
          *[call(x)] * 3, captures=None, fullgraph=fullgraph)


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program is not in_a_generator],
                         ids=lambda program: program.__name__)
def test_they_are_left_to_cpython(program: Any) -> None:
    state = SimpleNamespace(seen=[], size=12)
    compiled = capture.compile(program, backend="eager")
    for _ in range(6):
        state.seen.clear()
        compiled(state, torch.ones(3))
    assert ("long-call" if program in LEFT_AS_A_WHOLE else "long-loop") in reasons(compiled)
    assert capture.stats(compiled).graphs >= 1 and capture.stats(compiled).bailouts <= (program in LEFT_AS_A_WHOLE)


def test_a_generator_goes_on() -> None:
    """CPython would run it through code of ours."""
    compiled = capture.compile(in_a_generator, backend="eager")
    for _ in range(3):
        compiled(None, torch.ones(3))
    assert not reasons(compiled) and capture.stats(compiled).captures == 1


def test_what_follows_the_loop_is_captured_once() -> None:
    compiled = capture.compile(behind_an_operation, backend="eager")
    for _ in range(20):
        compiled(None, torch.ones(3))
    stats = capture.stats(compiled)
    assert stats.captures == 2 and stats.graphs == 2 and stats.native_calls == 0
