"""Makes the statements of a program: stores lazies into buffers, reduces them, and decides which of them to store."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch.fx import Node

from capture.backends.native.index import ZERO, Index, Size, Var, contiguous_strides, index, plain, product
from capture.backends.native.ir import Buffer, Expr, Extern, Nest, Program, Store, View, constant, reduction_dtype
from capture.backends.native.lowering.checks import Check, check_of
from capture.backends.native.lowering.lazy import At, IndexMap, Lazy, Stored, computed, in_memory, loops, strided, variables, viewed
from capture.backends.native.lowering.scalar import to
from capture.backends.native.ops import DEAR

RECOMPUTED = 3          # operations that cost less to do again than a buffer costs to write and read
LARGE = 100             # the weight beyond which a value is stored in any case: expressions stay small
MANY_READS = 8
SMALL = 16              # of how many elements of a value one of a small buffer is read

DTYPES = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                    torch.float32, torch.float64, torch.bfloat16, torch.float16))      # what nests compute with


def is_cheap(value: Lazy, program: Program) -> bool:
    """Whether each user of a value should compute it again. That pays if it reads no more memory than the stored value would take
    (one buffer), and costs almost nothing. Everything else is stored: if fusion puts the users into one kernel, the buffer becomes
    a register. A GPU computes again also where there are further small buffers."""
    large = value.reads if program.device.type == "cpu" else [
        name for name in value.reads if not _is_small(program.buffers[name], value)]
    return value.weight <= RECOMPUTED and len(large) <= 1


def _is_small(buffer: Buffer, value: Lazy) -> bool:
    count, whole = product(buffer.sizes).constant, value.numel.constant
    return count is not None and whole is not None and count * SMALL <= whole


def is_large(value: Lazy) -> bool:
    """Whether a value is stored however few use it."""
    return value.weight > LARGE or len(value.reads) > MANY_READS


class Builder:
    """The program under construction. `label`: names what is being lowered, in buffers and nests. `readers`: the values that load
    from a buffer, by its name. `checks`: of operations with computed indices."""

    def __init__(self) -> None:
        self.program = Program()
        self.label = "t"
        self.readers: dict[str, dict[Lazy, None]] = {}
        self.checks: dict[Node, Check] = {}
        self._names: dict[str, int] = {}

    def name(self, wish: str) -> str:
        """A name that nothing else in the program has."""
        count = self._names.get(wish)
        self._names[wish] = 0 if count is None else count + 1
        return wish if count is None else self.name(f"{wish}_{count}")

    def memory(self, shape: Sequence[Size], dtype: torch.dtype, strides: Sequence[Size] | None = None,
               kind: str = "temporary") -> Stored:
        """A new buffer of the program; row-major where no strides are given."""
        strides = tuple(map(plain, contiguous_strides(shape))) if strides is None else tuple(strides)
        buffer = Buffer(self.name(self.label), dtype, tuple(shape), strides, kind)
        self.program.buffers[buffer.name] = buffer
        return Stored(buffer, ZERO, strides)

    def nest(self, place: Sequence[Index], reduced: Sequence[Index], *stores: Store) -> None:
        """Loops over the variables in `place`, and within over those in `reduced`. With no point to loop over, what the stores say
        is of no account."""
        space, inner = loops(place), loops(reduced)
        if any(var.extent == 0 for var in space):
            never = Var("i0", 0)
            space, inner = (never,), ()
            stores = tuple(Store(s.buffer, index(never), constant(0, self.program.buffers[s.buffer].scalar)) for s in stores)
        self.program.body.append(Nest(self.name(f"{self.label}_nest"), space, inner, stores))

    # Checks.

    def watch(self, node: Node, result: Lazy, computed: Callable[[Sequence[Index]], Iterable[Index]]) -> Lazy:
        """The result of an operation, whose `computed` places for a place in it will be looked at, whatever is read."""
        check = self.checks.get(node) or check_of(result, computed, self.label, len(self.program.body), self.program.constants)
        if check is not None:
            self.checks[node] = check
            check.watch(result)
        return result

    def add_checks(self) -> None:
        """Adds nests that look at all indices of the operations of whose results only a part is read."""
        for check in reversed(list(self.checks.values())):
            if not check.done:
                self.label = f"{check.label}_check"
                stored = self.memory((), torch.bool, kind="output")     # nobody reads it, but it is not dropped
                store = Store(stored.buffer.name, stored.offset, check.condition, reduction="any")
                self.program.body.insert(check.at, Nest(self.name(f"{self.label}_nest"), (), loops(check.place), (store,)))

    # Storing.

    def store(self, value: Lazy) -> Stored:
        """Puts a value into memory, if it is not there, with eager's strides. Of a view that skips or repeats elements it is the
        whole that must be there."""
        if value.stored is not None:
            return value.stored
        strides = value.strides if value.strides is not None and is_dense(value.shape, value.strides) else None
        if value.source is not None and (strides is None and value.strides is not None or value.numel == value.source.numel):
            self.store(value.source)
            assert value.source.stored is not None and value.mapped is not None
            stored = strided(value.source.stored, value.shape, value.mapped, value.strides)
            if stored is not None:
                self._keep(value, stored)
                return stored
        return self.copy(value, strides)

    def copy(self, value: Lazy, strides: Sequence[Size] | None = None) -> Stored:
        """Puts a value into a buffer of its own, wherever it is now. `strides` must be dense; row-major where not given."""
        stored = self.memory(value.shape, value.dtype, strides)
        self.write(value, stored)
        self._keep(value, stored)
        return stored

    def _keep(self, value: Lazy, stored: Stored) -> None:
        value.keep(stored)
        self.note(value)

    def note(self, value: Lazy) -> None:
        """Notes what a value loads from."""
        for name in value.reads:
            self.readers.setdefault(name, {})[value] = None

    def write(self, value: Lazy, target: Stored) -> None:
        """Stores every element of `value` at its place in `target`."""
        if value.parts is not None:
            dim, parts = value.parts
            for start, part in parts:
                offset = target.offset + index(start) * target.strides[dim]
                self.write(part, replace(target, offset=offset))
            return
        if value.pair is not None and any(part.parts is not None for part in value.pair):
            for number, part in enumerate(value.pair):
                self.write(part, target.part(number))
            return
        place = variables(value.shape)
        if value.pair is not None:
            real, imaginary = (Store(target.buffer.name, address(target.part(number), place), part.at(place))
                               for number, part in enumerate(value.pair))
            self.nest(place, (), real, imaginary)
            return
        if value.dtype not in DTYPES and value.stored is not None:      # what no nest computes with is copied by ATen
            out = View(target.buffer.name, value.shape, target.strides, plain(target.offset))
            self.program.body.append(
                Extern(self.name(f"{self.label}_copy"), "aten::clone.out", (value.view,), {"out": out}, (out.buffer,), True))
            return
        self.nest(place, (), Store(target.buffer.name, address(target, place), value.at(place)))

    def exact(self, value: Lazy) -> View:
        """The value in memory, with eager's strides."""
        stored, wanted = self.store(value), value.strides
        if wanted is not None and stored.strides != wanted:
            if not same_strides(value.shape, stored.strides, wanted):
                stored = self.copy(value, wanted if is_dense(value.shape, wanted) else None)
            if same_strides(value.shape, stored.strides, wanted):
                value.stored = replace(stored, strides=wanted)
        return value.view

    def result(self, value: Lazy) -> View:
        """The value in memory that outlives the program, with eager's strides."""
        view = self.exact(value)
        buffer = self.program.buffers[view.buffer]
        if buffer.kind == "temporary":
            self.program.buffers[view.buffer] = replace(buffer, kind="output")
        return view

    def cheap_to_repeat(self, value: Lazy) -> Lazy:
        """The same value, stored if it is work to compute: for those who read an element several times."""
        if value.weight >= DEAR or value.parts is not None and value.weight:
            self.store(value)
        return value

    # Reductions.

    def reduce(self, shape: Sequence[Size], dims: Sequence[int], reduction: str, at: At, dtype: torch.dtype,
               strides: Sequence[Size] | None = None) -> Lazy:
        """Combines `at` (of `dtype`) over the dimensions `dims` of the index space `shape`. They stay, with size 1. `strides`: of
        the result; row-major where these are not given, or not dense."""
        place, reduced = self._split(shape, dims)
        result = tuple(1 if n in dims else size for n, size in enumerate(shape))
        if strides is not None and not is_dense(result, strides):
            strides = None
        stored = self.memory(result, reduction_dtype(reduction, dtype), strides)
        whole = [r if n in dims else p for n, (p, r) in enumerate(zip(place, reduced, strict=True))]
        self.nest(place, reduced, Store(stored.buffer.name, address(stored, place), at(whole), reduction=reduction))
        return in_memory(stored, result)

    def scan(self, shape: Sequence[Size], dim: int, reduction: str, at: At, dtype: torch.dtype) -> Lazy:
        """Every partial result of combining `at` (of `dtype`) along `dim`, in order."""
        place, reduced = self._split(shape, [dim])
        stored = self.memory(shape, dtype)
        whole = [r if n == dim else p for n, (p, r) in enumerate(zip(place, reduced, strict=True))]
        self.nest(place, reduced, Store(stored.buffer.name, address(stored, whole), at(whole), reduction=reduction, scan=True))
        return in_memory(stored, tuple(shape))

    # Scatters.

    def fresh(self, value: Lazy, strides: Sequence[Size]) -> Stored:
        """A new buffer that holds `value`, to be changed. `strides`: eager's; row-major where these are not dense."""
        stored = self.memory(value.shape, value.dtype, strides if is_dense(value.shape, strides) else None)
        self.write(value, stored)
        return stored

    def scatter(self, target: Stored, shape: Sequence[Size], meet: Collection[int], mapped: IndexMap, at: At, mode: str = "set",
                mask: Callable[[Sequence[Index]], Expr] | None = None) -> None:
        """At each point of `shape` where `mask` holds, stores `at` by `mode` (see `ir.Store`) to the element `mapped` of `target`.
        Points that may mean the same element differ in the dimensions `meet`: these run in order, the others in parallel."""
        if any(size == 0 for size in shape):
            return
        place, reduced = self._split(shape, meet)
        whole = [r if n in meet else p for n, (p, r) in enumerate(zip(place, reduced, strict=True))]
        where = address(target, mapped(whole))
        self.nest(place, reduced, Store(target.buffer.name, where, at(whole), mode, mask=None if mask is None else mask(whole)))

    @staticmethod
    def _split(shape: Sequence[Size], dims: Collection[int]) -> tuple[list[Index], list[Index]]:
        """The variables of the space and those that are reduced, 0 at the places of the others."""
        place, reduced = variables(shape), variables(shape, "r")
        return [ZERO if n in dims else p for n, p in enumerate(place)], [r if n in dims else ZERO for n, r in enumerate(reduced)]


def address(stored: Stored, place: Sequence[Index]) -> Index:
    """Where the element at `place` lies."""
    total = stored.offset
    for inner, stride in zip(place, stored.strides, strict=True):
        if inner.terms:
            total = total + inner * stride
    return total


def is_dense(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the elements fill memory without gaps, each once, in any order of the dimensions."""
    left = {n for n, size in enumerate(shape) if size != 1}
    expected: Size = 1
    if any(size == 0 for size in shape):
        return True
    while left:
        found = next((n for n in left if strides[n] == expected), None)
        if found is None:
            return False
        left.remove(found)
        expected = plain(index(expected) * shape[found])
    return True


def same_strides(shape: Sequence[Size], left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether the strides agree where they matter."""
    return any(size == 0 for size in shape) or all(size == 1 or a == b for size, a, b in zip(shape, left, right, strict=True))


def broadcast(builder: Builder, value: Lazy, shape: Sequence[Size]) -> Lazy:
    """`value` repeated to `shape`, as in eager's broadcasting."""
    if value.shape == tuple(shape):
        return value
    lead = len(shape) - len(value.shape)
    ones = [size == 1 for size in value.shape]
    if all(one == (size == 1) for one, size in zip(ones, shape[lead:], strict=True)) and all(size == 1 for size in shape[:lead]):
        return viewed(value, tuple(shape), lambda place: place[lead:])
    builder.cheap_to_repeat(value)
    return viewed(value, tuple(shape), lambda place: [ZERO if one else p for one, p in zip(ones, place[lead:], strict=True)])


def elementwise(values: Sequence[Lazy], compute: Callable[[list[Expr]], Expr], shape: tuple[Size, ...], dtype: torch.dtype,
                weight: int) -> Lazy:
    """A value computed from the elements of others, of the same shape, at the same place; `weight`: the work of `compute`."""
    return computed(values, shape, dtype, lambda place: compute([value.at(place) for value in values]), weight)


def converted(value: Lazy, dtype: torch.dtype) -> Lazy:
    """`value` with another dtype."""
    return value if value.dtype == dtype else elementwise([value], lambda args: to(args[0], dtype), value.shape, dtype, 1)
