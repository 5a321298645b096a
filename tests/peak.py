"""How much memory tensors take at most, and how often it is allocated: as torch's allocator itself reports it."""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch


def memory_events(function: Callable[..., Any], *args: Any) -> list[int]:
    """The bytes of each allocation of a call, and negative ones of what is freed, in order."""
    gc.collect()
    gc.disable()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            function(*args)
    finally:
        gc.enable()
    return [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]


def peak(function: Callable[..., Any], *args: Any) -> int:
    """The most tensor memory, in bytes, that was allocated during a call at one time."""
    live = most = 0
    for change in memory_events(function, *args):
        live += change
        most = max(most, live)
    return most
