"""The sizes that an entry leaves open, by name, and what must hold of them: what was decided by a size."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from capture import _C
from capture.guards.guard import Guard
from capture.history import labelled
from capture.refgraph.requirements import Kind
from capture.refgraph.sizes import size_at
from capture.refgraph.source import Computed, Local, Source

OPPOSITE: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.lt: operator.ge, operator.ge: operator.lt, operator.gt: operator.le, operator.le: operator.gt,
    operator.eq: operator.ne, operator.ne: operator.eq}


class OpenSizes:
    """The open sizes of one entry. labels: what users know parameters as that have other names. said: the names that the program
    gave to sizes, by the text of a tensor's path, and the dimension."""

    def __init__(self, guards: Iterable[Guard], labels: Mapping[str, str], said: Mapping[tuple[str, int], str]) -> None:
        guards = list(guards)
        self.groups: dict[Source, list[Source]] = {}        # equal sizes: the first one's path, and all
        self._first: dict[Source, Source] = {}
        self._names: dict[Source, str] = {}
        given: dict[Source, str] = {}
        for tensor in guards:
            if tensor.kind is Kind.TENSOR and tensor.source is not None and tensor.expected.open_sizes:
                for dim in (dim for dim, size in enumerate(tensor.expected.shape) if size < 0):
                    path = size_at(labelled(tensor.source, labels), dim)
                    self.groups[path], self._first[path] = [path], path
                    if (str(tensor.source), dim) in said:
                        given[path] = said[str(tensor.source), dim]
        fixed: dict[Source, int] = {}
        for guard in guards:
            decided = None if guard.source is None else labelled(guard.source, labels)
            if guard.kind is Kind.VALUE and decided in self._first and type(guard.expected) is int:
                fixed[decided] = guard.expected
            elif isinstance(decided, Computed) and self.equates(decided, guard):
                self._unite(*decided.args)
        fresh = itertools.count()
        for group in self.groups.values():
            known = [str(fixed[path]) for path in group if path in fixed] + [given[path] for path in group if path in given]
            name = known[0] if known else f"s{next(fresh)}"
            self._names.update(dict.fromkeys(group, name))
        self.groups = {first: group for first, group in self.groups.items() if not fixed.keys() & set(group)}

    def equates(self, path: Computed, guard: Guard) -> bool:
        """Whether a guard only says that two open sizes are equal."""
        is_equation = path.op is operator.eq and guard.kind is Kind.VALUE and guard.expected is True
        return is_equation and all(arg in self._first for arg in path.args)

    def _unite(self, left: Source, right: Source) -> None:
        first, other = sorted((self._first[left], self._first[right]), key=list(self._first).index)
        if first != other:
            for path in self.groups.pop(other):
                self._first[path] = first
                self.groups[first].append(path)

    def name(self, path: Source) -> str:
        """The name of the size at a path, or the number that it is; `any` if it is no open size."""
        return self._names.get(path, "any")

    def named(self) -> list[tuple[str, tuple[str, ...]]]:
        """The names, each with the paths of the sizes that have it."""
        return [(self._names[first], tuple(map(str, group))) for first, group in self.groups.items()]

    def condition(self, path: Source, guard: Guard) -> str | None:
        """What a guard requires of sizes, in terms of the names: `s0 > 4`. Empty if that is told otherwise, None if it is on
        something else."""
        if not isinstance(path, Computed) or not is_of_sizes(path):
            return None
        if guard.kind is Kind.TYPE or self.equates(path, guard):
            return ""
        shown, expected = path if path in self._first else self._renamed(path), guard.expected
        if isinstance(shown, Computed) and shown.op in OPPOSITE and type(expected) is bool:
            text = str(shown if expected else replace(shown, op=OPPOSITE[shown.op]))
            return text.removeprefix("(").removesuffix(")")
        if guard.kind is Kind.TRUTH:
            return f"{shown} {'!=' if expected else '=='} 0"
        return f"{shown} == {expected!r}" if guard.kind is Kind.VALUE else None

    def _renamed(self, path: Source) -> Source:
        if path in self._names:
            return Local(self._names[path], 0)
        return replace(path, args=tuple(map(self._renamed, path.args))) if isinstance(path, Computed) else path


def is_of_sizes(path: Source) -> bool:
    """Whether a number is a size of a tensor, or computed from one."""
    return isinstance(path, Computed) and (path.op is _C.size or any(map(is_of_sizes, path.args)))
