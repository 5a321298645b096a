"""A number at some place outside of the program, read in three ways, and changed between calls."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import call, check
from tests.stale.cases import X

Reader = Callable[[], Any]
Writer = Callable[[Any], None]


def place(table: list) -> Callable[[Callable[[], tuple[Reader, Writer]]], None]:
    """Registers a factory of (read, write)."""
    def register(make: Callable[[], tuple[Reader, Writer]]) -> None:
        table.append(pytest.param(make, id=make.__name__))
    return register


def decides(x: torch.Tensor, value: float) -> torch.Tensor:
    return x + 1 if value > 1 else x - 1


def computes(x: torch.Tensor, value: float) -> torch.Tensor:
    return x * value


def returns(x: torch.Tensor, value: float) -> tuple[torch.Tensor, float]:
    return x + 1, value


def changing(place: Callable, use: Callable, fullgraph: bool = True) -> int:
    """The number of captures over five calls, between which the number changes to and fro."""
    def make():
        read, write = place()
        write(2.0)

        def program(x):
            return use(x, read())
        return program, types.SimpleNamespace(program=program, read=read, write=write)
    once = call(X)
    stats = check(make, once, once, lambda s: s.write(0.5), once, once, lambda s: s.write(2.0), once,
                  captures=None, fullgraph=fullgraph)
    if fullgraph:
        assert (stats.breaks, stats.bailouts, stats.hits) == (0, 0, 5 - stats.captures), stats
    return stats.captures


class Box:
    pass


def attribute_of(box: Any, name: str = "value") -> Writer:
    return lambda value: setattr(box, name, value)
