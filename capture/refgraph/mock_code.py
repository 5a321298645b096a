"""A mock function as source, and the function that is compiled of it.

It is a value, as in `torch.fx`: text, globals, and which line does what.
"""
from __future__ import annotations

import builtins
import collections
import keyword
import linecache
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capture._C import is_a
from capture.refgraph.effects import Position
from capture.refgraph.source import Source


@dataclass(frozen=True)
class PythonCode:
    """A mock function as source. Its parameters are the frame's arguments, then, if `lifted` is not empty, a tuple of the objects
    at these paths. `lines`: what a line of the source makes, or changes. `calls`: the lines that do a call effect, and where the
    user's program does it (None where frames like the user's do it). `first_effect`: the first line that changes anything for good,
    the graph apart. `before`: the variable that holds what undoes the lines before that, and the graph. `graph`: the name, among
    `globals`, of the compiled graph, or None when none is called. `graph_line`: that of the call, or of the last line before it."""

    name: str
    source: str
    globals: dict[str, Any]
    filename: str
    lines: dict[int, str]
    lifted: tuple[Source, ...]
    graph: str | None
    calls: dict[int, tuple[Position, ...] | None] = field(default_factory=dict)
    first_effect: int = sys.maxsize
    before: str | None = None
    graph_line: int = sys.maxsize

    def weakly_held(self) -> list[Any]:
        """The objects of the program's own that the code refers to."""
        return [value() for value in self.globals.values() if type(value) is weakref.ref]

    def _entry_of(self, exception: BaseException) -> types.TracebackType | None:
        entry = exception.__traceback__
        while entry is not None and entry.tb_frame.f_code.co_filename != self.filename:
            entry = entry.tb_next
        return entry

    def line_of(self, exception: BaseException) -> int:
        """The line that an exception came out of, or 0 when it came from elsewhere."""
        entry = self._entry_of(exception)
        return 0 if entry is None else entry.tb_lineno

    def can_run_again(self, line: int, repeatable: bool) -> bool:
        """Whether an exception out of this line leaves nothing that another run of the call would do twice. repeatable: the graph
        changes nothing, or its changes are undone."""
        return line < self.first_effect and (repeatable or 0 < line < self.graph_line)

    def put_back(self, exception: BaseException) -> None:
        """Takes back what was done when an exception came out of a line before `first_effect`."""
        entry = self._entry_of(exception)
        if entry is not None and (before := entry.tb_frame.f_locals.get(self.before)) is not None:  # type: ignore[arg-type]
            before.put_back()

    @property
    def function(self) -> Callable[..., Any]:
        """The compiled function, always the same. Tracebacks and debuggers find its source for as long as it lives."""
        known = vars(self)      # no functools.cached_property: in 3.11 it holds a lock, for which finalizers may wait
        if "made" not in known:
            known["made"] = self._make()
        return known["made"]

    def _make(self) -> Callable[..., Any]:
        module = compile(self.source, self.filename, "exec")
        code = next(constant for constant in module.co_consts if is_a(constant, types.CodeType))
        self.globals["__builtins__"] = builtins     # C code that imports something asks the current frame for it
        function = types.FunctionType(code, self.globals, self.name)
        entry = (len(self.source), None, self.source.splitlines(keepends=True), self.filename)
        linecache.cache[self.filename] = entry
        weakref.finalize(function, _forget, self.filename, entry).atexit = False
        return function


def _forget(filename: str, entry: tuple[Any, ...]) -> None:
    if linecache.cache.get(filename) is entry:
        del linecache.cache[filename]


class Names:
    """The identifiers of one function: arguments, locals and globals, all different."""

    def __init__(self) -> None:
        self.taken = set(keyword.kwlist)
        self.counts: collections.Counter[str] = collections.Counter()

    def fresh(self, hint: str, numbered: bool = False) -> str:
        """A new name: `hint` itself, or with a number after it."""
        name = hint = "".join(c if c.isalnum() or c == "_" else "_" for c in hint) or "value"
        if not name.isidentifier():
            name = hint = f"_{hint}"
        while numbered or name in self.taken:
            name = f"{hint}{self.counts[hint]}"
            self.counts[hint] += 1
            numbered = False
        self.taken.add(name)
        return name
