"""Shapes that depend on the values of tensors: passed on, printed and calculated with they are asked anew on every hit; where one
decides something, the trace is cut there. Never is one remembered."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture

INPUTS = [(1.0, 2.0, -1.0), (1.0, -2.0, -1.0), (1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (3.0, 2.0, -1.0)]
PASSED_ON: dict[str, Callable[[torch.Size], Any]] = {
    "item": lambda s: s[0], "last": lambda s: s[-1], "unpacked": lambda s: (lambda a, b: (b, a))(*s), "iterated": lambda s: [i + 1 for i in s],
    "length": len, "numel": lambda s: s.numel(), "tuple": tuple, "list": list, "text": str, "formatted": lambda s: f"{s}",
    "itself": lambda s: s, "largest": max, "total": sum, "type": lambda s: (type(s).__name__, isinstance(s, tuple)),
    "reversed": lambda s: list(reversed(s)), "counted": lambda s: list(enumerate(s)), "zipped": lambda s: list(zip(s, s)),
    "calculated": lambda s: s[0] // 2 * 3 + 1, "compared": lambda s: s[0] > 1, "float": lambda s: float(s[0]),
    "starred": lambda s: [*s], "percent": lambda s: "%d %d" % s, "truth": lambda s: bool(s[0]), "not": lambda s: not s[0],
    "equal": lambda s: s == torch.Size((2, 2)), "member": lambda s: 1 in s}
DECIDING: dict[str, Callable[[torch.Size], Any]] = {
    "branch": lambda s: 5 if s[0] > 1 else 6, "truth": bool, "size": lambda s: torch.zeros(s[0]),
    "sizes": torch.ones, "slice": lambda s: torch.ones(4)[:s[0]], "range": lambda s: range(s[0]), "loop": lambda s: list(range(s[0])),
    "index": lambda s: [1, 2, 3, 4, 5][s[0]],
    "joined": lambda s: s + (3,), "repeated": lambda s: [0] * s[0], "key": lambda s: {s[0]: 1}, "hash": lambda s: hash(s) == hash((2, 2)),
    "sorted": sorted, "divided": lambda s: divmod(s[0], 2), "counts": lambda s: s.count(2),
    "in a tensor": lambda s: torch.arange(6.0) + s.numel() / 2}


def check(use: Callable[[torch.Size], Any], make: Callable[[torch.Tensor], torch.Tensor]) -> capture.Stats:
    def program(x: torch.Tensor) -> Any:
        return use(make(x).shape), x + 1
    compiled = capture.compile(program, backend="eager")
    for values in INPUTS:
        x = torch.tensor(values)
        (expected, tensor), (got, computed) = program(x), compiled(x)
        assert type(got) is type(expected) and repr(got) == repr(expected)
        assert torch.equal(tensor, computed)
    return capture.stats(compiled)


@pytest.mark.parametrize("name", PASSED_ON)
def test_passed_on(name: str) -> None:
    stats = check(PASSED_ON[name], lambda x: torch.nonzero(x > 0))
    assert (stats.captures, stats.breaks, stats.graphs) == (1, 0, 1)


@pytest.mark.parametrize("name", DECIDING)
def test_deciding(name: str) -> None:
    check(DECIDING[name], lambda x: torch.nonzero(x > 0))


@pytest.mark.parametrize("name", ["branch", "size", "slice"])
def test_a_decision_is_no_guard_on_the_value(name: str) -> None:
    stats = check(DECIDING[name], lambda x: torch.nonzero(x > 0))
    assert stats.captures <= 3 and stats.breaks == 1 and stats.native_calls == 0


def test_methods_of_the_tensor() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return y.numel(), len(y), y.size(0), y.size(), y.dim(), y * 2
    compiled = capture.compile(program, backend="eager")
    for values in INPUTS:
        x = torch.tensor(values)
        expected, got = program(x), compiled(x)
        assert got[:-1] == expected[:-1] and torch.equal(got[-1], expected[-1])
    assert capture.stats(compiled).captures == 1
