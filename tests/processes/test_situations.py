"""Some of the situations; `python -m tests.processes` runs all of them."""
from __future__ import annotations

import pytest

from tests.processes.run import problems
from tests.processes.situations import table

SITUATIONS = table()


@pytest.mark.parametrize("name", [
    "all descriptors are closed, and files opened", "SIGPIPE ends the program, and the compiling process has died",
    "it waits for all children, and adopts orphans", "closed: no stream", "python -I, and a sitecustomize",
    "SIGKILL, while the compiler hangs",
    "a normal end, while the compiler hangs", "the compiling process is killed while the compiler hangs",
    "the keeper is killed while the compiler hangs"])
def test_a_situation(name: str) -> None:
    assert problems(SITUATIONS[name]) == []
