"""A kernel as what a thread of a processor does: which loops run over its points and its stages, in what order and in which pieces.

The points that threads share are a range, `begin` to `end`. Kernels that are vectorised along their last outer variable run through
it in strips, with every stage's own loops around a strip's elements; all others run stage by stage, each along its own last loop.
Tiles, blocks of rows, accumulators and what is fetched early are decided by the modules beside this one; here is what they come to.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from capture.backends.native.index import Index, Var, bounds, index
from capture.backends.native.ir import Buffer, Kernel, Load
from capture.backends.native.machine import CPU
from capture.backends.native.render.language import IN_MEMORY, TYPES
from capture.backends.native.render.statements import Function, Loop, Path, Shared
from capture.backends.native.render.values import Values, bare
from capture.backends.native.schedule.blocks import in_blocks
from capture.backends.native.schedule.fetching import Fetch, fetches_of
from capture.backends.native.schedule.prepare import prepared, with_starts
from capture.backends.native.schedule.stages import ARGUMENTS, Accumulator, StageLoop, StagePlan, plan_stage, strip_length
from capture.backends.native.schedule.tiles import COLUMNS, ROWS, streamed_of, tiles_of

ARRAY = "alignas({line}) {type} {name}[{length}];"
HEAP_ARRAY = "{type}* const {name} = static_cast<{type}*>(__builtin_malloc(sizeof({type}) * ({length})));"


def schedule(kernel: Kernel) -> Function:
    """The function of a kernel. It names buffers, sizes and variables by number, so that like kernels have equal texts."""
    return _Scheduler(*with_starts(prepared(kernel))).function(tuple(local.name for local in kernel.locals))


class _Scheduler(Values):
    def __init__(self, kernel: Kernel, starts: Mapping[str, int]) -> None:
        super().__init__(Path())
        self.kernel = kernel
        self.starts = starts
        self.lane = kernel.outer[-1] if kernel.vectorized and kernel.outer else None
        # the plans of each of the kernel's stages, and the local buffers between them
        self.plans, self.locals = _plans(kernel, self.lane is not None)
        self.written = {store.buffer for plan in self._every_plan for store in plan.stage.stores}
        keeps = len(kernel.stages) > 1 or kernel.locals or any(stage.inner for stage in kernel.stages)
        self.strip_length = strip_length(kernel, self._every_plan) if self.lane is not None and keeps else None
        self.strip = Var("strip", 0)                    # where the current strip begins
        self.lanes = ("", "")                           # the range of the loop over the lane variable
        self.arrays: dict[str, tuple[str, bool]] = {}   # local buffer -> C name, whether it is an array
        self.stack = 0                                  # bytes of arrays on it
        self.heap: list[str] = []                       # names of arrays from it
        self.tiles = tiles_of(kernel)
        self.tiled: dict[Load, str] = {}                # loads from tiles, and the names of these
        # streamed buffer -> the array in which a line of it is put together, and its store
        self.lines = {store.buffer: (f"line{number}", store) for number, store in enumerate(streamed_of(kernel, self.tiles))}
        self.tile = Var("tile row", 0), Var("tile column", 0)   # where the current tile begins

    @property
    def _every_plan(self) -> list[StagePlan]:
        return [plan for plans in self.plans for plan in plans]

    def function(self, named: tuple[str, ...]) -> Function:
        path = self.path
        path.write("if (begin >= end) return;")
        for number, local in enumerate(self.locals):
            length = local.span
            is_array = self.strip_length is not None or length != 1
            self.arrays[local.name] = f"local{number}", is_array
            self._declare_array(f"local{number}", IN_MEMORY[local.dtype], local.dtype.itemsize, length, is_array)
        for number, one in enumerate(one for plan in self._every_plan for one in plan.accumulators):
            one.name = f"{one.store.reduction}{number}"
            one.where = f"place{number}" if one.store.reduction in ARGUMENTS else ""
            one.lost = f"lost{number}" if one.compensated else ""
            if self._is_array(one):
                for name, dtype, _ in self._variables(one):
                    self._declare_array(name, TYPES[dtype], dtype.itemsize, one.length, True)
        for number, node in enumerate(self.tiles.loads if self.tiles else ()):
            path.write(_array(IN_MEMORY[node.dtype], f"tile{number}", ROWS * COLUMNS))
        for name, store in self.lines.values():
            path.write(_array(IN_MEMORY[store.value.dtype], name, COLUMNS))
        with self._outer():
            self.row = path.depth
            fetch_after, fetches = fetches_of(self.kernel)
            for number, plans in enumerate(self.plans):
                for plan in plans:
                    self._stage(plan)
                for fetch in fetches if number == fetch_after else ():
                    self._fetch(fetch)
        path.write(*(f"__builtin_free({name});" for name in self.heap), *(["streamed();"] if self.lines else []))
        return Function(self.kernel.name, named, path.blocks[0], self.buffers,
                        frozenset(self.written), self.symbols, self.starts, self.checks)

    # Arrays: local buffers and accumulators, one value for each point of a row and of a strip.

    def _declare_array(self, name: str, ctype: str, itemsize: int, length: Index, is_array: bool) -> None:
        if not is_array:
            self.path.write(f"{ctype} {name};")
            return
        length = length * (self.strip_length or 1)
        constant = length.constant
        size = None if constant is None else constant * itemsize
        if size is not None and size <= CPU.stack_array and self.stack + size <= CPU.stack:
            self.stack += size
            self.path.write(_array(ctype, name, max(constant, 1)))
        else:
            self.path.write(HEAP_ARRAY.format(type=ctype, name=name, length=self.index(length, 0)))
            self.heap.append(name)

    def _is_array(self, one: Accumulator) -> bool:
        return bool(one.kept) or self.strip_length is not None

    def _in_strip(self, where: Index) -> Index:
        """The place of an element of an array, given its place among those of one point of the strip."""
        return where if self.strip_length is None else where * self.strip_length + index(self.lane) - index(self.strip)

    def where(self, buffer: str, where: Index) -> Index:
        return self._in_strip(where) if buffer in self.arrays else where

    def element(self, node: Load, depth: int) -> str:
        tile = self.tiled.get(node)
        if tile is None:
            return super().element(node, depth)
        row, column = index(self.tiles.row) - index(self.tile[0]), index(self.tiles.column) - index(self.tile[1])
        return f"{tile}[{self.index(row * COLUMNS + column, depth)}]"

    def place(self, buffer: str, dtype: torch.dtype, where: Index, depth: int) -> str:
        if buffer in self.lines:
            return f"{self.lines[buffer][0]}[{self.index(index(self.tiles.column) - index(self.tile[1]), depth)}]"
        if buffer not in self.arrays:
            return super().place(buffer, dtype, where, depth)
        name, is_array = self.arrays[buffer]
        return f"{name}[{self.index(self.where(buffer, where), depth)}]" if is_array else name

    def _element(self, one: Accumulator, name: str) -> str:
        return f"{name}[{self.index(self._in_strip(one.offset), self.path.depth)}]" if self._is_array(one) else name

    # Loops over rows.

    @contextmanager
    def _outer(self) -> Iterator[None]:
        """The loops over the kernel's outer variables, but for the loops over strips' elements."""
        outer, parallel = self.kernel.outer, self.kernel.parallel
        ranged, rest = outer[:parallel], outer[parallel:]
        with ExitStack() as stack:
            if self.tiles is not None:
                self._open_tiles(stack, ranged, rest)
            elif self.lane is not None and not rest:
                self._open_segments(stack, ranged[:-1])
            else:
                self._open_points(stack, ranged)
            if self.tiles is None:
                self._open_loops(stack, rest if self.lane is None else rest[:-1])
            if self.tiles is None and self.lane is not None and rest:
                self.lanes = "0", self.size(self.lane.extent)
            if self.strip_length is not None:
                self._open_strips(stack)
            yield

    def _open_points(self, stack: ExitStack, variables: Sequence[Var]) -> None:
        """The range's points, one after the other."""
        if len(variables) <= 1:
            for variable in variables:
                name = self.path.fresh("i")
                stack.enter_context(self.path.open(Loop(variable=name, first="begin", last="end")))
                self.bind(variable, name)
            return
        names = self._decode(variables, "begin")
        loop = stack.enter_context(self.path.open(Loop(variable="point", first="begin", last="end")))
        self._bind_all(variables, names)
        loop.tail.append(self._step(variables, names))

    def _open_segments(self, stack: ExitStack, variables: Sequence[Var]) -> None:
        """The range's points, those together that differ in the lane variable alone."""
        if not variables:
            self.lanes = "begin", "end"
            return
        extent = self.size(self.lane.extent)
        names = self._decode(variables, f"begin / {extent}")
        self.path.write(f"int64_t first = begin % {extent};")
        loop = stack.enter_context(self.path.open(Loop(variable="point", first="begin", last="end", step=None)))
        self._bind_all(variables, names)
        self.path.write(f"const int64_t last = {self._least('first + end - point', extent)};")
        loop.tail += ["point += last - first;", "first = 0;", self._step(variables, names)]
        self.lanes = "first", "last"

    def _open_tiles(self, stack: ExitStack, ranged: Sequence[Var], rest: Sequence[Var]) -> None:
        """Tiles: `rows` of the last variable but one from `top` on, `left` to `right` of the last; and the loop over its rows."""
        path, tiles = self.path, self.tiles
        height, width = self.size(tiles.row.extent), self.size(tiles.column.extent)
        first, last = "0", width
        if len(rest) > 1:
            self._open_points(stack, ranged)
            self._open_loops(stack, rest[:-2])
            top = path.fresh("i")
            stack.enter_context(path.open(Loop(variable=top, last=height, step=ROWS, may_be_empty=_may_be_empty(tiles.row))))
            path.write(f"const int64_t rows = {self._least(f'{height} - {top}', ROWS)};")
        else:
            *outer, row = ranged if rest else ranged[:-1]
            names = self._decode([*outer, row], "begin" if rest else f"begin / {width}")
            top = names[-1]
            if not rest:
                first, last = "first", "last"
                path.write(f"int64_t first = begin % {width};")
            loop = stack.enter_context(path.open(Loop(variable="point", first="begin", last="end", step=None)))
            self._bind_all(outer, names)
            if rest:
                path.write(f"const int64_t rows = {self._least(f'{height} - {top}', self._least('end - point', ROWS))};")
                advance = "point += rows;"
            else:
                path.write(f"const int64_t whole = first == 0 ? (end - point) / {width} : 0;",
                           f"const int64_t rows = whole == 0 ? 1 : {self._least(f'{height} - {top}', self._least('whole', ROWS))};",
                           f"const int64_t last = whole == 0 ? {self._least('first + end - point', width)} : {width};")
                advance = "point += rows * (last - first);"
            loop.tail += [advance, *([] if rest else ["first = 0;"]), f"{top} += rows - 1;", self._step([*outer, row], names)]
        stack.enter_context(path.open(Loop(variable="left", first=first, last=last, step=COLUMNS,
                                           may_be_empty=bool(rest) and _may_be_empty(tiles.column))))
        path.write(f"const int64_t right = {self._least(last, f'left + {COLUMNS}')};")
        self.bind(self.tile[0], top)
        self.bind(self.tile[1], "left")
        self.row = path.depth
        for number, (node, stride) in enumerate(zip(tiles.loads, tiles.strides)):
            corner = node.index.substitute(lambda atom: dict(zip((tiles.row, tiles.column), map(index, self.tile))).get(atom))
            source = f"&{self.place(node.buffer, node.dtype, corner, path.depth)}"
            path.write(f"transpose_tile(tile{number}, {COLUMNS}, {source}, {self.index(stride, path.depth)}, right - left, rows);")
            self.tiled[node] = f"tile{number}"
        name = path.fresh("i")
        stack.enter_context(path.open(Loop(variable=name, first=top, last=f"{top} + rows")))
        self.bind(tiles.row, name)
        self.lanes = "left", "right"

    @staticmethod
    def _least(left: str | int, right: str | int) -> str:
        return f"smaller({left}, {right})"

    def _decode(self, variables: Sequence[Var], point: str) -> list[str]:
        """Defines the variables' values at a point of their collapsed range."""
        names = [self.path.fresh("i") for _ in variables]
        self.path.write(f"int64_t {names[-1]} = {point};")
        for outer, name, variable in zip(reversed(names[:-1]), reversed(names[1:]), reversed(variables[1:])):
            extent = self.size(variable.extent)
            self.path.write(f"int64_t {outer} = {name} / {extent};", f"{name} %= {extent};")
        return names

    def _bind_all(self, variables: Sequence[Var], names: Sequence[str]) -> None:
        for variable, name in zip(variables, names):
            self.bind(variable, name)

    def _step(self, variables: Sequence[Var], names: Sequence[str]) -> str:
        """On to the next point: the last variable first, carrying into the others."""
        text = f"++{names[0]};"
        for variable, name in zip(variables[1:], names[1:]):
            text = f"if (++{name} == {self.size(variable.extent)}) {{ {name} = 0; {text} }}"
        return text

    def _open_loops(self, stack: ExitStack, variables: Sequence[Var]) -> None:
        for variable in variables:
            self._open_loop(stack, variable, "i")

    def _open_loop(self, stack: ExitStack, variable: Var, prefix: str) -> Loop:
        name, extent = self.path.fresh(prefix), self.size(variable.extent)
        loop = stack.enter_context(self.path.open(Loop(variable=name, last=extent, may_be_empty=_may_be_empty(variable))))
        self.bind(variable, name)
        return loop

    def _open_strips(self, stack: ExitStack) -> None:
        first, last = self.lanes
        length = self.strip_length
        stack.enter_context(self.path.open(Loop(variable="strip", first=first, last=last, step=length,
                                                may_be_empty=_may_be_empty(self.lane))))
        self.bind(self.strip, "strip")
        self.path.write(f"const int64_t stop = {self._least(f'strip + {length}', last)};")
        self.lanes = "strip", "stop"

    @contextmanager
    def _lane_loop(self) -> Iterator[Loop | None]:
        """The loop over the elements of a strip; nothing in a kernel without strips."""
        if self.lane is None:
            yield None
            return
        first, last = self.lanes
        name = self.path.fresh("k")
        with self.path.open(Loop(variable=name, first=first, last=last)) as loop:
            self.bind(self.lane, name)
            yield loop

    # Stages.

    def _stage(self, plan: StagePlan) -> None:
        self.begin_stage(plan.stage.stores)
        self._loops(plan, 0, None)
        for buffer in self.changing:
            self.path.forget(buffer)

    def _fetch(self, fetch: Fetch) -> None:
        depth = self.path.depth
        call = "fetch_for_writing" if fetch.for_writing else "fetch"
        self.path.write(f"{call}(&{self.place(fetch.buffer, fetch.dtype, fetch.first, depth)}, {self.size(fetch.count)});")

    def _loops(self, plan: StagePlan, position: int, inner: Loop | None) -> None:
        """The stage's loops from number `position` on, with what is accumulated in them. `inner`: the loop around them."""
        opened = [one for one in plan.accumulators if one.position == position]
        for one in opened:
            self._start(one)
        if position == len(plan.loops):
            self._points(plan, inner)
        else:
            loop = plan.loops[position]
            with self._loop(loop) as opened_loop:
                self._loops(plan, position + 1, None if loop.block and not loop.within else opened_loop)
        for one in reversed(opened):
            if one.into is not None:
                self._merge(one, one.into)
            elif not one.store.scan:
                self._finish(one)

    @contextmanager
    def _loop(self, loop: StageLoop) -> Iterator[Loop]:
        path, variable = self.path, loop.variable
        if loop.block is None:
            with ExitStack() as stack:
                yield self._open_loop(stack, variable, "j")
            return
        if not loop.within:
            name, extent = path.fresh("block"), self.size(variable.extent)
            with path.open(Loop(variable=name, last=extent, step=loop.block, may_be_empty=_may_be_empty(variable))) as opened:
                path.write(f"const int64_t {name}_end = {self._least(f'{name} + {loop.block}', extent)};")
                self._block = name
                yield opened
            return
        name = path.fresh("j")
        with path.open(Loop(variable=name, first=self._block, last=f"{self._block}_end")) as opened:
            self.bind(variable, name)
            yield opened

    def _points(self, plan: StagePlan, loop: Loop | None) -> None:
        """What happens at one point of the stage. `loop`: the innermost loop around it, where there is one right around it."""
        with self._lane_loop() as lane:
            innermost = lane or loop
            self.checks_here = False
            statements: list[str] = []
            plain = [store for store in plan.stage.stores if store.reduction is None]
            for store in plan.stage.stores:
                value = self.text(store.value, named=len(plain) > 1 and store.reduction is None)
                if store.reduction is not None:
                    one = plan.innermost(store)
                    self.path.write(self._combined(one, value, plan))
                    if not store.scan:
                        continue
                    value = one.where or self._element(one, one.name)
                    value = self._element(one, one.where) if one.where else self.converted(value, one.dtype, store.dtype)
                statements.append(self.stored(store, value))
            self.path.write(*statements)
            if innermost is not None:
                self._mark_independent(innermost, plan)
        for name, store in self.lines.values():
            first = store.index.substitute(lambda atom: index(self.tile[1]) if atom == self.tiles.column else None)
            place = super().place(store.buffer, store.value.dtype, first, self.path.depth)
            self.path.write(f"stream(&{place}, {name}, right - left);")

    def _mark_independent(self, loop: Loop, plan: StagePlan) -> None:
        """Lets the compiler run the iterations of the innermost loop side by side, where they do not depend on each other."""
        variable = self.lane or plan.loops[-1].variable
        shared = [one for one in {id(store): plan.innermost(store) for store in plan.stage.stores if store.reduction}.values()
                  if self.lane is None and variable not in one.kept]
        if any(one.where or one.store.scan or one.kept for one in shared):
            return
        plain = [store for store in plan.stage.stores if store.reduction is None]
        if not all(_is_injective(self.where(store.buffer, store.index), variable) for store in plain):
            return
        loop.shared = tuple(Shared(one.name, one.reduction) for one in shared)
        if self.checks_here:
            loop.shared += Shared("invalid"),

    # Accumulators.

    def _variables(self, one: Accumulator) -> list[tuple[str, torch.dtype, str]]:
        """Names, dtypes and first values of what an accumulator consists of."""
        identity = f"identity_{one.reduction}<{TYPES[one.dtype]}>()"
        beside = [(one.where, torch.int64, "0")] if one.where else [(one.lost, one.dtype, "0")] if one.lost else []
        return [(one.name, one.dtype, identity), *beside]

    def _start(self, one: Accumulator) -> None:
        if not self._is_array(one):
            self.path.write(*(f"{TYPES[dtype]} {name} = {value};" for name, dtype, value in self._variables(one)))
            return
        length = self.index(one.length * (self.strip_length or 1), self.path.depth)
        place = self.path.fresh("n")
        with self.path.open(Loop(variable=place, last=length, shared=())):
            self.path.write(*(f"{name}[{place}] = {value};" for name, _, value in self._variables(one)))

    def _combined(self, one: Accumulator, value: str, plan: StagePlan) -> str:
        """The statement which takes a value of the stage into account."""
        element = self._element(one, one.name)
        value = self.converted(value, one.store.value.dtype, one.dtype)
        if one.where:
            place = self.index(plan.position, self.path.depth)
            return f"take_{one.reduction}({element}, {self._element(one, one.where)}, {value}, {place});"
        return f"{element} = reduce_{one.reduction}({element}, {bare(value)});"

    def _merge(self, one: Accumulator, into: Accumulator) -> None:
        with self._kept_loops(one) as loop:
            total, value = self._element(into, into.name), self.converted(self._value_of(one), one.dtype, into.dtype)
            self.path.write(f"add_exactly({total}, {self._element(into, into.lost)}, {value});" if into.lost else
                            f"{total} = reduce_{one.reduction}({total}, {value});")
            if loop is not None:
                loop.shared = ()

    def _finish(self, one: Accumulator) -> None:
        """Stores the result of a reduction, for each point that has one."""
        store = one.store
        with self._kept_loops(one) as loop:
            value = self._element(one, one.where) if one.where else self.converted(self._value_of(one), one.dtype, store.dtype)
            self.path.write(self.stored(store, value))
            if loop is not None and self.lane is not None and _is_injective(self.where(store.buffer, store.index), self.lane):
                loop.shared = ()

    def _value_of(self, one: Accumulator) -> str:
        value = self._element(one, one.name)
        return f"compensated({value}, {self._element(one, one.lost)})" if one.lost else value

    @contextmanager
    def _kept_loops(self, one: Accumulator) -> Iterator[Loop | None]:
        """Loops over the values of an accumulator; the innermost of them."""
        with ExitStack() as stack:
            loop = None
            for variable in one.kept:
                loop = self._open_loop(stack, variable, "j")
            loop = stack.enter_context(self._lane_loop()) or loop
            self.rebound()
            yield loop
        self.rebound()


def _array(ctype: str, name: str, length: int) -> str:
    return ARRAY.format(line=CPU.line, type=ctype, name=name, length=length)


def _plans(kernel: Kernel, in_strips: bool) -> tuple[list[list[StagePlan]], list[Buffer]]:
    """How each stage of a kernel runs, and all local buffers."""
    plans, locals_ = [], list(kernel.locals)
    for number, stage in enumerate(kernel.stages):
        stages, more = ([stage], []) if in_strips else in_blocks(stage, number)
        plans.append([plan_stage(each, in_strips) for each in stages])
        locals_ += more
    return plans, locals_


def _is_injective(where: Index, variable: Var) -> bool:
    """Whether different values of `variable` are sure to lead to different elements."""
    factor = where.coefficient(variable)
    if factor == 0 or (bounds(factor)[0] or 0) <= 0:
        return False
    rest = where - index(variable) * factor
    return variable not in rest.variables() and variable not in factor.variables()


def _may_be_empty(variable: Var) -> bool:
    low = bounds(variable.extent)[0]
    return low is None or low < 1
