"""Work in many threads at once, with a limit: of threads that do not come to an end it is told where they stand."""
from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

THREADS = 16
LIMIT = 200.0       # seconds that all threads together may take: less than a test may


def in_threads(work: Callable[[int], Any], count: int = THREADS, limit: float = LIMIT) -> list[Any]:
    """`work(number)` in each of `count` threads, started at the same moment: the results in order.

    Raises what one of them raised, or AssertionError with the stacks of those that have not ended after `limit` seconds. (As
    daemons they do not keep the process.)
    """
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(limit)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread for thread in threads if thread.is_alive()]
    assert not stuck, f"{len(stuck)} of {count} threads have not ended after {limit} s:\n" + "\n".join(map(stack, stuck))
    if errors:
        raise errors[0]
    return [results[number] for number in range(count)]


def stack(thread: threading.Thread) -> str:
    """Where a thread stands."""
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}:\n{''.join(traceback.format_stack(frame))}"


@contextlib.contextmanager
def switching_often(interval: float = 5e-5) -> Iterator[None]:
    """Threads take turns after `interval` seconds, which usually are a hundred times as many."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
