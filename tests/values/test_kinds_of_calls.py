"""Calls of different kinds have limits of their own; a call that gets no entry any more runs natively, and finds those that fit."""
from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture import _C, pipeline
from capture.api import unit_of
from capture.config import RECAPTURE_LIMIT
from capture.errors import RecaptureError
from tests.helpers import call, call_with, check

X = torch.arange(1.0, 13.0).reshape(12, 1)


@pytest.fixture(autouse=True)
def limits_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "warn", lambda _: None)


def by_size(x: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
    return x * x.shape[0]


def test_what_is_static_in_a_call_is_its_kind() -> None:
    module = nn.Linear(1, 1)
    calls: list[list[Any]] = [
        [], [None], [True], [False], [1], [1.0], ["text"], [b""], [X], [X.double()], [X[0]], [nn.Parameter(X)], [module],
        [nn.ReLU()], [X, X], [[X]], [[]], [[X, 1]], [(X,)], [(X, X)], [{"a": X}], [{"b": X}], [{"a": None}], [{}],
        [{"a": X, "b": X}], [object()]]
    kinds = list(map(_C.call_kind, calls))
    module.eval()
    kinds.append(_C.call_kind([module]))
    with torch.no_grad():
        kinds += map(_C.call_kind, calls[:2])
    with torch.autocast("cpu"):
        kinds.append(_C.call_kind([X]))
    assert len(set(kinds)) == len(kinds)


def test_what_is_not_static_is_no_kind_of_its_own() -> None:
    alike: list[list[list[Any]]] = [
        [[X], [X[:3]], [X[:0]]], [[1], [2], [1 << 70]], [["a"], ["b"]], [[[X]], [[X, X[:3]]]],
        [[{"a": X, "b": 1}], [{"b": 2, "a": X[:2]}]],
        [[SimpleNamespace(a=1)], [SimpleNamespace(b=2)]], [[[[[1]]]], [[[[2]]]]],
        [[dict.fromkeys(map(str, range(n)))] for n in (50, 60)]]
    for calls in alike:
        assert len(set(map(_C.call_kind, calls))) == 1
    with pytest.raises(TypeError):
        _C.call_kind((X,))  # type: ignore[arg-type]


OTHERS: dict[str, Any] = {
    "gradients": (call(X.clone().requires_grad_()), call(X[:11].clone().requires_grad_())),
    "another argument": (call(X, None), call(X[:11], None)), "another option": (call(X, y=True), call(X[:11], y=True)),
    "another type": (call(X.double()), call(X[:11].double()))}


@pytest.mark.parametrize("other", OTHERS)
def test_sizes_of_one_kind_leave_the_limit_of_others_alone(other: str) -> None:
    sweep = [call(X[:n]) for n in range(2, 11)]
    first, second = OTHERS[other]
    with RECAPTURE_LIMIT.set(2):
        stats = check(lambda: by_size, *sweep, first, first, second, second, *sweep, first, second, fullgraph=False, dynamic=False,
                      captures=4, hits=6)
    assert stats.native_calls == 14


def test_inference_and_training_of_a_module() -> None:
    def make() -> Any:
        module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Dropout(0.0))
        return module
    sweep = [call(X[:n]) for n in range(2, 8)]
    check(make, nn.Module.eval, *sweep, nn.Module.train, *[call(X)] * 3, nn.Module.eval, *sweep, captures=3, hits=4,
          fullgraph=False, dynamic=False, backward=True, recompile_limit=2)


def test_kinds_have_a_limit_too() -> None:
    calls = [call(X.reshape(12, *[1] * rank)) for rank in range(10)]
    check(lambda: by_size, *calls, *calls, captures=8, hits=8, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_entries_that_fit_again_are_found(backend: str) -> None:
    def make() -> Any:
        state = SimpleNamespace(scale=1, parts=[torch.ones(1)], table={"k": 1})

        def program(x: torch.Tensor, state: Any) -> torch.Tensor:
            return x.repeat(state.scale, state.table["k"]) + len(state.parts)
        return program, state
    run = call_with(lambda state: (X, state))
    changes = [lambda s: setattr(s, "scale", 2), lambda s: s.parts.append(1), lambda s: s.table.update(k=2)]
    back = [lambda s: setattr(s, "scale", 1), lambda s: s.parts.pop(), lambda s: s.table.update(k=1)]
    steps: list[Any] = [run, run]
    for change, undo in zip(changes, back, strict=True):
        steps += [change, run, run, run, undo, run, change, run, undo, run, run]
    options = {"options": {"background": False}} if backend == "native" else {}
    stats = check(make, *steps, captures=1, hits=10, fullgraph=False, recompile_limit=1, backend=backend, **options)
    assert stats.native_calls == 12


def test_a_dying_entry_makes_room() -> None:
    used: list[type] = []
    compiled = capture.compile(lambda x: used[-1]()(x), backend="eager", recompile_limit=2)

    def made(factor: int) -> type:
        return type("Scale", (), {"__call__": lambda self, x: x * factor})

    def run(cls: type) -> None:
        used[:] = [cls]
        for _ in range(3):
            equal = torch.equal(compiled(X), cls()(X))
            assert equal
    kept, last = made(2), made(3)
    for cls in (made(1), kept, last):
        run(cls)
    del cls
    assert (capture.stats(compiled).captures, capture.stats(compiled).native_calls) == (2, 3)
    gc.collect()
    run(last)
    run(kept)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits, capture.stats(compiled).native_calls) == (3, 9, 3)


def test_a_stance_that_forbids_recaptures_is_told_of_calls_that_run_natively_for_good() -> None:
    compiled = capture.compile(by_size, backend="eager", dynamic=False, recompile_limit=1)
    for n in (2, 3, 3, 3):
        compiled(X[:n])
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(X[:2])
        with pytest.raises(RecaptureError):
            compiled(X[:3])
    assert torch.equal(compiled(X[:3]), by_size(X[:3])) and capture.stats(compiled).native_calls == 4


def test_threads_whose_entries_come_and_go() -> None:
    compiled = capture.compile(by_size, backend="eager", dynamic=False, recompile_limit=2)
    wrong: list[int] = []

    def work(first: int) -> None:
        for step in range(200):
            n = 1 + (first + step) % 9
            if not torch.equal(compiled(X[:n]), X[:n] * n):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        unit_of(compiled).tree.clear()
        compiled(X[:5])
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("first", [5, 1])
def test_an_entry_for_all_sizes_takes_over_from_that_of_the_first(first: int) -> None:
    """So that one graph is called, and compiled."""
    compiled = capture.compile(lambda x: (x * 2).sum(0), backend="eager")
    for size in (first, 7, first, 9, first):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))
    general, single = unit_of(compiled).tree.entries
    assert (general.superseded, single.superseded) == (False, True)
    assert (general.hits, single.hits) == (3, 0)
