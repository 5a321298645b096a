"""Every model of the zoo, in one graph, is equal to eager: on capture, on hits, and after each kind of change; uncompiled, and with
kernels: in values, gradients, buffers and random numbers.

`pytest tests/models -k bert` runs one model, `-k native` those with kernels, `-k train` one aspect.
"""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests import helpers
from tests.backends.native.end_to_end import engine
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401
from tests.helpers import Call, Captured, Step
from tests.models.zoo import ZOO, Inputs

CHECKS: dict[str, Callable[..., Any]] = {"eager": helpers.check, "native": engine.check}
SMALL = ["dlrm", "gan", "diffusion"]            # quick to compile, with embeddings, batch normalisation, dropout and noise
ALL_AND_SMALL = [(name, "eager") for name in ZOO] + [(name, "native") for name in SMALL]


class Zoo:
    """One model of the zoo under the `check` of a backend: the factory of fresh modules, and the calls with fresh inputs."""

    def __init__(self, name: str, backend: str, training: bool = False) -> None:
        self.entry, self.training = ZOO[name], training
        self.check = functools.partial(CHECKS[backend], self.make)
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


@pytest.mark.parametrize("name", ZOO)
def test_eval_and_changes(name: str) -> None:
    """Uncompiled: one capture serves inputs and weights of all values, one more all shapes, and one another dtype; then submodules
    are replaced. All of it on one model, of which each capture takes as long as many calls."""
    zoo = Zoo(name, "eager")
    with torch.no_grad():
        zoo.check(*values(zoo), Captured(1), *shapes(zoo), Captured(2), *dtypes(zoo), Captured(3), *replacements(zoo),
                  captures=None)


@pytest.mark.parametrize("name", ZOO)
def test_eval_native(name: str) -> None:
    zoo = Zoo(name, "native")
    with torch.no_grad():
        zoo.check(*values(zoo), captures=1, graphs=1)


def values(zoo: Zoo) -> list[Step]:
    def load(module: nn.Module) -> None:
        module.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in module.state_dict().items()})
    return [zoo.call(), zoo.call(), scale(1.25), zoo.call(), load, zoo.call()]


def shapes(zoo: Zoo) -> list[Step]:
    return [zoo.call(3), zoo.call(2), zoo.call(3)]


def dtypes(zoo: Zoo) -> list[Step]:
    return [nn.Module.double, zoo.call(), zoo.call()]


def replacements(zoo: Zoo) -> list[Step]:
    """A submodule by one of its class, and by one of another."""
    path = zoo.entry.replaceable

    def same_class(module: nn.Module) -> None:
        replacement = copy.deepcopy(module.get_submodule(path))
        scale(-1)(replacement)
        module.set_submodule(path, replacement)

    def other_class(module: nn.Module) -> None:
        module.set_submodule(path, nn.Sequential(module.get_submodule(path), nn.Tanh()))
    return [same_class, zoo.call(), zoo.call(), other_class, zoo.call(), zoo.call()]


@pytest.mark.parametrize("name", ZOO)
def test_train_native(name: str) -> None:
    """The gradients of later calls are added to those of earlier ones."""
    zoo = Zoo(name, "native", training=True)
    zoo.check(zoo.call(), zoo.call(), scale(0.5), zoo.call(), captures=1, graphs=1, backward=True, tolerance=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_other_shapes_native(name: str) -> None:
    zoo = Zoo(name, "native")
    with torch.no_grad():
        zoo.check(zoo.call(2), *shapes(zoo), captures=2)


@pytest.mark.parametrize(("name", "backend"), ALL_AND_SMALL)
def test_train_and_eval(name: str, backend: str) -> None:
    """Each mode has an entry, whichever comes first. The gradients of later calls are added to those of earlier ones."""
    zoo = Zoo(name, backend, training=backend == "native")
    change, back = (nn.Module.eval, nn.Module.train) if zoo.training else (nn.Module.train, nn.Module.eval)
    zoo.check(zoo.call(), zoo.call(), Captured(1), change, zoo.call(), zoo.call(), scale(0.5), zoo.call(), back, zoo.call(), change,
              zoo.call(), captures=2, graphs=2, backward=True)


@pytest.mark.parametrize("name", SMALL)
def test_other_dtype_native(name: str) -> None:
    zoo = Zoo(name, "native")
    with torch.no_grad():
        zoo.check(zoo.call(), zoo.call(), *dtypes(zoo), captures=2)


@pytest.mark.parametrize("name", SMALL)
def test_submodule_replaced_native(name: str) -> None:
    zoo = Zoo(name, "native")
    with torch.no_grad():
        zoo.check(zoo.call(), zoo.call(), *replacements(zoo), captures=None)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("training", [False, True])
def test_autocast(name: str, training: bool) -> None:
    zoo = Zoo(name, "native", training)
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16):
        # kernels round to bfloat16 where they store, eager after each operation
        zoo.check(zoo.call(), zoo.call(), zoo.call(), captures=1, backward=training, tolerance=0.1)


# A large eps: AdamW divides gradients by their size, and would make large ones of rounding errors.
OPTIMIZERS = {"SGD": functools.partial(torch.optim.SGD, momentum=0.9), "AdamW": functools.partial(torch.optim.AdamW, eps=1e-2)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SMALL)
def test_training_steps(name: str, optimizer: str) -> None:
    """The optimizer writes to the weights between calls."""
    zoo = Zoo(name, "native", training=True)

    def make() -> tuple[nn.Module, list]:
        module = zoo.make()
        return module, [module, OPTIMIZERS[optimizer](module.parameters(), lr=0.01)]

    def step(state: list) -> None:
        state[1].step()
        state[1].zero_grad()
    calls = (Call(lambda state: zoo.call().arguments(state[0])) for _ in range(5))
    engine.check(make, *(each for one in calls for each in (one, step)), captures=1, backward=True, tolerance=1e-3)


def scale(factor: float) -> Callable[[nn.Module], None]:
    """A change that writes to the weights in place."""
    def change(module: nn.Module) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)
    return change


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with every tensor in its dicts changed."""
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return change(value) if isinstance(value, torch.Tensor) else value
