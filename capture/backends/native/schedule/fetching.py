"""What a kernel of rows asks memory for early: while a row is computed in the cache, memory would have nothing to do."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from capture.backends.native.index import ZERO, Index, Size, Value, Var, index
from capture.backends.native.ir import Kernel, Stage
from capture.backends.native.rewrite import loads_of


@dataclass(frozen=True)
class Fetch:
    """`count` elements side by side, from `first` on."""

    buffer: str
    dtype: torch.dtype
    first: Index
    count: Size
    for_writing: bool


def fetches_of(kernel: Kernel) -> tuple[int, tuple[Fetch, ...]]:
    """What to fetch in each row, and after which stage: after the first one that reads a row, where others follow it.

    It is the row that later stages are the first to touch, in order to write to it, and the next row of what the first one reads.
    Whether there is a next row need not be known: fetching touches nothing.
    """
    passes = [number for number, stage in enumerate(kernel.stages) if stage.inner]
    if kernel.vectorized or not kernel.outer or len(passes) < 2:
        return 0, ()
    first, row = kernel.stages[passes[0]], kernel.outer[-1]
    kept = {local.name for local in kernel.locals}
    read = {node.buffer for node in loads_of(first.stores)}
    touched = read | {store.buffer for store in first.stores} | kept
    found = [Fetch(store.buffer, store.value.dtype, start, count, True)
             for number in passes[1:] for store in kernel.stages[number].stores
             if store.buffer not in touched and store.reduction is None and store.mask is None
             for start, count in _contiguous_run(kernel.stages[number], store.index, row)]
    found += [Fetch(node.buffer, node.dtype, _at(start, row, index(row) + 1), count, False)
              for node in loads_of(first.stores) if node.buffer not in kept and node.mask is None
              for start, count in _contiguous_run(first, node.index, row)]
    return passes[0], tuple(dict.fromkeys(found))


def _contiguous_run(stage: Stage, where: Index, row: Var) -> Iterator[tuple[Index, Size]]:
    """The elements that a stage touches in one row, if these lie side by side, in another place for each row."""
    if len(stage.inner) != 1 or row not in where.variables() or any(isinstance(atom, Value) for atom in where.atoms()):
        return
    inner = stage.inner[0]
    start = _at(where, inner, ZERO)
    if where - start == index(inner):
        yield start, inner.extent


def _at(where: Index, variable: Var, value: Index) -> Index:
    return where.substitute(lambda atom: value if atom == variable else None)
