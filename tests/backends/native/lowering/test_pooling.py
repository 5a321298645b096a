"""Pooling and resampling through all stages of the compiler, against eager mode: forward, backward, and what stays a call."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.backends.native.lowering.checks import calls, check
from tests.backends.native.stages import Stages, compare, compiled, finished, recorded


def checked(fn: Callable[..., Any], x: torch.Tensor) -> list[str]:
    """The operators of ATen that the graph calls, forward and backward, after both have been checked."""
    gm, tensors = recorded(fn, (x,))
    stages = Stages(gm, tensors)
    tolerances = {"rtol": 2e-2, "atol": 2e-2} if x.dtype == torch.bfloat16 else None
    compare(gm, stages.callable(compiled(stages.fused())), tensors, tolerances)
    finished()
    return [op for program in stages.lowered for op in calls(program)]


def images(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(*sizes, generator=torch.Generator().manual_seed(5)).to(dtype)
    return x.requires_grad_() if dtype.is_floating_point else (x * 4).to(dtype)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max, overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), 2, ceil_mode=True),
    "max, columns": lambda x: F.max_pool1d(x[0], 3, 1, 1),
    "average": lambda x: F.avg_pool2d(x, 2),
    "average, overlapping": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average without padding": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "average, ceiling": lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), True, False),
    "average, padded ceiling": lambda x: F.avg_pool2d(x, 3, 2, 1, True),
    "average, own divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (5, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, dtype: torch.dtype) -> None:
    """What is pooled is computed, and so is what becomes of the result."""
    assert checked(lambda x: POOLS[name](x * 2).exp(), images(2, 4, 10, 12, dtype=dtype)) == []


def test_cubes() -> None:
    x = images(2, 3, 4, 6, 8)
    assert checked(lambda x: [F.avg_pool3d(x, 2), F.avg_pool3d(x, 3, 2, 1), F.adaptive_avg_pool3d(x, 2)], x) == []
    assert checked(lambda x: [F.max_pool3d(x, 2), F.interpolate(x, scale_factor=2)], x.detach()) == []


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_strides_are_eagers(layout: torch.memory_format) -> None:
    x = images(2, 4, 10, 12).detach().to(memory_format=layout).requires_grad_()
    assert checked(lambda x: [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=2)], x) == []


@pytest.mark.parametrize("pool", [lambda x: F.max_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, (2, 3))])
def test_windows_are_combined_where_the_result_lies(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = check(pool, images(2, 4, 10, 12).detach().to(memory_format=torch.channels_last))
    assert all(buffer.strides[1] == 1 for buffer in program.buffers.values())       # no detour by rows of pixels


def test_maxima_and_their_positions() -> None:
    """Of equal elements the first, of NaNs the last; of nothing but the lowest, the first that is not padding."""
    x = torch.randint(0, 3, (2, 3, 9, 9), generator=torch.Generator().manual_seed(1)).float()
    x[0, 0, 2:4, 2:5] = torch.nan
    x[0, 1] = -torch.inf
    assert checked(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x) == []
    assert checked(lambda x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True), x) == []
    assert checked(lambda x: F.max_pool2d(x, 2, return_indices=True), x.long()) == []


def test_planes_of_one_window_and_none() -> None:
    assert checked(lambda x: [F.max_pool2d(x, 3), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, (1, 3))], images(1, 1, 3, 3)) == []
    checked(lambda x: [F.avg_pool2d(x, 3), F.max_pool2d(x, 3)], images(0, 2, 3, 3))


def test_adaptive_windows_that_overlap_learn_by_aten() -> None:
    called = checked(lambda x: F.adaptive_avg_pool2d(x, (4, 7)), images(2, 3, 10, 12))
    assert called == ["aten::_adaptive_avg_pool2d_backward"]


RESAMPLED = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, given a size": lambda x: F.interpolate(x, size=(30, 12)),
    "nearest, exact": lambda x: F.interpolate(x, scale_factor=(1, 3), mode="nearest-exact"),
    "nearest, columns": lambda x: F.interpolate(x[0], scale_factor=2),
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_repeated_elements(name: str) -> None:
    called = checked(lambda x: RESAMPLED[name](x * 2).exp(), images(2, 3, 10, 12))
    assert called == (["aten::_upsample_nearest_exact2d_backward.grad_input"] if "exact" in name else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bicubic"])
def test_other_sizes(mode: str, dtype: torch.dtype) -> None:
    x = images(2, 3, 10, 12, dtype=dtype).detach()
    called = checked(lambda x: [F.interpolate(x, size=(7, 31), mode=mode), F.interpolate(x, scale_factor=1.7, mode=mode)], x)
    assert called == (["aten::upsample_bicubic2d.out"] * 2 if mode == "bicubic" and dtype == torch.uint8 else [])


def test_bicubic_with_corners() -> None:
    x = images(2, 3, 10, 12).detach()
    assert checked(lambda x: F.interpolate(x, size=(7, 31), mode="bicubic", align_corners=True), x) == []


def test_linear_interpolation_is_atens() -> None:
    """Also of bytes, which torch's decomposition rounds otherwise."""
    assert checked(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), images(2, 3, 10, 12)) == [
        "aten::upsample_bilinear2d.out", "aten::upsample_bilinear2d_backward.grad_input"]
    assert checked(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), images(2, 3, 10, 12, dtype=torch.uint8)) == [
        "aten::upsample_bilinear2d.out"]


def test_torchs_own_decompositions_are_back_after_tracing() -> None:
    op = torch.ops.aten.upsample_nearest2d.vec
    before = dict(op.py_kernels)
    checked(lambda x: F.interpolate(x, scale_factor=2), images(2, 3, 10, 12))
    assert op.py_kernels == before and torch._C.DispatchKey.CompositeImplicitAutograd in before
