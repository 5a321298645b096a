"""The report as text: plain, or with the colours of a terminal."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from capture.reports.source import short

if TYPE_CHECKING:
    from rich.text import Text

    from capture.reports.tree import Break, Entry, Frame, Graph, Place, Recapture, Report

Line = tuple[str, str]      # text and style
STACK = 5                   # user frames of a break that are shown: a break takes at most 15 lines
RECAPTURES = 5              # recaptures of a frame that are shown in the summary
SUBJECTS = 30               # objects whose state an entry requires, that are shown
STAGES = {"run": "the interpreter", "mock": "writing the mock function", "graph": "the backend", "guards": "building guards"}
STYLES = {"captured": "green", "partial": "yellow", "native": "red"}


def summary(report: Report) -> list[Line]:
    """Each frame in a line, its breaks and recaptures in a few."""
    frames = list(report.walk())
    lines = [(f"capture: {plural(len(report.frames), 'frame')}, {plural(sum(f.graphs for f in frames), 'graph')}, "
              f"{operations(report)}, {plural(sum(len(set(f.breaks)) for f in frames), 'break')}, "
              f"{plural(sum(len(f.recaptures) for f in frames), 'recapture')}", "bold")]
    for frame in report.frames:
        lines += [("", ""), *_summary_of(frame, 0)]
    if report.remarks:
        lines += [("", ""), *((remark, "yellow") for remark in report.remarks)]
    return lines


def details(frame: Frame) -> list[Line]:
    """The summary of one frame, with all of its recaptures; then every entry: its guards, graph and mock function."""
    return list(_details_of(frame, 0))


def plain(lines: Iterable[Line]) -> str:
    """Lines as one string."""
    return "\n".join(text for text, _ in lines)


def styled(lines: Iterable[Line]) -> Text:
    """Lines with their styles, for a terminal."""
    from rich.text import Text  # it draws from the program's random numbers when it is imported
    return Text("\n").join(Text(text, style) for text, style in lines)


def uncounted(frame: Frame) -> str:
    """The sentence on calls that ran natively without an entry."""
    return f"{plural(frame.uncounted, 'call')} ran natively without an entry: {', '.join(frame.native_reasons)}"


def ran_natively(frame: Frame) -> str:
    """The sentence on calls that entries fit and that ran natively all the same."""
    return f"{plural(frame.ran_natively, 'call')} ran natively: a value that this call replaces runs code as it dies"


def operations(part: Report | Frame | Graph) -> str:
    """How many operations there are, and how many of them run in compiled code, where a backend compiles any."""
    words = [plural(part.operations, "operation")]
    if part.operations and part.compiled is not None:
        words.append("all compiled" if part.compiled == part.operations else f"{part.compiled or 'none'} compiled")
        words += [f"{part.slower} measured to be faster uncompiled"] * bool(part.slower)
    return ", ".join(words)


def plural(count: int, noun: str) -> str:
    """`1 graph`, `2 graphs`"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def indented(lines: Iterable[Line], depth: int) -> Iterator[Line]:
    """Lines further to the right."""
    return ((" " * 2 * depth + text if text else text, style) for text, style in lines)


def _summary_of(frame: Frame, depth: int) -> Iterator[Line]:
    yield from indented(_overview(frame, RECAPTURES), depth)
    for child in frame.continuations:
        yield from _summary_of(child, depth + 1)


def _overview(frame: Frame, most: int) -> Iterator[Line]:
    """A frame without its entries, and with the last `most` recaptures."""
    yield _head(frame)
    yield from _states(frame)
    for entry in frame.entries:
        timed = _hit_times(entry)
        if timed:
            yield f"  a hit takes {timed}", "dim"
            break
    seconds = [entry.seconds for entry in frame.entries]
    if seconds:
        stages = ", ".join(f"{duration(sum(getattr(s, stage) for s in seconds))} in {name}" for stage, name in STAGES.items())
        yield f"  capturing took {duration(sum(s.capture for s in seconds))}: {stages}", "dim"
    for broken, count in Counter((*frame.breaks, *frame.bailouts)).items():
        yield from indented(_break(broken, count), 1)
    for recapture in frame.recaptures[-most:]:
        yield from indented(_recapture(recapture), 1)
    if len(frame.recaptures) > most:
        yield f"  … and {plural(len(frame.recaptures) - most, 'recapture')} before", "dim"
    if frame.ran_natively:
        yield f"  {ran_natively(frame)}", "red"
    if frame.uncounted:
        yield f"  {uncounted(frame)}", "red"
    if frame.departed.entries:
        verb = "entry was" if frame.departed.entries == 1 else "entries were"
        yield f"  {frame.departed.entries} {verb} dropped, since objects that an entry depends on have died", "dim"


def _states(frame: Frame) -> Iterator[Line]:
    """How the backend runs the graphs of a frame, and why; graphs in the same state share a line."""
    states = [entry.graph.state.partition("\n")[0] for entry in frame.entries if entry.graph is not None and entry.graph.operations]
    for state, count in Counter(filter(None, states)).items():
        subject = f"{count} graphs: each" if count > 1 else "one graph" if len(states) > 1 else "the graph"
        yield f"  {subject} {state}", "dim"


def _verdict(frame: Frame) -> Line:
    native = any(entry.outcome == "native" for entry in frame.entries)
    breaks = len({*frame.breaks, *frame.bailouts})
    if native and not frame.graphs:
        return "not captured", "red"
    if breaks:
        return f"captured with {plural(breaks, 'break')}", "yellow"
    if native:
        return "captured in part", "yellow"
    if frame.entries or frame.captures:
        return "captured", "green"
    return ("not captured", "red") if frame.raised or frame.uncounted else ("not captured yet", "dim")


def _head(frame: Frame) -> Line:
    verdict, style = _verdict(frame)
    counts = [plural(frame.hits, "hit")]
    counts += [plural(len(frame.recaptures), "recapture")] * bool(frame.recaptures)
    counts += [plural(frame.native_calls, "native call")] * bool(frame.native_calls)
    counts += [f"{plural(frame.raised, 'capture')} ended in an exception of the program's own"] * bool(frame.raised)
    what = f"{plural(frame.captures, 'capture')}, {plural(frame.graphs, 'graph')}, {operations(frame)}"
    return f"{frame.name}: {verdict} ({what}); {', '.join(counts)}", style


def _details_of(frame: Frame, depth: int) -> Iterator[Line]:
    yield from indented(_overview(frame, len(frame.recaptures)), depth)
    for number, entry in enumerate(frame.entries):
        yield "", ""
        yield from indented(_entry(number, entry), depth)
    for child in frame.continuations:
        yield "", ""
        yield from _details_of(child, depth + 1)


def _entry(number: int, entry: Entry) -> Iterator[Line]:
    style = STYLES[entry.outcome]
    if entry.graph is None:
        yield f"entry {number}: runs natively, {plural(entry.hits, 'call')}", style
    else:
        upto = " up to a break" if entry.outcome == "partial" else ""
        yield f"entry {number}: captured{upto}, {plural(entry.hits, 'hit')}, {operations(entry.graph)}", style
        timed = _hit_times(entry)
        if timed:
            yield f"  a hit takes {timed}", "dim"
    if entry.broken is not None:
        at = f" at {short(entry.broken.stack[-1].file)}:{entry.broken.stack[-1].line}" if entry.broken.stack else ""
        yield f"  it ends{at}: {entry.broken.context}", "yellow"
    yield from indented(_conditions(entry), 1)
    if entry.graph is not None:
        first, *more = entry.graph.state.splitlines() or [""]
        if first:
            yield f"  backend: the graph {first}", ""
        yield from ((f"    {line}", "") for line in more)
        for title, text in (("graph", entry.graph.code), ("mock function", entry.mock)):
            yield f"  {title}:", "bold"
            yield from ((f"    {line}", "") for line in text.splitlines())


def _conditions(entry: Entry) -> Iterator[Line]:
    """The guards: one line for the state of each object. Guards on classes, functions and absent attributes are only counted."""
    states: dict[str, list[str]] = {}
    for condition in entry.guards:
        if condition.words and not condition.is_of_sizes:
            states.setdefault(condition.subject, []).append(condition.words)
    rest = sum(not condition.words for condition in entry.guards)
    yield f"guards: {len(entry.guards)}", "bold"
    yield from indented(sizes(entry), 1)
    for subject, words in list(states.items())[:SUBJECTS]:
        yield f"  {subject}: {'; '.join(words)}", ""
    if len(states) > SUBJECTS:
        yield f"  … and {plural(len(states) - SUBJECTS, 'more object')}", "dim"
    yield f"  and {rest} more, on classes, functions and absent attributes", "dim"


def sizes(entry: Entry) -> Iterator[Line]:
    """The sizes that may be others in each call, by name, and what is required of them, with the lines that decided so."""
    for size in entry.sizes:
        yield f"{size.name} = {' = '.join(size.paths)}", ""
    conditions = [condition for condition in entry.guards if condition.is_of_sizes and condition.words]
    widest = max((len(condition.words) for condition in conditions), default=0)
    for condition in conditions:
        place = condition.place
        where = "" if place is None else f"{' ' * (widest - len(condition.words))}   {short(place.file)}:{place.line}: {place.text}"
        yield f"{condition.words}{where}", ""


def _break(broken: Break, count: int = 1) -> Iterator[Line]:
    times = f", {count} times" if count > 1 else ""
    yield f"[{broken.reason}] {broken.context}: {broken.explanation}{times}", "yellow"
    hidden = len(broken.stack) - STACK
    if hidden > 0:
        yield f"  … {plural(hidden, 'frame')} outside of these", "dim"
    for place in broken.stack[-STACK:]:
        yield from _place(place)
    yield f"  remedy: {broken.remedy}", "cyan"


def _place(place: Place) -> Iterator[Line]:
    yield f"  {place}", ""
    if place.text:
        yield f"    {place.text}", "bold"


def _recapture(recapture: Recapture) -> Iterator[Line]:
    verb = "not captured, there are too many entries" if recapture.limited else "captured again"
    if not recapture.changes:
        return
    *others, change = recapture.changes             # the last entry is what the program did not long ago
    more = f", and {plural(len(others), 'more change')}" if others else ""
    yield f"{change.subject}: {change.before} → {change.after}{more}", "yellow"
    if change.place is not None:
        yield from _place(change.place)
    yield f"  {verb}; remedy: {change.remedy}", "cyan"


def _hit_times(entry: Entry) -> str:
    seconds = entry.seconds
    if seconds.hit_guards is None or seconds.hit_graph is None or seconds.hit_mock is None:
        return ""
    return (f"{duration(seconds.hit_guards)} in guards, {duration(seconds.hit_graph)} in the graph, "
            f"{duration(seconds.hit_mock)} in the mock function")


def duration(seconds: float) -> str:
    """`1.20 s`, `35.0 ms`, `4.2 µs`"""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
