"""Lowering of whole training steps: the forward and backward graphs that AOTAutograd makes of small networks."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from capture.backends.aot import Traced, trace
from capture.backends.native.signature import Result
from tests.backends.native.lowering.checks import calls, check_graph, nests

WIDTH, HEADS, WORDS, LENGTH = 16, 2, 31, 6


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def parameter(*shape: int) -> Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).requires_grad_()


def transformer(tokens: Tensor, targets: Tensor, mask: Tensor, words: Tensor, places: Tensor, scale: Tensor, shift: Tensor,
                mix: Tensor, out: Tensor, wide: Tensor, bias: Tensor, narrow: Tensor) -> tuple[Tensor]:
    x = F.embedding(tokens, words) + places
    for _ in range(2):
        q, k, v = F.linear(F.layer_norm(x, (WIDTH,), scale, shift), mix).split(WIDTH, -1)
        q, k, v = (t.view(2, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-2, -1) * 0.35).masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + F.linear((F.dropout(weights, 0.1) @ v).transpose(1, 2).reshape(2, LENGTH, WIDTH), out)
        x = x + F.linear(F.gelu(F.linear(x, wide, bias)), narrow)
    return F.cross_entropy(F.linear(x, words).view(-1, WORDS), targets.view(-1)),


def transformer_inputs() -> list[Tensor]:
    tokens, targets = torch.randint(0, WORDS, (2, 2, LENGTH))
    return [tokens, targets, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
            parameter(WORDS, WIDTH), parameter(LENGTH, WIDTH), parameter(WIDTH), parameter(WIDTH), parameter(3 * WIDTH, WIDTH),
            parameter(WIDTH, WIDTH), parameter(4 * WIDTH, WIDTH), parameter(4 * WIDTH), parameter(WIDTH, 4 * WIDTH)]


def convolutions(image: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor,
                 head: Tensor) -> tuple[Tensor]:
    x = F.relu(F.batch_norm(F.conv2d(image, first, padding=1), mean, variance, scale, shift, True))
    x = F.max_pool2d(x, 3, 2, 1)
    x = F.relu(F.group_norm(F.conv2d(x, second, padding=1), 2, scale, shift) + x)
    return F.log_softmax(F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), head), -1),


def convolutions_inputs() -> list[Tensor]:
    return [torch.randn(2, 3, 8, 8), parameter(4, 3, 3, 3), parameter(4, 4, 3, 3), parameter(4), parameter(4), torch.zeros(4),
            torch.ones(4), parameter(5, 4)]


def steps(program: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Traced, list[list[Tensor]]]:
    """The graphs of a training step, and the arguments of each: those of the backward pass come from the forward pass."""
    traced = trace(fx.symbolic_trace(program), inputs)
    assert traced.backward is not None
    arguments = [tensor.detach().clone() for tensor in inputs]
    results = list(traced.forward(*arguments))
    signature = traced.signature
    saved = [results[place.index] if isinstance(place, Result) else arguments[place.index] for place in signature.saved]
    tangents = [torch.empty_strided(t.sizes, t.strides, dtype=t.dtype).uniform_() for t in signature.tangents]
    return traced, [arguments, saved + tangents]


@pytest.mark.parametrize(("program", "make"), [(transformer, transformer_inputs), (convolutions, convolutions_inputs)])
def test_a_training_step(program: Callable[..., Any], make: Callable[[], list[Tensor]]) -> None:
    traced, (forward, backward) = steps(program, make())
    check_graph(traced.forward, [forward], 1e-4, 1e-5)
    check_graph(traced.backward, [backward], 1e-4, 1e-5)


def test_what_a_transformer_calls() -> None:
    traced, (forward, backward) = steps(transformer, transformer_inputs())
    program = check_graph(traced.forward, [forward], 1e-4, 1e-5)
    assert set(calls(program)) == {"aten::mm.out", "aten::addmm.out", "aten::bmm.out", "aten::bernoulli_.float"}
    assert nests(program) < 60
    program = check_graph(traced.backward, [backward], 1e-4, 1e-5)
    assert set(calls(program)) == {"aten::mm.out", "aten::bmm.out"}
    assert nests(program) < 60


def test_inference() -> None:
    with torch.no_grad():
        inputs = [tensor.detach() for tensor in transformer_inputs()]
        program = check_graph(trace(fx.symbolic_trace(transformer), inputs).forward, [inputs], 1e-4, 1e-5)
    assert nests(program) < 60
