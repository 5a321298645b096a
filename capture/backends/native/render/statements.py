"""A function's statements while they are being written: in order, and a place before each loop for what need not be inside.

A statement is a loop or a line of C++ that is the same for every machine. The tree is printed once, at the end (`printer`); nothing
edits text.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from capture.backends.native.index import Index, Size, Symbol, index
from capture.backends.native.render.launch import Launch


@dataclass(eq=False)
class Block:
    """Statements; those of `before` go in front of the block: definitions that are the same throughout."""

    before: list[Statement] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)                   # the last statements of the body
    may_be_empty: bool = False                                      # the body may run not at all
    names: dict[Hashable, str] = field(default_factory=dict)        # what is defined in the body, up to where it stands by now
    reads: dict[Hashable, frozenset[str]] = field(default_factory=dict)     # of a name: the buffers whose contents it depends on


@dataclass(frozen=True)
class Shared:
    """A variable that the iterations of a loop share: what a `reduction` has come to so far, or bits that they only ever set."""

    name: str
    reduction: str | None = None


@dataclass(eq=False)
class Loop(Block):
    """`variable` runs from `first` to below `last`, in steps of `step` (None: the body moves it on).

    shared: what is left of order, where the iterations do not depend on each other; None where they may.
    """

    variable: str = ""
    first: str = "0"
    last: str = ""
    step: int | str | None = 1
    shared: tuple[Shared, ...] | None = None
    unrolled: bool = False


@dataclass(eq=False)
class Branch(Block):
    """A block that runs where `condition` holds."""

    condition: str = ""


Statement = str | Loop | Branch
B = TypeVar("B", bound=Block)


@dataclass(frozen=True)
class Function:
    """What a kernel does on one machine, over a part of its points, and what it wants to be called with.

    name, locals: the kernel's, and those of its arrays, for readers. buffers: those whose addresses it takes, in order, with the
    dtypes of their elements. written: some of these. symbols: sizes that it takes, with their names. starts: where it begins to use
    a buffer, in elements, if not at 0. flags: whether it reports indices out of range. launch: how many threads run it, on machines
    where the function is one thread's part; None where it is told which points are its own. by_value: buffers whose one element it
    is passed in place of an address. sizes: what symbols stand for that are the kernel's own. aligned, divisible: what it asks of
    buffers and sizes (`launch.Form`). wide: what does the same faster, and asks for more. room: for how many kernels of its text
    one launch has parameters, which are then a table; 0: these are the parameters of one.
    """

    name: str
    locals: tuple[str, ...]
    body: Block
    buffers: dict[str, torch.dtype]
    written: frozenset[str]
    symbols: dict[Symbol, str]
    starts: Mapping[str, int]
    flags: bool
    launch: Launch | None = None
    by_value: frozenset[str] = frozenset()
    sizes: Mapping[Symbol, Size] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()
    divisible: tuple[tuple[Index, int], ...] = ()
    wide: Function | None = None
    room: int = 0

    @property
    def numbers(self) -> tuple[Index, ...]:
        """The sizes that it takes, in order, and behind them where in buffers it begins."""
        sizes = (self.sizes.get(symbol, symbol) for symbol in self.symbols)
        return tuple(map(index, (*sizes, *(self.starts[buffer] for buffer in self.buffers if buffer in self.starts))))


class Path:
    """The blocks that are open, outermost first. A depth is a position in `blocks`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block()]
        self._numbers: dict[str, int] = {}

    @property
    def depth(self) -> int:
        """The depth of the innermost block."""
        return len(self.blocks) - 1

    @property
    def inner(self) -> Block:
        return self.blocks[-1]

    @property
    def never_skipped(self) -> int:
        """The least depth from which on every open loop is sure to run at least once."""
        return max((depth for depth, block in enumerate(self.blocks) if block.may_be_empty), default=0)

    @contextmanager
    def open(self, block: B) -> Iterator[B]:
        """A new innermost block, a Loop or Branch, at the end of the current one."""
        self.inner.body.append(block)
        self.blocks.append(block)
        try:
            yield block
        finally:
            self.blocks.pop()

    def write(self, *lines: str) -> None:
        """Statements at the end of the innermost block."""
        self.inner.body.extend(lines)

    def write_at(self, depth: int, line: str) -> None:
        """A statement within the block at `depth`: before the inner block that is open there, if there is one."""
        if depth == self.depth:
            self.inner.body.append(line)
        else:
            self.blocks[depth + 1].before.append(line)

    def define(self, depth: int, key: Hashable, ctype: str, name: str, value: str, reads: frozenset[str] = frozenset()) -> str:
        """A named value, known by `key` until its block ends, or until a buffer among `reads` is written to."""
        self.write_at(depth, f"const {ctype} {name} = {value};")
        self.remember(depth, key, name, reads)
        return name

    def remember(self, depth: int, key: Hashable, name: str, reads: frozenset[str] = frozenset()) -> None:
        self.blocks[depth].names[key] = name
        self.blocks[depth].reads[key] = reads

    def known(self, key: Hashable) -> str | None:
        """The name of what was defined under `key` in an open block."""
        for block in reversed(self.blocks):
            if key in block.names:
                return block.names[key]
        return None

    def forget(self, buffer: str) -> None:
        """What depends on the contents of `buffer` has to be computed anew from now on."""
        for block in self.blocks:
            for key in [key for key, read in block.reads.items() if buffer in read]:
                del block.names[key], block.reads[key]

    def fresh(self, prefix: str) -> str:
        """A name that the function does not use yet."""
        number = self._numbers[prefix] = self._numbers.get(prefix, -1) + 1
        return f"{prefix}{number}"
