"""Some of the situations; `python -m tests.processes` runs all of them."""
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.processes.run import problems
from tests.processes.situations import table

SITUATIONS = table()
TOGETHER = 3        # programs at a time, most of which wait
Running = dict[str, Future[list[str]]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """What is wrong in each situation that was chosen, as soon as its programs have ended."""
    names = [item.callspec.params["name"] for item in request.session.items if item.module is request.module]
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield {name: pool.submit(problems, SITUATIONS[name]) for name in names}


@pytest.mark.parametrize("name", [
    "all descriptors are closed, and files opened", "SIGPIPE ends the program, and the compiling process has died",
    "it waits for all children, and adopts orphans", "closed: no stream", "python -I, and a sitecustomize",
    "SIGKILL, while the compiler hangs",
    "a normal end, while the compiler hangs", "the compiling process is killed while the compiler hangs",
    "the keeper is killed while the compiler hangs"])
def test_a_situation(name: str, running: Running) -> None:
    assert running[name].result() == []
