"""Channels last changes where tensors lie, and nothing that a program can observe."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from capture.backends import aot
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.layouts import gains, use_channels_last
from capture.backends.native.tiers import specs

torch.manual_seed(0)
FIRST, PER_CHANNEL = torch.randn(8, 3, 3, 3), torch.randn(8, 1, 3, 3)


def features(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.conv2d(F.silu(F.conv2d(x, first)), second, groups=8)


def pooled(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    y = features(x, first, second)
    both = torch._C._nn.max_pool2d_with_indices(y, 2)
    return both[0], both[1]


def flattened(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    flat = features(x, first, second).flatten(1)
    return flat @ flat.t()


def viewed(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    y = features(x, first, second)
    return y.view(2, 8, -1).transpose(1, 2) * 2, y.permute(0, 2, 3, 1).sum(-1)


def strided(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.as_strided(features(x, first, second) + 1, (4, 5), (3, 7), 2)


def drawn(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    y = features(x, first, second)
    return F.dropout(y, 0.5) + torch.rand_like(y)


def joined(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    y = features(x, first, second)
    return torch.cat([y, x[:, :, :4, :4]], 1), F.interpolate(y, scale_factor=2, mode="bilinear")


def softmaxed(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    y = features(F.pad(x, [1, 0, 0, 1]), first, second)
    return y.softmax(1) + y.mean((2, 3), keepdim=True)


PROGRAMS = [features, pooled, flattened, viewed, strided, drawn, joined, softmaxed]


def recorded(program: Callable) -> fx.GraphModule:
    """The graph of a program, which returns a tuple as captured ones do."""
    def returning_tuple(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        result = program(x, first, second)
        return result if isinstance(result, tuple) else (result,)
    return fx.symbolic_trace(returning_tuple)


def traced(program: Callable, *inputs: Tensor) -> fx.GraphModule:
    with torch.no_grad():
        return aot.trace(recorded(program), inputs).forward


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_results_are_eagers(program: Callable, memory_format: torch.memory_format) -> None:
    inputs = torch.randn(2, 3, 8, 8).to(memory_format=memory_format), FIRST, PER_CHANNEL
    gm = recorded(program)
    with torch.no_grad():
        compiled = load(compile_job(Job(gm, tuple(map(TensorSpec.of, inputs)), Modes.current(), {})), gm)
        for _ in range(2):
            torch.manual_seed(5)
            expected, state = gm.forward(*inputs), torch.get_rng_state()
            torch.manual_seed(5)
            actual = compiled(*inputs)
            assert torch.equal(state, torch.get_rng_state())
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_stride=True)


def test_images_of_few_channels_and_convolutions_per_channel_gain() -> None:
    forward = traced(features, torch.randn(2, 3, 8, 8), FIRST, PER_CHANNEL)
    assert use_channels_last(forward, gains) == 1
    strides = {str(node.target): node.meta["val"].stride() for node in forward.graph.nodes if node.op == "call_function"}
    assert strides["aten.silu.default"] == (8 * 36, 1, 8 * 6, 8)


@pytest.mark.parametrize(("channels", "moved"), [(8, 1), (64, 0)])
def test_a_first_layer_gains_where_images_outweigh_filters(channels: int, moved: int) -> None:
    forward = traced(lambda x, w, v: F.conv2d(F.conv2d(x, w), v), torch.randn(2, 3, 10, 10), torch.randn(16, 3, 3, 3),
                     torch.randn(channels, 16, 3, 3))
    assert use_channels_last(forward, gains) == moved


def test_others_stay_as_they_are() -> None:
    forward = traced(lambda x, w, _: F.conv2d(x, w).relu(), torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3), PER_CHANNEL)
    before = [node.meta["val"] for node in forward.graph.nodes if node.op != "output"]
    assert use_channels_last(forward, gains) == 0
    assert [node.meta["val"] for node in forward.graph.nodes if node.op != "output"] == before


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_saves_what_lies_channels_last(program: Callable) -> None:
    """Results and gradients have eager's values and strides, though what is saved between the passes lies in another way."""
    inputs = [torch.randn(2, 3, 8, 8, requires_grad=True), *(t.clone().requires_grad_() for t in (FIRST, PER_CHANNEL))]

    def outputs(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        result = program(x, first, second)
        return result if isinstance(result, tuple) else (result,)
    gm = fx.symbolic_trace(outputs)
    call = load(compile_job(Job(gm, specs(gm, inputs), Modes.current(), {})), gm)
    outcomes = []
    for function in (call, outputs):
        torch.manual_seed(1)
        results = [result for result in function(*inputs) if result.requires_grad]
        torch.manual_seed(2)
        outcomes.append((results, torch.autograd.grad(results, inputs, [torch.randn_like(r) for r in results])))
    for ours, theirs in zip(*outcomes):
        for a, b in zip(ours, theirs, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
