"""Products with frozen weights are one call of oneDNN, and give eager mode's results."""
from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from capture.backends.native.products import linear_of
from tests.backends.native.frozen import frozen, split, statistics, targets

CALL = "mkldnn._linear_pointwise.default"
ROWS, INNER, OUTER = 32, 256, 384


class ByRows(nn.Module):
    """A product with a weight as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(INNER, OUTER) / 16), nn.Parameter(torch.randn(OUTER))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, INNER), self.weight).view(*x.shape[:-1], OUTER)


class Twice(nn.Module):
    """Uses a layer twice, for the same number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(384, 384)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x) + 1)


class Read(nn.Module):
    """Reads what an activation is of once more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INNER, OUTER)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + nn.functional.gelu(y)


MODULES = [(nn.Linear(INNER, OUTER), (ROWS, INNER)), (nn.Linear(INNER, OUTER, bias=False), (ROWS, INNER)),
           (nn.Linear(INNER, OUTER), (2, ROWS, INNER)), (ByRows(), (ROWS, INNER)), (ByRows(), (2, ROWS, INNER)),
           (Twice(), (ROWS, 384)), (Read(), (ROWS, INNER)),
           (nn.Sequential(nn.Linear(INNER, OUTER), nn.GELU(), nn.Linear(OUTER, INNER)), (2, ROWS, INNER))]


@pytest.mark.parametrize(("module", "shape", "dtype"), [(*case, torch.float32) for case in MODULES]
                         + [(*case, torch.bfloat16) for case in (MODULES[2], MODULES[7])], ids=lambda value: str(value)[:40])
def test_products(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    module, x = copy.deepcopy(module).to(dtype), torch.randn(shape).to(dtype)
    compiled, inputs = frozen(module, x)
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*inputs)[0], module(x), rtol=tolerance, atol=tolerance, check_stride=True)


@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda value: str(value)[:40])
def test_products_are_calls_of_onednn(module: nn.Module, shape: tuple[int, ...]) -> None:
    rest, prologue = split(module, torch.randn(shape))
    assert prologue is not None and CALL in targets(rest) and not targets(rest) & {"aten.mm.default", "aten.addmm.default"}


def test_a_weight_is_packed_once_for_all_its_uses() -> None:
    rest, prologue = split(Twice(), torch.randn(ROWS, 384))
    assert prologue is not None
    assert [str(node.target) for node in rest.graph.nodes].count(CALL) == 2
    packings = [node for node in prologue.graph.graph.nodes if str(node.target) == "mkldnn._reorder_linear_weight.default"]
    assert len(packings) == 1


FUSED = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.Hardswish(), nn.LeakyReLU(0.2)]
KEPT = [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Hardsigmoid(), nn.ELU(), nn.Softplus()]


@pytest.mark.parametrize("activation", [*FUSED, *KEPT], ids=str)
@pytest.mark.parametrize("shape", [(ROWS, INNER), (2, ROWS, INNER)], ids=str)
def test_activations_are_part_of_the_call(activation: nn.Module, shape: tuple[int, ...]) -> None:
    rest, _ = split(nn.Sequential(nn.Linear(INNER, OUTER), activation), torch.randn(shape))
    left = targets(rest) - {"aten.view.default"}
    assert CALL in left and (len(left) == 1) is (activation in FUSED)


class Activations(nn.Module):
    """Every activation after a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(INNER, OUTER), activation) for activation in (*FUSED, *KEPT)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple([layer(x) for layer in self.layers])


def test_activations() -> None:
    module, x = Activations(), torch.randn(ROWS, INNER) * 4
    x[1] = float("nan")
    compiled, inputs = frozen(module, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(x), rtol=2e-5, atol=2e-5, equal_nan=True)


def test_an_activation_of_what_others_read_stays() -> None:
    rest, _ = split(Read(), torch.randn(ROWS, INNER))
    assert {CALL, "aten.gelu.default"} <= targets(rest)


@pytest.mark.parametrize("module", [nn.Linear(8, 8), nn.Linear(8, 8, bias=False)], ids=str)
def test_small_products_stay(module: nn.Module) -> None:
    rest, _ = split(module, torch.randn(4, 8))
    assert all(linear_of(node) is None or not linear_of(node).gains_packed() for node in rest.graph.nodes)
    assert targets(rest) & {"aten.mm.default", "aten.addmm.default"}


def test_without_onednn_products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    rest, _ = split(nn.Linear(INNER, OUTER), torch.randn(ROWS, INNER))
    assert CALL not in targets(rest)


def test_weights_that_are_computed_in_each_call_stay() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(INNER, OUTER)

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.layer.bias, x, self.layer.weight.t() * x.mean())
    module, x = Module(), torch.randn(ROWS, INNER)
    rest, _ = split(module, x)
    assert CALL not in targets(rest)


class LayerScale(nn.Module):
    """A scale per channel after a product, as ConvNeXt has it; `first`: the channels are moved to the front before it."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.layer, self.first = nn.Linear(24, 24), first
        self.scale = nn.Parameter(torch.rand(24, 1, 1) if first else torch.rand(24))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.permute(0, 2, 3, 1))
        return x + (self.scale * y.permute(0, 3, 1, 2) if self.first else (self.scale * y).permute(0, 3, 1, 2))


class Heads(nn.Module):
    """Scales what is no channel of the product any more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(24, 24), nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).view(-1, 4, 6) * self.scale


class PerRow(nn.Module):
    """Scales rows, of which there are as many as channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(24, 24), nn.Parameter(torch.rand(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).t() * self.scale.view(1, 24) + self.layer(x) * self.scale


SCALED = [(LayerScale(False), (2, 24, 5, 6), True), (LayerScale(True), (2, 24, 5, 6), True),
          (nn.Sequential(nn.Linear(24, 6), nn.BatchNorm1d(6)), (5, 24), True),
          (nn.Sequential(nn.Linear(24, 6, bias=False), nn.BatchNorm1d(6)), (5, 24), True),
          (nn.Sequential(nn.Linear(24, 6), nn.BatchNorm1d(5)), (3, 5, 24), False), (Heads(), (5, 24), False),
          (PerRow(), (24, 24), False)]


@pytest.mark.parametrize(("module", "shape", "folded"), SCALED, ids=lambda value: str(value)[:20])
def test_scales_after_products(module: nn.Module, shape: tuple[int, ...], folded: bool) -> None:
    module, x = statistics(module), torch.randn(shape)
    rest, prologue = split(module, x)
    if folded:
        assert prologue is not None and "aten.mul.Tensor" not in targets(rest)
    compiled, inputs = frozen(module, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs)[0], module(x), rtol=2e-5, atol=2e-5, check_stride=True)
