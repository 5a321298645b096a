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


def masked(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2)[x > 0].exp() + 1


def test_how_many_operations_are_compiled() -> None:
    """Of each graph, of each function, and of all."""
    waiting = compile(lambda x: x.tan() - 17)       # no other test has left its kernels on the disk
    waiting(torch.ones(2))
    assert "2 operations, none compiled" in capture.explain(waiting)
    whole = used()
    assert "4 operations, all compiled" in capture.explain(whole)
    divided, varying = compile(masked), compile(lambda x: x.sin() * 2)
    for call in range(5):
        divided(torch.linspace(-1, 1, 4))
        varying(torch.linspace(-1, 1, 4 + call))
    frame, = capture.report(divided).frames
    assert (frame.operations, frame.compiled) == (6, 5) and "6 operations, 5 compiled" in str(frame)
    assert [entry.graph.compiled for entry in capture.report(varying).frames[0].entries] == [2, 0]
    report = capture.report(whole, divided)
    assert (report.operations, report.compiled) == (10, 9) and "10 operations, 9 compiled" in str(report)
    assert "<b>9</b>of them compiled" in report.html()


def test_operations_that_are_faster_uncompiled_are_told() -> None:
    with config.TRIAL_CALLS.set(1):
        frame, = capture.report(used(40, training=False)).frames
    assert (frame.compiled, frame.slower) in ((4, 0), (0, 4))
    assert ("4 operations, none compiled, 4 measured to be faster uncompiled" in str(frame)) == (frame.slower == 4)


def test_nothing_is_said_of_kernels_where_the_backend_makes_none() -> None:
    plain = capture.compile(program, backend="eager")
    plain(torch.ones(2, 2), torch.ones(2, 2))
    assert "4 operations)" in capture.explain(plain) and "</b>of them compiled" not in capture.report(plain).html()


def test_the_trial_is_told() -> None:
    with config.TRIAL_CALLS.set(1):
        assert "the graph is compiled; the next calls are timed with and without the kernels (1 kernel" in capture.explain(used(2))
        function = used(20, training=False)
        assert "µs compiled" in capture.explain(function) and "µs before" in capture.explain(function)


def test_a_graph_that_cannot_be_compiled() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)        # this is left to torch
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
