"""Loops whose rounds hold a break and no tensor operation: CPython runs them, what is around them is captured."""
from __future__ import annotations

import sys

import pytest
import torch

import capture
from capture import resumption
from tests.breaks.cuts import LOG, X, compared, outside, raises
from tests.helpers import call, check

PROGRAMS = []


def program(*, idle: bool = True):
    """Registers a function of one tensor. `idle`: one loop of it is left to CPython."""
    def register(function):
        PROGRAMS.append(pytest.param(function, idle, id=function.__name__))
        return function
    return register


@program()
def a_for_loop(x):
    y = x * 2
    seen = []
    for n in range(6):
        seen.append(outside(n))
    return y + len(seen), seen


@program()
def a_while_loop(x):
    n = 6
    while outside(n) > 0:
        n -= 1
    return x * 3 + n


@program()
def a_loop_that_is_left(x):
    for n in range(9):
        if outside(n) == 5:
            break
    else:
        return x
    return x * n


@program()
def a_loop_that_returns(x):
    y = x + 1
    for n in range(9):
        if outside(n) == 5:
            return y * n
    return y


@program()
def a_loop_that_continues(x):
    total = 0
    for n in range(8):
        if outside(n) % 2:
            continue
        total += n
    return x * total


@program()
def with_an_else(x):
    for n in range(5):
        outside(n)
    else:
        x = x * 2
    return x + n


@program()
def inside_of_another_loop(x):
    for i in range(3):
        x = x + i
        for n in range(5):
            outside(n)
        x = x * 2
    return x


@program()
def with_two_breaks_a_round(x):
    total = 0
    for n in range(6):
        total += outside(n)
        total += outside(1)
    return x * total


@program()
def with_variables_in_cells(x):
    count = 0

    def add(n):
        nonlocal count
        count += n
    for n in range(6):
        add(outside(n))
    count += 1
    return x * count, add


@program(idle=sys.version_info < (3, 12))       # a comprehension is a frame of its own then; later it is above a NULL
def with_values_on_the_stack(x):
    def function(a, b, c):
        return a * b + c
    y = x + 1
    return function(y, 2, [outside(n) for n in range(5)][-1])


@program()
def with_a_local_that_is_not_bound(x):
    for n in range(6):
        if outside(n) == 99:
            late = n
    try:
        return late
    except UnboundLocalError as error:
        return x * 2, str(error)


@program()
def with_a_local_that_is_deleted(x):
    y = x * 2
    for n in range(6):
        outside(n)
    del n
    return y + 1, sorted(name for name in ("n", "y") if name in locals())


@program()
def with_a_handler_inside(x):
    seen = []
    for n in range(6):
        try:
            raises(KeyError, str(n))
        except KeyError as error:
            seen.append(str(error))
    return x * 2, seen, repr(sys.exception())


@program()
def that_is_left_in_a_handler(x):
    y = x + 1
    try:
        raise KeyError("outer")
    except KeyError:
        pass
    for n in range(9):
        try:
            if outside(n) == 5:
                raises(ValueError)
        except ValueError:
            break
    y = y * n
    return y, repr(sys.exception())


@program()
def whose_handler_does_not_catch(x):
    y = x + 1
    try:
        for n in range(9):
            try:
                if outside(n) == 5:
                    raises(KeyError)
            except ValueError:
                continue
    except KeyError as error:
        y = y * n
        return y, repr(sys.exception()), repr(error.__context__)


@program(idle=False)
def in_a_handler(x):
    try:
        raise KeyError("outer")
    except KeyError as error:
        y = x * 2
        for n in range(6):
            outside(n)
        return y + 1, repr(sys.exception()), str(error)


@program()
def with_a_handler_around(x):
    y = x + 1
    try:
        for n in range(6):
            if outside(n) == 4:
                raise ValueError(n)
    except ValueError as error:
        return y * 2, error.args, [line.tb_lineno - error.__traceback__.tb_lineno for line in [error.__traceback__]]


@program()
def in_a_with_block(x):
    with torch.no_grad():
        for n in range(5):
            outside(n)
        y = x * 2
    return y, torch.is_grad_enabled()


@program()
def one_call_deep(x):
    def inner(t):
        total = 0
        for n in range(6):
            total += outside(n)
        return t * total
    y = x + 1
    return inner(y) * 2 + y


@program()
def two_calls_deep_that_returns(x):
    def inner(t, limit):
        for n in range(9):
            if outside(n) == limit:
                return t * n
        return t

    def middle(t):
        k = 3
        t = inner(t * k, 5)
        return t + k
    z = middle(x + 1)
    return z * 2, inner(z, 20)


@program()
def one_call_deep_with_an_exception(x):
    def inner(t):
        for n in range(6):
            if outside(n) == 4:
                raises(KeyError)
        return t
    y = x * 2
    try:
        inner(y)
    except KeyError as error:
        return y + 1, str(error), error.__traceback__.tb_next is not None


@program()
def one_call_deep_in_a_loop(x):
    def inner(t):
        for n in range(6):
            outside(n)
        return t + 1
    for _ in range(3):
        x = inner(x) * 2
    return x


@program()
def one_call_deep_with_cells(x):
    total = 0

    def inner():
        nonlocal total
        for n in range(6):
            total += outside(n)
        total += 1
        return total
    y = x * 2
    k = inner()
    return y * k + total


class Base:
    def count(self, t):
        for n in range(6):
            self.seen.append(outside(n))
        return t * len(self.seen)


class Derived(Base):
    def __init__(self):
        self.seen = []

    def count(self, t):
        return super().count(t + 1) - 1


@program()
def a_method_that_is_inherited(x):
    return Derived().count(x)


@program(idle=False)
def with_tensors(x):
    for n in range(6):
        x = x + outside(n)
    return x


@program(idle=False)
def with_tensors_in_some_rounds(x):
    for n in range(6):
        if outside(n) % 2:
            x = x + n
    return x


@program(idle=False)
def with_tensors_after_a_second_break(x):
    for n in range(6):
        outside(n)
        x = x + 1
        outside(x)
    return x


@pytest.fixture(autouse=True)
def _soon(monkeypatch) -> None:
    monkeypatch.setattr(resumption, "IDLE_ROUNDS", 1)


@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize(("function", "idle"), PROGRAMS)
def test_each_loop(function, idle, rounds, monkeypatch) -> None:
    monkeypatch.setattr(resumption, "IDLE_ROUNDS", rounds)
    stats = compared(function, *[call(X)] * 3, call(X + 1), captures=None)
    assert stats.native_calls == 0 and (stats.operations > 0 or not idle and rounds == 1), stats


@pytest.mark.parametrize(("function", "idle"), PROGRAMS)
def test_only_loops_without_tensors_are_left_to_cpython(function, idle, monkeypatch) -> None:
    monkeypatch.setattr(resumption, "IDLE_ROUNDS", 8)
    compiled = capture.compile(function, backend="eager")
    for _ in range(3):
        LOG.clear()
        compiled(X)
    frame = capture.report(compiled).frames[0]
    assert ("idle-loop" in {broken.reason for each in frame.walk() for broken in each.breaks}) is idle
    before = capture.stats(compiled)
    compiled(X)
    after = capture.stats(compiled)
    assert after.captures == before.captures
    if idle:
        assert after.hits - before.hits <= 12


def test_the_rounds_of_a_long_loop_are_no_hits() -> None:
    def function(x, rounds):
        y = x * 2
        for n in range(rounds):
            outside(n)
        return y + n
    compiled = capture.compile(function, backend="eager")
    for rounds in (3, 50, 50):
        assert torch.equal(compiled(X, rounds), function(X, rounds))
    before = capture.stats(compiled)
    assert torch.equal(compiled(X, 50), function(X, 50))
    after = capture.stats(compiled)
    assert (after.hits - before.hits, after.captures - before.captures, after.native_calls) == (2, 0, 0)


def test_an_exception_that_leaves_the_loop() -> None:
    def make():
        LOG.clear()

        def function(x):
            y = x * 2
            for n in range(6):
                if outside(n) == 4:
                    raises(ValueError)
            return y
        return function, LOG
    check(make, *[call(X)] * 3, captures=None, fullgraph=False)


def test_what_dies_in_the_loop_dies_then() -> None:
    def make():
        log = []

        class Loud:
            def __init__(self, n):
                self.n = n

            def __del__(self):
                log.append(self.n)

        def function(x):
            y = x + 1
            for n in range(6):
                loud = Loud(outside(n))
            log.append("end")
            del loud
            log.append("after")
            return y * 2
        return function, log
    check(make, *[call(X)] * 3, captures=None, fullgraph=False)


def test_a_compiled_function_that_is_gone_frees_its_loops() -> None:
    import gc
    import weakref

    class Token:
        pass

    def made():
        token = Token()

        def function(x):
            for n in range(5):
                outside(token and n)
            return x * 2
        compiled = capture.compile(function, backend="eager")
        for _ in range(3):
            compiled(X)
        return weakref.ref(token), weakref.ref(compiled)
    references = made()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
