"""How a kernel is launched, on machines that divide its points among threads by themselves."""
from __future__ import annotations

from dataclasses import dataclass

from capture.backends.native.index import Index


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of blocks of `threads` threads each, of which one block does `per_block` of the kernel's `points`.

    Any number of blocks gives the right result: threads go on with other points until all are done. Without points there is nothing
    to launch. waits: threads of a block wait for each other.
    """

    threads: int
    points: Index
    per_block: int
    waits: bool

    @property
    def blocks(self) -> Index:
        """How many blocks do all points at once."""
        return (self.points + (self.per_block - 1)) // self.per_block


@dataclass(frozen=True, slots=True)
class Form:
    """One function of a kernel, for launches that suit it: where the buffers of `aligned` begin at multiples of 16 bytes, and the
    sizes of `divisible` are multiples of the numbers beside them."""

    symbol: str
    launch: Launch
    aligned: frozenset[str] = frozenset()
    divisible: tuple[tuple[Index, int], ...] = ()
