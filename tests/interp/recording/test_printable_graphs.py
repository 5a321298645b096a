"""Negative numbers to the power of a tensor, or of a number that changes: fx prints such a power as another one."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, check

BACKENDS: dict[str, dict[str, Any]] = {
    "graph": {}, "kernels": {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}}
PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "int": lambda x, k: (-1) ** x, "float": lambda x, k: (-1.5) ** x, "infinity": lambda x, k: (-float("inf")) ** x,
    "complex": lambda x, k: complex(0.0, -1.0) ** x, "complex, negative": lambda x, k: (-2j) ** x,
    "of integers": lambda x, k: (-2) ** torch.arange(x.shape[0]), "of truths": lambda x, k: (-1) ** (x > 1).int(),
    "in place": lambda x, k: operator.ipow(-2, x), "pow": lambda x, k: pow(-2, x), "torch.pow": lambda x, k: torch.pow(-2, x),
    "of a number": lambda x, k: x * (-1) ** k, "of a size": lambda x, k: x * (-1) ** x.shape[0],
    "of an element": lambda x, k: x * (-1) ** x[0].long().item(), "returned": lambda x, k: ((-2) ** k, (-2) ** x.shape[0], x + 1),
    "of what is negative": lambda x, k: (-(2 ** x), -1 * 2 ** x, x ** -1, (-x) ** 2, -x ** 2)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_negative_numbers_to_a_power(name: str, backend: str) -> None:
    steps = [call(torch.arange(float(n)) + n % 2, k) for n, k in ((3, 2), (3, 2), (4, 3), (4, 6), (6, 5), (5, 4))]
    check(lambda: PROGRAMS[name], *steps, captures=None, **BACKENDS[backend])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_negative_number_to_a_power(backend: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    check(lambda: lambda x: (-2.0) ** x.detach().floor() * x, *[call(x)] * 3, captures=None, backward=True, **BACKENDS[backend])


def test_a_guard_is_printed_as_what_it_compares() -> None:
    compiled = capture.compile(lambda x, k: x + 1 if (-2) ** k > 3 else x - 1)
    for k in 2, 3, 4, 6:
        compiled(torch.ones(2), k)
    assert "(-2) ** k" in str(capture.report(compiled))
