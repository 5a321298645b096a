"""The meaning of the IR: a slow interpreter with torch, with which every test of lowering, fusion and kernels compares.

Each store is evaluated over its whole index space at once. This equals the IR's order, point by point, because points must not
touch each other's elements. `_Accesses` checks that; and that nothing is read before it is written, or lies outside of its buffer.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture.backends.native import ops
from capture.backends.native.index import Div, Index, Mod, Size, Symbol, Value, Var, index, known_span
from capture.backends.native.ir import Buffer, Constant, Expr, Extern, Kernel, Load, Nest, Op, Position, Program, Stage, Store, View
from capture.backends.native.show import postorder, roots, show_statement
from capture.backends.native.verify import InvalidProgram

Grid = torch.Tensor     # a value per point of an index space, one dimension for each loop; of size 1 where it does not depend on it

SEVERAL = -2            # owner of an element that several points write
NOBODY = -1
REDUCTION = -3          # and less: points that results of reductions belong to; nothing in their stage can load them


def evaluate(program: Program, inputs: Sequence[torch.Tensor | int]) -> list[torch.Tensor | int | None]:
    """Runs `program`. `inputs`: a tensor for each name in `program.inputs`, an int for each Symbol. Inputs that the program writes
    to are mutated. Returns one result for each of `program.outputs`: a tensor that views the buffer, an int, or None.

    Raises the exception that `index.Value` names if a computed index is out of range, ValueError for inputs that are not as
    declared, and InvalidProgram if points of a loop depend on each other, or something is read before it is written.
    """
    with torch.no_grad():
        return _Run(program, inputs).results()


@dataclass(slots=True)
class _Storage:
    """The elements of a buffer. `written` is None for memory that came with a content."""

    elements: torch.Tensor          # 1-D, of the buffer's dtype
    written: torch.Tensor | None    # bool, one for each scalar

    @property
    def scalars(self) -> torch.Tensor:
        """1-D, what kernels load and store: of complex elements, their parts."""
        return torch.view_as_real(self.elements).flatten() if self.elements.is_complex() else self.elements


@dataclass(slots=True)
class _Access:
    """The elements of one buffer that a load or a store touched, each by a point of `outer` and a point of the stage."""

    elements: torch.Tensor
    outer: torch.Tensor
    point: torch.Tensor
    stage: int
    mode: str           # "load", "set", or of scatters "chosen" (set where the program computed the place) or "combined"


class _Run:
    def __init__(self, program: Program, inputs: Sequence[torch.Tensor | int]) -> None:
        if len(inputs) != len(program.inputs):
            raise ValueError(f"{len(inputs)} inputs for {len(program.inputs)} parameters")
        self.program = program
        self.symbols: dict[Symbol, int] = {}
        self.storage: dict[str, _Storage] = {}
        for symbol, (position, dimension) in program.symbols.items():
            given = inputs[position]
            self.symbols[symbol] = int(given if dimension is None else given.size(dimension))
            if self.symbols[symbol] < symbol.low:
                raise ValueError(f"{symbol} is {self.symbols[symbol]}, less than {symbol.low}")
        for name, value in zip(program.inputs, inputs, strict=True):
            if isinstance(name, Symbol) and self.symbols.setdefault(name, value) != value:
                raise ValueError(f"{name} is {value} and {self.symbols[name]}")
        for name, value in zip(program.inputs, inputs, strict=True):
            if isinstance(name, str):
                self._bind(program.buffers[name], value)
        for name, value in program.constants.items():
            self._bind(program.buffers[name], value)
        for buffer in program.buffers.values():
            if buffer.kind in ("temporary", "output"):
                self.storage[buffer.name] = self._allocate(buffer, 1)

    def results(self) -> list[torch.Tensor | int | None]:
        for statement in self.program.body:
            if isinstance(statement, Extern):
                self._extern(statement)
            elif isinstance(statement, Nest):
                stage = Stage(statement.reduced, frozenset(statement.reduced), statement.stores)
                self._kernel(statement, Kernel(statement.name, statement.space, len(statement.space), False, (stage,)))
            else:
                self._kernel(statement, statement)
        return [self._result(output) for output in self.program.outputs]

    def size(self, value: Size) -> int:
        """A size, now that the symbols are known."""
        return int(_index_value(index(value), lambda atom: self.symbols[atom]))

    def sizes(self, values: Sequence[Size]) -> tuple[int, ...]:
        return tuple(map(self.size, values))

    def _bind(self, buffer: Buffer, tensor: torch.Tensor) -> None:
        sizes, strides = self.sizes(buffer.sizes), self.sizes(buffer.strides)
        if tensor.dtype != buffer.dtype or tuple(tensor.shape) != sizes or not _same_strides(sizes, strides, tensor.stride()):
            given = f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}"
            raise ValueError(f"{buffer.name} is {given}, not {buffer.dtype}{sizes}{strides}")
        self.storage[buffer.name] = _Storage(tensor.detach().as_strided((known_span(sizes, strides),), (1,)), None)

    def _allocate(self, buffer: Buffer, instances: int) -> _Storage:
        span = instances * known_span(self.sizes(buffer.sizes), self.sizes(buffer.strides))
        elements = torch.zeros(span, dtype=buffer.dtype)
        return _Storage(elements, torch.zeros(span * elements.itemsize // buffer.scalar.itemsize, dtype=torch.bool))

    # Loops.

    def _kernel(self, statement: Nest | Kernel, kernel: Kernel) -> None:
        outer = [self.size(var.extent) for var in kernel.outer]
        rows = math.prod(outer)
        instances = {buffer.name: known_span(self.sizes(buffer.sizes), self.sizes(buffer.strides)) for buffer in kernel.locals}
        for buffer in kernel.locals:
            self.storage[buffer.name] = self._allocate(buffer, rows)
        stored = {store.buffer for stage in kernel.stages for store in stage.stores}
        accesses = _Accesses(stored)
        for number, stage in enumerate(kernel.stages):
            points = _Points(self, kernel.outer, stage, number, instances, accesses)
            points.load(stage.stores)
            for store in stage.stores:
                points.run(store)
        try:
            accesses.check(self.storage, max(1, math.prod(outer[kernel.parallel:])))
        except InvalidProgram as error:
            raise InvalidProgram(f"{error} in\n{show_statement(statement)}") from None
        for buffer in kernel.locals:
            del self.storage[buffer.name]

    # Calls of ATen.

    def _extern(self, extern: Extern) -> None:
        operator = resolve(extern.op)
        args, kwargs = self._argument(extern.args), {name: self._argument(value) for name, value in extern.kwargs.items()}
        results = operator(*args, **kwargs)
        for name in extern.mutates:
            self._mark(name)
        if extern.out:
            for name in extern.results:
                self._mark(name)
            return
        results = [results] if isinstance(results, torch.Tensor) or results is None else list(results)
        if len(extern.results) > len(results):
            raise InvalidProgram(f"{len(results)} results, not {len(extern.results)} in\n{show_statement(extern)}")
        for name, result in zip(extern.results, results, strict=False):
            if name is None:
                continue
            buffer = self.program.buffers[name]
            sizes, strides = self.sizes(buffer.sizes), self.sizes(buffer.strides)
            if result.dtype != buffer.dtype or tuple(result.shape) != sizes:
                given = f"{result.dtype}{tuple(result.shape)}"
                raise InvalidProgram(f"{name} is {given}, not {buffer.dtype}{sizes} in\n{show_statement(extern)}")
            self.storage[name].elements.as_strided(sizes, strides).copy_(result)       # whatever strides ATen chose
            self._mark(name)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, (Index, Symbol)):
            return self.size(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._argument, value))
        return value

    def _view(self, view: View) -> torch.Tensor:
        elements = self.storage[view.buffer].elements
        if view.dtype is not None:
            elements = elements.view(view.dtype)
        offset = elements.storage_offset() + self.size(view.offset)
        return elements.as_strided(self.sizes(view.sizes), self.sizes(view.strides), offset)

    def _mark(self, name: str | None) -> None:
        if name is not None and (written := self.storage[name].written) is not None:
            written.fill_(True)

    def _result(self, output: View | Size | None) -> torch.Tensor | int | None:
        return self._view(output) if isinstance(output, View) else None if output is None else self.size(output)


class _Points:
    """The points of a stage, and the values there."""

    def __init__(self, run: _Run, outer: tuple[Var, ...], stage: Stage, number: int, instances: dict[str, int],
                 accesses: _Accesses) -> None:
        self.run_ = run
        kept = tuple(var for var in stage.inner if var not in stage.reduced)
        self.space = outer + kept
        self.reduced = tuple(var for var in stage.inner if var in stage.reduced)
        variables = self.space + self.reduced
        self.extents = [run.size(var.extent) for var in variables]
        self.grids = {var: torch.arange(extent).view([-1 if axis == number_ else 1 for axis in range(len(variables))])
                      for number_, (var, extent) in enumerate(zip(variables, self.extents, strict=True))}
        self.rows = _number(self.grids, outer, self.extents)
        self.points = torch.arange(math.prod(self.extents)).view(self.extents)
        self.number, self.instances, self.accesses = number, instances, accesses
        self.values: dict[Expr, Grid] = {}

    def load(self, stores: Sequence[Store]) -> None:
        """Evaluates what is to be stored: at a point, all loads come before the first store."""
        for store in stores:
            for root in roots(store):
                self._value(root)

    def run(self, store: Store) -> None:
        """Performs the store at all points."""
        value = self._value(store.value)
        mask = None if store.mask is None else self._value(store.mask)
        if store.reduction is None:
            extents, points = self.extents, self.points
        else:
            flat = value.expand(self.extents).reshape(*self.extents[:len(self.space)], -1)
            combined = (SCANS if store.scan else REDUCTIONS)[store.reduction](flat)
            if store.scan:
                extents, points = self.extents, REDUCTION - self.points
            else:
                extents = self.extents[:len(self.space)] + [1] * len(self.reduced)
                points = REDUCTION - torch.arange(math.prod(extents)).view(extents)
            value = combined.reshape(extents)
        elements = self._elements(store.buffer, store.index, mask)
        if mask is not None and math.prod(mask.shape) > math.prod(extents):
            raise InvalidProgram(f"the mask of a reduction into {store.buffer} depends on what is reduced")
        keep = torch.ones(extents, dtype=torch.bool) if mask is None else mask.expand(extents)
        elements = elements.expand(extents)[keep]
        mode = "combined" if store.mode != "set" else "chosen" if store.scatters else "set"
        self.accesses.note(store.buffer, _Access(elements, self.rows.expand(extents)[keep], points[keep], self.number, mode))
        storage = self.run_.storage[store.buffer]
        scalars = storage.scalars
        if scalars.dtype != value.dtype:
            raise InvalidProgram(f"{value.dtype} stored to {store.buffer}, which is {storage.elements.dtype}")
        given = value.expand(extents)[keep]
        if mode == "combined":
            self._demand_written(store.buffer, elements)
        if store.mode in ("set", "add"):
            scalars.index_put_((elements,), given, accumulate=store.mode == "add")
        else:
            scalars.scatter_reduce_(0, elements, given, {"mul": "prod", "maximum": "amax", "minimum": "amin"}[store.mode])
        if storage.written is not None:
            storage.written[elements] = True

    def _value(self, root: Expr) -> Grid:
        for expr in postorder(root):
            if expr not in self.values:
                self.values[expr] = self._compute(expr)
        return self.values[root]

    def _compute(self, expr: Expr) -> Grid:
        if isinstance(expr, Constant):
            return torch.tensor(expr.value, dtype=expr.dtype).view([1] * len(self.extents))
        if isinstance(expr, Position):
            return self._index(expr.index, None).to(expr.dtype)
        if isinstance(expr, Op):
            args = [self.values[arg] for arg in expr.args]
            result = ops.evaluate(expr.name, expr.dtype, *args)
            if result.dtype != expr.dtype:
                raise InvalidProgram(f"{expr.name} of {[str(arg.dtype) for arg in args]} is {result.dtype}, not {expr.dtype}")
            return result
        assert isinstance(expr, Load)
        return self._load(expr)

    def _load(self, load: Load) -> Grid:
        mask = None if load.mask is None else self.values[load.mask]
        elements = self._elements(load.buffer, load.index, mask)
        keep = torch.ones(self.extents, dtype=torch.bool) if mask is None else mask.expand(self.extents)
        self.accesses.note(load.buffer, _Access(elements.expand(self.extents)[keep], self.rows.expand(self.extents)[keep],
                                                self.points[keep], self.number, "load"))
        if mask is not None:
            elements, mask = torch.broadcast_tensors(elements, mask)
        self._demand_written(load.buffer, elements if mask is None else elements[mask])
        stored = self.run_.storage[load.buffer].scalars
        if mask is None:
            return stored[elements.expand(self.extents) if 0 in self.extents else elements]     # which may be none
        result = torch.zeros(elements.shape, dtype=stored.dtype)
        result[mask] = stored[elements[mask]]
        return result

    def _elements(self, name: str, where: Index, mask: Grid | None) -> Grid:
        """Positions in the buffer's storage."""
        found = self._index(where, mask)
        storage = self.run_.storage[name]
        span = self.instances.get(name, storage.scalars.numel())
        touched = found
        if mask is not None:
            everywhere, reached = torch.broadcast_tensors(found, mask)
            touched = everywhere[reached]
        if 0 not in self.extents and touched.numel():
            first, last = int(touched.min()), int(touched.max())
            if first < 0 or last >= span:
                raise InvalidProgram(f"{name}[{where}] reaches {first} … {last} of {span} elements")
        return found + self.rows * span if name in self.instances else found

    def _demand_written(self, name: str, elements: torch.Tensor) -> None:
        written = self.run_.storage[name].written
        if written is not None and 0 not in self.extents and not bool(written[elements].all()):
            raise InvalidProgram(f"{name} is read before it is written")

    def _index(self, where: Index, mask: Grid | None) -> Grid:
        found = _index_value(where, lambda atom: self._atom(atom, mask))
        return found if isinstance(found, torch.Tensor) else torch.tensor(found).view([1] * len(self.extents))

    def _atom(self, atom: Symbol | Var | Value, mask: Grid | None) -> Grid | int:
        if isinstance(atom, Symbol):
            return self.run_.symbols[atom]
        if isinstance(atom, Var):
            return self.grids[atom]
        value, extent = self._value(atom.expr), self.run_.size(atom.extent)
        bad = (value < 0) | (value >= extent)
        if mask is not None:
            bad = bad & mask
        if 0 not in self.extents and bool(bad.any()):
            error = atom.error or InvalidProgram
            raise error(f"index {int(value.expand_as(bad)[bad][0])} is out of bounds for a dimension of size {extent}")
        return value


class _Accesses:
    """What a kernel loads and stores of the buffers that it writes."""

    def __init__(self, stored: set[str]) -> None:
        self._of: dict[str, list[_Access]] = {name: [] for name in stored}

    def note(self, buffer: str, access: _Access) -> None:
        if buffer in self._of:
            self._of[buffer].append(access)

    def check(self, storage: dict[str, _Storage], chunk: int) -> None:
        """Raises InvalidProgram unless each row (a point of the outer loops) touches only elements that no other row writes, and
        the same for points within a stage, but for scatters. `chunk`: so many rows run one after another, on one thread.
        """
        for name, accesses in self._of.items():
            span = storage[name].scalars.numel()
            _check_owners(name, span, [(access, access.outer) for access in accesses], "row")
            for stage in {access.stage for access in accesses}:
                _check_owners(name, span, [(access, access.point) for access in accesses if access.stage == stage], "point")
            scattered = [(access, access.outer // chunk) for access in accesses if access.mode in ("chosen", "combined")]
            if (_owners(name, span, scattered, "thread") == SEVERAL).any():
                raise InvalidProgram(f"several threads scatter to the same element of {name}")


def _owners(name: str, span: int, accesses: list[tuple[_Access, torch.Tensor]], who: str) -> torch.Tensor:
    """For each element the one that stores to it, NOBODY or SEVERAL."""
    owners = torch.full((span,), NOBODY)
    for access, owner in sorted(accesses, key=lambda pair: pair[0].mode == "combined"):
        if access.mode == "load":
            continue
        before = owners[access.elements]
        if access.mode != "combined" and ((before != NOBODY) & (before != owner)).any():
            raise InvalidProgram(f"a {who} stores to an element of {name} to which another {who} stores")
        owners[access.elements] = torch.where((before == NOBODY) | (before == owner), owner, SEVERAL)
        again = owners[access.elements] != owner
        if again.any() and access.mode == "set":
            raise InvalidProgram(f"several {who}s store to the same element of {name}")
        owners[access.elements[again]] = SEVERAL
    return owners


def _check_owners(name: str, span: int, accesses: list[tuple[_Access, torch.Tensor]], who: str) -> None:
    owners = _owners(name, span, accesses, who)
    for access, owner in accesses:
        if access.mode == "load":
            stored = owners[access.elements]
            if ((stored != NOBODY) & (stored != owner)).any():
                raise InvalidProgram(f"a {who} loads an element of {name} that another {who} stores")


def _same_strides(sizes: Sequence[int], declared: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides agree where they matter."""
    return 0 in sizes or all(size == 1 or a == b for size, a, b in zip(sizes, declared, strides, strict=True))


def _number(grids: dict[Var, Grid], variables: Sequence[Var], extents: Sequence[int]) -> Grid:
    """The row-major number of a point, counted over `variables`, the first of those that `extents` are of."""
    number = torch.zeros([1] * len(extents), dtype=torch.int64)
    for var, extent in zip(variables, extents, strict=False):
        number = number * extent + grids[var]
    return number


def _index_value(value: Index, atom_value: Callable[[Any], Any]) -> Any:
    """An index expression's value, by those of its symbols, variables and computed integers."""
    total: Any = 0
    for monomial, coefficient in value.terms.items():
        factor: Any = coefficient
        for atom in monomial:
            if isinstance(atom, (Div, Mod)):
                dividend, divisor = _index_value(atom.dividend, atom_value), _index_value(atom.divisor, atom_value)
                factor = factor * (dividend // divisor if isinstance(atom, Div) else dividend % divisor)
            else:
                factor = factor * atom_value(atom)
        total = total + factor
    return total


def resolve(op: str) -> Callable[..., Any]:
    """The ATen operator called, for example, "aten::mm.out". Raises AttributeError where there is none."""
    namespace, _, name = op.partition("::")
    name, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


# Reductions: values over (space …, reduced) -> (space …).

def _extreme(largest: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def reduce(values: torch.Tensor) -> torch.Tensor:
        if values.size(-1):
            return values.amax(-1) if largest else values.amin(-1)
        dtype = values.dtype
        low, high = ((-math.inf, math.inf) if dtype.is_floating_point else (False, True) if dtype == torch.bool else
                     (torch.iinfo(dtype).min, torch.iinfo(dtype).max))
        return torch.full(values.shape[:-1], low if largest else high, dtype=dtype)
    return reduce


def _partial_extreme(largest: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: (values.cummax(-1) if largest else values.cummin(-1)).values


def _arg_extremes(largest: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """For each partial result the first position that attains it."""
    def reduce(values: torch.Tensor) -> torch.Tensor:
        partial = _partial_extreme(largest)(values)
        new = ~_alike(partial[..., 1:], partial[..., :-1])
        new = torch.cat([torch.ones_like(values[..., :1], dtype=torch.bool), new], -1)
        return torch.where(new, torch.arange(values.size(-1)), 0).cummax(-1).values
    return reduce


def _alike(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Equal, NaN being equal to itself."""
    return (left == right) | ((left != left) & (right != right))


SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda values: values.cumsum(-1, dtype=values.dtype),
    "prod": lambda values: values.cumprod(-1, dtype=values.dtype),
    "max": _partial_extreme(True),
    "min": _partial_extreme(False),
    "any": lambda values: values.to(torch.uint8).cummax(-1).values.to(values.dtype),
    "all": lambda values: values.to(torch.uint8).cummin(-1).values.to(values.dtype),
    "argmax": _arg_extremes(True),
    "argmin": _arg_extremes(False),
}
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda values: values.sum(-1, dtype=values.dtype),
    "total": lambda values: values.sum(-1, dtype=torch.float64),
    "prod": lambda values: values.prod(-1, dtype=values.dtype),
    "max": _extreme(True),
    "min": _extreme(False),
    "any": lambda values: values.any(-1),
    "all": lambda values: values.all(-1),
    "argmax": lambda values: SCANS["argmax"](values)[..., -1],
    "argmin": lambda values: SCANS["argmin"](values)[..., -1],
}
