"""When a graph is compiled: at once while the program leaves a processor free; else once its calls have run for as long as
compiling will take, and all compiling together takes no more of the program's time than kernels save.

Compiling takes its time from a program that uses all processors, and more than it gets: threads that work on one operation wait
for the one that was displaced. Measured on two processors, each second of compiling makes the program some second longer, at any
priority. So a graph that hardly runs is not worth it there; as with skis, one rents until one might as well have bought. And what
is bought must not cost more than it may save, whatever the number of graphs.
"""
from __future__ import annotations

import math
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
from capture.operators.facts import facts_of

WINDOW = 0.1            # seconds in which it is seen what of the processors is in use
ROOM = 0.5              # processors that compiling needs, at least
TICK = 1 / os.sysconf("SC_CLK_TCK")
IDLE = 4                # the place of idle time in the first line of /proc/stat
# Processor seconds that an operation takes to be compiled: without and with its gradients (89 of a ResNet take 0.5 and 4),
# and after the backward pass, where an optimizer does the same with each parameter (a step of 1,009 operations takes 8).
SECONDS, SECONDS_OF_TRAINING, SECONDS_OF_UPDATE = 0.007, 0.025, 0.006
STEPS = 100             # operations that a recurrent network counts as (in training, those of 6 or 20 steps take 1 to 3 s)
FOR_ALL_SIZES = 2       # … times as long (119 of a small BERT in training take 6.5, and 3.7 for one size)
SAVED = 0.2             # the share of its time that kernels save a training step, until graphs of this program were timed
LEAST_SAVED = 0.02      # … where they save nothing: a next graph may be another matter
FREE_SECONDS = 2.0      # that compiling may take, whatever it saves
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


class Budget:
    """What compiling may take from a program that uses all processors: some seconds, and what kernels save of its time."""

    __slots__ = ("taken", "_shares", "_seconds", "_start")

    def __init__(self) -> None:
        self.taken = 0.0                    # seconds, by graphs whose time had come
        # The sum of what graphs were measured to save, each times the seconds that compiling it takes, and that of these seconds:
        # at first a guess.
        self._shares, self._seconds = SAVED * FREE_SECONDS, FREE_SECONDS
        self._start = math.inf

    def takes(self, seconds: float) -> bool:
        """Takes what one graph is expected to take, if there is as much."""
        now = time.process_time() / torch.get_num_threads()         # of the program's work, not of its waiting
        self._start = min(self._start, now)
        admitted = self.taken + seconds <= FREE_SECONDS + self.saved * (now - self._start)
        if admitted:
            self.taken += seconds
        return admitted

    @property
    def saved(self) -> float:
        """The share of their time that kernels save, as far as it is known."""
        return max(LEAST_SAVED, self._shares / self._seconds)

    def settle(self, expected: float, seconds: float) -> None:
        """Notes what it took in the end."""
        self.taken += seconds - expected

    def learn(self, saved: float, seconds: float) -> None:
        """Notes the share of its time that kernels were measured to save a graph that takes so many seconds to compile: what small
        ones save hardly tells of large ones."""
        self._shares += saved * seconds
        self._seconds += seconds


budget = Budget()


@dataclass(slots=True)
class Expected:
    """What is expected of compiling a graph: how many processor seconds it will take, and the share of its time that kernels save,
    None where nothing is known of it. Both are as they were for other sizes, once that was seen."""

    seconds: float
    saved: float | None = None

    def learn(self, before: float, after: float) -> float:
        """Notes what calls take without kernels and with them. Returns the share of their time that these save."""
        self.saved = max(0.0, before - after) / before if before else 0.0
        return self.saved

    def took(self, seconds: float) -> None:
        """Notes what compiling took."""
        self.seconds = seconds

    def awaited(self) -> float:
        """The seconds that calls run before."""
        return self.seconds * COMPILE_AFTER.value / 100 * (1 if self.saved is None else SAVED / max(self.saved, LEAST_SAVED))


class Postponed:
    """The callable of a graph that is compiled later: it runs the graph as it is. begin: has it compiled, and puts something else
    in the place of this; it is told what that takes from the budget. has_passes: whether calls have backward passes, which are not
    timed."""

    __slots__ = ("plain", "begin", "expected", "passes", "spent", "_since", "__weakref__")

    latest = -math.inf      # when one was made last: up to then the program may have stood still, captured by one thread

    def __init__(self, plain: Callable[..., Any], begin: Callable[[float], None], expected: Expected, has_passes: bool) -> None:
        self.plain, self.begin, self.expected = plain, begin, expected
        self.passes = PASSES if has_passes else 1
        self.spent = 0.0                    # seconds, by calls
        self._since = Use.now()
        Postponed.latest = self._since.time

    def __call__(self, *inputs: Any) -> Any:
        start = time.perf_counter()
        if self.spent >= self.expected.awaited() and budget.takes(self.expected.seconds):
            self.begin(self.expected.seconds)
        elif self._is_free(start):
            self.begin(0.0)
        outputs = self.plain(*inputs)
        self.spent += self.passes * (time.perf_counter() - start)
        return outputs

    def _is_free(self, now: float) -> bool:
        """Whether compiling takes a processor that the program does not use."""
        if now < self._since.time + WINDOW:
            return False
        since, self._since = self._since, Use.now()
        return since.time >= Postponed.latest and since.free_until(self._since) >= ROOM

    def __str__(self) -> str:
        if self.spent >= (awaited := self.expected.awaited()):
            return f"the program uses all processors, and compiling has had its share of the time: kernels save {budget.saved:.0%}"
        return f"the program uses all processors, and its calls have taken {self.spent:.1f} of {awaited:.1f} s"


def operation_count(gm: fx.GraphModule) -> int:
    """How many operations a graph has."""
    return sum(node.op in CALLS for node in gm.graph.nodes)


def expected_seconds(gm: fx.GraphModule, trains: bool, for_all_sizes: bool) -> float:
    """How long compiling a graph will take, roughly."""
    seconds, each = 0.0, SECONDS_OF_TRAINING if trains else SECONDS
    for node in gm.graph.nodes:
        if node.op in CALLS:
            seconds += each * (STEPS if facts_of(node.target).is_recurrent else 1)
        if runs_backward(node):
            each = SECONDS_OF_UPDATE
    return seconds * (FOR_ALL_SIZES if for_all_sizes else 1)
