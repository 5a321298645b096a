"""Calls of installed packages in which a trace ends: CPython runs the rest of such a call, then the program is captured again.

A package that knows nothing of torch (a client of a service, a display, a cache) may take locks, read clocks or ask the terminal,
and decide by the answers. Traces of this code would have no tensor operations. So such a call breaks the graph once: its first
break ends the trace, the rest of the call runs natively, and only the program's own frames are continued. The same holds for
torch's own code that starts processes and waits for their results in queues (`DataLoader`).
"""
from __future__ import annotations

import types
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break, is_of_library, is_of_torch
from capture.interp.breaks.early_breaks import frames_from
from capture.interp.breaks.positions import Slot, Suspended
from capture.interp.core import unwind
from capture.interp.core.frame import Frame
from capture.interp.function_models.effect_callbacks import PYTHON, is_own
from capture.interp.polyfills.objects import instantiate
from capture.interp.recording.fx_recorder import FxRecorder
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import namespace_of

BETWEEN_PROCESSES = {"multiprocessing", "queue"}        # Python's modules

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


def is_outside(frame: Frame) -> bool:
    """Whether a frame runs code of Python's, of ours in the place of builtins, or of a package that knows nothing of torch."""
    file = frame.code.co_filename
    if frame.globals.get("__package__") in unwind.OWN_PACKAGES or file.startswith(PYTHON) and not is_of_library(file):
        return True
    if is_of_torch(file):
        return hands_over(frame)
    return is_of_library(file) and not any(map(is_torchs, frame.globals.values()))


def hands_over(frame: Frame) -> bool:
    """Whether a frame runs code of torch's that hands objects to other processes or threads, and waits for theirs: a loader's."""
    return is_of_torch(frame.code.co_filename) and any(
        type(item) is types.ModuleType and item.__dict__.get("__name__") in BETWEEN_PROCESSES for item in frame.globals.values())


def is_torchs(item: Any) -> bool:
    """Whether something that a module holds is torch's, or torch itself."""
    cls, name = type(item), None
    if cls is types.ModuleType:
        name = item.__dict__.get("__name__")
    elif issubclass(cls, type):
        name = namespace_of(item).get("__module__")
    elif is_one_of(cls, types.FunctionType, types.BuiltinFunctionType):
        name = item.__module__
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def works(frame: Frame, recorder: FxRecorder) -> bool:
    """Whether tensor operations were recorded in this call of the package: then it is to be captured."""
    return any(frame.code is code for node in recorder.fx.nodes for code, *_ in node.meta.get("stack", ()))


def concerns_program(local: Any) -> bool:
    """Whether a local variable of the package is a tensor, a module or a function of the program, or `*args` or `**kwargs` with
    one: what is computed with it is to be captured. A list of tensors is data, which is passed along."""
    items = local if type(local) is tuple else local.values() if type(local) is dict else (local,)
    return any(is_a(item, (torch.Tensor, torch.nn.Module)) or is_own(item) for item in items)


def in_words(reason: Break, frames: list[Suspended]) -> str:
    """The context of such a break, in words for users."""
    call = next(frame for frame in frames if frame.code is not instantiate.__code__)
    return f"{reason.context}, and the rest of {call.code.co_qualname}(), which CPython runs"
