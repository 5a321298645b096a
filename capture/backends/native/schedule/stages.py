"""How a stage runs: its loops in order, some cut into blocks, and the accumulators that are open between them."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from capture.backends.native.index import Index, Var, contiguous_strides, index, product
from capture.backends.native.ir import Kernel, Stage, Store
from capture.backends.native.machine import CPU

ARGUMENTS = {"argmax": "max", "argmin": "min"}      # reductions whose result is a position, and of what
# Reductions that accumulate in another dtype than that of their values: by which reduction, there.
ACCUMULATED_AS = {"any": "max", "all": "min", "total": "sum"}
# How many float32 numbers are added up in float32 before their sum is added to one in float64: across the lanes of a vector, and
# one after the other. And how many float64 numbers, before their sum is added to a compensated one.
VECTOR_BLOCK, ROW_BLOCK = 2048, 64
EXACT_VECTOR_BLOCK, EXACT_ROW_BLOCK = 64, 32
STRIP_BYTES = CPU.first_level // 2      # of a strip's accumulators and local buffers
STRIP_LEAST, STRIP_MOST = 64, 2048


@dataclass(frozen=True, slots=True, eq=False)
class StageLoop:
    """A loop over all of `variable`. With a `block`, one of a pair: the loop over blocks of that many values, or the loop `within`
    one block."""

    variable: Var
    block: int | None = None
    within: bool = False


@dataclass(slots=True, eq=False)
class Accumulator:
    """A reduction under way: one value of `dtype` for each point of `kept` (and of the strip), with which others are combined by
    `reduction`.

    It begins before loop number `position` of the stage, and ends after it: then it is added to `into`, or stored. `compensated`:
    what rounding takes off when others are added to it is kept beside it. `name`, `where` and `lost` are names in the text.
    """

    store: Store
    position: int
    reduction: str
    dtype: torch.dtype
    kept: tuple[Var, ...] = ()
    into: Accumulator | None = None
    compensated: bool = False
    name: str = ""
    where: str = ""                 # of argmax and argmin: the name of the position
    lost: str = ""                  # of compensated ones: the name of what rounding has taken off

    @property
    def offset(self) -> Index:
        """Which of its values belongs to the current point."""
        strides = contiguous_strides(variable.extent for variable in self.kept)
        return sum((index(variable) * stride for variable, stride in zip(self.kept, strides)), index(0))

    @property
    def length(self) -> Index:
        return product(variable.extent for variable in self.kept)

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize + (8 if self.store.reduction in ARGUMENTS else 0)


@dataclass(slots=True, eq=False)
class StagePlan:
    """`accumulators`: outer ones before those that are added to them. `position`: the row-major number of a point among the reduced
    variables."""

    stage: Stage
    loops: tuple[StageLoop, ...]
    accumulators: list[Accumulator] = field(default_factory=list)

    @property
    def position(self) -> Index:
        number = index(0)
        for variable in self.stage.inner:
            if variable in self.stage.reduced:
                number = number * variable.extent + index(variable)
        return number

    def innermost(self, store: Store) -> Accumulator:
        """The accumulator that values of `store` are combined with."""
        return [one for one in self.accumulators if one.store is store][-1]


def plan_stage(stage: Stage, in_strips: bool) -> StagePlan:
    """Which loops and accumulators a stage needs. `in_strips`: one innermost loop over a strip is to follow."""
    reductions = [store for store in stage.stores if store.reduction]
    first = next((n for n, variable in enumerate(stage.inner) if variable in stage.reduced), len(stage.inner))
    kept = tuple(variable for variable in stage.inner[first:] if variable not in stage.reduced)
    run = max((n + 1 for n, variable in enumerate(stage.inner) if variable not in stage.reduced and n > first), default=first)
    cascaded = [store for store in reductions if is_rounded_sum(store) and not store.scan]
    exact = [store for store in cascaded if store.dtype == torch.float64]
    scalar_run = not in_strips and run < len(stage.inner)           # within the arrays for `kept`, or instead of them
    loops = [StageLoop(variable) for variable in stage.inner]
    block = None
    if cascaded and (scalar_run if kept else run < len(stage.inner)):
        block = _cut(loops, run, len(loops), _longest_block(stage, in_strips, bool(exact)))
    elif exact:                                                     # in the arrays for `kept`
        block = _cut(loops, first, stage.inner.index(kept[0]), EXACT_ROW_BLOCK)
    plan = StagePlan(stage, tuple(loops))
    for store in reductions:
        name, narrow = accumulation(store)
        wide = is_rounded_sum(store) and (block is not None or bool(kept) or store.scan)
        dtype = torch.float64 if wide else narrow
        merged = block is not None or bool(kept) and scalar_run
        whole = Accumulator(store, first, name, dtype, kept, compensated=store in exact and merged)
        plan.accumulators.append(whole)
        if store.scan or store.reduction in ARGUMENTS:
            continue
        if kept and scalar_run:
            whole = Accumulator(store, run, name, dtype if block is not None else narrow, into=whole,
                                compensated=store in exact and block is not None)
            plan.accumulators.append(whole)
        if block is not None and (store in exact if kept and not scalar_run else store in cascaded):
            plan.accumulators.append(Accumulator(store, block, name, narrow, () if scalar_run else kept, into=whole))
    return plan


def accumulation(store: Store) -> tuple[str, torch.dtype]:
    """The reduction by which a store's values are accumulated, and the narrowest dtype in which they can be."""
    if store.reduction in ARGUMENTS:
        name, dtype = ARGUMENTS[store.reduction], store.value.dtype
    else:
        name, dtype = ACCUMULATED_AS.get(store.reduction, store.reduction), store.dtype
    return name, torch.uint8 if dtype == torch.bool else dtype


def _longest_block(stage: Stage, in_strips: bool, exact: bool) -> int:
    """How many elements are added up in the narrow accumulator of a block, at most."""
    if in_strips or not exact:
        return (EXACT_ROW_BLOCK if exact else ROW_BLOCK) if in_strips else VECTOR_BLOCK
    run = index(stage.inner[-1].extent).constant
    return EXACT_VECTOR_BLOCK if run is None else min(EXACT_VECTOR_BLOCK, run)     # after a run, lanes are added up


def is_rounded_sum(store: Store) -> bool:
    """Whether a reduction is a sum, or a scan, that is computed in more than its own precision."""
    rounded = store.value.dtype in (torch.float32, torch.float64)
    return rounded and (store.reduction == "sum" or store.reduction == "prod" and store.scan)


def _cut(loops: list[StageLoop], start: int, stop: int, limit: int) -> int | None:
    """Cuts one of the loops from number `start` up to `stop` into blocks, such that a block has at most about `limit` points of
    these.

    Returns the number of the loop that runs through one block; None where they all together have no more than that.
    """
    inside = 1
    for number in reversed(range(start, stop)):
        extent = index(loops[number].variable.extent).constant
        if extent is None or inside * extent > limit:
            block = limit // inside
            if block <= 1:
                return number + 1
            variable = loops[number].variable
            loops[number:number + 1] = [StageLoop(variable, block), StageLoop(variable, block, within=True)]
            return number + 1
        inside *= extent
    return None


def strip_length(kernel: Kernel, plans: Iterable[StagePlan]) -> int:
    """How many values of the last outer variable make a strip: few enough that what is kept of each stays in the cache."""
    lane = sum(local.dtype.itemsize * (local.span.constant or 1) for local in kernel.locals)
    lane += max((sum(one.bytes * (one.length.constant or 1) for one in plan.accumulators) for plan in plans), default=0)
    length = STRIP_MOST
    while length > STRIP_LEAST and length * lane > STRIP_BYTES:
        length //= 2
    extent = index(kernel.outer[-1].extent).constant
    return length if extent is None else min(length, -(-max(extent, 1) // CPU.lanes) * CPU.lanes)
