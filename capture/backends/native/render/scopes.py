"""A function's blocks while they are being written: statements in order, and a place before each loop for what need not be inside.

The tree is printed once, at the end; nothing edits text.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

INDENT = "  "


class Scope:
    """A block `head { body }`. `before` goes in front of the head: definitions that are the same throughout the block."""

    def __init__(self, head: tuple[str, ...], may_be_empty: bool = False) -> None:
        self.head = head                            # lines, the last of which opens the block; () for statements without a block
        self.before: list[str | Scope] = []
        self.body: list[str | Scope] = []
        self.tail: list[str] = []                   # the last statements of the body
        self.may_be_empty = may_be_empty            # the body may run not at all
        self.names: dict[Hashable, str] = {}        # what is defined in the body, up to where it stands by now
        self.reads: dict[Hashable, frozenset[str]] = {}     # of a name: the buffers whose contents it depends on

    def lines(self) -> Iterator[str]:
        yield from _lines(self.before)
        if not self.head:
            yield from _lines([*self.body, *self.tail])
            return
        yield from self.head[:-1]
        yield self.head[-1] + " {"
        for line in _lines([*self.body, *self.tail]):
            yield INDENT + line if line and not line.startswith("#") else line
        yield "}"


class Path:
    """The scopes that are open, outermost first. A depth is a position in `scopes`."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = [Scope(())]
        self._numbers: dict[str, int] = {}

    @property
    def depth(self) -> int:
        """The depth of the innermost scope."""
        return len(self.scopes) - 1

    @property
    def inner(self) -> Scope:
        return self.scopes[-1]

    @property
    def never_skipped(self) -> int:
        """The least depth from which on every open loop is sure to run at least once."""
        return max((depth for depth, scope in enumerate(self.scopes) if scope.may_be_empty), default=0)

    @contextmanager
    def open(self, *head: str, may_be_empty: bool = False) -> Iterator[Scope]:
        """A new innermost scope, at the end of the current one."""
        scope = Scope(head, may_be_empty)
        self.inner.body.append(scope)
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.pop()

    def write(self, *lines: str) -> None:
        """Statements at the end of the innermost scope."""
        self.inner.body.extend(lines)

    def write_at(self, depth: int, line: str) -> None:
        """A statement within the scope at `depth`: before the inner scope that is open there, if there is one."""
        if depth == self.depth:
            self.inner.body.append(line)
        else:
            self.scopes[depth + 1].before.append(line)

    def define(self, depth: int, key: Hashable, ctype: str, name: str, value: str, reads: frozenset[str] = frozenset()) -> str:
        """A named value, known by `key` until its scope ends, or until a buffer among `reads` is written to."""
        self.write_at(depth, f"const {ctype} {name} = {value};")
        self.remember(depth, key, name, reads)
        return name

    def remember(self, depth: int, key: Hashable, name: str, reads: frozenset[str] = frozenset()) -> None:
        self.scopes[depth].names[key] = name
        self.scopes[depth].reads[key] = reads

    def known(self, key: Hashable) -> str | None:
        """The name of what was defined under `key` in an open scope."""
        for scope in reversed(self.scopes):
            if key in scope.names:
                return scope.names[key]
        return None

    def forget(self, buffer: str) -> None:
        """What depends on the contents of `buffer` has to be computed anew from now on."""
        for scope in self.scopes:
            for key in [key for key, read in scope.reads.items() if buffer in read]:
                del scope.names[key], scope.reads[key]

    def fresh(self, prefix: str) -> str:
        """A name that the function does not use yet."""
        number = self._numbers[prefix] = self._numbers.get(prefix, -1) + 1
        return f"{prefix}{number}"


def _lines(items: list[str | Scope]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Scope):
            yield from item.lines()
        else:
            yield item
