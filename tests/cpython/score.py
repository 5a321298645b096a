"""Runs modules of CPython's tests in processes of their own, and compares what passes natively with what passes in ours."""
from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests import forkserver
from tests.cpython.differences import DIFFERENCES

ROOT = Path(__file__).resolve().parents[2]
MODULES = tuple("test_" + name for name in (
    "grammar generators coroutines asyncgen contextlib exceptions exception_group except_star with scope descr super class "
    "subclassinit metaclass property decorators dataclasses enum functools itertools collections dict dictcomps list set setcomps "
    "tuple iter listcomps genexps named_expressions unpack unpack_ex extcall keywordonlyarg positional_only_arg patma fstring "
    "format operator copy weakref heapq json decimal datetime re string typing types abc call raise yield_from").split())
TEST_LIMIT = 300        # seconds for one test, by the mode that is slower
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "CAPTURE_STRICT": "1"}
# What the processes that run tests have imported when they begin. Natively, nothing of torch's.
IMPORTED = {"native": ("doctest", "unittest", "test.support")}
INTERPRETER = ("torch", "capture.api", "tests.interp.worlds", f"{__package__}.worker:know_files")


@dataclass
class Outcomes:
    """What became of a module's tests in one mode: id -> passed, failed, skipped, crashed or timed out; and texts of failures.
    `limit`: seconds for one test; `file`: where each outcome is kept as well, as a line of JSON."""

    module: str
    mode: str
    limit: float = TEST_LIMIT
    file: Path | None = None
    outcome: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    finished: bool = False      # no test is left

    @classmethod
    def kept(cls, module: str, mode: str, limit: float, file: Path | None) -> Outcomes:
        """With what a file knows. What timed out under a lower limit is to run again."""
        self, again = cls(module, mode, limit, file), set()
        for line in map(json.loads, file.read_text().splitlines() if file is not None and file.exists() else ()):
            if (line["module"], line["mode"]) != (module, mode):
                continue
            if line["outcome"] == "finished":
                self.finished = True
            else:
                self.outcome[line["id"]], self.text[line["id"]] = line["outcome"], line["text"]
                (again.add if line["outcome"] == "timed out" and line["limit"] < limit else again.discard)(line["id"])
        for test in again:
            del self.outcome[test], self.text[test]
        self.finished &= not again
        return self

    def note(self, test: str, outcome: str, text: str = "") -> None:
        """A test's outcome, or that all are `finished`."""
        if outcome == "finished":
            self.finished = True
        else:
            self.outcome[test], self.text[test] = outcome, text
        if self.file is not None:
            fields = {"module": self.module, "mode": self.mode, "limit": self.limit, "id": test, "outcome": outcome, "text": text}
            with self.file.open("ab", buffering=0) as file:         # a line at a time, for other threads write there too
                file.write(json.dumps(fields).encode() + b"\n")


def run_module(outcomes: Outcomes, only: Sequence[str] | None = None, without: Sequence[str] = ()) -> None:
    """Runs those of a module's tests, or of some of them, that have no outcome yet. One that takes the process down, or more than
    the limit, is noted, and a new process goes on with the others."""
    selection = () if only is None else ("--only", *only)
    while not outcomes.finished:
        _run_process(outcomes, (*selection, "--without", *without, *outcomes.outcome))


def _run_process(outcomes: Outcomes, selection: tuple[str, ...]) -> None:
    """Runs what has no outcome yet, in one process, for as long as that lives."""
    command = ["-m", "tests.cpython.worker", outcomes.module, outcomes.mode, *selection]
    with (tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors,
          _started(outcomes.mode, command, folder, errors) as (process, results), selectors.DefaultSelector() as ready):
        ready.register(results, selectors.EVENT_READ)
        current, buffer = "", b""
        while timely := bool(ready.select(outcomes.limit)):
            chunk = os.read(results.fileno(), 1 << 16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if line["outcome"] == "started":
                    current = line["id"]
                else:
                    outcomes.note(line["id"], line["outcome"], line["text"])
                    current = ""
        if outcomes.finished:
            return
        text = ""
        if timely:
            process.wait()
            errors.seek(0)
            text = errors.read()[-2000:].decode(errors="replace")
        outcomes.note(current or f"test.{outcomes.module}", "crashed" if timely else "timed out", text)
        outcomes.finished = not current     # before the first test, or between two: another process would not get further


@contextlib.contextmanager
def _started(mode: str, command: Sequence[str], folder: str, errors: IO[bytes]) -> Iterator[tuple[forkserver.Process, IO[bytes]]]:
    """A process, and what it prints. It does not outlive the block, however this ends, nor do those it has started."""
    server = forkserver.server(IMPORTED.get(mode, INTERPRETER), ("-X", "faulthandler"), **ENVIRONMENT)
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as results:
        with open(writing, "wb", buffering=0) as output:
            process = server.start(command, output, errors, folder, os.environ | ENVIRONMENT)
        try:
            yield process, results
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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


def score(module: str, mode: str = "interpreted", limit: float = TEST_LIMIT, file: Path | None = None) -> Score:
    """Runs a module natively and in ours, but for what a file knows already. What fails there runs again in a process of its own:
    it may suffer from what a test before it has left behind. Tests that are known to fail leave the most, and run by themselves."""
    native, ours = (Outcomes.kept(module, each, limit, file) for each in ("native", mode))
    run_module(native)
    known = [test for test in native.outcome if test in DIFFERENCES and test not in ours.outcome]
    run_module(ours, without=known)
    if known:
        _run_apart(ours, known)
    for test in compare(native, ours).unexplained:
        if ours.outcome.get(test) != "timed out":
            _run_apart(ours, [test])
    return compare(native, ours)


def _run_apart(outcomes: Outcomes, tests: Sequence[str]) -> None:
    """Runs tests in a process of their own, whatever is known of them."""
    alone = Outcomes(outcomes.module, outcomes.mode, outcomes.limit)
    run_module(alone, tests)
    for test, outcome in alone.outcome.items():
        outcomes.note(test, outcome, alone.text[test])
