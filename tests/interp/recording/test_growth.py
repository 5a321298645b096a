"""The calls of Python that a capture makes grow with the length of a program, and no faster."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from tests.growth import calls_of, training_step

FEW, TIMES = 24, 4
MOST = 1.05         # of TIMES as many calls: the first layers take more, since they meet torch's code first


def forward(layers: int) -> Callable[[], Any]:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(layers)))
    x = torch.randn(2, 3)
    return lambda: model(x)


def counters(layers: int) -> Callable[[], Any]:
    """Objects of the program that are all written to."""
    boxes = [Box() for _ in range(layers)]
    x = torch.randn(2, 3)

    def count() -> torch.Tensor:
        total = x
        for box in boxes:
            box.steps += 1
            total = total + 1
        return total
    return count


def dicts(layers: int) -> Callable[[], Any]:
    boxes = [{"steps": 0} for _ in range(layers)]
    x = torch.randn(2, 3)

    def count() -> torch.Tensor:
        total = x
        for box in boxes:
            box["steps"] = 1
            total = total + 1
        return total
    return count


class Box:
    def __init__(self) -> None:
        self.steps = 0


@pytest.mark.parametrize("program", [training_step, forward, counters, dicts], ids=lambda program: program.__name__)
def test_calls_grow_as_programs_do(program: Callable[[int], Callable[[], Any]]) -> None:
    def captured(layers: int) -> int:
        run = capture.compile(program(layers), backend="eager" if program is not training_step else "native", fullgraph=True)
        calls = calls_of(run)
        assert run.capture_unit.tree.entries
        return calls
    captured(2)         # imports, and what the interpreter learns of torch's code
    few, many = captured(FEW), captured(FEW * TIMES)
    assert many <= few * TIMES * MOST, (few, many)
