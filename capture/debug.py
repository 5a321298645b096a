"""What CAPTURE_DEBUG shows, on stderr: 1 cache decisions, 2 also guards, graphs and mock functions."""
from __future__ import annotations

import sys
from typing import Any

from capture.config import DEBUG


def say(level: int, text: str) -> None:
    """Prints `text` at a debug level."""
    if DEBUG.value >= level:
        print(f"capture: {text}", file=sys.stderr)


def captured(name: str, entry: Any) -> None:
    """A trace was installed."""
    if DEBUG.value >= 1:
        trace = entry.payload
        say(1, f"captured {name}: {trace.operations} operations, {len(entry.guards)} guards")
        say(2, "\n".join(["guards:", *(f"  {guard}" for guard in entry.guards), "graph:", trace.graph_module.code, "mock:", trace.mock.source]))


def broken(name: str, report: Any) -> None:
    """A trace was given up."""
    say(1, f"gave up {name}: [{report.reason.id}] {report.context}" + (f" at {report.stack[-1]}" if report.stack else ""))
