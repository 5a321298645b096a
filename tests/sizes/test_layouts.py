"""How tensors whose sizes change lie in memory: parts of larger ones do as their wholes do only where they are the wholes."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import call, check
from tests.sizes import layouts

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}}
Part = Callable[..., torch.Tensor]
PARTS: dict[str, Part] = {
    "slice": lambda x, n: x[:, :4], "slice of any length": lambda x, n: x[:, :n], "last": lambda x, n: x[..., -4:],
    "fixed": lambda x, n: x[:2, :4], "narrow": lambda x, n: x.narrow(1, 0, 4), "split": lambda x, n: x.split(4, 1)[0],
    "split by sizes": lambda x, n: x.split([n, x.size(1) - n], 1)[0], "column": lambda x, n: x[:, :2, None][:, 0],
    "select": lambda x, n: x.unfold(1, 2, 2).select(2, 0), "windows": lambda x, n: x.unfold(1, 2, 2),
    "data": lambda x, n: x[:, :4].data,
    "transposed twice": lambda x, n: x.t()[:4].t(), "of a part": lambda x, n: x[:, 1:][:, :3], "made": lambda x, n: (x * 2)[:, :4],
}
QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "contiguous": lambda v: v.contiguous(), "is it the same": lambda v: v.contiguous() is v,
    "written to": lambda v: v.contiguous().add_(1),
    "reshaped": lambda v: v.reshape(-1).add_(1), "flat": lambda v: v.flatten().add_(1), "ravel": lambda v: v.ravel().zero_(),
    "strides": lambda v: v.stride(), "stride": lambda v: v.stride(0), "told": lambda v: v.is_contiguous(),
    "offset": lambda v: v[1:].storage_offset(),
    "dense": lambda v: v.is_non_overlapping_and_dense(), "viewed": lambda v: v.view(-1), "order": lambda v: v.t().contiguous(),
}
CALLS = ((3, 8, 4), (2, 4, 4), (6, 4, 4), (6, 6, 6), (5, 8, 4))


def program(part: Part, question: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor, n: int, seen: list[Any]) -> Any:
        v = part(x, n)
        seen.append(len(x))
        return v, question(v), x.sum()
    return run


@pytest.mark.parametrize("question", QUESTIONS)
def test_parts(question: str) -> None:
    for part in PARTS.values():
        steps = [call(torch.arange(a * b * 1.0).view(a, b), n, []) for a, b, n in CALLS]
        check(lambda part=part: program(part, QUESTIONS[question]), *steps, captures=None, fullgraph=False, recompile_limit=60,
              dynamic=True)


@pytest.mark.parametrize("question", ["contiguous", "written to", "reshaped", "viewed"])
def test_parts_from_outside(question: str) -> None:
    """Of a buffer of one length, which the part comes to have."""
    made = program(lambda x, n: x, QUESTIONS[question])
    steps = [call(torch.arange(a * 8.0).view(a, 8)[:, :b], 0, []) for a, b, _ in CALLS]
    for backend in ({}, NATIVE):
        check(lambda: made, *steps, captures=None, fullgraph=False, recompile_limit=60, **backend)


@pytest.mark.parametrize("question", ["contiguous", "reshaped"])
def test_compiled_parts(question: str) -> None:
    steps = [call(torch.arange(a * b * 1.0).view(a, b), n, []) for a, b, n in CALLS]
    made = program(PARTS["slice"], QUESTIONS[question])
    check(lambda: made, *steps, captures=None, fullgraph=False, recompile_limit=60, **NATIVE)


def test_parts_that_are_never_the_whole_cost_nothing() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x[:, :-1].contiguous().view(-1) + x[:, 1:].contiguous().view(-1)
    stats = check(lambda: run, *(call(torch.randn(a, b)) for a, b, _ in CALLS), captures=None)
    assert stats.captures == 2, stats.misses


@pytest.mark.parametrize("seed", range(12))
def test_at_random(seed: int) -> None:
    layouts.examine(layouts.generate(seed, 3, 8), dynamic=seed % 2 == 0 or None)
