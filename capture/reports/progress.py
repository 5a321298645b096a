"""The line that tells, on a terminal, what takes long. Nothing is shown, nor any stream of the program touched, elsewhere."""
from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

DELAY = 1.0         # seconds after which a capture is long
_shown = threading.Lock()


def on_terminal() -> bool:
    """Whether somebody may be looking. What the program has put in the place of standard error may know no answer, or be closed."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def line(text: str) -> Live:
    """A line with a spinner, which is gone at the end. The program's own streams stay what they are."""
    state = random.getstate()
    from rich.console import Console  # it draws from the program's random numbers when it is imported
    from rich.live import Live
    random.setstate(state)
    return Live(spinner(text), console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)


def spinner(text: str) -> Spinner:
    from rich.spinner import Spinner
    return Spinner("dots", text)


@contextlib.contextmanager
def status() -> Iterator[Callable[[int], None]]:
    """A function to call with the number of graphs that are left to compile."""
    if not on_terminal():
        yield lambda count: None
        return
    with line("compiling") as shown:
        yield lambda count: shown.update(spinner(f"compiling {count} graph{'s' if count > 1 else ''}"))


@contextlib.contextmanager
def capturing(name: str) -> Iterator[None]:
    """Tells that a call is being captured, once that has taken a while. Of captures inside of captures the outermost counts."""
    if not on_terminal() or not _shown.acquire(blocking=False):
        yield
        return
    shown, over = line(f"capturing {name}"), threading.Event()

    def show() -> None:
        if not over.wait(DELAY):
            with shown:
                over.wait()
    thread = threading.Thread(target=show, name="capture progress", daemon=True)
    try:
        thread.start()
        yield
    finally:
        over.set()
        thread.join()
        _shown.release()
