"""The trial: which callable serves which call, what is timed of a backward pass, and what is decided from it."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from capture.backends.native import trial
from capture.backends.native.trial import PATIENCE, WARM_UP, Trial

X = torch.randn(3)


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(trial.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


class Taking(torch.autograd.Function):
    """Passes its input on; takes `forward` and `backward` seconds."""

    @staticmethod
    def forward(ctx, x, clock, forward, backward):
        ctx.clock, ctx.seconds = clock, backward
        clock.now += forward
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.now += ctx.seconds
        return gradient, None, None, None


def told(decisions: list[bool]) -> Callable[[float, float], None]:
    """Notes whether the compiled one was the faster."""
    return lambda before, after: decisions.append(after <= before)


def taking(clock: Clock, forward: float, backward: float = 0.0, served: list | None = None):
    def function(x):
        if served is not None:
            served.append((forward, backward))
        return (Taking.apply(x, clock, forward, backward),)
    return function


@pytest.mark.parametrize(("plain", "compiled"), [(2.0, 1.0), (1.0, 2.0), (1.0, 1.0)])
def test_both_are_timed(clock: Clock, plain: float, compiled: float) -> None:
    decisions: list = []
    subject = Trial(taking(clock, plain), taking(clock, compiled), 3, lambda *d: decisions.append(d))
    for _ in range(4 * (3 + WARM_UP)):
        assert torch.equal(subject(X)[0], X)
    assert decisions == [(plain, compiled)]


def test_both_serve_in_turn_and_equally_often(clock: Clock) -> None:
    served: list = []
    subject = Trial(taking(clock, 1.0, served=served), taking(clock, 2.0, served=served), 20, lambda *d: None)
    for _ in range(40):
        subject(X)
    assert served.count((1.0, 0.0)) == served.count((2.0, 0.0)) == 20
    for period in range(1, 9):
        for first in range(period):
            assert len(set(served[first::period])) == 2


def test_first_calls_do_not_count(clock: Clock) -> None:
    decisions: list = []
    count = 0

    def slow_at_first(x):
        nonlocal count
        count += 1
        clock.now += 100.0 if count <= WARM_UP else 1.0
        return (x,)
    subject = Trial(taking(clock, 2.0), slow_at_first, 3, told(decisions))
    while not decisions:
        subject(X)
    assert decisions == [True]


@pytest.mark.parametrize(("plain", "compiled", "faster"), [
    ((1.0, 5.0), (2.0, 2.0), True), ((2.0, 2.0), (1.0, 5.0), False)], ids=["slow forward", "slow backward"])
@pytest.mark.parametrize("leaf", [True, False])
def test_a_backward_pass_counts(clock: Clock, plain: tuple, compiled: tuple, faster: bool, leaf: bool) -> None:
    decisions: list = []
    subject = Trial(taking(clock, *plain), taking(clock, *compiled), 3, told(decisions))
    weight = nn.Parameter(X.clone())
    for _ in range(50):
        if decisions:
            break
        x = weight if leaf else Taking.apply(weight, clock, 0.0, 1000.0)        # what the graph is not, does not count
        y, = subject(x)
        (y * 2).sum().backward()
    assert decisions == [faster]
    assert weight.grad is not None and not weight._backward_hooks


def test_backward_passes_that_come_late_are_waited_for(clock: Clock) -> None:
    decisions: list = []
    subject = Trial(taking(clock, 1.0, 5.0), taking(clock, 2.0, 2.0), 2, told(decisions))
    weight = nn.Parameter(X.clone())
    while not decisions:
        torch.stack([subject(weight)[0] for _ in range(3)]).sum().backward()
    assert decisions == [True]


def test_backward_passes_that_never_come_are_not(clock: Clock) -> None:
    decisions: list = []
    subject = Trial(taking(clock, 1.0, 5.0), taking(clock, 2.0, 2.0), 2, told(decisions))
    weight = nn.Parameter(X.clone())
    for _ in range(2 * (2 * PATIENCE + WARM_UP) + 4):
        subject(weight)
    assert decisions == [False]


def test_an_input_that_is_written_to_has_a_backward_pass(clock: Clock) -> None:
    def function(x):
        x.mul_(Taking.apply(weight, clock, 0.0, 3.0))
        return ()
    weight = nn.Parameter(X.clone())
    subject = Trial(function, function, 3, lambda *d: None)
    x = X.clone()
    subject(x)
    x.sum().backward()
    assert subject.samples[0][0].backward == 3.0
    assert torch.equal(weight.grad, X)


def test_an_exception_ends_nothing(clock: Clock) -> None:
    def fails(x):
        raise ValueError
    subject = Trial(taking(clock, 1.0), fails, 3, lambda *d: None)
    subject(X)
    with pytest.raises(ValueError):
        subject(X)
    assert [len(samples) for samples in subject.samples] == [1, 0]


def test_calls_of_one_kind_are_compared(clock: Clock) -> None:
    """A compiled graph that is faster for each size, but had the large ones alone when it mattered."""
    decisions: list = []

    def seconds(factor: float):
        def function(x):
            clock.now += factor * len(x)
            return (x,)
        return function
    subject = Trial(seconds(2.0), seconds(1.0), 4, told(decisions), kind_of=lambda inputs: inputs[0].shape)
    for size in (1, 5, 5, 9, 1, 9, 7, 7, 3, 3, 8, 8, 2, 2, 6, 6, 4, 4):
        subject(torch.zeros(size))
    assert decisions == [True]


def test_calls_of_ever_other_kinds_are_divided_by_chance(clock: Clock) -> None:
    decisions: list = []
    subject = Trial(taking(clock, 1.0), taking(clock, 2.0), 3, told(decisions), kind_of=lambda inputs: object())
    for _ in range(4 * PATIENCE * 3):
        subject(X)
    assert decisions == [False]
