"""Looks for cases that fail: in processes of their own, since what is wrong may also end or stop a process."""
from __future__ import annotations

import gc
import multiprocessing
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from capture import config
from tests.fuzz.case import Case, Counts, Engine, compare, draw, is_deterministic
from tests.fuzz.shrink import shrink

SECONDS, SECONDS_TO_SHRINK = 180, 900  # that one case may take, before its process is ended
BATCH = 50                              # cases of one process
Examine = Callable[[int, int, Engine, Callable[[list[str]], None]], "Bug | bool"]
LIMITS = [8, 8, 1, 64]                  # of recaptures, by the number of the case


@dataclass
class Bug:
    """A case that fails, and how; `case` is None where it ended its process."""

    number: int
    problems: list[str]
    case: Case | None = None


@dataclass
class Found:
    """What a hunt has found so far. `next`: the first case that no process was given yet; `unstable`: cases of which two
    eager runs differ, which say nothing."""

    next: int
    bugs: list[Bug] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    cases: int = 0
    unstable: int = 0


def kind(problems: list[str]) -> str:
    """What tells one bug from another while a case is made small: a problem without its numbers, names and places."""
    line = problems[0].splitlines()[0]
    if line.startswith("step "):
        return line.partition("): ")[2].partition(":")[0] if "): exception" in line or "): output" in line else "state"
    return re.sub(r"[\d'\"]+|0x[0-9a-f]+", "", line)[:80]


def examine(seed: int, number: int, engine: Engine, failing: Callable[[list[str]], None] = lambda problems: None) -> Bug | bool:
    """Runs one case: True where the worlds agree, False where two eager ones do not; else `failing` is told, and the bug is
    returned with a small case."""
    with config.RECAPTURE_LIMIT.set(LIMITS[number % len(LIMITS)]):
        case = draw(seed, number)
        problems = compare(case, engine)
        if not problems:
            return True
        if not is_deterministic(case):
            return False
        failing(problems)
        wanted, quiet = kind(problems), Engine(engine.arguments, engine.tolerance)

        def fails(smaller: Case) -> bool:
            try:
                found = compare(smaller, quiet)
            except Exception:               # its world cannot be made any more
                return False
            return bool(found) and kind(found) == wanted and is_deterministic(smaller)
        case = shrink(case, fails)
        return Bug(number, compare(case, quiet) or problems, case)


def hunt(found: Found, seed: int, steps: int, engine: Engine, jobs: int, most_bugs: int, tell: Callable[[Found], None],
         examine: Examine = examine, end: int = sys.maxsize) -> None:
    """Runs cases from number `found.next` on until so many calls were compared, or bugs found, or up to number `end`; `tell` is
    called now and then. examine: what runs one."""
    waiting: deque[range] = deque()
    workers: list[_Worker] = []
    try:
        while True:
            going_on = found.counts.calls < steps and len(found.bugs) < most_bugs and (waiting or found.next < end)
            while going_on and len(workers) < jobs:
                if not waiting:
                    waiting.append(range(found.next, min(found.next + BATCH, end)))
                    found.next = waiting[-1].stop
                workers.append(_Worker(seed, waiting.popleft(), engine, examine))
                going_on = bool(waiting) or found.next < end
            if not workers:
                return
            wait([worker.connection for worker in workers], timeout=1.0)
            for worker in list(workers):
                if not worker.report(found):
                    workers.remove(worker)
                    waiting.extend(filter(None, [worker.left]))
            tell(found)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that runs the cases of some numbers."""

    def __init__(self, seed: int, numbers: range, engine: Engine, examine: Examine) -> None:
        self.left, self.failing, self.since = numbers, None, time.monotonic()
        context = multiprocessing.get_context("fork")       # torch is imported already
        self.connection, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(other, seed, numbers, engine, examine))
        self.process.start()
        other.close()

    def report(self, found: Found) -> bool:
        """Adds what came from the process to `found`. Returns whether the process goes on."""
        try:
            while self.connection.poll():
                self.take(self.connection.recv(), found)
        except EOFError:
            self.end()
            if self.left:
                self.blame(f"the process ended: exit code {self.process.exitcode}", found)
            return False
        if time.monotonic() - self.since > (SECONDS if self.failing is None else SECONDS_TO_SHRINK):
            self.end()
            self.blame("it takes too long", found)
            return False
        return True

    def take(self, message: Any, found: Found) -> None:
        if isinstance(message, list):               # the case is being made small
            self.failing, self.since = message, time.monotonic()
            return
        outcome, counts = message
        self.left, self.failing, self.since = self.left[1:], None, time.monotonic()
        found.cases += 1
        found.counts.add(counts)
        if outcome is False:
            found.unstable += 1
        elif outcome is not True:
            found.bugs.append(outcome)

    def blame(self, what: str, found: Found) -> None:
        found.bugs.append(Bug(self.left[0], [*(self.failing or ()), what]))
        self.left = self.left[1:]

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, seed: int, numbers: range, engine: Engine, examine: Examine) -> None:
    torch.set_num_threads(1)
    gc.freeze()             # each case collects garbage, and need not look at what was there before
    for number in numbers:
        engine.counts = Counts()
        try:
            outcome = examine(seed, number, engine, connection.send)
        except Exception:
            outcome = Bug(number, [traceback.format_exc()])
        connection.send((outcome, engine.counts))
