"""Which accesses of a CUDA kernel a thread makes for several elements at once, 16 bytes or more, and how many these are.

A thread then does `width` neighbouring points in turn. What it reads and writes of them lies side by side in memory, and begins at
a multiple of their size there: of addresses, and of sizes that vary, a launch is sure (`render.launch.Form`), of all that is added
to them the index tells.
"""
from __future__ import annotations

from collections.abc import Mapping

from capture.backends.native.index import Div, Index, Mod, Symbol, Value, Var, index, product
from capture.backends.native.ir import Kernel, Load, Stage, Store
from capture.backends.native.machine import CUDA
from capture.backends.native.rewrite import loads_of
from capture.backends.native.schedule.stages import ARGUMENTS

BYTES = 16          # the widest access
MOST = 8            # points that a thread does in turn: more need too many registers


def width_of(kernel: Kernel, group: int) -> int:
    """How many neighbouring points a thread does in turn, where sizes that vary are multiples of that; 1 where nothing could be
    read or written together."""
    along = _along(kernel, group)
    sizes = [access.dtype.itemsize for stage, variable in along.items() for access in _accesses(stage)
             if _is_along(access.index, variable) and access.mask is None]
    if not sizes:
        return 1
    width = min(MOST, BYTES // min(sizes))
    extents = [index(variable.extent) for variable in along.values()]
    while width > 1 and not all(_may_be_multiple(extent, width) and _is_long(extent, width * group) for extent in extents):
        width //= 2
    return width


def multiples_for_points(kernel: Kernel, group: int, width: int) -> set[Index]:
    """The numbers of points that must be multiples of `width`, and are not for all sizes."""
    extents = {index(variable.extent) for variable in _along(kernel, group).values()} if width > 1 else set()
    return {extent for extent in extents if not _is_multiple(extent, width)}


def _along(kernel: Kernel, group: int) -> Mapping[Stage, Var]:
    """The variable whose neighbouring values a thread could do in turn, in each stage that has one; empty where it cannot."""
    if group > 1:
        stages = [stage for stage in kernel.stages if stage.inner]
        suits = all(len(stage.inner) == 1 and not any(map(_in_order, stage.stores)) for stage in stages)
        return {stage: stage.inner[0] for stage in stages} if suits else {}
    if not kernel.vectorized or len(kernel.stages) != 1 or kernel.locals:
        return {}
    stage, = kernel.stages
    if stage.inner and not adds_up_columns(stage):
        return {}
    count = product(variable.extent for variable in kernel.outer).constant
    if not stage.inner and count is not None and count < CUDA.busy:      # each point has a thread of its own
        return {}
    return {stage: kernel.outer[-1]}


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


def multiples_for_access(access: Load | Store, variable: Var, width: int) -> set[Index] | None:
    """What must be multiples of `width` so that the elements at `width` neighbouring values of a variable, the first of which is a
    multiple of `width`, lie side by side and begin at a multiple of `width`. None where they never do."""
    if access.mask is not None or isinstance(access, Store) and (access.mode != "set" or access.reduction is not None):
        return None
    if not _is_along(access.index, variable):
        return None
    asked: set[Index] = set()
    for monomial, coefficient in (access.index - index(variable)).terms.items():
        if coefficient % width:
            sizes = [atom for atom in monomial if isinstance(atom, Symbol)]
            if not sizes:
                return None
            asked.add(product(map(index, sizes)) * coefficient)
    return asked


def _is_along(where: Index, variable: Var) -> bool:
    """Whether a step of the variable is a step of one element."""
    return where.coefficient(variable) == 1 and not any(
        isinstance(atom, Value) or isinstance(atom, (Div, Mod)) and variable in index(atom).variables() for atom in where.atoms())


def _is_multiple(value: Index, width: int) -> bool:
    """Whether the value is a multiple of `width` for all values of variables and sizes."""
    return all(coefficient % width == 0 for coefficient in value.terms.values())


def _may_be_multiple(value: Index, width: int) -> bool:
    return value.constant is None or value.constant % width == 0
