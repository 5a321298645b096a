"""How a group of threads divides the stages of a kernel, where it keeps local buffers, and when its threads wait for each other.

A stage's results are independent of each other, and each takes its reduced points in order, or in any order where they are only
combined. So a group's threads take turns at the results; where there is only one, at its points, and combine what they have. What
must be in order and has one result, one thread does.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from capture.backends.native.index import Index, Value, Var, index, product
from capture.backends.native.ir import Buffer, Kernel, Stage, Store
from capture.backends.native.machine import CUDA
from capture.backends.native.rewrite import Rewriter, loads_of
from capture.backends.native.schedule.stages import ARGUMENTS, accumulation, is_rounded_sum


@dataclass(slots=True, eq=False)
class Accumulator:
    """A reduction under way, of `dtype`; `reduction`: how values are combined. Its other strings are names in the text."""

    store: Store
    reduction: str
    dtype: torch.dtype
    compensated: bool       # what rounding takes off is kept beside it
    name: str = ""
    where: str = ""         # of argmax and argmin: the position
    lost: str = ""          # of compensated ones: what rounding has taken off
    joined: str = ""        # of sums of neighbours: an array of these
    columns: bool = False   # whether the names are arrays, of accumulators of neighbouring results


@dataclass(slots=True, eq=False)
class Division:
    """A stage: threads take turns at `points`, and each does all of `sequential` at its own.

    together: the points are those of one result, for which the threads combine what they have. alone: one thread does everything.
    """

    stage: Stage
    points: tuple[Var, ...]
    sequential: tuple[Var, ...]
    together: bool
    alone: bool
    accumulators: list[Accumulator] = field(default_factory=list)

    def accumulator(self, store: Store) -> Accumulator:
        return next(one for one in self.accumulators if one.store is store)

    @property
    def buffers(self) -> set[str]:
        """What the stage reads or writes."""
        return {node.buffer for node in loads_of(self.stage.stores)} | {store.buffer for store in self.stage.stores}

    @property
    def position(self) -> Index:
        """The row-major number of a point among the reduced variables."""
        number = index(0)
        for variable in self.stage.inner:
            if variable in self.stage.reduced:
                number = number * variable.extent + index(variable)
        return number

    def mapping(self, where: Index) -> tuple[object, ...] | None:
        """Equal for two accesses if the thread that makes the one at an element makes the other at it, too. None: it may be any."""
        if not self.points or self.alone or any(isinstance(atom, Value) for atom in where.atoms()):
            return None
        variables = where.variables()
        if not variables.isdisjoint(self.sequential) or not variables.issuperset(self.points):
            return None
        extents = tuple(index(variable.extent) for variable in self.points)
        same = {variable: index(Var(f"point {number}", variable.extent)) for number, variable in enumerate(self.points)}
        return extents, Rewriter(same).index(where)


def group_of(kernel: Kernel) -> int:
    """How many threads work on one row: more for longer rows, and one where neighbouring rows are neighbours in memory."""
    inner = [product(variable.extent for variable in stage.inner) for stage in kernel.stages if stage.inner]
    if kernel.vectorized or not inner:
        return 1
    if any(count.constant is None for count in inner):
        return CUDA.long_row
    longest = max(count.constant for count in inner)
    return next((threads for most, threads in CUDA.rows if longest <= most), CUDA.long_row)


def rows_of_block(group: int) -> int:
    """How many rows a block works on. All threads of a block wait for one another at its barriers, so groups that need these are
    blocks of their own."""
    return CUDA.block if group == 1 else max(CUDA.block_of_warps // group, 1) if group <= CUDA.warp else 1


def registers_of(group: int) -> int:
    """Bytes of arrays that a thread can keep in registers, where so many work on one row."""
    return min(CUDA.private, CUDA.registers // max(group, CUDA.block) // 2)


def divided(stage: Stage, group: int) -> Division:
    """How a group of threads divides a stage."""
    kept = tuple(variable for variable in stage.inner if variable not in stage.reduced)
    reduced = tuple(variable for variable in stage.inner if variable in stage.reduced)
    in_order = any(store.scan or store.reduction in ARGUMENTS or store.scatters for store in stage.stores)
    accumulators = []
    for store in stage.stores:
        if store.reduction is not None:
            name, narrow = accumulation(store)
            dtype = torch.float64 if is_rounded_sum(store) else narrow
            exact = is_rounded_sum(store) and store.dtype == torch.float64 and not store.scan and name == "sum"
            accumulators.append(Accumulator(store, name, dtype, exact))
    if kept or group == 1:
        return Division(stage, kept, reduced, False, False, accumulators)
    if in_order:
        return Division(stage, (), reduced, False, True, accumulators)
    return Division(stage, reduced, (), bool(reduced), False, accumulators)


# Where local buffers are.

@dataclass(frozen=True, slots=True)
class Placement:
    """Where a local buffer is. kind: "value" (one number, which each thread of the group has), "registers" (each thread has the
    elements of its own points), "private" (an array of a thread that has the row to itself), "shared" (an array of the group), or
    "memory" (there is no room elsewhere). length: of the array, or of a thread's part of it.
    """

    kind: str
    length: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """An access of a stage to a buffer."""

    division: Division
    buffer: str
    where: Index
    store: Store | None         # None: it is read

    @property
    def mapping(self) -> tuple[object, ...] | None:
        if self.store is not None and self.store.reduction is not None and self.division.together:
            return None
        return self.division.mapping(self.where)


def accesses(division: Division) -> list[Access]:
    """All that a stage reads and writes."""
    return [*(Access(division, node.buffer, node.index, None) for node in loads_of(division.stage.stores)),
            *(Access(division, store.buffer, store.index, store) for store in division.stage.stores)]


def placements(kernel: Kernel, group: int, width: int) -> dict[str, Placement]:
    """Where each local buffer of a kernel is, whose threads do `width` neighbouring points in turn."""
    every = [access for stage in kernel.stages for access in accesses(divided(stage, group))]
    places: dict[str, Placement] = {}
    registers, shared = registers_of(group), CUDA.shared // rows_of_block(group)
    for local in kernel.locals:
        length = local.span.constant
        mine = [access for access in every if access.buffer == local.name]
        places[local.name] = placement = _placement(local, length, mine, group, width, registers, shared)
        if placement.kind in ("registers", "private"):
            registers -= placement.length * local.dtype.itemsize
        elif placement.kind == "shared":
            shared -= -(-placement.length * local.dtype.itemsize // 16) * 16
    return places


def _placement(local: Buffer, length: int | None, mine: Sequence[Access], group: int, width: int, registers: int,
               shared: int) -> Placement:
    """Where there is room for a local buffer that these accesses read and write. registers, shared: bytes that are left."""
    size = local.dtype.itemsize
    if group == 1:
        if length == 1:
            return Placement("value")
        return Placement("private", length) if length is not None and length * size <= registers else Placement("memory")
    if length == 1 and all(_is_known_to_all(access) for access in mine):
        return Placement("value")
    mappings = {access.mapping for access in mine}
    if length is not None and len(mappings) == 1 and None not in mappings:
        points = product(variable.extent for variable in mine[0].division.points).constant
        slots = None if points is None else -(-points // (group * width)) * width
        if slots is not None and slots * size <= registers:
            return Placement("registers", slots)
    return Placement("shared", length) if length is not None and length * size <= shared else Placement("memory")


def _is_known_to_all(access: Access) -> bool:
    """Whether an access to a single value is the same in all threads of a group, or reads it in all of them."""
    if access.store is None:
        return True
    if access.store.scatters or access.division.alone:
        return False
    return access.division.together and access.store.reduction is not None or not access.division.stage.inner


# Barriers.

def barriers(kernel: Kernel, divisions: Sequence[Division], places: dict[str, Placement], group: int) -> tuple[list[bool], bool]:
    """Before which stages the threads of a group wait for each other, and whether at the end of a row, before the next one.

    They do where one may read or write what another one has written, or write what it has read, since they last waited. Other rows
    are at other places in memory, but in the same arrays.
    """
    before = [False] * len(divisions)
    if group == 1:
        return before, False
    own = {name for name, place in places.items() if place.kind in ("value", "registers")}
    written = {store.buffer for stage in kernel.stages for store in stage.stores}
    stages = [[access for access in accesses(division) if access.buffer in written - own] for division in divisions]
    since: list[Access] = []
    for number, stage in enumerate(stages):
        if _conflict(since, stage):
            before[number], since = True, []
        since += stage
    shared = [access for access in since if access.buffer in places]
    for number, stage in enumerate(stages):
        if before[number]:
            break
        if _conflict(shared, [access for access in stage if access.buffer in places]):
            return before, True
    return before, False


def _conflict(earlier: Sequence[Access], later: Sequence[Access]) -> bool:
    return any(a.buffer == b.buffer and (a.store or b.store) and (a.mapping is None or a.mapping != b.mapping)
               for a in earlier for b in later)
