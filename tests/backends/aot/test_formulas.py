"""Gradients for which torch has another formula when it traces: eager mode's, also where numbers are infinite or NaN."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.helpers import call, check

INPUTS = {"zeros": [0.0, -1.0, -2.0, 0.0], "equal": [3.0, 3.0, 3.0, 3.0], "nan": [1.0, float("nan"), 2.0, 1.0],
          "infinite": [float("inf"), 1.0, float("inf"), 0.0]}
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "root of the maximum": lambda x: x.max().sqrt(), "minimum": lambda x: x.min() * 2, "median": lambda x: x.median() / 3,
    "median without nan": lambda x: x.nanmedian().log(), "all at once": lambda x: (x * 2).max() / (x.min() + x.exp().max()),
    "halves": lambda x: x.half().max().float().sqrt()}


@pytest.mark.parametrize("values", INPUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_extremes_of_all_elements(name: str, values: str) -> None:
    x = torch.tensor(INPUTS[values], requires_grad=True)
    stats = check(lambda: PROGRAMS[name], call(x), call(x), call(x), backend="native", options={"background": False}, backward=True,
                  tolerance=1e-5)
    assert stats.compiled
