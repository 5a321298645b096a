"""Tensors without data for graphs to be traced with, and the modes to trace them in."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

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
