"""Loops over positions: how often they run is a size. A few lengths are captured as a whole; then each round is a trace."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check

LENGTHS = (5, 9, 3, 7, 4, 6, 11, 8, 13, 2, 10, 12, 5, 1, 9, 3, 1, 2)
LATER = (20, 21, 22, 23, 17, 6, 1, 2, 29)


class Cell(nn.Module):
    def __init__(self, loop: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.loop = nn.GRUCell(4, 4), loop

    def forward(self, x: torch.Tensor) -> Any:
        return self.loop(x, torch.zeros(x.size(0), 4), self.cell)


def positions(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    for t in range(x.size(1)):
        h = cell(x[:, t], h)
    return h


def gathered(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    found = []
    for t in range(x.size(1)):
        h = cell(x[:, t], h)
        found.append(h)
    return torch.stack(found, 1)


def parts(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    for part in x.unbind(1):
        h = cell(part, h)
    return h


def rows(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    for row in x.transpose(0, 1):
        h = cell(row, h)
    return h


def numbered(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    found = torch.zeros(x.shape)
    for t, part in enumerate(x.unbind(1)):
        found[:, t] = cell(part, h)
    return found


def pieces(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    return sum(piece.sum() for piece in x.split(2, 1)) + h


def last(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    found = x.unbind(1)
    return found[-1] + found[0], len(found), h


def together(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    for one, other in zip(x.unbind(1), x.flip(1).unbind(1)):
        h = h + one * other
    return h


def taken_apart(x: torch.Tensor, h: torch.Tensor, cell: Any) -> Any:
    first, *rest = x.unbind(1)
    return first + len(rest), [*rest], (*rest, h)


LOOPS = {loop.__name__: loop for loop in (positions, gathered, parts, rows, pieces)}


@pytest.mark.parametrize("loop", [*LOOPS, "numbered", "last", "together", "taken_apart"])
def test_any_length(loop: str) -> None:
    steps = [call(torch.randn(3, n, 4)) for n in (*LENGTHS, *LATER)]
    check(lambda: Cell(globals()[loop]), *steps, captures=None, fullgraph=False)


@pytest.mark.parametrize("loop", LOOPS)
def test_other_lengths_cost_nothing_in_the_end(loop: str) -> None:
    module = Cell(LOOPS[loop])
    compiled, found = capture.compile(module, backend="eager"), []
    with torch.no_grad():
        for lengths in (LENGTHS, LATER):
            for n in lengths:
                x = torch.randn(3, n, 4)
                assert torch.equal(compiled(x), module(x))
            found.append(capture.stats(compiled))
    assert found[0].captures <= 20 and found[1].captures <= found[0].captures + 3, [stats.captures for stats in found]
    assert not found[1].native_calls
