"""The machine that kernels are laid out for: sizes of its caches, vectors and stacks, and what its threads cost.

One machine stands for all of a kind: a kernel must run well on each, so these are what nearly all of them have. What its language
looks like is `render.target`; what a scalar operation costs is a column of `ops`.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes are in bytes. Work is counted in scalar operations of cost 1 (`ops.ScalarOp.cost`); moving a byte counts as one."""

    line: int               # of the caches; also the widest vector, and the alignment of arrays
    lanes: int              # float32 numbers in the widest vector
    first_level: int        # caches
    second_level: int
    streamed: int           # a result of this size has left the last-level cache when it is read
    stack_array: int        # the largest array on a thread's stack …
    stack: int              # … and all arrays of a kernel together
    buffers: int            # of one kernel: there are registers for so many pointers
    threads: int            # of a large machine
    hand_out: int           # work that is worth handing to a waiting thread (0.1 µs)


CPU = Machine(
    line=64,
    lanes=16,
    first_level=32 << 10,
    second_level=256 << 10,
    streamed=32 << 20,
    stack_array=64 << 10,
    stack=256 << 10,
    buffers=28,
    threads=16,
    hand_out=1 << 17,
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device whose threads are launched in blocks. Sizes are in bytes.

    warp: threads that run together. block: threads of a block where each does rows of its own; block_of_warps: where parts of a
    warp, or a warp, do. rows: how many threads work on one row, as (elements of the row at most, threads); long_row: of a
    longer one; typical_row: of most. parameters: of one launch. resident: threads for which a multiprocessor should have
    registers, where they wait for each other. private: of the arrays that one thread keeps in registers; registers: of a
    multiprocessor; shared: of the arrays that a block's threads share. busy: threads that keep a large device busy. buffers:
    pointers of one kernel.
    """

    warp: int
    block: int
    block_of_warps: int
    rows: tuple[tuple[int, int], ...]
    long_row: int
    typical_row: int
    parameters: int
    resident: int
    private: int
    registers: int
    shared: int
    busy: int
    buffers: int


CUDA = Device(
    warp=32,
    block=256,
    block_of_warps=128,
    rows=((8, 1), (64, 8), (128, 16), (1024, 32), (2048, 64), (4096, 128), (8192, 256), (16384, 512)),
    long_row=1024,
    typical_row=256,
    parameters=4 << 10,
    resident=1024,
    private=256,
    registers=256 << 10,
    shared=40 << 10,
    busy=1 << 17,
    buffers=48,
)
