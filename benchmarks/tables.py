"""What `benchmarks.models` has measured: rows in a file of JSON lines, and tables of their ratios."""
from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass
class Figures:
    """Of one engine. Seconds, but `memory` in kilobytes; None where it was not measured.

    `first`, `compiled`: from compiling on with empty caches, until the first call and until one of compiled code has ended.
    `warm`: `compiled` in a second process. `steady`: of a call, in each round. `memory`: at the peak of a call. `note`: in words.
    """

    first: float | None = None
    compiled: float | None = None
    warm: float | None = None
    steady: list[float] = field(default_factory=list)
    memory: float | None = None
    note: str = ""


@dataclass
class Row:
    """One model in one mode, by engine. `seconds`: what measuring it took. `machine`: what figures must agree in to be compared."""

    model: str
    mode: str
    threads: int
    scale: str
    machine: str
    seconds: float = 0.0
    engines: dict[str, Figures] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.model, self.mode, self.threads, self.scale


Ratio = Callable[[Row], "float | None"]


def ratio(figure: str, ours: str, theirs: str) -> Ratio:
    """The column of one figure of an engine divided by that of another."""
    def of(row: Row) -> float | None:
        mine, other = (getattr(row.engines.get(name, Figures()), figure) for name in (ours, theirs))
        return None if mine is None or not other else mine / other
    return of


def steady(ours: str, theirs: str) -> Ratio:
    """The column of the median of the rounds' ratios: both were measured in turn."""
    def of(row: Row) -> float | None:
        rounds = [row.engines.get(name, Figures()).steady for name in (ours, theirs)]
        ratios = [mine / other for mine, other in zip(*rounds)]
        return statistics.median(ratios) if ratios else None
    return of


def eager_milliseconds(row: Row) -> str:
    """Eager's steady state: how large the model is."""
    rounds = row.engines.get("eager", Figures()).steady
    return f"{1000 * statistics.median(rounds):.1f}" if rounds else ""


COLUMNS: dict[str, Ratio] = {
    "first call / eager": ratio("first", "capture", "eager"),
    "compiled / inductor": ratio("compiled", "capture", "inductor"),
    "warm / inductor": ratio("warm", "capture", "inductor"),
    "steady / eager": steady("capture", "eager"),
    "steady / inductor": steady("capture", "inductor"),
    "frozen / eager": steady("capture_frozen", "eager"),
    "frozen / inductor": steady("capture_frozen", "inductor"),
    "frozen / inductor frozen": steady("capture_frozen", "inductor_frozen"),
    "memory / eager": ratio("memory", "capture", "eager"),
}


def append(path: Path, row: Row) -> None:
    """Adds a row to the file, as one line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> dict[tuple, Row]:
    """The rows of the file by key; of those measured more than once the last. None when there is no file."""
    rows: dict[tuple, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        values = json.loads(line)
        values["engines"] = {name: Figures(**figures) for name, figures in values["engines"].items()}
        row = Row(**values)
        rows.pop(row.key, None)
        rows[row.key] = row
    return rows


def notes(row: Row) -> str:
    return "; ".join(f"{name}: {figures.note}" for name, figures in row.engines.items() if figures.note)


def sections(rows: Iterable[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, header and lines of a table for each mode, number of threads and scale; the last lines sum up the columns.

    A column in which nothing was measured is left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        title = f"{row.mode}, {row.threads} thread{'s' * (row.threads > 1)}, {row.scale} models"
        groups.setdefault(title, []).append(row)
    for title, group in groups.items():
        columns = {name: [of(row) for row in group] for name, of in COLUMNS.items()}
        columns = {name: values for name, values in columns.items() if any(v is not None for v in values)}
        lines = [[row.model, eager_milliseconds(row), *(_text(values[i]) for values in columns.values()), notes(row)]
                 for i, row in enumerate(group)]
        known = [[v for v in values if v] for values in columns.values()]
        lines.append(["geometric mean", "", *(_text(statistics.geometric_mean(v)) if v else "" for v in known), ""])
        lines.append(["worst", "", *(_text(max(v)) if v else "" for v in known), ""])
        yield title, ["model", "eager ms", *columns, "notes"], lines


def show(rows: Iterable[Row], console: Console) -> None:
    """Tables for a terminal."""
    for title, header, lines in sections(rows):
        table = Table(*header, title=f"capture, divided by the others (smaller is better): {title}")
        for number, line in enumerate(lines):
            table.add_row(*map(escape, line), end_section=number == len(lines) - 3)
        console.print(table)


def markdown(rows: Iterable[Row]) -> str:
    """The same tables as text for a document."""
    parts = []
    for title, header, lines in sections(rows):
        table = [header, ["---"] * len(header), *lines]
        parts.append(f"**{title.capitalize()}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in table))
    return "\n\n".join(parts)


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"
