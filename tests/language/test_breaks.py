"""What no graph can hold yet: it breaks with a reason and a remedy, and runs rightly without `fullgraph`."""
from __future__ import annotations

import decimal
import weakref

import pytest
import torch

import capture
from capture.errors import GraphBreakError
from tests.helpers import call, check

X = torch.tensor([1.0, -2.0])


class Target:
    pass


TARGET = Target()


def a_weak_reference_with_a_callback(x):
    target = Target()
    return x, weakref.ref(target, lambda dead: None)() is target


PROGRAMS = [a_weak_reference_with_a_callback]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_break_has_a_reason(program) -> None:
    with pytest.raises(GraphBreakError) as caught:
        capture.compile(program, fullgraph=True)(X)
    assert caught.value.reason.id == "opaque-call" and caught.value.reason.remedy
    assert program.__name__ in str(caught.value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_results_are_right_all_the_same(program) -> None:
    check(lambda: program, call(X), call(X), call(X * 2), fullgraph=False, captures=None)


def test_a_decimal_context_that_stays() -> None:
    def program(x):
        decimal.localcontext(prec=5).__enter__()
        return x * 2
    with decimal.localcontext():        # which the program's own goes with
        with pytest.raises(GraphBreakError) as caught:
            capture.compile(program, fullgraph=True)(X)
        assert caught.value.reason.id == "changing-global-state"
        compiled = capture.compile(program)
        for _ in range(3):
            decimal.getcontext().prec = 9
            assert torch.equal(compiled(X), X * 2) and decimal.getcontext().prec == 5
