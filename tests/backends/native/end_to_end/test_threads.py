"""Threads that call compiled functions while these are compiled and their code is exchanged."""
from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import capture
from capture import config
from capture.backends.native.tiers import Stage
from tests.backends.native.end_to_end.engine import tiers
from tests.threads import in_threads

THREADS = 8


def program(number: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda x, w: (x * w + number).tanh() * 2


def done(function: Callable) -> bool:
    """Whether a graph of the function is compiled, and its trial over. (Threads that capture at the same time make entries that
    are alike, of which one is used.)"""
    return any(tier.stage in (Stage.COMPILED, Stage.SLOWER) for tier in tiers(function))


def check(function: Callable, number: int, calls: int) -> None:
    for _ in range(calls):
        x, w = torch.randn(7), torch.randn(7, requires_grad=True)
        w2 = w.detach().clone().requires_grad_()
        y, expected = function(x, w), program(number)(x, w2)
        torch.testing.assert_close(y, expected)
        y.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(w.grad, w2.grad)


@pytest.mark.parametrize("trial", [0, 2])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_threads_while_code_is_compiled_and_exchanged(trial: int, background: bool, shared: bool) -> None:
    """All call one function, or each its own, half of which are alike and so compiled by one job."""
    with config.CACHE.set(0), config.TRIAL_CALLS.set(trial):
        numbers = [0] * THREADS if shared else [number % (THREADS // 2) for number in range(THREADS)]
        functions = [capture.compile(program(number), backend="native", options={"background": background}) for number in numbers]
        if shared:
            functions = functions[:1] * THREADS

        def work(number: int) -> None:
            function = functions[number]
            while not done(function):
                check(function, numbers[number], 1)
                threading.Event().wait(0.001)       # the compiling process is to have its share
            check(function, numbers[number], 10)
        in_threads(work, THREADS)
        assert capture.wait() and all(map(done, functions))


def test_reset_while_others_call() -> None:
    functions = [capture.compile(program(number % 2), backend="native") for number in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(5):
            check(functions[number], number % 2, 2)
            if number == 0:
                capture.reset()
    in_threads(work, THREADS)
    assert capture.wait()
