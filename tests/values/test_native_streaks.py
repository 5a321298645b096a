"""Calls that run natively one after the other are looked at ever more rarely. Those that entries fit again are found all the same,
and no call has a wrong result meanwhile."""
from __future__ import annotations

import decimal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capture
from capture import pipeline
from capture.errors import RecaptureError

LONG = 2000                 # calls, after which the fewest are looked at
LATEST = 64                 # of so many calls one is looked at then
X = torch.arange(1.0, 25.0).reshape(24, 1)
BACKENDS: list[dict[str, Any]] = [{"backend": "eager"}, {"backend": "native", "options": {"background": False}}]


@pytest.fixture(autouse=True)
def limits_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "warn", lambda _: None)


def by_size(x: Tensor, more: float | None = None, *rest: Any, **named: Any) -> Tensor:
    return x * x.shape[0] + (0 if more is None else more)


class BySize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * (x.shape[0] if self.training else 1 - x.shape[0])


def full(program: Any, **options: Any) -> Any:
    """The compiled program with entries for 1 and 2 rows, and none for more."""
    compiled = capture.compile(program, dynamic=False, recompile_limit=2, **options)
    for n in (1, 2, 1, 2):
        compiled(X[:n])
    return compiled


def until_hit(compiled: Any, call: Callable[[], Any]) -> int:
    """How many calls run natively before one is a hit."""
    before = capture.stats(compiled)
    for late in range(LONG):
        call()
        if capture.stats(compiled).hits > before.hits:
            return late
    raise AssertionError("never")


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "native"])
@pytest.mark.parametrize("make", [lambda: by_size, BySize], ids=["function", "module"])
@torch.no_grad()
def test_calls_that_entries_fit_again_are_found(make: Callable[[], Any], options: dict[str, Any]) -> None:
    program = make()
    compiled, calls = full(program, **options), 4
    for long in (LONG, 70):
        for i in range(long):
            assert torch.equal(compiled(X[:3 + i % 9]), program(X[:3 + i % 9]))
        stats = capture.stats(compiled)
        calls += long
        assert stats.captures + stats.hits + stats.native_calls == calls and stats.captures == 2
        late = until_hit(compiled, lambda: compiled(X[:2]))
        assert late < LATEST
        hits = capture.stats(compiled).hits
        for i in range(50):         # from now on each is looked at
            assert torch.equal(compiled(X[:1 + i % 2]), program(X[:1 + i % 2]))
            compiled(X[:7])
        assert capture.stats(compiled).hits == hits + 50
        calls += late + 101


def test_a_few_calls_that_run_natively_leave_all_others_alone() -> None:
    compiled = full(by_size, backend="eager")
    for i in range(20):
        for n in range(3, 13):
            compiled(X[:n])
        assert until_hit(compiled, lambda i=i: compiled(X[:1 + i % 2])) == 0


OTHERS: dict[str, Callable[[Any], Any]] = {
    "more arguments": lambda f: f(X[:3], 1.0), "an option": lambda f: f(X[:3], b=1),
    "gradients": lambda f: f(X[:3].clone().requires_grad_()),
    "numbers of another type": lambda f: f(X[:3].double()), "another rank": lambda f: f(X[:3, 0])}


@pytest.mark.parametrize("other", OTHERS)
def test_calls_of_another_kind_are_captured_and_hit_at_once(other: str) -> None:
    compiled, call = full(by_size, backend="eager"), OTHERS[other]
    for _ in range(LONG):
        compiled(X[:3])
    call(compiled)
    assert capture.stats(compiled).captures == 3
    for _ in range(LONG):           # which a capture has ended, and which begins anew
        compiled(X[:3])
    assert until_hit(compiled, lambda: call(compiled)) == 0
    assert torch.equal(call(compiled), call(by_size))


def test_training_and_inference_in_turn() -> None:
    module = BySize()
    compiled = full(module, backend="eager")
    for _ in range(3):
        module.train()
        for _ in range(LONG):
            assert torch.equal(compiled(X[:3]), X[:3] * 3)
        module.eval()
        with torch.no_grad():
            assert torch.equal(compiled(X[:2]), -X[:2])
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (3, 4)


def test_what_is_forbidden_or_forgotten_is_so_at_once() -> None:
    compiled = full(by_size, backend="eager")
    for _ in range(LONG):
        compiled(X[:3])
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecaptureError):
        compiled(X[:3])
    compiled(X[:3])
    capture.reset()
    compiled(X[:3])
    assert capture.stats(compiled).captures == 1


SWITCH = {"natively": True}


def test_a_trace_that_could_not_be_kept_does_not_stand_in_the_way_of_others() -> None:
    def program(x: Tensor) -> Tensor:
        if SWITCH["natively"]:
            decimal.getcontext().prec = 20
        return x * 2 if SWITCH["natively"] else x + 1
    SWITCH["natively"] = True
    with decimal.localcontext():
        compiled = capture.compile(program, backend="eager")
        for _ in range(LONG):
            assert torch.equal(compiled(X), X * 2)
        SWITCH["natively"] = False
        assert until_hit(compiled, lambda: compiled(X)) < LATEST + 2
        assert torch.equal(compiled(X), X + 1)
        SWITCH["natively"] = True
        for _ in range(LONG):
            compiled(X)
        program.__code__ = (lambda x: x - 1).__code__
        assert torch.equal(compiled(X), X - 1) and torch.equal(compiled(X), X - 1)


def test_most_calls_are_not_looked_at() -> None:
    compiled, late = full(by_size, backend="eager"), []
    for _ in range(8):
        for _ in range(LONG + len(late)):
            compiled(X[:3])
        late.append(until_hit(compiled, lambda: compiled(X[:2])))
    assert max(late) > LATEST // 8


def test_threads() -> None:
    compiled = full(by_size, backend="eager")
    wrong: list[int] = []

    def work(first: int) -> None:
        for step in range(3000):
            n = 3 + (first + step) % 9 if step % 500 < 400 else 1 + step % 2
            if not torch.equal(compiled(X[:n]), X[:n] * n):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
