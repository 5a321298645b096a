"""The fusion IR: buffers, loop nests over index spaces with an expression each, and calls of ATen in between.

Lowering makes a `Program` of `Nest`s and `Extern`s; fusion turns its nests into `Kernel`s. `verify.py` states the rules,
`evaluate.py` the meaning. Sizes are ints or `Index` expressions over symbols.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from capture.backends.native.index import ZERO, Index, Size, Symbol, Value, Var, index

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of elements of one dtype. `kind`: "input" (the caller's), "temporary" (in the arena), "output" (allocated anew
    for each call: results, tensors saved for the backward pass), "constant" (of the program's own) or "local" (lives within
    one kernel: per row, or per row and strip; see `Kernel`).

    An element's address is `Σ index * stride`; the loads and stores of the IR name it by that one number, in elements. Of complex
    elements they name the parts: the real part of element n is at 2n, the imaginary part behind it.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    kind: str = "temporary"

    @property
    def scalar(self) -> torch.dtype:
        """The dtype of what is loaded and stored."""
        return self.dtype.to_real() if self.dtype.is_complex else self.dtype

    @property
    def span(self) -> Index:
        """The number of elements from the first one to the last one, both included."""
        if any(size == 0 for size in self.sizes):
            return ZERO
        return sum(((index(size) - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)), index(1))


COMBINING = frozenset(("add", "mul", "maximum", "minimum"))     # modes of stores, by their names in `ops.py`


JOINED = 4              # steps of a reduction that kernels do at a time
# Reductions whose values may be combined in any order: the operation that combines two, and the reduction of parts' results.
COMBINED = {"sum": "add", "total": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
OF_PARTS = {name: "sum" if name == "total" else name for name in COMBINED}


def reduction_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of what a reduction of values of `dtype` stores."""
    return {"argmax": torch.int64, "argmin": torch.int64, "total": torch.float64}.get(reduction, dtype)


class Expr:
    """A value per point of an index space. Equal expressions are the same object (see `intern`), so `is` compares them."""

    __slots__ = ("__weakref__",)
    dtype: torch.dtype

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is computed from, also within indices."""
        return ()

    def variables(self) -> set[Var]:
        """The loop variables that the value depends on."""
        found: set[Var] = set()
        seen: set[Expr] = set()
        stack: list[Expr] = [self]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            stack.extend(node.children())
            if isinstance(node, (Load, Position)):
                found |= {atom for atom in node.index.atoms() if isinstance(atom, Var)}
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expr):
    """A number, with Python's type of `dtype`."""

    value: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Position(Expr):
    """An index expression as an integer value."""

    index: Index
    dtype: torch.dtype

    def children(self) -> tuple[Expr, ...]:
        return _values(self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    """An element of a buffer, of the buffer's dtype. Where `mask` (bool) is false nothing is read and the value is 0."""

    buffer: str
    index: Index
    dtype: torch.dtype
    mask: Expr | None = None

    def children(self) -> tuple[Expr, ...]:
        return _values(self.index) + ((self.mask,) if self.mask is not None else ())


@dataclass(frozen=True, slots=True, eq=False)
class Op(Expr):
    """A scalar operation by name (`ops.py` is the table of names, argument dtypes and meaning)."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Writes `value` to `buffer` at `index`, by `mode`:

    "set"; or one of COMBINING, an operation that combines it with what is there, which has been set before. Where it combines, or
    where the program computes `index`, several points may meet (see `scatters`).
    With a `reduction`, `value` is combined over the reduced variables, starting from the reduction's identity; `index` depends
    on the other variables only. Reductions: sum, prod, max, min (NaN wins, as in torch), any, all, and argmax, argmin: the
    position (row-major, among the reduced variables) of the first extreme, NaN being the most extreme, stored as int64; and
    total: the sum of float32 numbers as float64, where JOINED of them may make a sum in float32 first, in pairs.
    `scan`: every partial result is stored, in order; `index` depends on the reduced variables as well.
    """

    buffer: str
    index: Index
    value: Expr
    mode: str = "set"
    reduction: str | None = None
    scan: bool = False
    mask: Expr | None = None        # where false, nothing is stored

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is stored."""
        return self.value.dtype if self.reduction is None else reduction_dtype(self.reduction, self.value.dtype)

    @property
    def scatters(self) -> bool:
        """Whether several points may store to the same element. Those that do must run one after the other, on one thread."""
        return self.mode != "set" or any(isinstance(atom, Value) for atom in self.index.atoms())


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Loops over `space` (each point may run in parallel) and, inside, over `reduced`, in order; the stores run in order at each
    point.

    A store without reduction in a nest that has reduced variables runs at every point of them. A scatter is such a store: points
    that may meet differ in reduced variables alone.
    """

    name: str
    space: tuple[Var, ...]
    reduced: tuple[Var, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pass within a row of a kernel: loops over `inner`, outermost first, of which `reduced` accumulate.

    At each point all values are computed before the first of them is stored, so that a load always means what was in memory before
    the point; what an earlier store of the same point wrote has been put in place of the load by fusion.
    """

    inner: tuple[Var, ...]
    reduced: frozenset[Var]
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Fused nests: for each point of `outer`, each stage in order. One function, as `schedule` has it for a machine.

    The leading `parallel` variables of `outer` form the range that is divided among threads; the rest runs sequentially inside.
    `vectorized`: elements side by side in memory belong to values side by side of the last variable of `outer` (pointwise kernels,
    reductions over leading dimensions); otherwise to those of each stage's own last loop.

    A later stage sees what an earlier one stored, at the same point of `outer` only. `locals`: buffers nobody else needs. Their
    indices depend on the stages' inner variables alone (one instance for each point of `outer`).
    """

    name: str
    outer: tuple[Var, ...]
    parallel: int
    vectorized: bool
    stages: tuple[Stage, ...]
    locals: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Kernels of which none depends on another, and which one function runs at the same time: they differ in buffers, and in sizes
    that it is passed."""

    name: str
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A tensor over a buffer, as `as_strided` has it; `offset` in elements. How ATen sees a buffer. `dtype`: the buffer's, where
    None.
    """

    buffer: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0
    dtype: torch.dtype | None = None


def nested(value: object, kind: type[T]) -> Iterator[T]:
    """The objects of a class in an argument: itself, or among the items of lists and dicts."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nested(item, kind)
    elif isinstance(value, dict):
        yield from nested(list(value.values()), kind)


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """A call of an ATen operator, such as "aten::mm.out".

    args, kwargs: Views, literals, sizes (`Index`) and lists of these. `results`: one buffer for each tensor returned, None where
    it is not needed. `out`: the results are written into the buffers that the overload's out arguments, part of kwargs, name;
    otherwise the operator allocates them, with the sizes and strides that the buffers declare. `mutates`: buffers among the
    arguments that are written to.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[str | None, ...]
    out: bool = False
    mutates: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Program:
    """One graph. `inputs`: buffer names in the order of the arguments, or a Symbol where a size is passed. `outputs`: in the order
    of the results: a View, a Size, or None. `symbols`: where each comes from: (input position, dimension), dimension None when it
    is the argument itself. Statements run in order; fusion replaces Nests by Kernels, a device's schedule some of these by Batches.
    `constants`: the tensors of constant buffers.
    `device`: of all buffers but `hosts`, which are on the processor though the program is not: numbers and carriers of sizes among
    the inputs, and what operators are to bring from there or to it.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    inputs: list[str | Symbol] = field(default_factory=list)
    outputs: list[View | Size | None] = field(default_factory=list)
    symbols: dict[Symbol, tuple[int, int | None]] = field(default_factory=dict)
    body: list[Nest | Kernel | Batch | Extern] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    hosts: frozenset[str] = frozenset()


_interned: dict[tuple[Any, ...], Expr] = {}


def intern(cls: type[Expr], *fields: Any) -> Expr:
    """The one expression of class `cls` with these fields. Lowering, fusion and rewrites make expressions only by it."""
    key = (cls, *((type(f), repr(f)) if isinstance(f, (bool, int, float)) else f for f in fields))     # 1, 1.0, True; -0.0, nan
    known = _interned.get(key)
    if known is None:
        known = _interned[key] = cls(*fields)
    return known


def forget_interned() -> None:
    """Drops the table; called when a program has been compiled."""
    _interned.clear()


def constant(value: bool | int | float, dtype: torch.dtype) -> Expr:
    """A Constant, its value converted to `dtype`'s Python type."""
    convert = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    return intern(Constant, convert(value), dtype)


def position(index: Index, dtype: torch.dtype = torch.int64) -> Expr:
    """A Position; a Constant where the index is one."""
    return intern(Position, index, dtype) if index.constant is None else constant(index.constant, dtype)


def load(buffer: Buffer, index: Index, mask: Expr | None = None) -> Expr:
    return intern(Load, buffer.name, index, buffer.scalar, mask)


def op(name: str, dtype: torch.dtype, *args: Expr) -> Expr:
    return intern(Op, name, args, dtype)


def _values(index: Index) -> tuple[Expr, ...]:
    return tuple(atom.expr for atom in index.atoms() if isinstance(atom, Value))
