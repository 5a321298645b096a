"""Threads: each captures and hits on its own, under modes of its own, whatever the others do."""
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import capture

THREADS, ROUNDS = 8, 60
X = torch.arange(6.0).reshape(2, 3)


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """`work(number)` in each of the threads, started at the same moment. Raises what one of them raised."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_one_function_in_many_threads(warm: bool) -> None:
    linear = nn.Linear(3, 3)

    @capture.compile(fullgraph=True)
    def program(x):
        return linear(x).relu() * x.shape[0]
    if warm:
        program(X)

    def work(number: int) -> None:
        for k in range(ROUNDS):
            x = X + number + k
            assert torch.equal(program(x), linear(x).relu() * 2)
    in_threads(work)
    stats = capture.stats(program)
    assert stats.captures + stats.hits + stats.native_calls == THREADS * ROUNDS + warm
    assert stats.bailouts == 0 and (not warm or stats.captures == 1)


def test_different_functions_in_many_threads() -> None:
    def work(number: int) -> None:
        state = SimpleNamespace(steps=0)

        @capture.compile(fullgraph=True)
        def program(x):
            state.steps += 1
            return [row * number for row in x]
        for k in range(ROUNDS):
            assert all(torch.equal(a, b * number) for a, b in zip(program(X), X, strict=True))
        assert state.steps == ROUNDS
        assert (capture.stats(program).captures, capture.stats(program).hits) == (1, ROUNDS - 1)
    in_threads(work)


def test_each_thread_has_modes_of_its_own() -> None:
    weight = torch.ones(3, requires_grad=True)
    program = capture.compile(lambda x: (x * weight, x @ x.T, torch.is_grad_enabled()), fullgraph=True)
    modes = [torch.enable_grad, torch.no_grad, torch.inference_mode,
             lambda: torch.autocast("cpu", dtype=torch.bfloat16)]

    def work(number: int) -> None:
        with modes[number % len(modes)]():
            for _ in range(ROUNDS):
                product, square, enabled = program(X)
                expected = X * weight
                assert (product.requires_grad, product.is_inference()) == (expected.requires_grad,
                                                                           expected.is_inference())
                assert square.dtype == (X @ X.T).dtype and enabled == torch.is_grad_enabled()
    in_threads(work)
    assert capture.stats(program).bailouts == 0


def test_shared_state_is_changed_by_every_call() -> None:
    state, lock = SimpleNamespace(total=torch.zeros(2, 3), log=[]), threading.Lock()

    @capture.compile
    def program(x):
        state.total += x
        state.log.append(x.ndim)
        return state.total.sum()

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            with lock:
                program(X)
    in_threads(work)
    assert torch.equal(state.total, X * THREADS * ROUNDS) and state.log == [2] * (THREADS * ROUNDS)


def test_a_capture_does_not_affect_other_threads() -> None:
    """One thread stands still in the midst of a capture; another one runs, captures and hits."""
    inside, go_on = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    @capture.compile
    def slow(x):
        seen["slow"] = capture.is_capturing()
        inside.set()
        go_on.wait(10)
        return x * 2

    quick = capture.compile(lambda x: x + 1, fullgraph=True)
    thread = threading.Thread(target=lambda: seen.update(result=slow(X)))
    thread.start()
    assert inside.wait(10)
    seen["here"] = capture.is_capturing()
    assert [torch.equal(quick(X), X + 1) for _ in range(3)] == [True] * 3
    assert (capture.stats(quick).captures, capture.stats(quick).hits) == (1, 2)
    assert plain(X) == "plain"
    go_on.set()
    thread.join()
    assert seen["slow"] and not seen["here"] and torch.equal(seen["result"], X * 2)


def plain(x):
    return "plain"


def test_exceptions_stay_in_their_thread() -> None:
    @capture.compile
    def program(x, number):
        if number % 2:
            raise ValueError(number)
        return x * number

    def work(number: int) -> int:
        failures = 0
        for _ in range(ROUNDS):
            try:
                assert torch.equal(program(X, number), X * number)
            except ValueError as error:
                assert error.args == (number,)
                failures += 1
        return failures
    assert in_threads(work) == [ROUNDS * (number % 2) for number in range(THREADS)]


def test_training_in_many_threads() -> None:
    def work(number: int) -> None:
        torch_model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        compiled = capture.compile(torch_model, fullgraph=True)
        for _ in range(10):
            compiled(X).sum().backward()
            ours = [p.grad.clone() for p in torch_model.parameters()]
            torch_model.zero_grad()
            torch_model(X).sum().backward()
            assert all(torch.equal(a, p.grad) for a, p in zip(ours, torch_model.parameters(), strict=True))
            torch_model.zero_grad()
    in_threads(work)


def test_reset_while_others_call() -> None:
    program = capture.compile(lambda x: x * 2)

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            if number == 0:
                capture.reset()
            else:
                assert torch.equal(program(X), X * 2)
    in_threads(work)


def test_a_compiled_function_is_dropped_in_another_thread() -> None:
    def work(number: int) -> None:
        for _ in range(10):
            program = capture.compile(lambda x: x * number)
            program(X)
            program(X)
            other = threading.Thread(target=program, args=(X,))
            other.start()
            del program
            other.join()
    in_threads(work)
