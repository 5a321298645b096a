"""One compiled function: its settings, its cache, and the record of its calls. Also the list of all compiled functions, with those
that have died."""
from __future__ import annotations

import functools
import math
import sys
import time
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from capture import _C
from capture.admission import LEARNED, MOST_UNHIT, Admission, Spending
from capture.backends import registry, varying
from capture.config import FREE_SIZES, RECAPTURE_LIMIT
from capture.errors import UserFrame
from capture.guards.explain import Mismatch
from capture.guards.supersession import supersedes
from capture.guards.tree import GuardTree
from capture.history import DEFERRED, LIMITED, LOOKED_AT, OTHER_CALL, TRACED, BreakReport, Counts, Gone, Miss, Times, total
from capture.interp.breaks import continuation_code, continuations
from capture.interp.breaks.early_breaks import EarlyBreaks
from capture.interp.recording.scalar_specialization import Numbers
from capture.refgraph import pycode
from capture.refgraph.given_values import Given
from capture.refgraph.shape_specs import Spec
from capture.refgraph.shapes import Shapes
from capture.resumption import Resumption, natively

MOST_ENTRIES = 64       # that a guard tree takes


@dataclass(slots=True, eq=False)
class Trace:
    """What a cache entry knows of its capture. `broken`: why an entry runs natively; `tier`: the state of the graph in the native
    backend."""

    graph_module: torch.fx.GraphModule | None = None
    mock: pycode.PythonCode | None = None
    broken: BreakReport | None = None
    kind: int = 0                   # of the call that was captured (`_C.call_kind`)
    operations: int = 0
    repeatable: bool = False        # the graph changes nothing, or its changes are undone if it fails
    compiled: Callable[..., Any] | None = None
    times: Times = field(default_factory=lambda: Times(time.perf_counter()))
    derived: tuple[Any, ...] = ()   # objects that the guards look at, and nobody else has

    @property
    def tier(self) -> Any:
        return self.compiled.tier if isinstance(self.compiled, _C.Switch) else None


def counts_of(entry: Any) -> Counts:
    """The counts of one entry."""
    trace: Trace = entry.payload
    if trace.graph_module is None:
        return Counts(1, native_calls=entry.hits)
    return Counts(1, entry.hits, entry.ran_natively, int(trace.operations > 0), trace.operations)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Unit:
    """One compiled function: its settings, its cache, and the record of its calls. `compiled` is the function that users call."""

    function: types.FunctionType
    backend: Callable[..., Any]
    fullgraph: bool
    name: str
    compiled: Any = field(init=False)
    handlers: tuple[Callable[..., Any], Callable[..., Any]] = field(init=False)     # see `compile`; those of continuations, too
    tree: GuardTree = field(init=False)                 # of the code that the function has
    former: list[GuardTree] = field(default_factory=list)               # … that it had
    captures: int = 0
    misses: list[Miss] = field(default_factory=list)
    breaks: list[BreakReport] = field(default_factory=list)
    bailouts: list[BreakReport] = field(default_factory=list)
    parent: Unit | None = None          # of a continuation: whose trace it follows
    resumed: BreakReport | None = None  # … and why that ended
    resumption: Resumption | None = None        # … which leads to it
    resumptions: dict[Any, Resumption] = field(default_factory=dict)     # by position; of the whole family of units
    bodies: dict[continuations.Position, types.CodeType] = field(default_factory=dict)     # … those of generators
    rests: dict[tuple[continuations.Position, ...], continuation_code.Codes] = field(default_factory=dict)      # … see `rest`
    early_breaks: EarlyBreaks = field(default_factory=EarlyBreaks)      # of the whole family of units
    labels: Mapping[str, str] = field(default_factory=dict)             # of a continuation: what users know its parameters as
    shapes: Shapes = field(default_factory=Shapes)                      # … and which of its tensors have any
    raised: int = 0                     # captures that ended in the program's own exception: nothing of them is replayed
    uncounted: Counter[str] = field(default_factory=Counter)            # native calls without an entry, by the reason
    limited: bool = False
    numbers: Numbers = field(default_factory=Numbers)       # which of those that enter operations change from call to call
    admission: Admission = field(default_factory=Admission)
    spending: Spending = field(default_factory=Spending)                # of the whole family of units
    departed: Counts = field(default_factory=Counts)        # of the entries that are gone
    start: float = math.inf             # of the first capture
    most: int | None = None             # entries of the function; None: as the flag says
    dynamic: bool | None = None         # whether a trace holds for all sizes; None: as FREE_SIZES says
    spec: Spec | None = None            # what the program says of sizes
    looks_first: bool = False           # the next call runs natively, to see in what the one after it differs
    learned: int = 0                    # how much of what varies in its calls is on disk

    def __post_init__(self) -> None:
        wanted = bool(FREE_SIZES) or self.spec is not None if self.dynamic is None else self.dynamic
        if wanted and registry.takes_sizes(self.backend):
            self.shapes.take_sizes(self.dynamic is True, self.spec)
        departed, admission = self.departed, self.admission

        def died(entry: Any) -> None:
            departed.add(counts_of(entry))
            admission.lost(entry.payload.kind, entry.payload.times.start, entry.hits > 0)
        self.tree = GuardTree(self.function.__code__, died)
        key = id(self)
        UNITS[key] = weakref.ref(self, functools.partial(UNITS.pop, key))       # C: an interrupt of the program is not lost in it

    def compile(self, miss: Callable[..., Any], failed: Callable[..., Any]) -> None:
        """Makes `compiled`. Told of this unit, `miss` performs calls that no entry fits, and `failed` those whose entry failed."""
        self.handlers = miss, failed
        told = (functools.partial(handler, self) for handler in self.handlers)
        self.compiled = _C.CompiledFunction(self.function, self.tree, *told)
        functools.update_wrapper(self.compiled, self.function)

    def leave_to_cpython(self) -> None:
        """Makes `compiled` of a function that is not to be captured."""
        self.compiled = natively(self.function.__code__, self.function.__globals__)

    def follow(self, tree: GuardTree) -> None:
        """Entries go into `tree` from now on, since `__code__` of the function was assigned to. Those of dead code are dropped."""
        if tree is self.tree:
            return
        tree.succeed(self.tree)
        known = [self.tree, *(other for other in self.former if other is not tree)]
        for gone in (other for other in known if other.code is None):
            self.departed.add(total(map(counts_of, gone.entries)))
            gone.clear()
        self.tree, self.former = tree, [other for other in known if other.code is not None]

    @property
    def root(self) -> Unit:
        """The compiled function whose break this one continues, directly or through other continuations; this one if it is no
        continuation."""
        unit = self
        while unit.parent is not None:
            unit = unit.parent
        return unit

    @property
    def family(self) -> list[Unit]:
        """This function and all continuations of it, to which other threads may be adding."""
        return [self, *(unit for resumption in list(self.resumptions.values()) for unit in resumption.units)]

    @property
    def alive(self) -> Counts:
        """Counts of the present entries."""
        return total(counts_of(entry) for tree in (self.tree, *self.former) for entry in tree.entries)

    @property
    def counts(self) -> Counts:
        """Counts of all entries, present and past. Native calls include those without an entry."""
        return total([self.alive, self.departed, Counts(native_calls=self.natively.total())])

    @property
    def natively(self) -> Counter[str]:
        """The native calls that no entry counts, by the reason."""
        return self.uncounted + Counter({TRACED: self.compiled.traced, LIMITED: self.compiled.refused,
                                         DEFERRED: self.compiled.deferred})

    def meet(self, given: Iterable[Given]) -> None:
        """Notes what a call is given that runs natively. What differs in the first one that is captured is known to vary, so that
        one capture serves both."""
        self.looks_first = False
        for value in given:
            if value.size is not None:
                self.shapes.meet(value.source, value.size, value.stride)
            else:
                self.numbers.varies(value.source, value.number)

    @property
    def looked_at(self) -> int:
        """How many calls ran natively to see in what the next one differs."""
        return self.uncounted[LOOKED_AT]

    def begin(self, start: float) -> None:
        """A capture begins."""
        self.start = min(self.start, start)

    def note_other_call(self) -> None:
        """A call of a module runs natively, because its class has got another `__call__`."""
        self.note_native(OTHER_CALL)

    def note_native(self, reason: str) -> None:
        """A call runs natively, without an entry."""
        self.uncounted[reason] += 1

    def note_raised(self) -> None:
        """A capture has ended in the program's own exception."""
        self.raised += 1

    def note_break(self, report: BreakReport) -> None:
        """A trace has ended at a break."""
        self.breaks.append(report)

    def note_bailout(self, report: BreakReport) -> None:
        """A trace was given up for a reason that is none of the program's."""
        self.bailouts.append(report)

    def note_miss(self, miss: Miss) -> None:
        """No entry fitted a call."""
        self.misses.append(miss)
        self.limited |= miss.limited

    def add_entry(self, *parts: Any) -> Any:
        """Adds an entry that was captured (`GuardTree.insert`)."""
        entry = self.tree.insert(*parts)
        self.captures += 1
        return entry

    def add_resumption(self, position: Any, resumption: Resumption) -> None:
        """Notes where the program goes on after a break at a position."""
        self.resumptions[position] = resumption

    def rest(self, frames: list[continuations.Suspended]) -> continuation_code.Codes:
        """The continuations of the frames of a call that CPython finishes after a break: those known already, or new ones."""
        key = tuple(frame.position for frame in frames)
        known = self.rests.get(key)
        if known is None:
            known = self.rests[key] = continuation_code.build(frames)
        return known

    @property
    def limit(self) -> int:
        """The number of entries for calls of one kind after which these run natively, and that of kinds; of a continuation, for
        each entry of the function it continues."""
        variants = 1 if self.parent is None else max(1, len(self.root.tree.entries))
        return min((self.most or RECAPTURE_LIMIT.value) * variants, MOST_ENTRIES)

    def is_full(self, kind: int) -> bool:
        """Whether there are too many entries to add one for a call of this kind. Those of other kinds are counted by themselves."""
        kinds = [entry.payload.kind for entry in self.tree.entries]
        limit = self.limit
        return kinds.count(kind) >= limit or len(kinds) >= MOST_ENTRIES or kind not in kinds and len(set(kinds)) >= limit

    def note_superseded(self, entries: list[Any], start: float) -> None:
        """Notes which of these entries one that was captured after `start` supersedes. They serve only the sizes that it does not,
        so that its graph is the only one that is worth compiling."""
        for latest in (entry for entry in self.tree.entries if entries and entry.payload.times.start >= start):
            guards = latest.guards
            for entry in entries:
                if supersedes(guards, entry.guards):
                    entry._supersede()

    def superseded(self, kind: int) -> Any:
        """An entry for calls of this kind that may be dropped where there are too many, since another one fits all that it fits."""
        return next((entry for entry in self.tree.entries if entry.payload.kind == kind and entry.superseded), None)

    def drop(self, entry: Any) -> None:
        """Takes an entry out of the cache."""
        entry._kill()
        self.departed.add(counts_of(entry))

    def defers(self, kind: int, mismatches: list[Mismatch]) -> bool:
        """Whether a call of this kind, which no entry fits, is not captured yet (`Admission`, `Spending`). Under `fullgraph` each
        call is a graph, or an error."""
        mismatches = [mismatch for mismatch in mismatches if mismatch.entry.payload.kind == kind]
        if self.fullgraph or not self._is_too_costly(mismatches) and self._is_due(kind, mismatches):
            return False
        pause = self.admission.pause(kind)
        if pause:
            self.compiled._refuse(kind, pause)
        return True

    def _is_too_costly(self, mismatches: list[Mismatch]) -> bool:
        """Whether captures have taken too much of the time, and this one is neither among the first nor learns of a size."""
        urgent = self.parent is None and (self.captures < MOST_UNHIT or any(
            mismatch.is_of_layout and self._learns_from(mismatch) for mismatch in mismatches))
        return not urgent and self.spending.is_too_large(time.perf_counter())

    def _is_due(self, kind: int, mismatches: list[Mismatch]) -> bool:
        """Whether a call is worth a capture by now. A continuation is captured where the call was that it is a part of."""
        if self.parent is not None or any(map(self._learns_from, mismatches)):
            return True
        captures = [(entry.payload.times.start, entry.hits > 0) for entry in self.tree.entries if entry.payload.kind == kind]
        return self.admission.admits(kind, captures, mismatches)

    def _learns_from(self, mismatch: Mismatch) -> bool:
        """Whether a capture can do without what this entry expects, and has not been found to need it all the same. Of one that is
        superseded nothing is to be learned: another one does without."""
        guard = mismatch.guard
        if guard is None or mismatch.entry.superseded or self.numbers.changes_often(guard.source, guard.kind.name):      # type: ignore[arg-type]
            return False
        if guard.kind.name == "TENSOR":
            return self.shapes.takes_sizes and mismatch.is_of_layout
        return guard.kind.name in LEARNED

    @property
    def remembers(self) -> bool:
        """Whether what varies is known from earlier processes, and kept for later ones."""
        return self.shapes.takes_sizes and registry.keeps_on_disk(self.backend)

    def recall(self) -> None:
        """Before the first capture: takes over what the program says to vary, and what earlier processes have found."""
        if self.shapes.spec is not None:
            self.numbers.note_varying(path for path, said in self.shapes.spec.numbers.items() if type(said) is not int)
        if self.remembers:
            known = varying.recall(varying.key_of(self.function.__code__, self.name))
            self.shapes.foresee(known.sizes)
            self.numbers.note_varying(known.numbers)
            self.learned = self._found

    def remember(self) -> None:
        """Keeps what has been found to vary, if that is more than before."""
        if self.remembers and self._found > self.learned:
            self.learned = self._found
            varying.keep(varying.key_of(self.function.__code__, self.name),
                         varying.Varying(self.shapes.changing, set(self.numbers.varying)))

    @property
    def _found(self) -> int:
        return sum(map(len, self.shapes.changing.values())) + len(self.numbers.varying)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.parent is None and self.start < math.inf and not is_finalizing():
            family, code = self.family, self.function.__code__
            GONE.append(Gone(self.name, UserFrame.at(code, code.co_firstlineno), self.start,
                             sum(unit.captures for unit in family), sum(unit.raised for unit in family),
                             sum((unit.natively for unit in family), Counter()),
                             total(unit.counts for unit in family),
                             tuple(report for unit in family for report in unit.breaks), tuple(self.misses)))

    def forget(self) -> None:
        """Drops all entries and counts, and all continuations."""
        for unit in self.family[1:]:
            unit.tree.clear()
        self.resumptions.clear()
        self.bodies.clear()
        self.rests.clear()
        for tree in (self.tree, *self.former):
            tree.clear()
        self.captures = self.raised = 0
        self.compiled.traced = self.compiled.refused = self.compiled.deferred = 0
        self.uncounted.clear()
        self.admission.clear()
        self.start = math.inf
        self.departed.clear()
        self.limited, self.numbers, self.early_breaks, self.spending = False, Numbers(), EarlyBreaks(), Spending()
        for record in (self.misses, self.breaks, self.bailouts):
            record.clear()


UNITS: dict[int, weakref.ref[Unit]] = {}    # by id: those that are alive, oldest first. Without a lock, which a fork could inherit
GONE: deque[Gone] = deque(maxlen=1000)     # the latest of those that were here


def units() -> list[Unit]:
    """All compiled functions that are alive."""
    return [unit for reference in list(UNITS.values()) if (unit := reference()) is not None]
