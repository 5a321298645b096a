"""Every call counts: whichever way a capture ends, `stats` tells, and so does the report."""
from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture import config

X = torch.ones(3)
Program = Callable[[torch.Tensor], Any]


def of(program: Any, calls: int = 1, **options: Any) -> capture.Stats:
    """What is counted after as many calls."""
    return after_each(program, calls, **options)[-1]


def after_each(program: Any, calls: int, **options: Any) -> list[capture.Stats]:
    """What is counted after the first call, and after each further one."""
    compiled, seen = capture.compile(program, backend="eager", **options), []
    for _ in range(calls):
        with contextlib.suppress(Exception, KeyboardInterrupt):
            compiled(X)
        seen.append(capture.stats(compiled))
    return seen


def counted(stats: capture.Stats) -> int:
    """The calls that are accounted for, of a function without continuations."""
    return stats.captures + stats.hits + stats.native_calls + stats.raised + stats.breaks + stats.bailouts


def returns(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def raises(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    raise ValueError(y.shape)


def is_interrupted(x: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def fails_in_an_operation(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x)


def recurses(x: torch.Tensor) -> torch.Tensor:
    return recurses(x + 1)


def handles(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError
    except ValueError:
        return x + 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    gc.collect()
    return y * 2


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("program", [returns, raises, is_interrupted, fails_in_an_operation, recurses, handles])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_each_call_counts_once(program: Program, fullgraph: bool) -> None:
    assert list(map(counted, after_each(program, 3, fullgraph=fullgraph))) == [1, 2, 3]


@pytest.mark.parametrize("program, calls, raised, native", [
    (raises, 1, 1, 0), (raises, 3, 1, 2), (is_interrupted, 3, 3, 0), (fails_in_an_operation, 2, 2, 0), (handles, 2, 0, 0)])
def test_a_capture_that_ends_in_the_programs_exception(program: Program, calls: int, raised: int, native: int) -> None:
    stats = of(program, calls)
    assert (stats.raised, stats.native_calls) == (raised, native)


def test_a_break_that_fullgraph_refuses_counts() -> None:
    stats = of(breaks, 2, fullgraph=True)
    assert (stats.captures, stats.breaks, stats.raised) == (0, 2, 0)


def test_an_exception_behind_a_break_counts_there() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = breaks(x)
        raise ValueError(y.shape)
    stats = of(program, 2)
    assert (stats.captures, stats.hits, stats.breaks, stats.raised, stats.native_calls) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_call_that_initialises_a_lazy_module_counts(fullgraph: bool) -> None:
    assert counted(of(Lazy(), 1, fullgraph=fullgraph)) == 1


def test_the_report_tells_why_calls_ran_natively() -> None:
    def program(x: torch.Tensor, k: int) -> torch.Tensor:
        return x.repeat(k)
    compiled = capture.compile(program, backend="eager", dynamic=False, recompile_limit=1)
    with config.DISABLE.set(1):
        compiled(X, 1)
        assert "program: not captured (" in str(capture.report(compiled))
        assert "1 call ran natively without an entry: 1 under CAPTURE_DISABLE" in str(capture.report(compiled))
    with pytest.warns(UserWarning, match="recompile_limit"):
        for k in (1, 2, 3):
            compiled(X, k)
    assert "3 calls ran natively without an entry: 1 under CAPTURE_DISABLE, 2 past the recapture limit" in capture.explain(compiled)
    frame, = capture.report(compiled).frames
    assert (frame.uncounted, frame.native_reasons) == (3, ("1 under CAPTURE_DISABLE", "2 past the recapture limit"))


def test_the_report_tells_and_reset_forgets() -> None:
    compiled = capture.compile(raises, backend="eager")
    with pytest.raises(ValueError):
        compiled(X)
    text = str(capture.report(compiled))
    assert "raises: not captured (" in text and "1 capture ended in an exception of the program's own" in text
    capture.reset()
    assert capture.stats(compiled).raised == 0
