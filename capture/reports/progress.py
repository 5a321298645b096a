"""The progress line on a terminal, for compiling and for long captures. Without a terminal nothing is shown, and no stream of the
program is touched."""
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
    """Whether standard error is a terminal. The program may have replaced it by an object that cannot tell, or closed it."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def line(text: str) -> Live:
    """A line with a spinner, removed at the end. The streams of the program stay what they are."""
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
    """Shows that a call is being captured, once that takes a while. Of nested captures only the outermost is shown."""
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
