"""From the records of compiled functions to a report."""
from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from capture.errors import UserFrame, is_internal, user_frames
from capture.history import BreakReport, Cause, Gone, Miss
from capture.refgraph.effects import Position, user_stack
from capture.refgraph.source import named
from capture.remedies import remedy
from capture.reports.conditions import condition_of, shortened
from capture.reports.places import place_of
from capture.reports.sizes import OpenSizes
from capture.reports.tree import Break, Change, Departed, Entry, Frame, Graph, Node, OpenSize, Place, Recapture, Report, Seconds
from capture.unit import Trace, Unit

LONGEST = 200       # characters of a value that changed

SYMBOLS = {operator.add: "+", operator.sub: "-", operator.mul: "×", operator.truediv: "/", operator.matmul: "@", operator.neg: "-",
           operator.getitem: "[ ]", operator.pow: "**", operator.eq: "==", operator.lt: "<", operator.gt: ">"}


def report_of(units: Iterable[Unit], gone: Iterable[Gone] = (), remarks: Iterable[str] = ()) -> Report:
    """The report on these compiled functions, and on those that have died (`gone`). Continuations are listed below the function
    that they continue. remarks: see Report."""
    units = sorted(dict.fromkeys(member for unit in units for member in unit.family), key=lambda unit: unit.start)
    gone = list(gone)
    start = min((member.start for member in (*units, *gone) if member.start < math.inf), default=0.0)  # type: ignore[attr-defined]
    frames = [(unit.start, frame_of(unit, [other for other in units if other.root is unit and other is not unit], start))
              for unit in units if unit.parent is None]
    frames += [(past.start, frame_of_gone(past, start)) for past in gone]
    return Report(tuple(frame for _, frame in sorted(frames, key=lambda pair: pair[0])), tuple(remarks))


def frame_of_gone(gone: Gone, start: float) -> Frame:
    """A compiled function that has died."""
    counts, place = gone.counts, place_of(gone.place)
    return Frame(name=gone.name, place=None if is_internal(place.file) else place, resumed=None, captures=gone.captures,
                 hits=counts.hits, native_calls=counts.native_calls, raised=gone.raised, **natively(gone.natively), entries=(),
                 breaks=tuple(map(break_of, gone.breaks)), bailouts=(),
                 recaptures=tuple(recapture_of(miss, start) for miss in gone.misses), continuations=(),
                 departed=Departed(counts.entries, counts.graphs, counts.operations))


def frame_of(unit: Unit, continuations: Iterable[Unit], start: float) -> Frame:
    """One compiled function, and its continuations. start: what times count from."""
    counts, past = unit.counts, unit.departed
    return Frame(
        name=unit.name, place=place_of_unit(unit), resumed=None if unit.resumed is None else break_of(unit.resumed),
        captures=unit.captures, hits=counts.hits, native_calls=counts.native_calls, raised=unit.raised,
        **natively(unit.natively),
        entries=tuple(filter(None, (entry_of(e, start, unit) for e in sorted(unit.tree.entries, key=lambda e: -e.hits)))),
        breaks=tuple(map(break_of, unit.breaks)), bailouts=tuple(map(break_of, unit.bailouts)),
        recaptures=tuple(recapture_of(miss, start) for miss in unit.misses),
        continuations=tuple(frame_of(other, (), start) for other in continuations),
        departed=Departed(past.entries, past.graphs, past.operations))


def natively(counts: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a Frame on calls that ran natively without an entry."""
    reasons = tuple(f"{count} {reason}" for reason, count in counts.items() if count)
    return {"uncounted": sum(counts.values()), "native_reasons": reasons}


def entry_of(entry: Any, start: float, unit: Unit) -> Entry | None:
    """One cache entry of a compiled function. None if something that it depends on has died since that was asked for its entries:
    the garbage collector may run at any time."""
    trace: Trace = entry.payload
    gm = trace.graph_module
    guards = entry.guards           # from here on nothing of it dies
    if not entry.alive:
        return None
    sizes = OpenSizes(guards, unit.labels, {} if unit.spec is None else unit.spec.names)
    return Entry(
        at=trace.times.start - start, outcome="native" if gm is None else "captured" if trace.broken is None else "partial",
        hits=entry.hits, guards=tuple(condition_of(guard, unit.labels, sizes) for guard in guards),
        sizes=tuple(OpenSize(name, tuple(map(named, paths))) for name, paths in sizes.named()),
        graph=None if gm is None else Graph(trace.operations, nodes_of(gm), gm.code.strip(), state_of(trace), *compiled_of(trace)),
        mock="" if trace.mock is None else trace.mock.source.strip(),
        broken=None if trace.broken is None else break_of(trace.broken), seconds=seconds_of(entry),
        ran_natively=entry.ran_natively)


def state_of(trace: Trace) -> str:
    """How the native backend runs the graph of an entry, or why another backend runs it uncompiled; else empty."""
    if trace.tier is None:
        return "" if trace.graph_module is None else trace.graph_module.meta.get("note", "")
    return trace.tier.describe()


def compiled_of(trace: Trace) -> tuple[int | None, int]:
    """How many operations run in compiled code, and how many do not since that was measured to be slower."""
    if trace.tier is None:
        return None, 0
    found, whole = trace.tier.operations(), trace.operations
    return round(whole * found.compiled / max(1, sum(found))), round(whole * found.slower / max(1, sum(found)))


def seconds_of(entry: Any) -> Seconds:
    """Times of the capture, and of the hits that were timed."""
    times, count = entry.payload.times, entry.samples
    hit = [ns / count * 1e-9 if count else None for ns in (entry.guard_ns, entry.graph_ns, entry.mock_ns)]
    return Seconds(times.run, times.mock, times.graph, times.guards, *hit)


def nodes_of(gm: fx.GraphModule) -> tuple[Node, ...]:
    """The nodes of a graph, in order."""
    kinds = {"placeholder": "input", "output": "output"}
    return tuple(Node(node.name, kinds.get(node.op, "operation"), label_of(node), tuple(i.name for i in node.all_input_nodes),
                      place_of_stack(node.meta.get("stack", ()))) for node in gm.graph.nodes)


def label_of(node: fx.Node) -> str:
    """What a node is, in a word or two."""
    if node.op == "placeholder":
        return str(node.meta.get("source", node.name))
    if node.op != "call_function":
        return str(node.target)
    return SYMBOLS.get(node.target) or getattr(node.target, "__name__", str(node.target))  # type: ignore[arg-type,return-value]


def recapture_of(miss: Miss, start: float) -> Recapture:
    """A call that no entry fitted. Entries that failed alike count once."""
    return Recapture(miss.time - start, tuple(dict.fromkeys(map(change_of, miss.causes))), miss.limited)


def change_of(cause: Cause) -> Change:
    """The guard that failed, with values before and after."""
    subject, before, after = (shortened(text, LONGEST) for text in (named(cause.subject), cause.expected, cause.found))
    return Change(cause.kind or "MISSING", subject, before, after,
                  None if cause.place is None else place_of(cause.place), remedy(cause))


def break_of(report: BreakReport) -> Break:
    """The reason of a break, with the lines that led to it."""
    reason = report.reason
    return Break(reason.id, report.context, reason.explanation, reason.remedy, tuple(map(place_of, user_frames(report.stack))))


def place_of_stack(stack: tuple[Position, ...]) -> Place | None:
    """The innermost of the user's own lines."""
    own = [frame for frame in user_stack(stack) if not is_internal(frame.file)]
    return place_of(own[-1]) if own else None


def place_of_unit(unit: Unit) -> Place | None:
    """Where a compiled function is defined. For a module: the first known line of its own code."""
    code = unit.function.__code__
    if not is_internal(code.co_filename):
        return place_of(UserFrame.at(code, code.co_firstlineno))
    for entry in unit.tree.entries:
        trace: Trace = entry.payload
        stacks = [trace.broken.stack] if trace.broken is not None else []
        if trace.graph_module is not None:
            stacks += [user_stack(node.meta.get("stack", ())) for node in trace.graph_module.graph.nodes]
        for stack in stacks:
            own = next((frame for frame in stack if not is_internal(frame.file)), None)
            if own is not None:
                return place_of(own)
    return None
