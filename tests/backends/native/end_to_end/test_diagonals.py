"""Diagonals that are filled in place, as losses and metrics mask what each row has in common with itself."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, no_trial  # noqa: F401
from tests.helpers import call


def similar(x: Tensor) -> Tensor:
    return (x @ x.t()).fill_diagonal_(float("-inf")).softmax(-1)


def matching(x: Tensor) -> tuple[Tensor, Tensor]:
    labels = (x.sum(1) > 0).long()
    matches = (labels[:, None] == labels).byte()
    differences = matches ^ 1
    matches.fill_diagonal_(0)
    return matches, differences


def given(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.fill_diagonal_(2.5)
    return x.sin()


def of_a_part(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = x.tanh() + 1
    part = whole[1:, ::2]
    assert part.fill_diagonal_(7) is part
    return whole * 3, part * 2


def transposed(x: Tensor) -> Tensor:
    return torch.Tensor.fill_diagonal_((x * 2).t(), fill_value=-1) + 1


def saved(x: Tensor) -> Tensor:
    return (x * 2).fill_diagonal_(3).square().cumsum(0)


def of_three(x: Tensor) -> Tensor:
    return (x[:3, :3, None] * torch.arange(1.0, 4)).fill_diagonal_(0.5) * 2


PROGRAMS = similar, matching, given, of_a_part, transposed, saved, of_three


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_diagonal_is_filled(program: Callable[[Tensor], Any], grad: bool) -> None:
    def of(rows: int, columns: int) -> Any:
        return call((torch.arange(float(rows * columns)).view(rows, columns) * 0.37).cos().requires_grad_(grad))

    for shape in ((4, 4), (3, 7), (7, 3)):
        check(lambda: program, of(*shape), of(*shape), backward=grad and program is not matching)


@pytest.mark.parametrize("program", [similar, matching, of_a_part, saved])
def test_of_a_matrix_whose_size_varies(program: Callable[[Tensor], Any]) -> None:
    steps = [call((torch.arange(float(rows * 5)).view(rows, 5) * 0.37).cos()) for rows in (4, 6, 7, 3, 5, 9)]
    check(lambda: program, *steps, captures=2, compiled=1)


@pytest.mark.parametrize("engine", [{}, AT_ONCE], ids=["eager", "native"])
def test_of_a_cube_whose_size_varies(engine: dict[str, Any]) -> None:
    """What is none raises."""
    shapes = (3, 3, 3), (4, 4, 4), (5, 5, 5), (5, 5, 4), (4, 5, 5), (2, 2, 2)
    steps = [call(torch.zeros(shape)) for shape in shapes]
    helpers.check(lambda: lambda x: (x + 1).fill_diagonal_(3) * 2, *steps, captures=None, fullgraph=False, **engine)


@pytest.mark.parametrize("shape, compiled", [((3, 3), 1), ((4, 3), 1), ((3, 6), 1), ((8, 3), 0)])
def test_a_diagonal_that_wraps_around(shape: tuple[int, int], compiled: int) -> None:
    """Beyond the square above, it names places in memory: such a graph is not compiled."""
    x = (torch.arange(24.0)[:shape[0] * shape[1]].view(shape) * 0.37).cos()
    stats = helpers.check(lambda: lambda x: (x * 2).fill_diagonal_(1, wrap=True) + 1, call(x), call(x + 1), **AT_ONCE)
    assert stats.compiled == compiled
