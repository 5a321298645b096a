"""The report as data: what was captured, what was not and why, frame by frame.

Everything here is a frozen dataclass of strings, numbers and tuples: a report holds no object of the program, can be kept,
compared and written as JSON. Times are in seconds; `at` counts from the first capture of the process.
"""
from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capture.errors import ArgumentError, described
from capture.reports import text

if TYPE_CHECKING:
    from rich.text import Text

OF_SIZES = "sizes of tensors"      # the subject of conditions on them


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program, and its text."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


@dataclass(frozen=True, slots=True)
class Break:
    """Why a graph ended. `reason` is a stable identifier; `stack` holds the user's lines, outermost first."""

    reason: str
    context: str
    explanation: str
    remedy: str
    stack: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The guard that failed: its kind, what it is about, the values before and after, where the program read it, and a remedy."""

    kind: str
    subject: str
    before: str
    after: str
    place: Place | None
    remedy: str


@dataclass(frozen=True, slots=True)
class Recapture:
    """A call that no entry fitted: one change for each entry. `limited`: there were too many entries to add one."""

    at: float
    changes: tuple[Change, ...]
    limited: bool


@dataclass(frozen=True, slots=True)
class Node:
    """One operation, or input, of a graph. `inputs`: names of the nodes whose results it uses."""

    name: str
    kind: str                       # "input", "operation" or "output"
    label: str
    inputs: tuple[str, ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph: the number of its operations, its nodes in order, its code, and how the backend runs it (or empty). compiled: how
    many of its operations run in compiled code by now, None where the backend compiles none; slower: how many do not, since their
    kernels were measured to be slower."""

    operations: int
    nodes: tuple[Node, ...]
    code: str
    state: str
    compiled: int | None = None
    slower: int = 0


@dataclass(frozen=True, slots=True)
class Seconds:
    """What the capture took, stage by stage, and what a hit takes on average (None: no hit was timed)."""

    run: float
    mock: float
    graph: float
    guards: float
    hit_guards: float | None
    hit_graph: float | None
    hit_mock: float | None

    @property
    def capture(self) -> float:
        return self.run + self.mock + self.graph + self.guards


@dataclass(frozen=True, slots=True)
class Condition:
    """A guard: the object that it is about (or OF_SIZES), what it requires of the state of that object, in a few words (empty for
    guards on classes, functions and absent attributes), the whole guard as a Python expression, and the line that needed it."""

    subject: str
    words: str
    expression: str
    place: Place | None

    @property
    def is_of_sizes(self) -> bool:
        """Whether it relates sizes of tensors to each other, or to numbers."""
        return self.subject == OF_SIZES

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A size that may be another one in each call: its name, and where it is found; several sizes of one name are equal."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant in the cache. `outcome`: "captured"; "partial", up to a break; "native": calls like it run natively."""

    at: float
    outcome: str
    hits: int
    guards: tuple[Condition, ...]
    sizes: tuple[OpenSize, ...]
    graph: Graph | None
    mock: str
    broken: Break | None
    seconds: Seconds
    ran_natively: int = 0       # see Frame


@dataclass(frozen=True, slots=True)
class Departed:
    """Entries that were dropped because objects which they depend on have died: their number, and what was captured in them."""

    entries: int
    graphs: int
    operations: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One compiled function or module, and the continuations of its calls after breaks, in the order of their first captures.
    raised: captures that ended in an exception of the program. native_calls: calls that ran natively, by an entry or without one
    (`uncounted`; `native_reasons` says why, with numbers)."""

    name: str
    place: Place | None
    resumed: Break | None
    captures: int
    hits: int
    native_calls: int
    raised: int
    uncounted: int
    native_reasons: tuple[str, ...]
    entries: tuple[Entry, ...]
    breaks: tuple[Break, ...]
    bailouts: tuple[Break, ...]
    recaptures: tuple[Recapture, ...]
    continuations: tuple[Frame, ...]
    departed: Departed

    @property
    def graphs(self) -> int:
        """The number of graphs, those of continuations left out."""
        return sum(entry.graph is not None and entry.graph.operations > 0 for entry in self.entries) + self.departed.graphs

    @property
    def ran_natively(self) -> int:
        """The number of calls that entries fit, and that ran natively since something that they replace runs code as it dies."""
        return sum(entry.ran_natively for entry in self.entries)

    @property
    def operations(self) -> int:
        """The number of operations in them."""
        return sum(entry.graph.operations for entry in self.entries if entry.graph is not None) + self.departed.operations

    @property
    def compiled(self) -> int | None:
        """How many of these run in compiled code by now; None where no graph's backend compiles any."""
        return _sum(entry.graph.compiled for entry in self.entries if entry.graph is not None)

    @property
    def slower(self) -> int:
        """How many of these do not, since their kernels were measured to be slower."""
        return sum(entry.graph.slower for entry in self.entries if entry.graph is not None)

    def __str__(self) -> str:
        return text.plain(text.details(self))

    def __rich__(self) -> Text:
        return text.styled(text.details(self))

    def walk(self) -> Iterator[Frame]:
        """This frame, and those of its continuations."""
        yield self
        for frame in self.continuations:
            yield from frame.walk()


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of those that are known, if any is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Report:
    """All frames of the process, in the order of their first captures. Prints as a summary.

    remarks: sentences on what `python -m capture run` did not compile, and why.
    """

    frames: tuple[Frame, ...]
    remarks: tuple[str, ...] = ()

    def walk(self) -> Iterator[Frame]:
        """All frames, continuations included."""
        for frame in self.frames:
            yield from frame.walk()

    @property
    def operations(self) -> int:
        """The number of operations in all graphs."""
        return sum(frame.operations for frame in self.walk())

    @property
    def compiled(self) -> int | None:
        """See Frame."""
        return _sum(frame.compiled for frame in self.walk())

    @property
    def slower(self) -> int:
        """See Frame."""
        return sum(frame.slower for frame in self.walk())

    def json(self) -> str:
        """The whole tree."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def html(self, title: str = "capture") -> str:
        """One self-contained page."""
        from capture.reports import html  # which needs Jinja2: nobody else waits for its import
        return html.page(self, title)

    def _repr_html_(self) -> str:
        """The page within a cell of a notebook."""
        from capture.reports import html
        return html.cell(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the report to a file, as HTML, JSON or text by the end of its name. Raises OSError, and ArgumentError for anything
        that is no path."""
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"write takes the path of a file, got {described(path)}")
        kind = os.path.splitext(path)[1].lower()
        content = self.html() if kind in (".html", ".htm") else self.json() if kind == ".json" else f"{self}\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)

    def __str__(self) -> str:
        return text.plain(text.summary(self))

    def __rich__(self) -> Text:
        return text.styled(text.summary(self))
