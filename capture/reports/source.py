"""The user's source, each line marked: captured, break, or native."""
from __future__ import annotations

import ast
import linecache
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capture.reports.tree import Break, Frame, Place, Report


@dataclass(frozen=True, slots=True)
class SourceLine:
    """`mark`: "captured", "break", "native", or empty where nothing is known; `note` says more."""

    number: int
    text: str
    mark: str
    note: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that has marks."""

    path: str
    lines: tuple[SourceLine, ...]

    def count(self, mark: str) -> int:
        """The number of lines with a mark."""
        return sum(line.mark == mark for line in self.lines)


def annotated(report: Report) -> list[SourceFile]:
    """The source files that captures touched, with marks. If the calls of a function run natively, all of its lines are native,
    except those that were captured in other calls; otherwise a function with a captured line is captured as a whole."""
    operations: Counter[tuple[str, int]] = Counter()
    touched: set[tuple[str, int]] = set()
    native: set[tuple[str, int]] = set()
    breaks: dict[tuple[str, int], list[Break]] = {}
    for frame in report.walk():
        if frame.place is not None and any(entry.outcome != "native" for entry in frame.entries):
            touched.add(key(frame.place))
        for place in captured_places(frame):
            operations[key(place)] += 1
        for broken in frame.breaks + frame.bailouts:
            if broken.stack and broken not in breaks.setdefault(key(broken.stack[-1]), []):
                breaks[key(broken.stack[-1])].append(broken)
        for entry in frame.entries:
            if entry.outcome == "native" and entry.broken is not None:
                native.update(map(key, entry.broken.stack or filter(None, [frame.place])))
    files = dict.fromkeys(file for file, _ in (*touched, *operations, *native, *breaks))
    sources = [marked(file, lines_of(file, operations), lines_of(file, touched), lines_of(file, native),
                      {line: found for (name, line), found in breaks.items() if name == file}) for file in sorted(files)]
    return [source for source in sources if source.lines]


def marked(file: str, operations: dict[int, int], touched: dict[int, int], native: dict[int, int],
           breaks: dict[int, list[Break]]) -> SourceFile:
    """One file; line numbers are keys."""
    text = [line.rstrip("\n") for line in linecache.getlines(file)]
    marks: dict[int, str] = {}
    functions = extents(text)
    for mark, lines in (("captured", (*operations, *touched)), ("native", tuple(native))):
        for line in lines:
            for number in function_at(functions, line):
                marks[number] = mark
    marks |= dict.fromkeys(operations, "captured") | dict.fromkeys(breaks, "break")
    notes = {line: f"{count} operation{'s' if count > 1 else ''}" for line, count in operations.items()}
    notes |= {line: "; ".join(f"[{b.reason}] {b.context}: {b.explanation}. Remedy: {b.remedy}" for b in found)
              for line, found in breaks.items()}
    return SourceFile(file, tuple(SourceLine(n, line, marks.get(n, "") if line.strip() else "", notes.get(n, ""))
                                  for n, line in enumerate(text, 1)))


def extents(text: Iterable[str]) -> list[range]:
    """The lines of each function of a file, outer ones first; none where the text is not Python."""
    try:
        tree = ast.parse("\n".join(text))
    except SyntaxError:
        return []
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    starts = ((min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]), node.end_lineno) for node in functions)
    return sorted((range(start, (end or start) + 1) for start, end in starts), key=len, reverse=True)


def function_at(functions: list[range], line: int) -> Iterable[int]:
    """The lines of the innermost function around a line; a line outside of functions stands for itself."""
    return next((lines for lines in reversed(functions) if line in lines), (line,))


def captured_places(frame: Frame) -> Iterator[Place]:
    """Where the operations of a frame's graphs come from."""
    for entry in frame.entries:
        if entry.graph is not None:
            yield from (node.place for node in entry.graph.nodes if node.kind == "operation" and node.place is not None)


def lines_of(file: str, places: Iterable[tuple[str, int]]) -> dict[int, int]:
    """The lines of a file among `places`, with their counts where these are counted."""
    counts = places if isinstance(places, Counter) else dict.fromkeys(places, 1)
    return {line: counts[name, line] for name, line in counts if name == file}


def short(path: str) -> str:
    """A path as people write it: from the present folder on, where it is below that."""
    here = os.path.join(os.getcwd(), "")
    return path[len(here):] if path.startswith(here) else path


def key(place: Place) -> tuple[str, int]:
    return place.file, place.line
