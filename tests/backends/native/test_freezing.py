"""Graphs whose state is frozen give eager mode's results, whatever happens to that state between calls."""
from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import capture
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.frozen import FrozenCallable
from capture.backends.native.job import Job, Modes
from capture.backends.native.tiers import specs
from tests.backends.native.frozen import Recorded, frozen, split, statistics, targets


def small() -> nn.Sequential:
    return statistics(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.convolution(x)))


class Scaled(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 5, bias=bias), nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.linear(x) / 3 - 1.5


class Returns(nn.Module):
    """Returns what depends on its state alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = self.weight * 2
        return doubled, x + doubled


def conv(*args: int, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return statistics(nn.Sequential(nn.Conv2d(*args, **options), nn.BatchNorm2d(args[1]), nn.ReLU()))
    build.__name__ = "_".join(map(str, (*args, *options.values())))
    return build


CONVOLUTIONS = [
    conv(6, 8, 3), conv(6, 8, 3, bias=False), conv(6, 8, 1), conv(6, 8, 3, groups=2), conv(6, 6, 3, groups=6, padding=1),
    conv(6, 12, 3, groups=6), conv(6, 8, 3, dilation=2), conv(6, 8, (3, 1), padding=(1, 0)),
    conv(6, 8, 3, stride=2, padding="valid"), conv(6, 8, 3, padding="same")]


@pytest.mark.parametrize("build", CONVOLUTIONS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions(build: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    module, image = build().to(dtype), torch.randn(2, 6, 9, 10).to(dtype)
    compiled, inputs = frozen(module, image)
    with torch.no_grad():
        (actual,), expected = compiled(*inputs), module(image)
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, check_stride=True)


ACTIVATIONS = [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.Tanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.ReLU(),
               nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.LeakyReLU(0.2)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations(activation: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), activation)
    image = torch.randn(2, 3, 8, 8)
    image[0, 1, 2, 3] = float("nan")
    compiled, inputs = frozen(module, image)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs)[0], module(image), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("module, shape", [(Residual(), (2, 6, 8, 8)), (Scaled(True), (4, 6)), (Scaled(False), (4, 6)),
                                           (Scaled(False), (2, 3, 6)),
                                           (nn.ConvTranspose2d(3, 4, 2, stride=2), (2, 3, 5, 5)), (nn.Conv1d(3, 4, 3), (2, 3, 9)),
                                           (nn.Conv2d(3, 4, 1), (2, 3, 1, 1)), (nn.Conv2d(3, 4, 3), (3, 8, 8))],
                         ids=lambda value: str(value)[:20])
def test_other_products(module: nn.Module, shape: tuple[int, ...]) -> None:
    module = statistics(module)
    compiled, inputs = frozen(module, torch.randn(shape))
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs)[0], module(inputs[0]), rtol=2e-5, atol=2e-5, check_stride=True)


def test_what_is_left() -> None:
    """Of a convolution and its normalisation one call; of a scaled product one product."""
    rest, prologue = split(statistics(Residual()), torch.randn(2, 6, 8, 8).to(memory_format=torch.channels_last))
    assert prologue is not None and len(prologue.kept) == 1 and len(prologue.frozen) == 5
    assert targets(rest) == {"mkldnn._convolution_pointwise.default", "aten.add.Tensor", "aten.relu.default"}
    rest, _ = split(nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU()), torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert targets(rest) == {"mkldnn._convolution_pointwise.default"}
    rest, prologue = split(Scaled(True), torch.randn(4, 6))
    assert prologue is not None and targets(rest) == {"aten.addmm.default"}


def test_normalisations_of_what_others_read_stay() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.convolution(x)
            return y, self.norm(y)
    module = statistics(Module())
    compiled, inputs = frozen(module, torch.randn(2, 3, 8, 8))
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(inputs[0]), rtol=1e-5, atol=1e-5)


def test_results_are_new_tensors() -> None:
    module = Returns()
    compiled, inputs = frozen(module, torch.zeros(3, 3))
    with torch.no_grad():
        first = compiled(*inputs)
        first[0].zero_()
        second = compiled(*inputs)
        assert torch.equal(second[0], module.weight * 2) and torch.equal(second[1], module.weight * 2)


def layers() -> nn.Sequential:
    return statistics(nn.Sequential(nn.Linear(256, 384), nn.BatchNorm1d(384), nn.GELU(), nn.Linear(384, 256)))


def step(module: nn.Module, sample: Tensor) -> None:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(sample).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def replace(module: nn.Module, sample: Tensor) -> None:
    module[0].weight = nn.Parameter(torch.randn_like(module[0].weight))


def set_data(module: nn.Module, sample: Tensor) -> None:
    module[0].weight.data = torch.randn_like(module[0].weight)


def load_state(module: nn.Module, sample: Tensor) -> None:
    module.load_state_dict({name: value + 0.5 for name, value in module.state_dict().items()})


def copy_in(module: nn.Module, sample: Tensor) -> None:
    with torch.no_grad():
        module[3].weight.copy_(torch.randn_like(module[3].weight))


def write_to_view(module: nn.Module, sample: Tensor) -> None:
    module[0].weight.detach()[0].zero_()


def write_to_buffer(module: nn.Module, sample: Tensor) -> None:
    module[1].running_mean.add_(1)


def train_and_evaluate(module: nn.Module, sample: Tensor) -> None:
    module.train()
    module(sample)
    module.eval()


def freeze_parameters(module: nn.Module, sample: Tensor) -> None:
    module.requires_grad_(False)
    module[0].weight.mul_(2)


def write_through_data(module: nn.Module, sample: Tensor) -> None:
    module[1].bias.data.add_(1)


CHANGES = [write_through_data, step, replace, set_data, load_state, copy_in, write_to_view, write_to_buffer, train_and_evaluate,
           freeze_parameters]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(("build", "shape"), [(small, (2, 3, 8, 8)), (layers, (64, 256))], ids=["convolutions", "products"])
def test_changes_are_noticed(build: Callable[[], nn.Module], shape: tuple[int, ...],
                             change: Callable[[nn.Module, Tensor], None]) -> None:
    torch.manual_seed(0)
    module, image = build(), torch.randn(shape)
    compiled = capture.compile(module, backend="native", options={"freezing": True, "background": False})

    def agree() -> Tensor:
        with torch.no_grad():
            actual, expected = compiled(image), module(image)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        return actual.clone()
    before = [agree() for _ in range(3)][-1]
    change(module, torch.randn(shape))
    after = [agree() for _ in range(3)][-1]
    assert not torch.allclose(before, after)
    change(module, torch.randn(shape))
    agree()


def test_the_prologue_runs_when_something_changed() -> None:
    module = small()
    compiled, (image, *state) = frozen(module, torch.randn(2, 3, 8, 8))
    assert isinstance(compiled, FrozenCallable)
    with torch.no_grad():
        for _ in range(3):
            compiled(image, *state)
        assert compiled.runs == 1
        compiled(torch.randn(2, 3, 8, 8), *state)
        assert compiled.runs == 1
        module[0].weight.add_(1)
        compiled(image, *state)
        compiled(image, *state)
        assert compiled.runs == 2
        others = [copy.deepcopy(tensor) for tensor in state]
        torch.testing.assert_close(compiled(image, *others)[0], module(image), rtol=1e-4, atol=1e-4)
        assert compiled.runs == 3


def test_a_failed_prologue_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = small()
    compiled, inputs = frozen(module, torch.randn(2, 3, 8, 8))
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(compiled, "prologue", lambda *_: (_ for _ in ()).throw(MemoryError))
        compiled(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs)[0], module(inputs[0]), rtol=1e-4, atol=1e-4)


def test_tensors_of_inference_mode_are_not_frozen() -> None:
    with torch.inference_mode():
        module, image = small(), torch.randn(2, 3, 8, 8)
    gm, tensors = recorded_in_inference_mode(module, image)
    with torch.inference_mode():
        compiled = load(compile_job(Job(gm, specs(gm, tensors), Modes.current(), {"freezing": True})), gm)
        assert not isinstance(compiled, FrozenCallable)
        module[0].weight.mul_(2)
        torch.testing.assert_close(compiled(*tensors)[0], module(image), rtol=1e-4, atol=1e-4)


def recorded_in_inference_mode(module: nn.Module, image: Tensor) -> Recorded:
    graphs: list[Recorded] = []

    def backend(gm: torch.fx.GraphModule, tensors: list[Tensor]) -> Callable:
        graphs.append((gm, tensors))
        return gm.forward
    with torch.inference_mode():
        capture.compile(module, backend=backend)(image)
    return graphs[0]


def test_training_is_not_frozen() -> None:
    module, image = small(), torch.randn(2, 3, 8, 8)
    compiled = capture.compile(module, backend="native", options={"freezing": True, "background": False})
    for _ in range(3):
        module.zero_grad()
        compiled(image).sum().backward()
        actual = [p.grad for p in module.parameters()]
        expected = torch.autograd.grad(module(image).sum(), list(module.parameters()))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            module[0].weight.add_(0.1)


def test_a_written_buffer_is_not_frozen() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * (self.count * 2)
    module = Counts()
    compiled = capture.compile(module, backend="native", options={"freezing": True, "background": False})
    with torch.no_grad():
        for number in range(1, 5):
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0 * number))
