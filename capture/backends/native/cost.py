"""When two groups of loop nests are worth one kernel: bytes that need not move, against parallelism and size.

The machine is taken to be bound by memory. A verdict is a sentence, so that CAPTURE_DEBUG=3 can say why.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from capture.backends.native.index import Var, product
from capture.backends.native.ir import Buffer
from capture.backends.native.machine import CPU, CUDA

LEAST_ROWS = CPU.threads        # of a kernel with much to do: enough for the threads of a large machine to share
MOST_NODES = 1500               # of one kernel: what a compiler gets through quickly
LOCAL_BYTES = CPU.second_level // 2     # of a row's own buffer, which must stay in that cache
STRIP = 512                     # elements of a vectorised kernel's strip (see schedule.cpu), for sizes of its local buffers
UNKNOWN = 1 << 12               # taken for the number of elements where a size is symbolic


@dataclass(frozen=True)
class Limits:
    """What a kernel must leave a kind of device.

    rows: of one with much to do, enough for the threads of a large machine to share; strips: the same of one that is vectorised
    along its rows; much: elements from which on that matters; buffers: of one kernel. before: which of the rows that two groups
    have by themselves counts: a processor does the smaller group as well by few rows, on a device all wait for the larger one.
    """

    rows: int
    strips: int
    much: int
    buffers: int
    before: Callable[[int, int], int]


LIMITS = {"cpu": Limits(LEAST_ROWS, LEAST_ROWS, 1 << 15, CPU.buffers, min),
          "cuda": Limits(CUDA.busy // CUDA.typical_row, CUDA.busy, 1 << 17, CUDA.buffers, max)}


def elements(variables: Iterable[Var]) -> int:
    """The number of points of an index space."""
    count = product(v.extent for v in variables).constant
    return UNKNOWN if count is None else count


def bytes_of(buffer: Buffer) -> int:
    """The memory of a buffer's elements."""
    count = product(buffer.sizes).constant
    return (UNKNOWN if count is None else count) * buffer.dtype.itemsize


def saved(shared: Iterable[str], vanishing: Iterable[str], buffers: Mapping[str, Buffer]) -> int:
    """Bytes that fusion saves: one read of each shared buffer, and one write of those which nobody else needs."""
    vanishing = set(vanishing)
    return sum(bytes_of(buffers[name]) * (1 + (name in vanishing)) for name in shared)


def too_large(limits: Limits, buffers: int, nodes: int) -> str | None:
    """Why two groups would be too much for one kernel, None when they are not."""
    if buffers > limits.buffers:
        return f"{buffers} buffers are too many for one kernel"
    if nodes > MOST_NODES:
        return f"{nodes} operations are too many for one kernel"
    return None


def too_few_rows(limits: Limits, rows: int, rows_before: int, work: int, strips: bool) -> str | None:
    """Why two groups had better stay apart so as to run in parallel, None when they may be fused.

    rows: parallel rows of the fused kernel; rows_before: those of the groups by themselves (`Limits.before`); work: elements of
    the larger one. strips: whether it is vectorised along its rows.
    """
    if rows < (limits.strips if strips else limits.rows) and rows < rows_before and work >= limits.much:
        return f"only {rows} rows would be left to run in parallel"
    return None
