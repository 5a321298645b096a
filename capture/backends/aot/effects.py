"""Operators with side effects (torch's term: they take effect tokens), such as the checks after `torch.linalg.solve`."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._higher_order_ops.effects import has_effects
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from capture.backends.aot.fakes import fake_inputs
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported


class HasEffects(Unsupported):
    """Some operation has side effects; which one is not known."""


def place_of_effects(graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> int | None:
    """The place of the first node which calls such an operator, found by a run on tensors without data; None if there is none."""
    inputs = fake_inputs(specs)
    with modes.active(), inputs[0].fake_mode if inputs else FakeTensorMode():
        run = _Run(graph)
        run.run(*inputs)
    return run.place


class _Run(fx.Interpreter):
    place: int | None = None

    def run_node(self, n: fx.Node) -> Any:
        with _Watch() as watch:
            value = super().run_node(n)
        if watch.found and self.place is None:
            self.place = n.meta.get("place")
        return value


class _Watch(TorchDispatchMode):
    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= has_effects(func)
        return func(*args, **(kwargs or {}))
