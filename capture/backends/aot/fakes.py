"""Tensors without data for graphs to be traced with, and the modes to trace them in."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_impls import register_op_impl

from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported
from capture.backends.traceable import unfit


@contextlib.contextmanager
def tracing_modes(modes: Modes) -> Iterator[None]:
    """Puts `modes` in force for graphs to be traced in: instead of inference mode, the same operations on tensors that AOTAutograd
    understands."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(modes.active())
        if modes.inference:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        yield


def fake_inputs(specs: Sequence[TensorSpec]) -> list[FakeTensor]:
    """FakeTensors as the specs say, of storages of their own. Raises Unsupported for layouts other than strided, and for
    tensors whose elements are not what lies in memory."""
    env = next((size.node.shape_env for spec in specs for size in spec.shape if isinstance(size, torch.SymInt)), None)
    mode = FakeTensorMode(shape_env=env)
    mode.cache_enabled = env is None        # to keep what operators do to sizes that change takes longer than to compute it anew
    return [_fake(mode, spec) for spec in specs]


def _fake(mode: FakeTensorMode, spec: TensorSpec) -> FakeTensor:
    if (reason := unfit(torch._C.DispatchKeySet.from_raw_repr(spec.keys), spec.layout == torch.strided)) is not None:
        raise Unsupported(f"an input {reason}")
    with mode, torch.device(spec.device):
        fake = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    return fake.requires_grad_(spec.requires_grad)


@register_op_impl(torch.ops.aten._grouped_mm.default)
def grouped_mm(_: FakeTensorMode, op: Any, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, *args: Any,
               **kwargs: Any) -> Any:
    """Products of groups. Torch would refuse other types than bfloat16 here, and not tell that rows begin at multiples of 16
    bytes."""
    rows, columns, unit = mat_a.shape[-2], mat_b.shape[-1], 16 // mat_a.element_size()
    width = (columns + unit - 1) // unit * unit
    if mat_a.dim() != mat_b.dim():
        return mat_a.new_empty_strided((rows, columns), (width, 1))
    groups = mat_a.shape[0] if offs is None else offs.shape[0]
    return mat_a.new_empty_strided((groups, rows, columns), (rows * width, width, 1))
