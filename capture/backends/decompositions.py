"""Which ATen operators are decomposed, and into what.

Decomposed: everything that comes down to elementwise operations, reductions, views and gathers, since the compiler fuses
those (softmax, normalisations, losses, activations, and their backward formulas). Kept: operators with a good ATen kernel
(matrix products, convolutions, attention, pooling, sorting, resampling), and everything that draws random numbers, so that
the generator advances exactly as it does in eager mode.
"""
from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

# Operators of torch's core table that stay calls of ATen, all overloads.
KEPT = (
    aten.baddbmm, aten.addr, aten.dot, aten.vdot, aten.mv, aten.embedding_dense_backward, aten.embedding_bag,
    aten._scaled_dot_product_flash_attention_for_cpu, aten.bernoulli, aten.rrelu, aten.rrelu_with_noise,
    aten.upsample_bilinear2d, aten.upsample_linear1d, aten.upsample_trilinear3d, aten.upsample_bicubic2d, aten.upsample_nearest1d,
    aten.upsample_nearest2d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d, aten.col2im, aten.im2col, aten.max_unpool2d, aten.max_unpool3d, aten.renorm,
    aten._convolution_double_backward, aten.adaptive_max_pool1d, aten._fused_rms_norm, aten._fused_rms_norm_backward)
# Operators that torch's core table leaves as they are, and which we decompose.
ADDED = (
    aten._softmax, aten._log_softmax, aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm,
    aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional, aten._native_batch_norm_legit_no_training,
    aten._batch_norm_with_update_functional, aten.batch_norm_backward, aten.gelu, aten.elu, aten.leaky_relu, aten.hardtanh,
    aten.relu6, aten.std_mean, aten.std, aten.addmv, aten.var_mean, aten.linalg_vector_norm)


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The table for AOTAutograd: operator overload -> the function, of smaller operators, that stands for it."""
    table = dict(core_aten_decompositions())
    for packet in KEPT:
        for name in packet.overloads():
            table.pop(getattr(packet, name), None)
    return table | get_decompositions(ADDED) | OWN


OWN: dict[Any, Callable[..., Any]] = {}


def decomposition(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for operator overloads, instead of torch's own decomposition."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OWN.update(dict.fromkeys(ops, function))
        return function
    return register


def rounded(value: float, dtype: torch.dtype) -> float:
    """A Python number as float32 holds it, unless `dtype` is float64: what a kernel makes of a scalar argument."""
    return value if dtype == torch.float64 else struct.unpack("f", struct.pack("f", value))[0]


@decomposition(aten.native_dropout.default)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """As eager mode does on a CPU: one draw over an empty tensor of the input's layout, scaled by 1 / (1 - p)."""
    if not train or p == 0 or input.numel() == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device), torch.zeros_like(input, dtype=torch.bool)
    keep = 1 - p
    mask = aten.bernoulli.p(torch.empty_like(input, dtype=torch.bool), keep)
    return input * (mask.to(input.dtype) * rounded(1 / rounded(keep, input.dtype), input.dtype)), mask
