"""Storages that die in a trace: those made later may get their addresses, and are others."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.helpers import call, check

X, PLACES = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0, 2])


def test_what_is_written_to_is_not_the_tensor_from_outside_that_it_follows() -> None:
    """Where a handler is in force, a write to one from outside that no copy brings back would end the graph."""
    def make() -> Any:
        state = SimpleNamespace(seen=torch.zeros(3))

        def program(x: torch.Tensor, places: torch.Tensor) -> Any:
            made = [x.clone().to(state.seen.device)]
            state.seen = made[0]
            try:
                made = [torch.nn.functional.embedding(places, x[:, None]) for _ in range(8)]
                for one in made:
                    one[one < 0] = 2.0
            except IndexError:
                return None
            return made
        return program
    for _ in range(3):
        check(make, *[call(X, PLACES)] * 3, fullgraph=False)


def test_constants_that_follow_what_was_written_to() -> None:
    """What `torch.tensor([4, 2])` holds is known, unless it is written to."""
    def program(x: torch.Tensor) -> torch.Tensor:
        parts = [x + i for i in range(4)]
        for part in parts:
            part.mul_(2)
        y = sum(parts)
        del parts, part
        for bound in [torch.tensor([4, 2]) for _ in range(6)]:
            y = y + 1 if bound[0] > 3 else y
        return y
    for _ in range(3):
        check(lambda: program, *[call(X)] * 3)
