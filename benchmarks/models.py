"""Whole models under eager, torch.compile (inductor) and capture, the latter two also with frozen parameters.

    python -m benchmarks.models FILE [--models NAME …] [--modes inference training] [--threads 1 2] [--scale small|tiny]
                                     [--engines …] [--rounds N] [--row-limit SECONDS] [--limit MINUTES] [--again]
    python -m benchmarks.models FILE --table rich|markdown

Each row is appended to FILE as it is measured, and rows that are there are not measured again, so that a table can be
gathered in several runs; `--limit` starts no row after so many minutes. A row is a model, a mode and a number of threads:

- each engine compiles in a process of its own, with empty caches: first call, time until calls run compiled code;
- the processes run in turn, in rounds: the steady state; the medians of the rounds' ratios count;
- each engine compiles in a second process, with warm caches; there its memory is measured too, which a call needs beyond
  what the process holds between calls (what an engine keeps for its calls is freed before and counts).

An engine that is not done when the row's time is over is given up, and the row says so. Eager and the engines without frozen
parameters run in both modes, torch.compile with frozen ones on convolutional networks.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import tables
from benchmarks.engines import ENGINES, FORK, EngineError, EngineProcess, Setting
from benchmarks.tables import Figures, Row
from benchmarks.workloads import CONVOLUTIONAL, STEPS, TINY_ONLY, WORKLOADS, build

RESERVE = 0.3               # of a row's time, which cold compiling leaves to what comes after it
GRACE = 60.0                # seconds after which a row that is over is ended from outside


class Measurement:
    """The measurement of one row. `limit`: seconds that it may take."""

    def __init__(self, row: Row, setting: Setting, engines: list[str], rounds: int, limit: float) -> None:
        self.row, self.setting, self.rounds = row, setting, rounds
        self.deadline = time.monotonic() + limit
        self.cold_deadline = time.monotonic() + (1 - RESERVE) * limit
        self.row.engines = {name: Figures() for name in engines}

    def run(self) -> None:
        """Fills the row; what fails or takes too long is left out, and noted."""
        processes = {name: process for name in self.row.engines if (process := self._cold(name)) is not None}
        try:
            self._steady(processes)
        finally:
            for process in processes.values():
                process.close()
        for name in processes:
            self._warm(name)

    def _cold(self, name: str) -> EngineProcess | None:
        """The process of an engine that has compiled, and settled; None when it could not."""
        figures, process = self.row.engines[name], EngineProcess(name, self.setting)
        try:
            times = process.ask("start", self.cold_deadline)
            figures.first, figures.compiled = times["first"], times["compiled"]
            figures.note = process.ask("settle", self.deadline)
        except EngineError as error:
            figures.note = f"cold {error}"
            process.close()
            return None
        return process

    def _steady(self, processes: dict[str, EngineProcess]) -> None:
        with self._noted(self.row.engines.values()):
            for number in range(-1, self.rounds):               # the first round brings the caches of the machine up to date
                names = list(processes)[::-1 if number % 2 else 1]
                times = {name: processes[name].ask("steady", self.deadline) for name in names}
                for name, seconds in times.items() if number >= 0 else ():
                    self.row.engines[name].steady.append(seconds)

    def _warm(self, name: str) -> None:
        figures, process = self.row.engines[name], EngineProcess(name, self.setting, own_mappings=True)
        try:
            with self._noted([figures]):
                figures.warm = process.ask("start", self.deadline)["compiled"]
                process.ask("settle", self.deadline)
                figures.memory = process.ask("memory", self.deadline)
        finally:
            process.close()

    @contextlib.contextmanager
    def _noted(self, engines: Iterable[Figures]) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            for figures in engines:
                figures.note = "; ".join(filter(None, [figures.note, str(error)]))


def measure(row: Row, engines: list[str], rounds: int, limit: float) -> Row:
    """All figures of the row, measured in a process of its own, so that nothing of it is left. Raises EngineError when it died."""
    ours, theirs = FORK.Pipe()
    cache = Path(tempfile.mkdtemp(prefix="capture-benchmark-"))
    process = FORK.Process(target=_measure, args=(row, engines, rounds, limit, cache, theirs))
    start = time.monotonic()
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit + GRACE):
            raise EngineError("the row did not end")
        measured = ours.recv()
    except EOFError:
        raise EngineError("the row's process died") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        shutil.rmtree(cache, ignore_errors=True)
    measured.seconds = round(time.monotonic() - start, 1)
    return measured


def _measure(row: Row, engines: list[str], rounds: int, limit: float, cache: Path, connection: Connection) -> None:
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    module, inputs = build(row.model, row.scale)
    module.train(row.mode == "training")
    Measurement(row, Setting(module, inputs, row.mode, row.threads, cache), engines, rounds, limit).run()
    connection.send(row)


def engines_of(row: Row, wanted: list[str]) -> list[str]:
    """The engines, of those wanted, that say something about the row."""
    def fits(name: str) -> bool:
        frozen = name.endswith("_frozen")
        return not frozen or row.mode == "inference" and (name == "capture_frozen" or row.model in CONVOLUTIONAL)
    return [name for name in wanted if fits(name)]


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return f"{name}, {os.cpu_count()} CPUs, torch {torch.__version__}, Python {platform.python_version()}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", choices=("rich", "markdown"), help="print what FILE holds, and measure nothing")
    parser.add_argument("--models", nargs="+", metavar="NAME", choices=[*WORKLOADS, *TINY_ONLY])
    parser.add_argument("--modes", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--scale", choices=("small", "tiny"), default="small")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each engine's steady state")
    parser.add_argument("--row-limit", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="MINUTES")
    parser.add_argument("--again", action="store_true", help="measure also what is in FILE")
    return parser.parse_args()


def main() -> None:
    options, console = arguments(), Console(width=180)
    end, here = time.monotonic() + 60 * options.limit, machine()
    known = tables.read(options.file)
    rows = [Row(model, mode, threads, options.scale, here)
            for threads in options.threads for mode in options.modes
            for model in options.models or [*WORKLOADS, *(TINY_ONLY if options.scale == "tiny" else ())]]
    if options.table is None:
        for row in rows:
            if row.key in known and not options.again:
                continue
            if time.monotonic() >= end:
                console.print("out of time: the same command goes on where this one stopped")
                break
            try:
                measured = measure(row, engines_of(row, options.engines), options.rounds, options.row_limit)
            except EngineError as error:
                console.print(f"[red]{row.model}, {row.mode}, {row.threads} threads: {error}[/]")
                continue
            tables.append(options.file, measured)
            console.print(f"{row.model}, {row.mode}, {row.threads} threads: {measured.seconds:.0f} s")
    gathered = tables.read(options.file).values()
    if options.table == "markdown":
        print(tables.markdown(gathered))
    else:
        tables.show(gathered, console)


if __name__ == "__main__":
    main()
