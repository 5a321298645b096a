"""Which accesses of a CUDA kernel a thread makes for several elements at once, 16 bytes or more, and how many these are.

A thread then does `width` neighbouring points in turn. What it reads and writes of them lies side by side in memory, and begins at
a multiple of their size there: of addresses a launch is sure (`plan.Variant`), of all that is added to them the index tells.
"""
from __future__ import annotations

from capture.backends.native.index import Div, Index, Mod, Value, Var, index, product
from capture.backends.native.ir import Kernel, Load, Stage, Store
from capture.backends.native.machine import CUDA
from capture.backends.native.rewrite import loads_of
from capture.backends.native.schedule.stages import ARGUMENTS

BYTES = 16          # the widest access
MOST = 8            # points that a thread does in turn: more need too many registers


def width_of(kernel: Kernel, group: int) -> int:
    """How many neighbouring points a thread does in turn; 1 where nothing could be read or written together."""
    if group == 1:
        if not kernel.vectorized or len(kernel.stages) != 1 or kernel.locals:
            return 1
        stage, = kernel.stages
        if stage.inner and not adds_up_columns(stage):
            return 1
        along = {stage: kernel.outer[-1]}
        count = product(variable.extent for variable in kernel.outer).constant
        if not stage.inner and count is not None and count < CUDA.busy:      # each point has a thread of its own
            return 1
    else:
        stages = [stage for stage in kernel.stages if stage.inner]
        if not all(len(stage.inner) == 1 and not any(map(_in_order, stage.stores)) for stage in stages):
            return 1
        along = {stage: stage.inner[0] for stage in stages}
    sizes = [access.dtype.itemsize for stage, variable in along.items() for access in _accesses(stage)
             if _is_along(access.index, variable) and access.mask is None]
    if not sizes:
        return 1
    width = min(MOST, BYTES // min(sizes))
    extents = [index(variable.extent) for variable in along.values()]
    while width > 1 and not all(is_multiple(extent, width) and _is_long(extent, width * group) for extent in extents):
        width //= 2
    return width


def adds_up_columns(stage: Stage) -> bool:
    """Whether a stage reduces along all of its loops, in any order: a thread may do that for neighbouring results side by side."""
    return set(stage.inner) == stage.reduced and bool(stage.inner) and all(
        store.reduction is not None and not _in_order(store) for store in stage.stores)


def _accesses(stage: Stage) -> list[Load | Store]:
    return [*loads_of(stage.stores), *(store for store in stage.stores if store.reduction is None)]


def _in_order(store: Store) -> bool:
    return store.scan or store.scatters or store.reduction in ARGUMENTS


def _is_long(extent: Index, points: int) -> bool:
    """Whether each thread of a group has something to do."""
    return extent.constant is None or extent.constant >= points


def is_wide(access: Load | Store, variable: Var, width: int) -> bool:
    """Whether the elements at `width` neighbouring values of a variable, the first of which is a multiple of `width`, lie side by
    side, and begin at a multiple of `width`."""
    if access.mask is not None or isinstance(access, Store) and (access.mode != "set" or access.reduction is not None):
        return False
    return _is_along(access.index, variable) and is_multiple(access.index - index(variable), width)


def _is_along(where: Index, variable: Var) -> bool:
    """Whether a step of the variable is a step of one element."""
    return where.coefficient(variable) == 1 and not any(
        isinstance(atom, Value) or isinstance(atom, (Div, Mod)) and variable in index(atom).variables() for atom in where.atoms())


def is_multiple(value: Index, width: int) -> bool:
    """Whether the value is a multiple of `width` for all values of variables and sizes."""
    return all(coefficient % width == 0 for coefficient in value.terms.values())
