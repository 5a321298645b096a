"""Inputs, masks and score functions for tests of `flex_attention`; both backends."""
from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

LENGTH = 48
ENGINES: dict[str, dict[str, Any]] = {"eager": {"backend": "eager"},
                                      "native": {"backend": "native", "options": {"background": False}}}


def qkv(heads: int = 4, key_heads: int = 4, length: int = LENGTH, keys: int = LENGTH, batch: int = 2, seed: int = 0,
        dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(batch, count, size, 16).to(dtype)
            for count, size in ((heads, length), (key_heads, keys), (key_heads, keys))]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def earlier(b, h, q_idx, kv_idx):
    return q_idx > kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() < 8


def one_head(b, h, q_idx, kv_idx):
    return (h == 1) | (q_idx >= kv_idx)


def capped(score, b, h, q_idx, kv_idx):
    return 2 * torch.tanh(score / 2)


def block_mask(function, batch=None, heads=None, length=LENGTH, keys=LENGTH):
    return create_block_mask(function, batch, heads, length, keys, device="cpu")


def relative(table):
    return lambda score, b, h, q_idx, kv_idx: score + table[h, kv_idx - q_idx + LENGTH]
