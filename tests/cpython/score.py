"""Runs modules of CPython's tests in processes of their own, and compares what passes natively with what passes in ours."""
from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cpython.differences import DIFFERENCES

ROOT = Path(__file__).resolve().parents[2]
MODULES = tuple("test_" + name for name in (
    "grammar generators coroutines asyncgen contextlib exceptions exception_group except_star with scope descr super class "
    "subclassinit metaclass property decorators dataclasses enum functools itertools collections dict dictcomps list set setcomps "
    "tuple iter listcomps genexps named_expressions unpack unpack_ex extcall keywordonlyarg positional_only_arg patma fstring "
    "format operator copy weakref heapq json decimal datetime re string typing types abc call raise yield_from").split())
TEST_LIMIT = 300        # seconds for one test, by the mode that is slower


@dataclass
class Outcomes:
    """What became of a module's tests in one mode: id -> passed, failed, skipped, crashed or timed out; and texts of failures."""

    module: str
    mode: str
    outcome: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)


def run_module(module: str, mode: str, limit: float = TEST_LIMIT, only: Sequence[str] | None = None) -> Outcomes:
    """Runs a module's tests, or some of them. One that takes the process down, or more than `limit` seconds, is noted, and a new
    process goes on with those not yet run."""
    outcomes = Outcomes(module, mode)
    selection = () if only is None else ("--only", *only)
    while (last := _run_process(module, mode, limit, selection, outcomes)) is not None:
        if last == "":      # it died before the first test, or between two
            outcomes.outcome[f"test.{module}"] = "crashed"
            break
    return outcomes


def _run_process(module: str, mode: str, limit: float, selection: tuple[str, ...], outcomes: Outcomes) -> str | None:
    """Runs what has no outcome yet; the id of the test that ended the process, or None when all were run."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.cpython.worker", module, mode, *selection,
               "--without", *outcomes.outcome]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "CAPTURE_STRICT": "1"}
    with (tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors,
          _ended(subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=errors, start_new_session=True)) as process,
          selectors.DefaultSelector() as ready):
        assert process.stdout is not None
        ready.register(process.stdout, selectors.EVENT_READ)
        current, buffer = "", b""
        while ready.select(limit):
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if line["outcome"] == "finished":
                    return None
                if line["outcome"] == "started":
                    current = line["id"]
                else:
                    outcomes.outcome[line["id"]] = line["outcome"]
                    outcomes.text[line["id"]] = line["text"]
                    current = ""
        else:
            outcomes.outcome[current] = "timed out"
            return current
        process.wait()
        errors.seek(0)
        outcomes.outcome[current] = "crashed"
        outcomes.text[current] = errors.read()[-2000:].decode(errors="replace")
        return current


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block, however this ends, nor do those it has started."""
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Score:
    """Of the tests of a module that pass natively: which pass in ours, and which do not."""

    module: str
    passed: tuple[str, ...]
    failed: dict[str, str]      # id -> outcome and text

    @property
    def unexplained(self) -> dict[str, str]:
        return {test: text for test, text in self.failed.items() if test not in DIFFERENCES}

    @property
    def outdated(self) -> list[str]:
        """Differences on the list that are none any more."""
        return [test for test in self.passed if test in DIFFERENCES]


def compare(native: Outcomes, ours: Outcomes) -> Score:
    passing = [test for test, outcome in native.outcome.items() if outcome == "passed"]
    passed = tuple(test for test in passing if ours.outcome.get(test) == "passed")
    failed = {test: f"{ours.outcome.get(test, 'not run')}\n{ours.text.get(test, '')}"
              for test in passing if test not in set(passed)}
    return Score(native.module, passed, failed)


def score(module: str, mode: str = "interpreted", limit: float = TEST_LIMIT) -> Score:
    """Runs a module natively and in ours. What fails there runs again in a process of its own: it may suffer from what a test
    before it has left behind."""
    native, ours = run_module(module, "native", limit), run_module(module, mode, limit)
    for test in compare(native, ours).unexplained:
        if ours.outcome.get(test) != "timed out":
            alone = run_module(module, mode, limit, [test])
            ours.outcome |= alone.outcome
            ours.text |= alone.text
    return compare(native, ours)
