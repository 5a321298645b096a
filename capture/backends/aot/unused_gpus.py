"""Graphs for a GPU are traced in a process that makes no context on the GPU.

A context would take seconds and hundreds of MB of the GPU's memory, or fail if another process has the GPU to itself. torch's
questions to the driver, such as which kernels of attention the GPU has, need no context.
"""
from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor

from capture import _C


def leave_gpus_alone() -> None:
    """From now on nothing in this process makes a context on a GPU: autograd is told of GPUs that need none, a tensor without data
    does not set up its device, and random states, which AOTAutograd saves around each trace, are left out. To be called once,
    before anything is traced."""
    _C.stand_in_for_gpus()
    fake_tensor.init_gpu_context = _nothing
    torch.cuda.get_rng_state = lambda device="cuda": torch.zeros(0, dtype=torch.uint8)
    torch.cuda.set_rng_state = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass
