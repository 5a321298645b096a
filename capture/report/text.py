"""The explanation of a compiled function as plain text."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capture.pipeline import BreakReport, Unit


def explain(unit: Unit) -> str:
    """Every entry of the cache, in the order in which it is tried: what it requires, computes and does; or why calls
    like it run natively. Then the misses, each with the guard that failed."""
    entries = unit.tree.entries
    lines = [f"{unit.name}: {unit.captures} captured, {len(entries) - unit.captures} native, {len(unit.misses)} recaptures"]
    for number, entry in enumerate(entries):
        lines += ["", *(_native(number, entry) if entry.payload.broken else _captured(number, entry))]
    if unit.misses:
        lines += ["", "misses:", *(f"  {miss}" for miss in unit.misses)]
    if unit.uncounted:
        lines += ["", f"{unit.uncounted} calls ran natively without an entry: past the recapture limit, or on tensors that are not plain"]
    return "\n".join(lines)


def _captured(number: int, entry: Any) -> Iterator[str]:
    trace = entry.payload
    yield f"entry {number}: captured, {entry.hits} hits, {trace.operations} operations"
    if trace.tier is not None:
        first, *more = trace.tier.describe().splitlines()
        yield f"  native backend: the graph {first}"
        yield from (f"    {line}" for line in more)
    yield "  guards:"
    yield from (f"    {guard}" for guard in entry.guards)
    yield "  graph:"
    yield from _indented(trace.graph_module.code.strip())
    yield "  mock function:"
    yield from _indented(trace.mock.source.strip())


def _native(number: int, entry: Any) -> Iterator[str]:
    report: BreakReport = entry.payload.broken
    yield f"entry {number}: runs natively, {entry.hits} calls"
    yield f"  [{report.reason.id}] {report.context}: {report.reason.explanation}"
    yield from (f"    {frame}" for frame in report.stack)
    yield f"  remedy: {report.reason.remedy}"


def _indented(text: str) -> Iterator[str]:
    return (f"    {line}" for line in text.splitlines())
