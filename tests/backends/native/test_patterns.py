"""Attention written out becomes the kernel, where that computes the same, and nothing else does."""
from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from capture.backends.native.patterns import fuse_attention


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1)), dim=-1) @ v


def multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(2, 3)) * 0.25).softmax(-1).matmul(v)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1), v)


def idle_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.softmax(q @ k.transpose(-2, -1), dim=-1), 0.5, False) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1) + v[:, :, :, :1] * -1e9, dim=-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.softmax(q @ k.transpose(-2, -1), dim=-1), 0.5, True) @ v


def shown(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    return weights @ v, weights


def other_dim(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1), dim=-2) @ v


def graph(program: Callable, like: Tensor) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(like)
    gm = fx.symbolic_trace(program) if program is not divided else _traced(like)
    fuse_attention(gm, [fake] * 3)
    return gm


def _traced(like: Tensor) -> fx.GraphModule:
    """`divided` as it is captured, with q.size(-1) as a number."""
    return fx.symbolic_trace(lambda q, k, v: F.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(like.size(-1)), dim=-1) @ v)


def attentions(gm: fx.GraphModule) -> int:
    return sum(node.target is F.scaled_dot_product_attention for node in gm.graph.nodes)


@pytest.mark.parametrize("program", [divided, multiplied, plain, idle_dropout])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_out_attention_is_one_kernel(program: Callable, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 5, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    gm = graph(program, q)
    assert attentions(gm) == 1
    assert not any(node.target in (F.softmax, "softmax", torch.softmax) for node in gm.graph.nodes)
    result, expected = gm(q, k, v), program(q, k, v)
    torch.testing.assert_close(result, expected)
    for ours, theirs in zip(torch.autograd.grad(result.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), (q, k, v))):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("program", [masked, dropped, shown, other_dim])
def test_what_would_differ_stays(program: Callable) -> None:
    assert attentions(graph(program, torch.randn(2, 3, 5, 16))) == 0


def test_attention_of_three_dimensions_stays() -> None:
    assert attentions(graph(plain, torch.randn(3, 5, 16))) == 0
