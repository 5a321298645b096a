"""A kernel as what one thread of a CUDA device does: which points are its own, and where threads wait for each other.

The points of `outer` are rows. Kernels that are vectorised along their last outer variable, or whose rows are short, have a thread
for each row, or for some neighbouring ones (`wide`), and neighbours in memory belong to neighbouring threads. In all others a group
of threads works on one row: part of a warp, or a block. How a group divides a stage is decided in `device_stages`.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from capture.backends.native.index import Index, Var, bounds, index, plain, product
from capture.backends.native.ir import JOINED, Buffer, Kernel, Load, Store
from capture.backends.native.render.language import IN_MEMORY, TYPES
from capture.backends.native.render.launch import Launch
from capture.backends.native.render.statements import Branch, Function, Loop, Path
from capture.backends.native.render.values import Values, bare
from capture.backends.native.rewrite import loads_of
from capture.backends.native.schedule.device_stages import (
    Accumulator,
    Division,
    barriers,
    divided,
    group_of,
    placements,
    rows_of_block,
)
from capture.backends.native.schedule.stages import ARGUMENTS
from capture.backends.native.schedule.wide import multiples_for_access, multiples_for_points

INT32 = 1 << 31


class Rows(Values):
    """Writes the function of one kernel. `function` may be called once."""

    hides_strides = False

    def __init__(self, kernel: Kernel, by_value: Collection[str], width: int = 1, is_wide: bool = False) -> None:
        super().__init__(Path())
        self.kernel, self.by_value = kernel, by_value
        self.group = group_of(kernel)                   # threads that work on one row
        self.width = width                              # neighbouring points that a thread does in turn
        self.is_wide = is_wide                          # whether it reads and writes these together, where it can
        self.lane = ""                                  # the name of the number of the current one
        self.together: dict[Load | Store, str] = {}     # what is read or written for all of these at once: an array of it
        self.aligned: set[str] = set()                  # buffers whose addresses must be multiples of 16 for that
        self.multiples = multiples_for_points(kernel, self.group, width)       # what must be multiples of `width`
        self.block = self.group * rows_of_block(self.group)
        self.places = placements(kernel, self.group, self.width)
        self.divisions = [divided(stage, self.group) for stage in kernel.stages]
        self.before, self.at_end = barriers(kernel, self.divisions, self.places, self.group)
        self.written = {store.buffer for stage in kernel.stages for store in stage.stores}
        self.names: dict[str, str] = {}                 # local buffer -> C name
        self.slot = ""                                  # of registers, where the current stage runs through them
        self.outer = kernel.outer                       # what a thread, or group, takes one point of at a time
        self.chunk: Var | None = None                   # in it, in place of the last variable: `width` neighbouring points
        if self.group == 1 and self.width > 1:
            self.chunk = Var("chunk", plain(index(kernel.outer[-1].extent) // self.width))
            self.outer = (*kernel.outer[:-1], self.chunk)

    def function(self) -> Function:
        rows = product(variable.extent for variable in self.outer)
        for number, local in enumerate(self.kernel.locals):
            self._declare(local, f"local{number}")
        self._name_thread()
        with self._rows(rows):
            self.row = self.path.depth
            for number, division in enumerate(self.divisions):
                if self.before[number]:
                    self._barrier()
                self._stage(division)
            if self.at_end:
                self._barrier()
        return self._written(Launch(self.block, rows, rows_of_block(self.group), self._waits()))

    def _written(self, launch: Launch) -> Function:
        """The function, of which all statements are there."""
        divisible = tuple((size, self.width) for size in sorted(self.multiples, key=repr))
        return Function(self.kernel.name, tuple(local.name for local in self.kernel.locals), self.path.blocks[0], self.buffers,
                        frozenset(self.written - set(self.names)), self.symbols, {}, self.checks, launch,
                        frozenset(self.by_value) & self.buffers.keys(), aligned=frozenset(self.aligned), divisible=divisible)

    def _waits(self) -> bool:
        together = any(division.together and division.accumulators for division in self.divisions)
        return self.group > 1 and (any(self.before) or self.at_end or together)

    def _barrier(self) -> None:
        self.path.write(f"group_sync<{self.group}>();")

    # Local buffers.

    def _declare(self, local: Buffer, name: str) -> None:
        place, ctype = self.places[local.name], IN_MEMORY[local.dtype]
        self.names[local.name] = name
        if place.kind == "shared" and rows_of_block(self.group) > 1:
            self.path.write(f"__shared__ {ctype} {name}_of_rows[{rows_of_block(self.group)}][{place.length}];",
                            f"{ctype}* const {name} = {name}_of_rows[threadIdx.x / {self.group}];")
        elif place.kind == "shared":
            self.path.write(f"__shared__ {ctype} {name}[{place.length}];")
        else:
            self.path.write(f"{ctype} {name};" if place.kind == "value" else f"{ctype} {name}[{place.length}];")

    def place(self, buffer: str, dtype: torch.dtype, where: Index, depth: int) -> str:
        if buffer in self.by_value:
            return self.buffer(buffer, dtype)
        if buffer not in self.names:
            return super().place(buffer, dtype, where, depth)
        name, place = self.names[buffer], self.places[buffer]
        if place.kind == "value":
            return name
        if place.kind == "registers":
            return f"{name}[{self.slot}]" if self.width == 1 else f"{name}[{self.slot} * {self.width} + {self.lane}]"
        return f"{name}[{self.index(where, depth)}]"

    # Neighbouring points.

    @contextmanager
    def _neighbours(self, variable: Var, first: str, stores: Sequence[Store], sums: Sequence[Accumulator] = ()) -> Iterator[None]:
        """Does `width` points in turn, the first of which is called `first`. What `stores` read and write side by side is read
        before and written after; so are sums added to."""
        self.bind(variable, first)
        if self.width == 1:
            yield
            return
        wide = [access for access in (*loads_of(stores), *stores) if self._is_together(access, variable)]
        places = {access: self.place(access.buffer, access.dtype, access.index, self.path.depth) for access in wide}
        self.aligned |= {access.buffer for access in wide}
        names: dict[Load | Store, str] = {}
        for access in wide:
            name, ctype = names.setdefault(access, self.path.fresh("wide")), IN_MEMORY[access.dtype]
            self.path.write(f"const auto {name} = load_elements<{self.width}>(&{places[access]});" if isinstance(access, Load) else
                            f"Elements<{ctype}, {self.width}> {name};")
            self.together[access] = f"{name}.at"
        for one in sums:
            one.joined = self.path.fresh("some")
            self.path.write(f"float {one.joined}[{self.width}];")
        with self.path.open(Loop(variable=self.path.fresh("e"), last=str(self.width), unrolled=True)) as loop:
            self.lane = loop.variable
            name = self.path.fresh("i")
            self.path.write(f"const int64_t {name} = {first} + {self.lane};")
            self.bind(variable, name)
            self.rebound()
            yield
        self.rebound()
        self.bind(variable, first)
        self.path.write(*(f"store_elements(&{places[access]}, {names[access]});" for access in wide if isinstance(access, Store)),
                        *(f"{one.name} += joined_sum({one.joined});" for one in sums))
        self.together, self.lane = {}, ""

    def _is_together(self, access: Load | Store, variable: Var) -> bool:
        if not self.is_wide or access.buffer in self.names or access.buffer in self.by_value:
            return False
        asked = multiples_for_access(access, variable, self.width)
        self.multiples |= asked or set()
        return asked is not None

    def element(self, node: Load, depth: int) -> str:
        if node in self.together:
            return f"{self.together[node]}[{self.lane}]"
        return super().element(node, depth)

    def stored(self, store: Store, value: str) -> str:
        if store in self.together:
            return f"{self.together[store]}[{self.lane}] = {bare(self.kept(value, store.dtype))};"
        return super().stored(store, value)

    # Rows.

    def _name_thread(self) -> None:
        """Defines `thread`: the number of a thread in its group."""
        if self.group > 1:
            whole_block = self.block == self.group
            self.path.write(f"const int64_t thread = {'threadIdx.x' if whole_block else f'threadIdx.x % {self.group}'};")

    @contextmanager
    def _rows(self, rows: Index) -> Iterator[None]:
        count, per_block = self.size(rows), rows_of_block(self.group)
        within = "threadIdx.x" if self.group == 1 else f"threadIdx.x / {self.group}"
        first = "block" if per_block == 1 else f"int64_t(block) * {per_block} + {within}"
        step = "blocks" if per_block == 1 else f"int64_t(blocks) * {per_block}"
        name = self.path.fresh("i") if len(self.outer) == 1 else "row"
        with self.path.open(Loop(variable=name, first=first, last=count, step=step)):        # else it is not launched
            if len(self.outer) == 1:
                self.bind(self.outer[0], name)
            else:
                self._decode(self.outer, name, rows, "i")
            yield

    def _decode(self, variables: Sequence[Var], number: str, count: Index, prefix: str) -> None:
        """Defines the variables' values at a point of their collapsed range, in 32 bits where these are enough."""
        if not variables:
            return
        short = count.constant is not None and count.constant < INT32
        names = {variable: self.path.fresh(prefix) for variable in variables}
        left = f"uint32_t({number})" if short else number
        for position in range(len(variables) - 1, -1, -1):
            variable, name = variables[position], names[variables[position]]
            extent = f"{index(variable.extent)}u" if short else self.size(variable.extent)
            self.path.write(f"const int64_t {name} = {left}{f' % {extent}' if position else ''};")
            if position:
                rest = self.path.fresh("rest")
                self.path.write(f"const {'uint32_t' if short else 'int64_t'} {rest} = {left} / {extent};")
                left = rest
            self.bind(variable, name)

    # Stages.

    def _stage(self, division: Division) -> None:
        self.begin_stage(division.stage.stores)
        if self.chunk is not None and division.accumulators:
            self._columns(division, self.chunk)
            return
        with ExitStack() as stack:
            if division.together:
                self._start(division.accumulators)
            elif division.alone and self.group > 1:
                stack.enter_context(self.path.open(Branch(condition="thread == 0", may_be_empty=True)))
            self._open_points(stack, division)
            if not division.together:
                self._start(division.accumulators)
            with ExitStack() as within:
                for variable in division.sequential:
                    self._open_loop(within, variable)
                self._point(division)
            if not division.together:
                self._finish(division)
        if division.together:
            for one in division.accumulators:
                if self.group > 1:
                    self.path.write(f"{one.name} = group_{one.reduction}<{self.group}>({self._value_of(one)});")
                    one.lost = ""
            self._finish(division)
        for buffer in self.changing:
            self.path.forget(buffer)

    def _columns(self, division: Division, chunk: Var) -> None:
        """Reductions of neighbouring columns, side by side."""
        column, first = self.kernel.outer[-1], self._named(f"{self.name(chunk)} * {self.width}")
        self._start(division.accumulators, self.width)
        with ExitStack() as stack:
            for variable in division.sequential:
                self._open_loop(stack, variable)
            with self._neighbours(column, first, division.stage.stores):
                self._point(division)
        with self._neighbours(column, first, ()):
            self._finish(division)

    def _open_points(self, stack: ExitStack, division: Division) -> None:
        """The loop over a thread's own points of a stage."""
        variables = division.points
        if self.chunk is not None:
            first = self._named(f"{self.name(self.chunk)} * {self.width}")
            stack.enter_context(self._neighbours(self.kernel.outer[-1], first, division.stage.stores))
        if not variables:
            return
        if self.group == 1:
            for variable in variables:
                self._open_loop(stack, variable)
            return
        count = product(variable.extent for variable in variables)
        total, width = self.size(count), self.width
        if any(self.places[name].kind == "registers" for name in division.buffers if name in self.names):
            self.slot = self.path.fresh("k")
            turns = -(-count.constant // (self.group * width))
            stack.enter_context(self.path.open(Loop(variable=self.slot, last=str(turns), unrolled=True)))
            turn = f"thread + {self.slot} * {self.group}"
            name = self._named(turn if width == 1 else f"({turn}) * {width}")
            if count.constant % (self.group * width):
                stack.enter_context(self.path.open(Branch(condition=f"{name} < {total}", may_be_empty=True)))
        else:
            name, last = self.path.fresh("j"), self.size(count // width)
            stack.enter_context(self.path.open(Loop(variable=name, first="thread", last=last, step=self.group,
                                                    may_be_empty=(bounds(count)[0] or 0) < 1)))
            name = name if width == 1 else self._named(f"{name} * {width}")
        if len(variables) == 1:
            sums = [one for one in division.accumulators if division.together and _can_be_joined(one) and width % JOINED == 0]
            stack.enter_context(self._neighbours(variables[0], name, division.stage.stores, sums))
        else:
            self._decode(variables, name, count, "j")

    def _named(self, value: str) -> str:
        name = self.path.fresh("j")
        self.path.write(f"const int64_t {name} = {value};")
        return name

    def _open_loop(self, stack: ExitStack, variable: Var) -> None:
        name, may_be_empty = self.path.fresh("j"), (bounds(variable.extent)[0] or 0) < 1
        stack.enter_context(self.path.open(Loop(variable=name, last=self.size(variable.extent), may_be_empty=may_be_empty)))
        self.bind(variable, name)

    def _point(self, division: Division) -> None:
        """What happens at one point. All that is stored has been computed before the first store."""
        stores = division.stage.stores
        plain = [store for store in stores if store.reduction is None]
        statements: list[tuple[Store, str]] = []
        for store in stores:
            value = self.text(store.value, named=len(plain) > 1 and store.reduction is None)
            if store.reduction is not None:
                one = division.accumulator(store)
                self.path.write(self._combined(one, value, division))
                if not store.scan:
                    continue
                value = one.where or self.converted(one.name, one.dtype, store.dtype)
            statements.append((store, value))
        texts = [(store, self.stored(store, value)) for store, value in statements]
        self._write(texts, everywhere=bool(division.points) or division.alone)

    def _write(self, texts: Sequence[tuple[Store, str]], everywhere: bool) -> None:
        """Statements of stores. What all threads of a group know, one of them writes to memory; its own each writes by itself."""
        own = [everywhere or self.group == 1 or self._is_private(store.buffer) for store, _ in texts]
        self.path.write(*(text for (_, text), mine in zip(texts, own) if mine))
        if not all(own):
            with self.path.open(Branch(condition="thread == 0", may_be_empty=True)):
                self.path.write(*(text for (_, text), mine in zip(texts, own) if not mine))

    def _is_private(self, buffer: str) -> bool:
        return buffer in self.names and self.places[buffer].kind in ("value", "registers", "private")

    # Accumulators.

    def _start(self, accumulators: Sequence[Accumulator], columns: int = 1) -> None:
        """Declares accumulators; columns: how many of each, side by side."""
        for one in accumulators:
            one.name, one.columns = self.path.fresh(one.reduction), columns > 1
            ctype = TYPES[one.dtype]
            identity = f"identity_{one.reduction}<{ctype}>()"
            if columns == 1:
                self.path.write(f"{ctype} {one.name} = {identity};")
            else:
                self.path.write(f"{ctype} {one.name}[{columns}] = {{{', '.join([identity] * columns)}}};")
            if one.store.reduction in ARGUMENTS:
                one.where = self.path.fresh("place")
                self.path.write(f"int64_t {one.where} = 0;")
            if one.compensated:
                one.lost = self.path.fresh("lost")
                self.path.write(f"{ctype} {one.lost} = 0;" if columns == 1 else f"{ctype} {one.lost}[{columns}] = {{}};")

    def _of_lane(self, one: Accumulator, name: str) -> str:
        return f"{name}[{self.lane}]" if one.columns else name

    def _combined(self, one: Accumulator, value: str, division: Division) -> str:
        before, value = value, self.converted(value, one.store.value.dtype, one.dtype)
        if one.where:
            return f"take_{one.reduction}({one.name}, {one.where}, {value}, {self.index(division.position, self.path.depth)});"
        if one.lost:
            return f"add_exactly({self._of_lane(one, one.name)}, {self._of_lane(one, one.lost)}, {value});"
        if one.joined:
            return f"{one.joined}[{self.lane}] = {bare(before)};"
        name = self._of_lane(one, one.name)
        return f"{name} = reduce_{one.reduction}({name}, {value});"

    def _value_of(self, one: Accumulator) -> str:
        name = self._of_lane(one, one.name)
        return f"compensated({name}, {self._of_lane(one, one.lost)})" if one.lost else name

    def _finish(self, division: Division) -> None:
        """Stores what reductions have come to."""
        texts = []
        self.rebound()
        for one in division.accumulators:
            if not one.store.scan:
                value = one.where or self.converted(self._value_of(one), one.dtype, one.store.dtype)
                texts.append((one.store, self.stored(one.store, value)))
        self._write(texts, everywhere=not division.together)


def _can_be_joined(one: Accumulator) -> bool:
    """Whether some of what is added may be added in float32 first (`Store.reduction`)."""
    return one.reduction == "sum" and one.dtype == torch.float64 and one.store.value.dtype == torch.float32 and not one.store.scan
