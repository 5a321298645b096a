"""What programs are made of that fail on a hit: operands of `cholesky`, and a block of `with` that notes how it is left."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.helpers import call

X = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
BAD = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])      # of which `cholesky` fails
CALLS = call(X), call(X), call(BAD), call(X), call(BAD), call(X + 1)


class Block:
    """A block of `with`. ends: whether an exception that leaves it ends there."""

    def __init__(self, log: list[Any], ends: bool = False) -> None:
        self.log, self.ends = log, ends

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, cls: Any, error: Any, traceback: Any) -> bool:
        self.log.append(repr(cls))
        return self.ends


class FailingPrograms(list[Callable[..., Any]]):
    """Functions of a state and a tensor."""

    def add(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.append(function)
        return function


def name_of(function: Callable[..., Any]) -> str:
    """What a test of it is called."""
    return function.__name__
