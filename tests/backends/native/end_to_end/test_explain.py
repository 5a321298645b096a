"""What `capture.explain`, `capture.stats` and CAPTURE_DEBUG tell of a compiled graph."""
from __future__ import annotations

import re

import pytest
import torch

import capture
from capture import config
from tests.backends.native.end_to_end.engine import AT_ONCE, compile, no_trial  # noqa: F401


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x @ w).relu() * 2, -1)


def used(calls: int = 3, training: bool = True) -> capture.api.Unit:
    function = compile(program)
    w = torch.randn(8, 8, requires_grad=training)
    for _ in range(calls):
        function(torch.randn(4, 8), w)
    return function


def test_stage_and_number_of_kernels() -> None:
    assert "the graph will be compiled at its first hit" in capture.explain(used(1))
    text = capture.explain(used())
    assert re.search(r"backend: the graph runs compiled \(1 kernel forward, \d kernels? backward\)\n", text)
    assert "backend: the graph runs compiled (1 kernel)" in capture.explain(used(training=False))


def test_the_trial_is_told() -> None:
    with config.TRIAL_CALLS.set(1):
        assert "the graph is compiled; the next calls are timed with and without the kernels (1 kernel" in capture.explain(used(2))
        function = used(20, training=False)
        assert "µs compiled" in capture.explain(function) and "µs before" in capture.explain(function)


def test_a_graph_that_cannot_be_compiled() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2
    function = capture.compile(lambda x: Own.apply(x), **AT_ONCE)
    for _ in range(3):
        function(torch.ones(3, requires_grad=True))
    error, = capture.stats(function).compile_errors
    assert error == "the graph calls the autograd function Own, which is Python code of the program's"
    assert f"runs uncompiled: it cannot be compiled ({error})" in capture.explain(function)


@pytest.mark.parametrize("level", range(5))
def test_debug_levels(level: int, capsys) -> None:
    """Whatever lies on disk."""
    used()
    capsys.readouterr()
    with config.DEBUG.set(level):
        text = capture.explain(used())
    shown = capsys.readouterr().err
    assert ("runs compiled" in shown) == (level >= 1)
    assert ("guards:" in shown) == (level >= 2)
    for output in (shown, text):
        assert ("--- forward" in output and "--- backward" in output and "fusion:" in output) == (level >= 3)
        assert ('extern "C"' in output) == (level >= 4)
