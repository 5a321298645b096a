"""A few random models that live on between calls; `python -m tests.training.model_lives` goes on."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.model_lives import Case, Unseen, draw, problems

FOUND = [(700007, 13)]        # differed once
TRACED = [*range(8, 11)]


@pytest.mark.parametrize("number", range(8))
def test_equal_to_eager(number: int) -> None:
    case = draw(0, number)
    assert not problems(case, backend="eager"), case


@pytest.mark.parametrize(("seed", "number"), [*((0, number) for number in TRACED), *FOUND])
def test_equal_to_eager_in_graphs_of_kernels(seed: int, number: int) -> None:
    case = draw(seed, number)
    assert not problems(case, backend=Unseen()), case


def test_a_wrong_backend_is_found() -> None:
    """One whose graphs return more."""
    def wrong(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return lambda *args: [value + 1 if torch.is_floating_point(value) else value for value in gm(*args)]
    case = Case(0, (("nn.Linear(4, 4)", "h = {l}(h)"),), ("out = m(x, ids)", "model.eval()", "out = m(x, ids)", "out = m(x, ids)"))
    assert not problems(case, backend="eager") and "step 2" in problems(case, backend=wrong)[0]
