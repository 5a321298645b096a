"""Breaks within blocks of autocast: the traces on both sides leave torch's modes other than they found them, and what they compute
is compiled."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial  # noqa: F401
from tests.helpers import call


class Model(nn.Module):
    """Its forward pass decides by a value."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.run = nn.Linear(6, 8), nn.Linear(8, 6), run
        self.inner = torch.autocast("cpu", enabled=False)(self.decided)

    def decided(self, x: Tensor) -> Tensor:
        x = self.first(x).relu() * 2
        if x.sum() > 1e6:
            x = x * 3
        return self.second(x).sin() + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def block(model: Model, x: Tensor) -> Tensor:
    x = x.cos() * 2
    with torch.autocast("cpu", torch.bfloat16):
        x = model.decided(x)
    return x.float().tanh() * 3


def without_cache(model: Model, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return model.decided(x)


def used_twice(model: Model, x: Tensor) -> Tensor:
    """The casts of weights are kept across the break."""
    with torch.autocast("cpu", torch.bfloat16):
        return model.decided(x) + model.decided(x * 2)


def exempt(model: Model, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model.inner(model.first(x).float()[:, :6]) + model.first(x)[:, :6]


def decorated(model: Model, x: Tensor) -> Tensor:
    return model.inner(x) * 2


def nested(model: Model, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), torch.autocast("cpu", torch.float16, cache_enabled=False):
        x = model.first(x)[:, :6]
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), torch.no_grad():
            y = model.decided(x)
    return y + x


def raising(model: Model, x: Tensor) -> Tensor:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            y = model.decided(x)
            if y.sum() > 1e9 or x.shape[0] == 5:
                raise ValueError("of five rows")
    except ValueError:
        return model.first(x)
    return y * 2


PROGRAMS = block, without_cache, used_twice, exempt, decorated, nested, raising
TOLERANCE = 0.1         # casts to bfloat16 round otherwise in compiled code


def inputs(number: int, rows: int = 4, grad: bool = False) -> Any:
    return call((torch.arange(6.0 * rows).view(rows, 6) * (number + 1) * 0.1).sin().requires_grad_(grad))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_break_cuts_is_compiled(program: Callable[[Any, Tensor], Tensor], training: bool) -> None:
    with torch.set_grad_enabled(training):
        stats = helpers.check(lambda: Model(program), *(inputs(number, grad=training) for number in range(6)), captures=None,
                              fullgraph=False, tolerance=TOLERANCE, backward=training, **AT_ONCE)
    assert stats.hits and stats.compiled >= 2, stats


@pytest.mark.parametrize("program", PROGRAMS)
def test_bits_of_what_runs_uncompiled(program: Callable[[Any, Tensor], Tensor]) -> None:
    steps = [inputs(number, rows, True) for number, rows in enumerate((4, 4, 5, 6, 5, 4))]
    helpers.check(lambda: Model(program), *steps, captures=None, fullgraph=False, backward=True, backend="eager")


@pytest.mark.parametrize("program", PROGRAMS)
def test_sizes_and_modes_that_change(program: Callable[[Any, Tensor], Tensor]) -> None:
    steps = [inputs(number, rows) for number, rows in enumerate((4, 4, 5, 6, 7, 5, 4))]
    modes: tuple[Any, ...] = (torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.autocast("cpu", enabled=False))

    def make() -> Any:
        model = Model(program)

        def run(x: Tensor) -> list[Tensor]:
            found = [model(x)]
            for mode in modes:
                with mode:
                    found.append(model(x))
            return found
        return run
    helpers.check(make, *steps, captures=None, fullgraph=False, tolerance=TOLERANCE, **AT_ONCE)


@pytest.mark.parametrize("engine", [{}, AT_ONCE], ids=["eager", "native"])
def test_what_raises_within_a_block_leaves_the_modes_of_eager_mode(engine: dict[str, Any]) -> None:
    def make() -> Any:
        model = Model(decorated)

        def run(x: Tensor, index: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = model.first(x).relu() * 2
                if x.sum() > 1e6:
                    x = x * 3
                x = model.second(x).sin()[index]
            return x.float() + 1
        return run
    x = torch.arange(24.0).view(4, 6).sin()
    steps = [call(x, torch.tensor([place, 1])) for place in (0, 1, 2, 9, 3, 9, 0)]
    helpers.check(make, *steps, captures=None, fullgraph=False, tolerance=TOLERANCE, **engine)


def test_a_block_that_one_call_enters_and_another_leaves() -> None:
    def make() -> Any:
        model, mode = Model(decorated), torch.autocast("cpu", torch.bfloat16)

        def run(x: Tensor, enter: bool) -> Tensor:
            if enter:
                mode.__enter__()
            x = model.first(x).sin() * 2
            if not enter:
                mode.__exit__(None, None, None)
            return model.second(x).cos() * 2
        return run
    x = torch.arange(24.0).view(4, 6).sin()
    steps = [call(x * factor, enter) for factor in (1, 2, 3) for enter in (True, False)]
    helpers.check(make, *steps, captures=None, fullgraph=False, tolerance=TOLERANCE, **AT_ONCE)
