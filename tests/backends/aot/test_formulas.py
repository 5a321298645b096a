"""Gradients for which torch has another formula when it traces: eager mode's, also where numbers are infinite or NaN."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.helpers import call, check

INPUTS = {"zeros": [0.0, -1.0, -2.0, 0.0], "equal": [3.0, 3.0, 3.0, 3.0],
          "one zero": [2.0, 0.0, -3.0, 4.0], "infinite at a zero": [float("inf"), 0.0, 2.0, 1.0],
          "nan": [1.0, float("nan"), 2.0, 1.0],
          "infinite": [float("inf"), 1.0, float("inf"), 0.0]}
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "root of the maximum": lambda x: x.max().sqrt(), "minimum": lambda x: x.min() * 2, "median": lambda x: x.median() / 3,
    "median without nan": lambda x: x.nanmedian().log(), "all at once": lambda x: (x * 2).max() / (x.min() + x.exp().max()),
    "halves": lambda x: x.half().max().float().sqrt(), "product": lambda x: x.prod().sin(),
    "product of float64": lambda x: x.prod(dtype=torch.float64) * 2, "one number": lambda x: x.sum().prod() + x[:1].prod(),
    "products": lambda x: x.view(2, 2).prod(0).exp().sum() + x.view(2, 2).prod(1, keepdim=True).sum(),
    "products so far": lambda x: (x.view(2, 2).cumprod(1) * 3).sum() + x.cumprod(0)[1:].sin().sum()}


@pytest.mark.parametrize("values", INPUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_that_look_at_values(name: str, values: str) -> None:
    x = torch.tensor(INPUTS[values], requires_grad=True)
    stats = check(lambda: PROGRAMS[name], call(x), call(x), call(x), backend="native", options={"background": False}, backward=True,
                  tolerance=1e-5)
    assert stats.compiled
