"""For tests of what capturing and compiling take as programs grow: a program of any length, and a count of calls."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def calls_of(run: Callable[[], Any]) -> int:
    """How often functions are called, of Python and of C."""
    counts = {"call": 0, "c_call": 0}

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in counts:
            counts[event] += 1
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return sum(counts.values())


def training_step(layers: int) -> Callable[[], Any]:
    """Each layer has a parameter that is read, loses its gradient, gets another one and is written to."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    step()                                      # the optimizer's state is there
    return step
