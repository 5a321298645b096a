"""Pointwise CUDA kernels that read across what they write: square tiles go through shared memory, so that both lie side by side.

A block reads a tile along the variable along which its elements lie in memory, and writes the results along the last variable of
`outer`. All else that the kernel reads it reads as it writes.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from capture.backends.native.index import Div, Mod, Value, Var, index, plain, product
from capture.backends.native.ir import Kernel, Load
from capture.backends.native.machine import CUDA
from capture.backends.native.render.language import IN_MEMORY
from capture.backends.native.render.launch import Launch
from capture.backends.native.render.statements import Branch, Function, Loop
from capture.backends.native.rewrite import loads_of
from capture.backends.native.schedule.device_rows import Rows

SIDE = 32           # of a tile of elements of 4 bytes or more; of smaller ones twice that
LEAST = 16          # of a variable for which tiles are worth while


def crosswise_loads(kernel: Kernel) -> tuple[Var, tuple[Load, ...]] | None:
    """The variable along which a pointwise kernel reads across its own order, and what it reads so; None where it does not."""
    if not kernel.vectorized or len(kernel.stages) != 1 or kernel.stages[0].inner or kernel.locals or len(kernel.outer) < 2:
        return None
    stage, last = kernel.stages[0], kernel.outer[-1]
    written = {store.buffer for store in stage.stores}
    if any(store.scatters for store in stage.stores) or not _is_long(last):
        return None
    found: dict[Var, list[Load]] = {}
    for node in loads_of(stage.stores):
        affine = not any(isinstance(atom, (Value, Div, Mod)) for atom in node.index.atoms())
        if node.mask is not None or node.buffer in written or not affine:
            continue
        along = [variable for variable in kernel.outer[:-1] if node.index.coefficient(variable) == 1 and _is_long(variable)]
        if along and node.index.coefficient(last) not in (index(0), index(1)):
            found.setdefault(along[-1], []).append(node)
    if not found:
        return None
    variable = max(found, key=lambda one: len(found[one]))
    side = _side(found[variable])
    room = CUDA.shared // (side * (side + 1))
    if sum(node.dtype.itemsize for node in found[variable]) > room:
        return None
    return variable, tuple(found[variable])


def _is_long(variable: Var) -> bool:
    extent = index(variable.extent).constant
    return extent is None or extent >= LEAST


def _side(loads: list[Load] | tuple[Load, ...]) -> int:
    return SIDE if max(node.dtype.itemsize for node in loads) >= 4 else 2 * SIDE


class Tiles(Rows):
    """Writes the function of a kernel of which `crosswise_loads` finds something."""

    def function(self) -> Function:
        found = crosswise_loads(self.kernel)
        assert found is not None
        self.across, loads = found
        self.last = self.kernel.outer[-1]
        self.side = _side(loads)
        stage, = self.kernel.stages
        tiles = {node: f"tile{number}" for number, node in enumerate(loads)}
        for node, name in tiles.items():
            self.path.write(f"__shared__ {IN_MEMORY[node.dtype]} {name}[{self.side}][{self.side} + 1];")     # rows in other banks
        self.path.write(f"const int64_t lane = threadIdx.x % {self.side}, first = threadIdx.x / {self.side};")
        outer = tuple(variable for variable in self.kernel.outer if variable not in (self.across, self.last))
        self.parts = {variable: Var(f"{variable.name} tile", plain((index(variable.extent) + (self.side - 1)) // self.side))
                      for variable in (self.across, self.last)}
        variables = (*outer, *self.parts.values())
        count = product(variable.extent for variable in variables)
        self.begin_stage(stage.stores)
        with self.path.open(Loop(variable="tile", first="block", last=self.size(count), step="blocks")):
            self.row = self.path.depth
            self._decode(variables, "tile", count, "i")
            with self._points(self.across, self.last) as turn:
                self.path.write(*(f"{name}[{turn}][lane] = {self.place(node.buffer, node.dtype, node.index, self.path.depth)};"
                                  for node, name in tiles.items()))
            self._barrier()
            with self._points(self.last, self.across) as turn:
                self.together, self.lane = {node: f"{name}[lane]" for node, name in tiles.items()}, turn
                self._point(self.divisions[0])
                self.together = {}
            self._barrier()
        return self._written(Launch(CUDA.block, count, 1, True))

    def _barrier(self) -> None:
        self.path.write(f"group_sync<{CUDA.block}>();")

    @contextmanager
    def _points(self, fast: Var, slow: Var) -> Iterator[str]:
        """The points of a tile that a thread does, neighbours in `fast` being neighbouring threads'; gives the place in `slow`."""
        rows = CUDA.block // self.side
        with self.path.open(Loop(variable=self.path.fresh("k"), last=str(self.side // rows), unrolled=True)) as loop:
            turn = self._named(f"first + {loop.variable} * {rows}")
            names = {fast: self._named(f"{self.name(self.parts[fast])} * {self.side} + lane"),
                     slow: self._named(f"{self.name(self.parts[slow])} * {self.side} + {turn}")}
            inside = " & ".join(f"({name} < {self.size(variable.extent)})" for variable, name in names.items())
            with self.path.open(Branch(condition=inside, may_be_empty=True)):
                for variable, name in names.items():
                    self.bind(variable, name)
                self.rebound()
                yield turn
        self.rebound()
