"""What tests cost: CPU seconds by file, of the tests and of all processes below them, from every n-th test of each file, and from
`LEAST` of it, the first among them, at least.

    python -m tests.costs [--every N] [--tests] [arguments of pytest …]

Processes that others keep from running take more CPU seconds for the same work: compare what was measured side by side.
"""
from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
SHOWN = 40
LEAST = 6       # the first of them also pays for what a file needs once, so that one alone would tell little of the others


def adopting(run: Callable[[], int]) -> int:
    """What `run` returns, in a child of this process. This becomes the parent of all processes below that have lost theirs: a
    compiling process is nobody's child as soon as it has started."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    child = os.fork()
    if not child:
        return run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (ended := os.wait())[0] != child:
        pass
    return os.waitstatus_to_exitcode(ended[1])


def spent(pid: int) -> float:
    """The CPU seconds so far of a process and of all below it: also of those that have ended and were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:         # it has ended
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(spent, _children(pid)))


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def chosen(count: int, every: int) -> list[int]:
    """Which of a file's tests are run: the first, and others at equal distances."""
    wanted = min(count, max(LEAST, -(-count // every)))
    return [number * count // wanted for number in range(wanted)]


class Costs:
    """A plugin of pytest: runs every n-th test of each file, and notes what each has taken."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.counts: dict[str, int] = {}
        self.costs: dict[str, dict[str, float]] = defaultdict(dict)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = defaultdict(list)
        for item in items:
            files[item.location[0]].append(item)
        self.counts = {file: len(tests) for file, tests in files.items()}
        items[:] = [tests[number] for tests in files.values() for number in chosen(len(tests), self.every)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = spent(os.getppid())
        result = yield
        self.costs[item.location[0]][item.nodeid] = spent(os.getppid()) - before
        return result

    def of(self, file: str) -> float:
        """An estimate for all tests of a file. What a file needs once is taken by its first test."""
        first, *others = self.costs[file].values()
        return first + (self.counts[file] - 1) * (sum(others) / len(others) if others else first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--tests", action="store_true", help="the costs of tests, and not of files")
    options, arguments = parser.parse_known_args()
    costs = Costs(options.every)
    status = pytest.main(["-q", *arguments], plugins=[costs])
    files = {file: costs.of(file) for file in costs.costs}
    tests = {test: cost for of_file in costs.costs.values() for test, cost in of_file.items()}
    for name, cost in sorted((tests if options.tests else files).items(), key=lambda row: -row[1])[:SHOWN]:
        print(f"{cost:8.1f}  {name}")
    print(f"{sum(files.values()):8.1f}  all")
    return int(status)


if __name__ == "__main__":
    sys.exit(adopting(main))
