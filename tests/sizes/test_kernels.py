"""What programs do with sizes that vary, in kernels: compiled once, for all sizes."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capture.config import TRIAL_CALLS
from tests.helpers import call, check

SIZES = (7, 9, 5, 12, 8, 3)
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}


def divided(x: Tensor) -> tuple[Tensor, ...]:
    """As beam search does it: places in a flat list of scores, of all beams and words."""
    n, i = x.size(0), torch.arange(-3 * x.size(0), 3 * x.size(0))
    return (x * n, i // n, i % n, torch.div(i, n, rounding_mode="trunc"), torch.fmod(i, n), i * 1.5 // n, i // -n, i // (n - 2),
            i % (5 - 2 * n), n // (i.abs() + 1))


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "divided by sizes": divided, "chunks": lambda x: torch.cat(x.chunk(2)[::-1]).exp(),
    "chunks of all": lambda x: [part.sum(0) * 2 for part in x.chunk(2)],
    "from the middle": lambda x: x[x.size(0) - x.size(0) // 2:].exp(),
    "rows": lambda x: x[x.size(0) // 2] * x[x.size(0) - 1, x.size(0) // 9] + x[-x.size(0)]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_captures_and_one_artifact(name: str) -> None:
    with TRIAL_CALLS.set(0):
        steps = [call(torch.randn(n, 3, requires_grad=True)) for n in SIZES]
        found = check(lambda: PROGRAMS[name], *steps, captures=2, backward=True, **NATIVE)
    assert not found.compile_errors and found.compiled == 1, found


def test_divisions_by_a_size_that_may_be_zero() -> None:
    def program(x: Tensor) -> Any:
        try:
            return torch.arange(9) // (x.size(0) - 5)
        except RuntimeError as error:
            return str(error)
    steps = [call(torch.randn(n)) for n in (7, 9, 5, 12, 5, 5, 8, 3)]
    check(lambda: program, *steps, captures=None, fullgraph=False, **NATIVE)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
def test_a_float_that_changes_times_a_size(options: dict[str, Any]) -> None:
    def program(x: Tensor, factor: float) -> Tensor:
        return x * (x.size(0) * factor) + factor
    steps = [call(torch.randn(n, 3), n * 0.5) for n in SIZES]
    assert not check(lambda: program, *steps, captures=2, **options).compile_errors
