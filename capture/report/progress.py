"""The line that tells, on a terminal, what a blocking call waits for."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def status() -> Iterator[Callable[[int], None]]:
    """A function to call with the number of graphs that are left to compile; it shows nothing unless stderr is a terminal."""
    if not (sys.stderr is not None and sys.stderr.isatty()):
        yield lambda count: None
        return
    with Console(stderr=True).status("compiling") as line:
        yield lambda count: line.update(f"compiling {count} graph{'s' if count > 1 else ''}")
