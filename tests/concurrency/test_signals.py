"""Signals that arrive while a call is captured: exceptions of their handlers are the program's, wherever in our code they come."""
from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator

import pytest
import torch

import capture
from capture.refgraph.graph import RefGraph

X = torch.arange(3.0)


class Timeout(Exception):
    pass


def expire(number, frame):
    raise Timeout("too late")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, expire)
    yield
    signal.signal(signal.SIGUSR1, before)


def signal_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal arrives when something is required for the `count`th time."""
    require, left = RefGraph.require, [count]

    def interrupted(self, *args):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGUSR1)
        return require(self, *args)
    monkeypatch.setattr(RefGraph, "require", interrupted)


def loops(x, seen):
    for i in range(3):
        seen.append(i)
        x = x * 2 + i
    return x


def catches(x, seen):
    try:
        return loops(x, seen)
    except Timeout as error:
        seen.append(str(error))
        return -x
    finally:
        seen.append("end")


@pytest.mark.parametrize("count", [2, 3, 6, 9, 12])
def test_the_exception_of_a_handler_leaves_the_call(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = capture.compile(loops, backend="eager")
    with monkeypatch.context() as patch:
        signal_after(count, patch)
        with pytest.raises(Timeout) as caught:
            compiled(X, [])
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "expire"
    for _ in range(3):                              # calls like that one are captured all the same
        assert torch.equal(compiled(X, []), loops(X, []))
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls) == (1, 2, 0)


@pytest.mark.parametrize("count", [6, 9])
def test_the_program_catches_what_a_handler_raises(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, seen = capture.compile(catches, backend="eager"), []
    with monkeypatch.context() as patch:
        signal_after(count, patch)
        assert torch.equal(compiled(X, seen), -X) and seen[-2:] == ["too late", "end"]
    for _ in range(3):
        again: list = []
        assert torch.equal(compiled(X, again), loops(X, [])) and again == [0, 1, 2, "end"]


def test_a_handler_that_returns_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = []
    signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
    compiled = capture.compile(loops, fullgraph=True, backend="eager")
    with monkeypatch.context() as patch:
        signal_after(5, patch)
        compiled(X, [])
    compiled(X, [])
    assert arrived == [signal.SIGUSR1] and (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 1)


def test_the_exception_of_a_handler_leaves_a_hit() -> None:
    armed: list[bool] = []

    def backend(gm, inputs):
        def run(*args):
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)
            return gm.forward(*args)
        return run
    compiled = capture.compile(loops, backend=backend)
    for _ in range(2):
        compiled(X, [])
    armed.append(True)
    with pytest.raises(Timeout):
        compiled(X, [])
    assert torch.equal(compiled(X, []), loops(X, [])) and capture.stats(compiled).hits == 3
