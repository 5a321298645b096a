"""Facts about the GPU on which a graph's inputs lie, read in the user's process."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from capture.backends.native.job import Job

DEVICES = {"cpu", "cuda"}       # where the compiler has kernels for
MOST_GPUS = 8                   # that a process which only traces can tell apart (`csrc/cuda/stand_in.cpp`)


def gpu_of(inputs: Sequence[Any]) -> torch.device | None:
    """The first device other than the processor on which an input lies."""
    return next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"), None)


def refusal(devices: Collection[str], inputs: Sequence[Any]) -> str:
    """Why there are no kernels for a graph with tensors on these kinds of devices; "" where there are."""
    unknown = set(devices) - (DEVICES if torch.version.hip is None else {"cpu"})
    if unknown:
        return f"there are no kernels for tensors on {', '.join(sorted(unknown))}"
    found = {x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"}
    if "cuda" in devices and not found:
        return "it makes tensors on a GPU, but takes none from there"
    if len(found) > 1:
        return f"its inputs lie on {' and '.join(sorted(map(str, found)))}"
    return "it runs on one of more than 8 GPUs" if any((device.index or 0) >= MOST_GPUS for device in found) else ""


def on_device(job: Job) -> Job:
    """The job, with what the compiling process must know of the GPU on which its inputs lie, if there is one."""
    if job.device.type != "cuda":
        return job
    major, minor = torch.cuda.get_device_capability(job.device)
    cuda = int((torch.version.cuda or "0").partition(".")[0])
    return replace(job, options={**job.options, "architecture": f"sm_{major}{minor}", "cuda_major": cuda})


def records_stream(device: torch.device) -> bool:
    """Whether the program records what its stream on a device does, for a CUDA graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def wait_for(device: torch.device) -> None:
    """Waits for a device, where that may be."""
    if not records_stream(device):
        torch.accelerator.synchronize(device)
