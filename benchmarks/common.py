"""Paired measurements, their ratios, and how they are printed and written."""
from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Measure = Callable[[], float]


@dataclass(frozen=True)
class Ratio:
    """Ours divided by theirs, over all pairs of one subject. `goal` is the largest median that is good enough."""

    subject: str
    median: float
    low: float
    high: float
    goal: float

    @property
    def reached(self) -> bool:
        return self.median <= self.goal


def paired(subject: str, ours: Measure, theirs: Measure, pairs: int, goal: float) -> Ratio:
    """Measures both in turn, `pairs` times, so that whatever slows the machine for a while slows both."""
    ratios = []
    for number in range(pairs):
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        left, right = first(), second()
        ratios.append(left / right if number % 2 else right / left)
    low, median, high = statistics.quantiles(ratios, n=4) if pairs > 1 else ratios * 3
    return Ratio(subject, median, low, high, goal)


def seconds(function: Callable[[], object], calls: int = 1) -> float:
    """Wall time of one call, averaged over `calls`, without the garbage collector's pauses."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls
    finally:
        gc.enable()


def peak(function: Callable[[], object]) -> float:
    """The growth of the process's resident memory during one call, in kilobytes. Linux: reads /proc/self."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    function()
    return max(1.0, _status("VmHWM") - before)


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return float(line.split()[1])


def arguments(description: str | None, names: Iterable[str] = ()) -> argparse.Namespace:
    """The command line of a benchmark: `pairs`, `json`, and which of `names` to run (all by default)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pairs", type=int, default=9, help="measurements of each, in turn")
    parser.add_argument("--json", type=Path, help="write the ratios to this file as well")
    known = list(names)
    if known:
        parser.add_argument("names", nargs="*", default=known, metavar="name", help=f"some of: {', '.join(known)}")
    parsed = parser.parse_args()
    unknown = sorted(set(parsed.names) - set(known)) if known else []
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    return parsed


def report(title: str, ratios: list[Ratio], failures: dict[str, str], path: Path | None) -> None:
    """Prints a table, worst first, and writes the same figures to `path` as JSON."""
    table = Table("subject", "ratio", "quartiles", "goal", "", title=title)
    for r in sorted(ratios, key=lambda r: r.median / r.goal, reverse=True):
        verdict = "[green]reached[/]" if r.reached else "[red]missed[/]"
        table.add_row(r.subject, f"{r.median:.3f}", f"{r.low:.3f} – {r.high:.3f}", f"≤ {r.goal:.2f}", verdict)
    for subject, reason in failures.items():
        table.add_row(subject, "–", "–", "–", f"[red]failed[/]: {reason.splitlines()[0][:100]}" if reason else "failed")
    console = Console()
    console.print(table)
    if ratios:
        console.print(f"{sum(r.reached for r in ratios)} of {len(ratios)} reached; "
                      f"geometric mean {statistics.geometric_mean(r.median for r in ratios):.3f}")
    if path is not None:
        rows = {"title": title, "ratios": [asdict(r) for r in ratios], "failures": failures}
        path.write_text(json.dumps(rows, indent=2))


def in_empty_caches(command: Sequence[str], **environment: str) -> Any:
    """What a process that begins with empty caches of capture and torch prints as the last line, read as JSON. Raises
    CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": folder, **environment}
        done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])
