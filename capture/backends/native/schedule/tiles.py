"""Transposes: loads whose neighbours in memory are not those of the innermost loop, but of the loop around it."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from capture.backends.native.index import Index, Value, Var, index, product
from capture.backends.native.ir import Kernel, Load, Store
from capture.backends.native.machine import CPU
from capture.backends.native.rewrite import loads_of

ROWS, COLUMNS = 256, CPU.lanes      # of a tile: long in the direction of reading, which touches few pages; across, a line of floats


@dataclass(frozen=True)
class Tiles:
    """The last two outer variables run through tiles of ROWS x COLUMNS. Each of `loads` is first copied, transposed, to an array.

    strides: of each load, in the direction of the last variable.
    """

    row: Var
    column: Var
    loads: tuple[Load, ...]
    strides: tuple[Index, ...]


def tiles_of(kernel: Kernel) -> Tiles | None:
    """The tiles of a pointwise kernel which transposes something, None for all others."""
    if not kernel.vectorized or len(kernel.outer) < 2 or len(kernel.stages) != 1 or kernel.stages[0].inner or kernel.locals:
        return None
    row, column = kernel.outer[-2:]
    stores = kernel.stages[0].stores
    written = {store.buffer for store in stores}
    loads = tuple(node for node in loads_of(stores) if node.buffer not in written and _is_transposed(node, row, column))
    if not loads:
        return None
    return Tiles(row, column, loads, tuple(node.index.coefficient(column) for node in loads))


def streamed_of(kernel: Kernel, tiles: Tiles | None) -> tuple[Store, ...]:
    """The stores of tiles whose lines of memory are written past the cache: whole lines, far apart, of more than the cache keeps.

    A line that is written through the cache is read first, and here nothing foresees which one is next.
    """
    if tiles is None:
        return ()
    stores = kernel.stages[0].stores
    touched = Counter([store.buffer for store in stores] + [node.buffer for node in loads_of(stores)])
    return tuple(store for store in stores if touched[store.buffer] == 1 and _is_streamed(store, kernel, tiles))


def _is_streamed(store: Store, kernel: Kernel, tiles: Tiles) -> bool:
    points = product(variable.extent for variable in kernel.outer if variable in store.index.variables()).constant
    return (store.mask is None and store.mode == "set" and store.value.dtype.itemsize * COLUMNS % CPU.line == 0
            and store.index.coefficient(tiles.column) == 1 and not any(isinstance(atom, Value) for atom in store.index.atoms())
            and points is not None and points * store.value.dtype.itemsize >= CPU.streamed)


def _is_transposed(node: Load, row: Var, column: Var) -> bool:
    where = node.index
    if node.mask is not None or any(isinstance(atom, Value) for atom in where.atoms()):
        return False
    stride = where.coefficient(column)
    rest = where - index(row) - index(column) * stride
    return (where.coefficient(row) == 1 and stride not in (0, 1) and not {row, column} & stride.variables()
            and not {row, column} & rest.variables())
