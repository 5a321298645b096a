"""How many threads a kernel is launched with, on machines that divide its points among threads by themselves."""
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
