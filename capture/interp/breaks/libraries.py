"""Calls of installed packages in which a trace ends: CPython runs the rest of such a call, then the program is captured again.

A package that knows nothing of torch (a client of a service, a display, a cache) may take locks, read clocks or ask the terminal,
and decide by the answers. Traces of this code would have no tensor operations. So such a call breaks the graph once: its first
break ends the trace, the rest of the call runs natively, and only the program's own frames are continued. The same holds for
torch's own code that starts processes and waits for their results in queues (`DataLoader`).
"""
from __future__ import annotations

from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break, is_of_library
from capture.interp.breaks.positions import Slot, Suspended
from capture.interp.core.frame import Frame, frames_from
from capture.interp.function_models.effect_callbacks import is_own_code
from capture.interp.function_models.packages import hands_over, is_outside
from capture.interp.polyfills.objects import instantiate
from capture.interp.recording.fx_recorder import FxRecorder


def left_to_cpython(innermost: Frame | None, frames: list[Suspended], recorder: FxRecorder) -> int:
    """How many of the live frames, from the innermost on, make up a call of an installed package whose rest CPython runs."""
    live = list(frames_from(innermost))[::-1]
    first = len(live)
    while first > 1 and is_outside(live[first - 1]):
        first -= 1
    while first < len(live) and not is_of_library(live[first].code.co_filename):       # Python's own code that called the package
        first += 1
    if first < len(live) and first > 1 and live[first - 1].code is instantiate.__code__:
        first -= 1
    left = frames[first:]
    if not left or works(live[first], recorder) and not hands_over(live[first]):
        return 0
    if any(Slot.HANDLED in frame.position.stack for frame in left) or any(
            concerns_program(value.real) for frame in left for value in frame.values):
        return 0
    return len(left)


def works(frame: Frame, recorder: FxRecorder) -> bool:
    """Whether tensor operations were recorded in this call of the package: then it is to be captured."""
    return any(frame.code is code for node in recorder.fx.nodes for code, *_ in node.meta.get("stack", ()))


def concerns_program(local: Any) -> bool:
    """Whether a local variable of the package is a tensor, a module or a function of the program, or `*args` or `**kwargs` with
    one: what is computed with it is to be captured. A list of tensors is data, which is passed along."""
    items = local if type(local) is tuple else local.values() if type(local) is dict else (local,)
    return any(is_a(item, (torch.Tensor, torch.nn.Module)) or is_own_code(item) for item in items)


def in_words(reason: Break, frames: list[Suspended]) -> str:
    """The context of such a break, in words for users."""
    call = next(frame for frame in frames if frame.code is not instantiate.__code__)
    return f"{reason.context}, and the rest of {call.code.co_qualname}(), which CPython runs"
