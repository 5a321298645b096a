"""Every model of the zoo, in one graph, is equal to eager: on capture, on hits, and after each kind of change.

`pytest tests/models -k bert` runs one model, `-k train` one aspect.
"""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import Call, check
from tests.models.zoo import ZOO, Inputs

pytestmark = pytest.mark.parametrize("name", ZOO)


class Zoo:
    """One model of the zoo under `check`: the factory of fresh modules, and the calls with fresh inputs."""

    def __init__(self, name: str, training: bool = False) -> None:
        self.entry, self.training = ZOO[name], training
        self.inputs: Callable[[int], Inputs] | None = None

    def make(self) -> nn.Module:
        """The module; its weights follow from the seeds that the helper sets."""
        module, self.inputs = self.entry.build()
        return module.train(self.training)

    def call(self, batch: int = 2) -> Call:
        """A call with inputs drawn when it is its turn, in the floating dtype that the module has then."""
        def arguments(module: nn.Module) -> tuple[tuple, Inputs]:
            dtype = next(module.parameters()).dtype
            return (), _map(self.inputs(batch), lambda t: t.to(dtype) if t.is_floating_point() else t)
        return Call(arguments)


def test_eval(name: str) -> None:
    """One capture serves inputs and weights of all values."""
    def change(module: nn.Module) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.25)

    def load(module: nn.Module) -> None:
        module.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in module.state_dict().items()})
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), zoo.call(), change, zoo.call(), load, zoo.call(), captures=1, graphs=1)


def test_train(name: str) -> None:
    zoo = Zoo(name, training=True)
    check(zoo.make, zoo.call(), zoo.call(), zoo.call(), captures=1, graphs=1, backward=True)


def test_other_shapes(name: str) -> None:
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(2), zoo.call(3), zoo.call(2), zoo.call(3), captures=2)


def test_train_and_eval(name: str) -> None:
    zoo = Zoo(name)
    check(zoo.make, zoo.call(), nn.Module.train, zoo.call(), nn.Module.eval, zoo.call(), nn.Module.train, zoo.call(),
          captures=2, backward=True)


def test_other_dtype(name: str) -> None:
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), nn.Module.double, zoo.call(), zoo.call(), captures=2)


def test_submodule_replaced(name: str) -> None:
    path = ZOO[name].replaceable

    def same_class(module: nn.Module) -> None:
        replacement = copy.deepcopy(module.get_submodule(path))
        with torch.no_grad():
            for parameter in replacement.parameters():
                parameter.mul_(-1)
        module.set_submodule(path, replacement)

    def other_class(module: nn.Module) -> None:
        module.set_submodule(path, nn.Sequential(module.get_submodule(path), nn.Tanh()))
    zoo = Zoo(name)
    with torch.no_grad():
        check(zoo.make, zoo.call(), same_class, zoo.call(), other_class, zoo.call(), zoo.call(), captures=None)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with every tensor in its dicts changed."""
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return change(value) if isinstance(value, torch.Tensor) else value
