"""Every model of the zoo compiled to kernels: equal to eager in values, gradients, buffers and random numbers, and after changes.

`pytest tests/native -k bert` runs one model.
"""
from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from tests.helpers import Call, call
from tests.models.test_models import Zoo
from tests.models.zoo import ZOO
from tests.native.engine import check, no_trial  # noqa: F401

SMALL = ["dlrm", "gan", "diffusion"]            # quick to compile, with embeddings, batch normalisation, dropout and noise


@pytest.mark.parametrize("name", ZOO)
def test_eval(name: str) -> None:
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), zoo.call(), halve, zoo.call(), captures=1, graphs=1)


@pytest.mark.parametrize("name", ZOO)
def test_train(name: str) -> None:
    """The gradients of later calls are added to those of earlier ones."""
    zoo = Zoo(name, training=True)
    check(zoo.make, zoo.call(), zoo.call(), halve, zoo.call(), captures=1, graphs=1, backward=True, tolerance=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_train_and_eval(name: str) -> None:
    zoo = Zoo(name, training=True)
    check(zoo.make, zoo.call(), zoo.call(), nn.Module.eval, zoo.call(), zoo.call(), nn.Module.train, zoo.call(), captures=2,
          backward=True)


@pytest.mark.parametrize("name", SMALL)
def test_other_dtype(name: str) -> None:
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), zoo.call(), nn.Module.double, zoo.call(), zoo.call(), captures=2)


@pytest.mark.parametrize("name", SMALL)
def test_other_shapes(name: str) -> None:
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(2), zoo.call(3), zoo.call(2), zoo.call(3), captures=2)


@pytest.mark.parametrize("name", SMALL)
def test_submodule_replaced(name: str) -> None:
    path = ZOO[name].replaceable

    def same_class(module: nn.Module) -> None:
        replacement = copy.deepcopy(module.get_submodule(path))
        halve(replacement)
        module.set_submodule(path, replacement)

    def other_class(module: nn.Module) -> None:
        module.set_submodule(path, nn.Sequential(module.get_submodule(path), nn.Tanh()))
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), zoo.call(), same_class, zoo.call(), zoo.call(), other_class, zoo.call(), zoo.call(),
              captures=None)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("training", [False, True])
def test_autocast(name: str, training: bool) -> None:
    zoo = Zoo(name, training)
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16):
        # kernels round to bfloat16 where they store, eager after each operation
        check(zoo.make, zoo.call(), zoo.call(), zoo.call(), captures=1, backward=training, tolerance=0.1)


# A large eps: AdamW divides gradients by their size, and would make large ones of rounding errors.
OPTIMIZERS = {"SGD": functools.partial(torch.optim.SGD, momentum=0.9), "AdamW": functools.partial(torch.optim.AdamW, eps=1e-2)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SMALL)
def test_training_steps(name: str, optimizer: str) -> None:
    """The optimizer writes to the weights between calls."""
    zoo = Zoo(name, training=True)

    def make() -> tuple[nn.Module, list]:
        module = zoo.make()
        return module, [module, OPTIMIZERS[optimizer](module.parameters(), lr=0.01)]

    def step(state: list) -> None:
        state[1].step()
        state[1].zero_grad()
    calls = (Call(lambda state: zoo.call().arguments(state[0])) for _ in range(5))
    check(make, *(each for one in calls for each in (one, step)), captures=1, backward=True, tolerance=1e-3)


def test_a_function_with_several_outputs_and_aliases() -> None:
    def program(x, y):
        z = (x + y).relu()
        x.mul_(2)
        return z, z.T, x, {"sum": z.sum(), "view": x[0]}
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    check(lambda: program, call(x, y), call(x, y), call(y, x), captures=1)


def halve(module: nn.Module) -> None:
    """Writes to the weights in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
