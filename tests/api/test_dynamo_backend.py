"""`torch.compile(…, backend="capture")`: Dynamo's graphs, whatever operators it puts there, give what eager mode gives."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import capture
from capture.backends.registry import names
from capture.errors import BackendError
from capture.unit import Unit, units

LINEAR = nn.Linear(8, 8)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {}


def program(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    PROGRAMS[function.__name__] = function
    return function


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def graphs() -> Iterator[Callable[[], list[Unit]]]:
    """What has been compiled for Dynamo in a test."""
    torch._dynamo.reset()
    before = {id(unit): unit for unit in units()}
    yield lambda: [unit for unit in units() if id(unit) not in before and unit.name.startswith("torch.compile [")]
    torch._dynamo.reset()


@program
def pointwise(x):
    return (LINEAR(x).sin() * 2).softmax(-1)


@program
def views(x):
    return x.view(-1), x[1:], x.t()


@program
def write(x):
    y = x * 1
    y[0] = 0
    return y.add_(2)


@program
def without_gradients(x):
    with torch.no_grad():
        y = LINEAR(x)
    return y * x


@program
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return LINEAR(x).float().sin()


@program
def recomputed(x):
    return checkpoint(lambda x: LINEAR(x).relu().exp(), x, use_reentrant=False) * 2


@program
def dropped(x):
    return checkpoint(lambda x: F.dropout(x, 0.5).exp(), x, use_reentrant=False)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.exp() * scale, (x > 0).float()

    @staticmethod
    def backward(ctx, grad, _):
        x, = ctx.saved_tensors
        return grad * x * 3 * ctx.scale, None


@program
def autograd_function(x):
    values, mask = Tripled.apply(x, 2.0)
    return values * mask


@program
def vmapped(x):
    return torch.vmap(lambda row: (row * 2).sum())(x)


@program
def gradient(x):
    return torch.func.grad(lambda t: (t ** 3).sum())(x)


@program
def condition(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))


@program
def broken(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


@program
def masked(x):
    return x[x > 0].sum()


@program
def sizes(x):
    return x.reshape(x.shape[0] * 2, -1) / x.shape[0] + torch.arange(x.shape[0]).sum()


def outcome(function: Callable[[torch.Tensor], Any], rows: int) -> tuple[Any, ...]:
    """Results and gradients on the tensor of so many rows."""
    torch.manual_seed(rows)
    x = torch.randn(rows, 8, requires_grad=True)
    LINEAR.zero_grad()
    result = function(x)
    parts = result if isinstance(result, tuple) else (result,)
    sum(part.sum() for part in parts if part.requires_grad).backward()
    return result, x.grad, LINEAR.weight.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str, dynamic: bool, graphs: Callable[[], list[Unit]]) -> None:
    compiled = torch.compile(PROGRAMS[name], backend="capture", options={"background": False}, dynamic=dynamic)
    rows = (4, 4, 4, 5, 6, 4, 7) if dynamic else (4, 4, 4, 4)
    for count in rows:
        close(outcome(compiled, count), outcome(PROGRAMS[name], count))
    found = [(unit.name, unit.captures, unit.breaks, unit.bailouts) for unit in graphs()]
    assert found and found[0][1]
    if not dynamic:
        assert all(told == [1, [], []] for _, *told in found), found


def test_one_capture_for_all_sizes_that_dynamo_lets_change(graphs: Callable[[], list[Unit]]) -> None:
    compiled = torch.compile(sizes, backend="capture", options={"background": False})
    for rows in (4, 5, 6, 7, 9, 4):
        close(outcome(compiled, rows), outcome(sizes, rows))
    assert [unit.captures for unit in graphs()] == [1, 2]       # … of the size as a number, once one value was seen


def test_modules_buffers_and_written_inputs() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        compiled = wrap(model)
        for _ in range(4):
            compiled(torch.randn(4, 8)).square().sum().backward()
        return [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]
    found = trained(lambda model: torch.compile(model, backend="capture", options={"background": False}))
    close(found, trained(lambda model: model))


def test_inputs_that_overlap() -> None:
    """Of which Dynamo guards nothing but in AOTAutograd's place."""
    def f(x, y):
        x.mul_(2)
        return x + y
    compiled = torch.compile(f, backend="capture", options={"background": False})
    for wrap in (f, compiled, compiled, compiled):
        base = torch.arange(6.)
        assert wrap(base[:4], torch.arange(6.)[2:]).tolist() == [2., 5., 8., 11.]
    for wrap in (f, compiled):
        base = torch.arange(6.)
        assert wrap(base[:4], base[2:]).tolist() == [4., 8., 8., 11.], wrap


def test_the_optimizer_of_a_program() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        weights = [torch.ones(3, requires_grad=True), torch.full((2, 2), 2., requires_grad=True)]
        optimizer = torch.optim.AdamW(weights, lr=0.1)
        step = wrap(optimizer.step)
        for _ in range(4):
            for weight in weights:
                weight.grad = weight.detach() + 1
            step()
        return weights
    close(trained(lambda step: torch.compile(step, backend="capture")), trained(lambda step: step))


def test_its_place_in_torchs_registry() -> None:
    assert [point.value for point in entry_points(group="torch_dynamo_backends", name="capture")] == [
        "capture.dynamo_backend:compile_graph"]
    assert "capture" in torch._dynamo.list_backends()


def test_it_is_no_backend_of_our_own_front_end() -> None:
    assert "capture" not in names()
    with pytest.raises(BackendError, match="unknown backend 'capture'"):
        capture.compile(pointwise, backend="capture")


def test_an_unknown_option() -> None:
    compiled = torch.compile(pointwise, backend="capture", options={"backgroun": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no option 'backgroun'; did you mean 'background'"):
        compiled(torch.randn(4, 8))
