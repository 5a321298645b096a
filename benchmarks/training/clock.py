"""What the scripts tell `benchmarks.scripts`: when each step ended, and which function one would compile by hand."""
from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = int(os.environ.get("BENCHMARK_STEPS", "200"))
_ends: list[float] = []


def tick() -> None:
    """A step has ended."""
    _ends.append(time.perf_counter())


def by_hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """The place at which one would compile the script by hand: compiled, if that is asked for."""
    if "BENCHMARK_BY_HAND" not in os.environ:
        return function
    import capture
    return capture.compile(function)


def _write() -> None:
    path = os.environ.get("BENCHMARK_RESULT")
    if path and os.environ.get("RANK", "0") == "0":
        Path(path).write_text(json.dumps(_ends))


atexit.register(_write)
