"""How many of CPython's own tests pass in our interpreter, of those that pass natively.

    python -m tests.cpython [MODULE …] [--mode interpreted|tracked] [--jobs N] [--limit SECONDS] [--json FILE]

Every module runs in processes of its own, natively and in frames of ours; a test that takes more than `--limit` seconds, or takes
its process down, has failed. Tests that fail, and are not listed with a reason in `differences.py`, are printed with their text.
With `--json` each result is kept, and the same command goes on where an earlier one was stopped; a higher `--limit` runs again what
took too long.
"""
from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.cpython.differences import DIFFERENCES
from tests.cpython.score import MODULES, TEST_LIMIT, Score, score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE")
    parser.add_argument("--mode", choices=("interpreted", "tracked"), default="interpreted")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=TEST_LIMIT, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    scores: list[Score] = []
    console = Console(stderr=True)
    with ThreadPoolExecutor(arguments.jobs) as pool, Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("CPython's tests", total=len(arguments.modules))
        for future in as_completed([pool.submit(score, name, arguments.mode, arguments.limit, arguments.json)
                                    for name in arguments.modules]):
            scores.append(future.result())
            progress.advance(task)
    scores.sort(key=lambda s: s.module)
    show(scores)
    return 1 if any(s.unexplained for s in scores) else 0


def show(scores: list[Score]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 132)
    table = Table("module", "pass natively", "pass in ours", "%", "explained", "not explained")
    for s in scores:
        add_row(table, s.module, [s])
    table.add_section()
    add_row(table, "all", scores)
    for s in scores:
        for test, text in s.unexplained.items():
            console.rule(f"[red]{test}", align="left")
            console.print(text, markup=False, highlight=False)
        for test in s.outdated:
            console.print(f"{test} passes; differences.py says: {DIFFERENCES[test]}", markup=False)
    console.print(table)


def add_row(table: Table, name: str, scores: list[Score]) -> None:
    passed, failed, unexplained = (sum(len(getattr(s, part)) for s in scores) for part in ("passed", "failed", "unexplained"))
    total = passed + failed
    share = f"{100 * passed / total:.2f}" if total else "–"
    table.add_row(name, str(total), str(passed), share, str(failed - unexplained), str(unexplained))


if __name__ == "__main__":
    sys.exit(main())
