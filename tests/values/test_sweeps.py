"""Twenty values of every kind of number or string that programs change from call to call, and how many captures they cost."""
from __future__ import annotations

import logging
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import call, check

X = torch.linspace(-1.0, 1.0, 100).view(25, 4)
FLOATS = [0.01 * (i + 1) for i in range(20)]
INTS = list(range(1, 21))
NAMES = [f"run{i}/loss" for i in range(20)]
LOGGER = logging.getLogger("tests.sweeps")
str(X)                                              # torch imports, and warns, at the first use only


class Schedule(nn.Module):
    """Everything that a training loop sets on its optimizer, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.momentum, self.decay, self.eps, self.step = 0.1, 0.9, 0.0, 1e-8, 0
        self.register_buffer("velocity", torch.zeros(25, 4))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.velocity.mul_(self.momentum).add_(gradient, alpha=1 - self.momentum ** self.step)
        return -self.lr * (self.velocity / (gradient.norm() + self.eps) + self.decay * gradient)


def setting(name: str) -> Callable[[Any, float], None]:
    return lambda module, value: setattr(module, name, value)


class Places(nn.Module):
    """Containers that are read and written at a place."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(21))
        self.rows, self.table = [X[0] * i for i in range(21)], {i: X[i] for i in range(21)}
        self.losses, self.log = [0.0] * 21, {}
        self.register_buffer("ring", torch.zeros(21, 4))


# name -> program of a tensor and a value, values, captures. PLACES: of a `Places`, a tensor and a value.
NUMBERS: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
    "temperature": (lambda x, t: F.softmax(x / t, -1), FLOATS, 2),
    "clip value": (lambda x, c: x.clamp(-c, c) * min(1.0, c), FLOATS, 2),
    "threshold": (lambda x, c: (x > c).float().mean(), FLOATS, 2),
    "smoothing": (lambda x, s: F.cross_entropy(x, torch.zeros(25, dtype=torch.long), label_smoothing=s), FLOATS, 2),
    "epsilon": (lambda x, e: F.layer_norm(x, (4,), eps=e), FLOATS, 2),
    "slope": (lambda x, s: F.leaky_relu(x, s) + F.elu(x, s), FLOATS, 2),
    "dropout": (lambda x, p: F.dropout(x, p), FLOATS, 2),
    "number in a branch": (lambda x, t: x * t if t < 0.105 else x + t, FLOATS, 3),
    "rounded number": (lambda x, t: x * round(t, 1), FLOATS, 2),
    "row": (lambda x, i: x[i] * 2, INTS, 2),
    "rows": (lambda x, i: x[[i, i + 1]], INTS, 2),
    "start of a slice": (lambda x, i: x[i:i + 4] * 2, INTS, 2),
    "length of a slice": (lambda x, n: x[:n].sum(0), INTS, 2),
    "a slice from outside": (lambda x, s: x[s].sum(0) * s.stop, [slice(n, n + 4) for n in INTS], 2),
    "shift": (lambda x, n: x.roll(n, 0), INTS, 2),
    "diagonal": (lambda x, n: x.triu(n - 10), INTS, 2),
    "exponent": (lambda x, n: x ** n, INTS, 2),
    "seed of a hash": (lambda x, n: x * (n * 2654435761 % 2 ** 32 / 2 ** 32), INTS, 2),
    "every fifth step": (lambda x, n: x.sum() if n % 5 == 0 else x, INTS, 2),
    "printed string": (lambda x, name: print(name, f"{name}: {x.sum():.3f}"), NAMES, 1),
    "logged string": (lambda x, name: LOGGER.warning("%s is %d long", name, len(name)) or x + 1, NAMES, 1),
    "text": (lambda x, name: (x + 1, name.upper(), "/".join([name, "x"]), f"{name:>20}"), NAMES, 2),
    "key of a result": (lambda x, name: {name: x * 2, f"{name}+": x}, NAMES, 2),
    "size": (lambda x, n: torch.zeros(n) + 1, INTS, 2),
    "shape": (lambda x, n: x.repeat(1, n).view(-1, n) * 2, INTS, 2),
    "range": (lambda x, n: torch.arange(n) * 2, INTS, 2),
    "number of rounds": (lambda x, n: sum((x * i for i in range(n)), x), INTS, 11),
    "number of items": (lambda x, n: torch.stack([x] * n).sum(0), INTS, 2),
    "how many are best": (lambda x, n: x.view(-1).topk(n).values * 2, INTS, 2),
    "width of padding": (lambda x, n: F.pad(x, (0, n)) * 2, INTS, 2),
}
PLACES: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
    "module of a list": (lambda places, x, i: places.blocks[i](x), INTS, 2),
    "item of a list": (lambda places, x, i: places.rows[i] * x, INTS, 2),
    "item of a dict": (lambda places, x, i: places.table[i] * x, INTS, 2),
    "item of a list, written": (lambda places, x, i: places.losses.__setitem__(i, x.mean().item()), INTS, 2),
    "item of a dict, written": (lambda places, x, i: places.log.__setitem__(f"{i}", x.mean().item()), INTS, 2),
    "row of a tensor, written": (lambda places, x, i: places.ring.__setitem__(i, x[0]), INTS, 2),
}


def swept(make: Callable[[], Any], steps: list[Any], captures: int) -> None:
    stats = check(make, *steps, captures=None, fullgraph=False)
    assert stats.captures == captures and not stats.native_calls, (stats.captures, stats.misses)


@pytest.mark.parametrize("name", ["lr", "momentum", "decay", "eps", "step"])
def test_settings_of_an_optimizer(name: str) -> None:
    steps = []
    for value in INTS if name == "step" else FLOATS:
        steps += [lambda module, value=value: setting(name)(module, value), call(X)]
    swept(Schedule, steps, 2)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_strings(name: str) -> None:
    program, values, captures = NUMBERS[name]
    swept(lambda: program, [call(X, value) for value in values], captures)


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    program, values, captures = PLACES[name]

    def make() -> Any:
        torch.manual_seed(0)
        places = Places()
        return types.MethodType(program, places), places
    swept(make, [call(X, value) for value in values], captures)
