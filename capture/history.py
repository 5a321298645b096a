"""What is kept of captures and misses, for reports: plain data that holds no object of the program."""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from capture.errors import Reason, UserFrame
from capture.guards.explain import Mismatch
from capture.refgraph.source import DESCRIPTIONS, Computed, Local, Source, named


@dataclass(slots=True)
class Times:
    """When a capture began, as `time.perf_counter()`, and the seconds that each stage of it took: running the program in the
    interpreter, writing the mock function, handing the graph to the backend, and building the guards."""

    start: float
    run: float = 0.0
    mock: float = 0.0
    graph: float = 0.0
    guards: float = 0.0

    @property
    def total(self) -> float:
        return self.run + self.mock + self.graph + self.guards

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the time of a `with` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - start)


@dataclass(slots=True, eq=False)
class BreakReport:
    """Why a trace ended: `stack` is the user's, outermost first."""

    reason: Reason
    context: str
    stack: tuple[UserFrame, ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one entry did not fit a call: the guard's kind (None: a value that it passes along is missing), what differs, its value
    when the entry was made, its value now, and the user's line that read it when the entry was made."""

    kind: str | None
    subject: str
    expected: str
    found: str
    place: UserFrame | None

    def __str__(self) -> str:
        return f"{named(self.subject)}: expected {self.expected}, got {self.found}"


@dataclass(frozen=True, slots=True)
class Miss:
    """A call that no entry fitted: when, and why each entry did not. `limited`: it was not captured, because there are too many
    entries."""

    time: float
    causes: tuple[Cause, ...]
    limited: bool

    def __str__(self) -> str:
        return "; ".join(map(str, self.causes))


@dataclass(slots=True)
class Counts:
    """Sums over cache entries: their number, the calls that they served (as graphs, natively), and the graphs, operations and
    guards in them."""

    entries: int = 0
    hits: int = 0
    native_calls: int = 0
    graphs: int = 0
    operations: int = 0

    def add(self, other: Counts) -> None:
        """Adds the counts of another."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def clear(self) -> None:
        """Sets all counts to zero."""
        for field in fields(self):
            setattr(self, field.name, field.default)


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    result = Counts()
    for one in counts:
        result.add(one)
    return result


# Why calls run natively without an entry. Unit.natively counts them by these words, and reports say them.
LIMITED = "past the recapture limit"
DEFERRED = "for now: captures of calls like them were never hit, or captures have taken too much of the time"
LOOKED_AT = "to see in what the next call differs"
DISABLED = "under CAPTURE_DISABLE"
STANCE = "under a stance of torch.compiler"
UNKNOWN_TENSORS = "on tensors of unknown classes"
OTHER_CALL = "by another __call__ of the module's class"
UNINITIALIZED = "to initialise a lazy module"
PREPARING = "to prepare what later calls use"
FORKED = "in a process that was forked meanwhile"
TRACED = "while a debugger or a coverage tool traced lines"


@dataclass(frozen=True, slots=True)
class Gone:
    """The record that is kept of a compiled function after its death. `breaks`: its breaks and those of its continuations."""

    name: str
    place: UserFrame
    start: float            # of its first capture
    captures: int
    raised: int
    natively: Mapping[str, int]         # calls without an entry, by the reason
    counts: Counts          # of its entries, and those of its continuations; with the native calls that had none
    breaks: tuple[BreakReport, ...]
    misses: tuple[Miss, ...]


def miss_of(mismatches: Iterable[Mismatch], labels: Mapping[str, str], limited: bool) -> Miss:
    """The record of a miss, made now. labels: the user's names for parameters that have other names here."""
    causes = [Cause(None if m.guard is None else m.guard.kind.name, subject_of(m, labels), m.expected, m.found,
                    None if m.guard is None else m.guard.place) for m in mismatches]
    return Miss(time.perf_counter(), tuple(causes), limited)


def subject_of(mismatch: Mismatch, labels: Mapping[str, str]) -> str:
    """The path of what differs, as the user would write it."""
    source = None if mismatch.guard is None else mismatch.guard.source
    if source is None:
        return mismatch.subject
    text = str(labelled(source, labels))
    return text[1:-1] if isinstance(source, Computed) and text.startswith("(") else text


def labelled(source: Source, labels: Mapping[str, str]) -> Source:
    """A path with the user's names for parameters."""
    if isinstance(source, Local):
        return Local(labels.get(source.name, source.name), source.index)
    if isinstance(source, Computed) and source.op in DESCRIPTIONS:
        return Local(DESCRIPTIONS[source.op], 0)
    if isinstance(source, Computed):
        return replace(source, args=tuple(labelled(arg, labels) for arg in source.args))
    if source.base is None:
        return source
    base = labelled(source.base, labels)
    return replace(source, base=Local(f"({base.name})", base.index) if isinstance(base, Local) and " " in base.name else base)  # type: ignore[type-var]
