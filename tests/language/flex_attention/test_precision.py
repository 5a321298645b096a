"""`flex_attention` under autocast, and in dtypes of few digits."""
from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import capture
from tests.helpers import call
from tests.language.flex_attention.cases import ENGINES, LENGTH, block_mask, capped, causal, qkv, relative


@pytest.mark.parametrize("around", [False, True])
def test_autocast(check, around):
    def make():
        masked = block_mask(causal)

        def f(q, k, v):
            with contextlib.nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
                return flex_attention(q, k, v, capped, masked)
        return f
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        stats = check(make, *[call(*qkv(seed=seed)) for seed in range(3)], tolerance=2e-2)
    assert stats.graphs == 1


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.table = nn.Parameter(torch.randn(4, 2 * LENGTH))
        self.mask = block_mask(causal)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return self.out(flex_attention(q, k, v, relative(self.table), self.mask).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("engine", ENGINES)
def test_training_under_autocast(engine, differentiable):
    """Autocast is on, off, and of another dtype from step to step."""
    blocks = [(torch.bfloat16, True), (torch.bfloat16, True), (torch.float16, True), (torch.bfloat16, False)] * 3

    def trained(run, model):
        found = []
        for step, (dtype, enabled) in enumerate(blocks):
            torch.manual_seed(step)
            x = torch.randn(2, LENGTH, 64, requires_grad=True)
            with torch.autocast("cpu", dtype, enabled):
                y = run(x)
            y.float().square().mean().backward()
            found += [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
            model.zero_grad()
        return found
    torch.manual_seed(0)
    model = Attention()
    expected = trained(model, model)
    compiled = capture.compile(model, fullgraph=True, **ENGINES[engine])
    for ours, theirs in zip(trained(compiled, model), expected, strict=True):
        assert ours.dtype is theirs.dtype and (ours - theirs).norm() <= 1e-2 * theirs.norm()
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits) == (3, len(blocks) - 3)
    if engine == "native":
        assert (stats.compiled, stats.compile_errors) == (3, [])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_a_table_are_added_up_in_float32(engine, dtype, differentiable):
    """As torch does: each entry gets those of thousands of scores. So they are as near to those of float64."""
    length, weight = 128, torch.randn(2, 4, 128, 16)
    masked = block_mask(causal, length=length, keys=length)

    def f(q, k, v, table):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[h, (q_idx - kv_idx).clamp(0, 15)], masked)

    def gradient(run, dtype):
        given = [one.to(dtype).requires_grad_() for one in (*qkv(length=length, keys=length), torch.linspace(0, 1, 64).view(4, 16))]
        (run(*given) * weight).sum().backward()
        return given[-1].grad
    exact, eager = gradient(f, torch.float64), gradient(f, dtype)
    compiled = capture.compile(f, fullgraph=True, **ENGINES[engine])
    for _ in range(3):
        found = gradient(compiled, dtype)
    assert found.dtype is dtype
    errors = [(one.double() - exact).norm() for one in (found, eager)]
    assert errors[0] <= 2 * errors[1]
