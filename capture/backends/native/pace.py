"""When a graph is compiled: at once while the program leaves a processor free; else once its calls have run for as long as
compiling will take.

Compiling takes its time from a program that uses all processors, and more than it gets: threads that work on one operation wait
for the one that was displaced. Measured on two processors, each second of compiling makes the program some second longer, at any
priority. So a graph that hardly runs is not worth it there; as with skis, one rents until one might as well have bought.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from capture.backends.native import processor
from capture.backends.traceable import runs_backward
from capture.config import COMPILE_AFTER

WINDOW = 0.1            # seconds in which it is seen what of the processors is in use
ROOM = 0.5              # processors that compiling needs, at least
TICK = 1 / os.sysconf("SC_CLK_TCK")
IDLE = 4                # the place of idle time in the first line of /proc/stat
# Processor seconds that an operation takes to be compiled: without and with its gradients (89 of a ResNet take 0.5 and 4),
# and after the backward pass, where an optimizer does the same with each parameter (a step of 1,009 operations takes 7).
SECONDS, SECONDS_OF_TRAINING, SECONDS_OF_UPDATE = 0.007, 0.03, 0.004
PASSES = 3              # a forward and a backward pass take as long as so many forward passes
CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Use:
    """What has been used of the processors up to some moment, in seconds. own: by this process; idle: by nobody, None where the
    system does not tell."""

    time: float
    own: float
    idle: float | None

    @classmethod
    def now(cls) -> Use:
        try:
            idle = int(Path("/proc/stat").read_text().partition("\n")[0].split()[IDLE]) * TICK
        except (OSError, ValueError, IndexError):
            idle = None
        return cls(time.perf_counter(), time.process_time(), idle)

    def free_until(self, end: Use) -> float:
        """How many processors were free between two moments."""
        seconds = end.time - self.time
        free = processor.count() - (end.own - self.own) / seconds
        return free if self.idle is None or end.idle is None else min(free, (end.idle - self.idle) / seconds)


_last = Use.now()
_free = 0.0             # processors, when that was seen last


def may_begin() -> bool:
    """Whether a graph that was just captured is compiled at once: where even a program that uses all of torch's threads leaves a
    processor free, and no other program takes it."""
    global _last, _free
    if not COMPILE_AFTER:
        return True
    now = Use.now()
    if now.time > _last.time + WINDOW:
        _last, _free = now, _last.free_until(now)
    return _free >= ROOM and torch.get_num_threads() + ROOM <= processor.count()


class Postponed:
    """The callable of a graph that is compiled later: it runs the graph as it is. begin: has it compiled, and puts something else
    in the place of this. seconds: that compiling will take. has_passes: whether calls have backward passes, which are not timed."""

    __slots__ = ("plain", "begin", "seconds", "passes", "spent", "_since", "__weakref__")

    def __init__(self, plain: Callable[..., Any], begin: Callable[[], None], seconds: float, has_passes: bool) -> None:
        self.plain, self.begin, self.seconds = plain, begin, seconds
        self.passes = PASSES if has_passes else 1
        self.spent = 0.0                    # seconds, by calls
        self._since = Use.now()

    def __call__(self, *inputs: Any) -> Any:
        start = time.perf_counter()
        if self._is_due(start):
            self.begin()
        outputs = self.plain(*inputs)
        self.spent += self.passes * (time.perf_counter() - start)
        return outputs

    def _is_due(self, now: float) -> bool:
        if self.spent >= self._awaited():
            return True
        if now < self._since.time + WINDOW:
            return False
        since, self._since = self._since, Use.now()
        return since.free_until(self._since) >= ROOM

    def _awaited(self) -> float:
        return self.seconds * COMPILE_AFTER.value / 100

    def __str__(self) -> str:
        return f"the program uses all processors, and its calls have taken {self.spent:.1f} of {self._awaited():.1f} s"


def operation_count(gm: fx.GraphModule) -> int:
    """How many operations a graph has."""
    return sum(node.op in CALLS for node in gm.graph.nodes)


def expected_seconds(gm: fx.GraphModule, trains: bool) -> float:
    """How long compiling a graph will take, roughly."""
    seconds, each = 0.0, SECONDS_OF_TRAINING if trains else SECONDS
    for node in gm.graph.nodes:
        seconds += each * (node.op in CALLS)
        if runs_backward(node):
            each = SECONDS_OF_UPDATE
    return seconds
