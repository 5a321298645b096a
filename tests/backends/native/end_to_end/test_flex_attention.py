"""Kernels of `flex_attention`: which of torch's operators are called in the plan, and where scores are not stored."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import pad

import capture
from tests.backends.native.end_to_end.engine import AT_ONCE, check, no_trial, runs_compiled  # noqa: F401
from tests.helpers import call

LENGTH = 40


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def earlier(b, h, q_idx, kv_idx):
    return q_idx > kv_idx


def added(score, b, h, q_idx, kv_idx):
    return score + h * 0.1


def capped(score, b, h, q_idx, kv_idx):
    return 2 * torch.tanh(score / 2)


def operators_of(function: Any, *args: torch.Tensor) -> str:
    """The names of the operators that the compiled function calls."""
    compiled = capture.compile(function, fullgraph=True, **AT_ONCE)
    for _ in range(2):
        found = compiled(*args)
    torch.testing.assert_close(found, function(*args), rtol=1e-4, atol=1e-4)
    assert runs_compiled(compiled)
    with torch.profiler.profile() as profile:
        compiled(*args)
    return " ".join(event.name for event in profile.events())


@pytest.mark.parametrize("mask", [None, causal, earlier])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_attention_without_a_function_for_scores_is_one_operator(mask, key_heads):
    masked = mask and create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, LENGTH, 16) for heads in (4, key_heads, key_heads))

    def f(q, k, v):
        return flex_attention(q, k, v, block_mask=masked, enable_gqa=True)
    assert "scaled_dot_product" in operators_of(f, q, k, v)


@pytest.mark.parametrize("score", [added, capped])
def test_other_scores_are_kernels(score):
    masked = create_block_mask(earlier, None, None, LENGTH, LENGTH, device="cpu")
    torch.manual_seed(0)
    assert "scaled_dot_product" not in operators_of(lambda q: flex_attention(q, q, q, score, masked), torch.randn(2, 4, LENGTH, 16))


def test_masks_of_scores_that_are_written_out_in_a_transform():
    """The same for attention in torch.func's own `vmap`; rows without a key are 0 where the softmax is a safe one."""
    def make():
        def f(q, ids):
            mask = torch.vmap(torch.vmap(lambda a, b: a > b, in_dims=(None, 0)), in_dims=(0, None))(ids, ids)
            scores = torch.where(mask, q @ q.transpose(-2, -1) * 0.25, -float("inf"))
            return torch._safe_softmax(scores, -1) @ q
        return f
    given = [call(torch.randn(2, 4, LENGTH, 16), torch.randint(0, 9, (LENGTH,))) for _ in range(3)]
    check(make, *given)
    check(make, *[call(torch.randn(2, 4, LENGTH, 16, requires_grad=True), torch.randint(0, 9, (LENGTH,))) for _ in range(3)],
          backward=True)


def test_padding_by_a_number_that_follows_from_sizes_beside_a_product():
    def make():
        def f(q):
            length = q.size(2)
            return pad(q @ q.transpose(-2, -1), (0, (length + 127) // 128 * 128 - length))
        return f
    check(make, *[call(torch.randn(2, 4, length, 16)) for length in (32, 48, 40, 64)], captures=2, compiled=1)
