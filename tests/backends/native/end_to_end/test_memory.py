"""What compiled functions hold on to dies with the last reference to it."""
from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import capture
from tests.backends.native.end_to_end.engine import compile, no_trial, runs_compiled, tiers  # noqa: F401


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).relu()


def trained(steps: int = 3) -> tuple[Model, nn.Module, torch.Tensor]:
    """A model, compiled and trained for some steps, and the last loss."""
    model = Model()
    compiled = compile(model)
    for _ in range(steps):
        loss = compiled(torch.randn(4, 8)).square().mean()
        loss.backward()
    assert runs_compiled(compiled)
    return model, compiled, loss


def gone(*references: weakref.ref) -> bool:
    gc.collect()
    return [reference() for reference in references] == [None] * len(references)


def test_inputs_and_outputs_die_at_once() -> None:
    """Without the garbage collector: no cycle holds them."""
    compiled = compile(lambda x, w: (x @ w).relu() * 2)
    w = torch.randn(8, 8, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        for backward in (False, True, True):
            x = torch.randn(4, 8)
            y = compiled(x, w)
            if backward:
                y.sum().backward()
            references = weakref.ref(x), weakref.ref(y)
            del x, y
            assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
    assert runs_compiled(compiled)


def test_what_was_saved_dies_with_the_backward_pass() -> None:
    compiled = compile(lambda x, w: ((x * 2).exp() * w).sum())
    w = torch.ones(1000, requires_grad=True)
    for _ in range(2):
        compiled(torch.randn(1000), w).backward()
    x = torch.randn(1000)
    reference = weakref.ref(x)
    loss = compiled(x, w)
    del x
    loss.backward()
    assert reference() is None


@pytest.mark.parametrize("death", ["reset", "references"])
def test_compiled_code_dies(death: str) -> None:
    model, compiled, loss = trained()
    tier, = tiers(compiled)
    references = weakref.ref(tier), weakref.ref(tier.gm), weakref.ref(tier._switch().target)
    del tier, loss
    if death == "reset":
        capture.reset()
        assert gone(*references) and capture.stats(compiled).graphs == 0
        compiled(torch.randn(4, 8))
    else:
        module = weakref.ref(model)
        del model, compiled
        assert gone(module, *references)


def test_a_loss_outlives_its_compiled_code() -> None:
    model, compiled, loss = trained()
    loss = compiled(torch.ones(4, 8)).sum()
    del compiled
    capture.reset()
    gc.collect()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_libraries_are_closed() -> None:
    """Kernels are mapped into the process as long as something can call them, and files are not kept open."""
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:capture" in line or "kernels.so" in line for line in maps)

    def use(function: Callable) -> None:
        for _ in range(3):
            function(torch.ones(10))
    use(compile(lambda x: (x + 1).exp()))
    capture.reset()
    gc.collect()
    before = files(), mapped()
    for _ in range(3):
        function = compile(lambda x: (x + 1).exp())
        use(function)
        assert runs_compiled(function) and mapped() > before[1]
        del function
        capture.reset()
        gc.collect()
    assert (files(), mapped()) == before


def test_memory_does_not_grow() -> None:
    model, compiled, loss = trained(5)
    del loss

    def steps(count: int) -> int:
        for _ in range(count):
            compiled(torch.randn(4, 8)).sum().backward()
            model.zero_grad()
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    assert steps(3) == steps(20)
