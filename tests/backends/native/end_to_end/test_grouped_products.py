"""Products of groups of rows with a matrix each, as mixtures of experts make them. Torch tells of bfloat16 alone how they lie."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, no_trial  # noqa: F401
from tests.helpers import call

ENDS = torch.tensor([2, 5, 9], dtype=torch.int32)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def rows(x: Tensor, w: Tensor) -> Tensor:
    return torch._grouped_mm(x * 2, w, ENDS)


def narrow(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the result are padded."""
    made = torch._grouped_mm(x * 2, w[:, :5].mT, ENDS)
    return made, made.tanh() + 1


def batched(x: Tensor, w: Tensor) -> Tensor:
    return torch._grouped_mm((x * 2).expand(3, 9, 8), w[:, :5].mT).tanh()


def sums(x: Tensor, w: Tensor) -> Tensor:
    return torch._grouped_mm((x * 2).t(), (x + 1).tanh(), ENDS)


def columns(x: Tensor, w: Tensor) -> Tensor:
    return torch._grouped_mm(w, (x * 2).t(), ENDS).tanh()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("program", [rows, narrow, batched, sums, columns])
def test_products(program: Any, dtype: torch.dtype) -> None:
    steps = [call(drawn(9, 8, dtype=dtype) * factor, drawn(3, 8, 8, dtype=dtype)) for factor in (1, 2)]
    check(lambda: program, *steps, tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients(transposed: bool, dtype: torch.dtype) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch._grouped_mm((x * 2).sin(), w.mT if transposed else w, ENDS).float().square().mean() * 3

    steps = [call(drawn(9, 8, dtype=dtype, grad=True), drawn(3, 8, 8, dtype=dtype, grad=True)) for _ in range(2)]
    check(lambda: program, *steps, tolerance=TOLERANCES[dtype], backward=True)


def test_experts_of_rows_whose_number_varies() -> None:
    """Each row goes to the expert that scores most."""
    def program(x: Tensor, scores: Tensor, w: Tensor) -> Tensor:
        order = (chosen := (x @ scores).argmax(-1)).argsort(stable=True)
        counts = (chosen[:, None] == torch.arange(3)).sum(0)
        made = torch._grouped_mm(x[order], w, counts.cumsum(0).to(torch.int32)).relu()
        return torch.zeros_like(made).index_copy(0, order, made)

    steps = [call(drawn(number, 8), drawn(8, 3), drawn(3, 8, 12)) for number in (9, 12, 7, 30, 9)]
    check(lambda: program, *steps, captures=2, compiled=1)


@pytest.mark.parametrize("engine", [{"backend": "eager"}, AT_ONCE], ids=["eager", "native"])
@pytest.mark.parametrize("function", [torch._grouped_mm, F.grouped_mm])
def test_columns_whose_number_varies(function: Any, engine: dict[str, Any]) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = function(x * 2, w.mT, offs=ENDS)
        return made, made.t().reshape(-1) + 1

    steps = [call(drawn(9, 8), drawn(3, number, 8)) for number in (5, 6, 8, 7, 4, 12, 5)]
    helpers.check(lambda: program, *steps, captures=None, tolerance=2e-5, **engine)
