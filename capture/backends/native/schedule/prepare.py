"""What is done to a kernel before it is written: rewrites of the IR, after which the text follows its structure.

1. `without_single_points`: no loop runs exactly once.
2. `with_nonpositive_exponents`: what the maximum was subtracted from is at most 0, and its exponential cannot overflow.
3. `with_extremes_first`: within rows, the place of an extreme is found in a pass after the extreme: each vectorises by itself.
4. `with_joined_rows`: in strips, several rows are reduced at a time, so that accumulators are loaded and stored less often.
5. `with_strip_values`: in strips, what is expensive and does not change within a stage's own loops is computed before them.

`with_starts` is apart: it changes what an index means.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from capture.backends.native.index import ZERO, Index, Value, Var, bounds, contiguous_strides, index
from capture.backends.native.ir import JOINED, Buffer, Expr, Kernel, Load, Op, Stage, Store, constant, intern, load, op, position
from capture.backends.native.ops import CHEAP, OPS
from capture.backends.native.rewrite import Rewriter, loads_of, roots_of, stores_of, walk
from capture.backends.native.schedule.blocks import can_be_joined, joined
from capture.backends.native.show import postorder, roots

BLOCKS = 128, 1024      # elements of a block of a row in which the place of an extreme is looked for
FEWEST_BLOCKS = 4
LARGEST = torch.iinfo(torch.int32).max


def prepared(kernel: Kernel) -> Kernel:
    """An equal kernel that is ready to be written."""
    return with_strip_values(with_joined_rows(with_extremes_first(with_nonpositive_exponents(without_single_points(kernel)))))


def prepared_for_device(kernel: Kernel) -> Kernel:
    """The same for machines whose threads each do single points: these make no vectors, and look for extremes in whole rows."""
    return with_joined_rows(with_extremes_first(with_nonpositive_exponents(without_single_points(kernel)), in_blocks=False))


def with_starts(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The kernel with indices that count from where it begins to use each buffer, and where that is: elements by buffer, if not 0.

    Steps of an unrolled loop, or slices of one tensor, often differ in that alone, and then share a function.
    """
    locals_ = {local.name for local in kernel.locals}
    stores = stores_of(kernel)
    starts: dict[str, int] = {}
    for access in (*loads_of(stores), *stores):
        offset = access.index.terms.get((), 0)
        starts[access.buffer] = min(starts.get(access.buffer, offset), offset)
    starts = {buffer: start for buffer, start in starts.items() if start > 0 and buffer not in locals_}
    if not starts:
        return kernel, starts

    def moved(node: Load) -> Expr:
        return intern(Load, node.buffer, node.index - starts.get(node.buffer, 0), node.dtype, node.mask)
    rewriter = Rewriter({}, moved)
    stages = tuple(replace(stage, stores=tuple(replace(store, index=store.index - starts.get(store.buffer, 0))
                                               for store in rewriter.stores(stage.stores))) for stage in kernel.stages)
    return replace(kernel, stages=stages), starts


def without_single_points(kernel: Kernel) -> Kernel:
    """Variables that are always 0 are left out. If that was the variable of the strips, each stage's own last loop is innermost."""
    variables = (*kernel.outer, *(variable for stage in kernel.stages for variable in stage.inner))
    single = {variable for variable in variables if index(variable.extent) == 1}
    if not single:
        return kernel
    rewriter = Rewriter(dict.fromkeys(single, ZERO))
    stages = tuple(Stage(_without(stage.inner, single), stage.reduced - single, rewriter.stores(stage.stores))
                   for stage in kernel.stages)
    return replace(kernel, outer=_without(kernel.outer, single), parallel=len(_without(kernel.outer[:kernel.parallel], single)),
                   vectorized=kernel.vectorized and kernel.outer[-1] not in single, stages=stages)


def _without(variables: tuple[Var, ...], single: set[Var]) -> tuple[Var, ...]:
    return tuple(variable for variable in variables if variable not in single)


def with_nonpositive_exponents(kernel: Kernel) -> Kernel:
    """exp(x - most) as exp_nonpositive, where an earlier stage found `most` as the maximum of all x."""
    stages: list[Stage] = []
    for number, stage in enumerate(kernel.stages):
        known = {expr: op("exp_nonpositive", expr.dtype, *expr.args) for expr in walk(roots_of(stage.stores))
                 if _is_exponential_of_difference(expr) and _is_maximum(*expr.args[0].args, kernel.stages[:number + 1])}
        stages.append(replace(stage, stores=_Replacing(known).stores(stage.stores)) if known else stage)
    return replace(kernel, stages=tuple(stages))


def _is_exponential_of_difference(expr: Expr) -> bool:
    return (isinstance(expr, Op) and expr.name == "exp" and expr.dtype == torch.float32
            and isinstance(expr.args[0], Op) and expr.args[0].name == "sub")


def _is_maximum(value: Expr, most: Expr, stages: Sequence[Stage]) -> bool:
    """Whether `most` is the maximum of all values that `value` has in the last of these stages."""
    *before, stage = stages
    for number, earlier in enumerate(before):
        for store in earlier.stores:
            if not (store.reduction == "max" and not store.scan and store.mask is None and set(earlier.inner) == earlier.reduced
                    and most is intern(Load, store.buffer, store.index, store.value.dtype, None)):
                continue
            later = {other.buffer for each in stages[number + 1:] for other in each.stores}
            now = later | {other.buffer for other in earlier.stores}
            kept = [intern(Load, other.buffer, other.index, other.value.dtype, None) for other in earlier.stores
                    if other.value is store.value and other.reduction is None and other.mask is None and other.mode == "set"]
            same = [(store.value, now), *((load, later) for load in kept)]      # what it is called now, unless changed since then
            if store.buffer not in later and any(_renamed(expr, earlier, stage) is value and changed.isdisjoint(_buffers(expr))
                                                 for expr, changed in same):
                return True
    return False


def _buffers(expr: Expr) -> set[str]:
    return {node.buffer for node in walk([expr]) if isinstance(node, Load)}


def _renamed(expr: Expr, stage: Stage, other: Stage) -> Expr | None:
    """An expression over one stage's loops as one over another stage's; None where their extents differ."""
    if [index(variable.extent) for variable in stage.inner] != [index(variable.extent) for variable in other.inner]:
        return None
    return Rewriter(dict(zip(stage.inner, map(index, other.inner)))).expr(expr)


def with_extremes_first(kernel: Kernel, in_blocks: bool = True) -> Kernel:
    """Has argmax computed as the maximum, and then as the least position that has it. (Not in strips, where argmax vectorises.)

    in_blocks: long rows are cut into blocks, and the position is looked for only in the first block with the maximum.
    """
    if kernel.vectorized:
        return kernel
    stages: list[Stage] = []
    locals_ = list(kernel.locals)

    def local(name: str, dtype: torch.dtype, *variables: Var) -> Buffer:
        sizes = tuple(variable.extent for variable in variables)
        locals_.append(Buffer(f"{name} {len(locals_)}", dtype, sizes, contiguous_strides(sizes), "local"))
        return locals_[-1]
    for stage in kernel.stages:
        chosen = tuple(store for store in stage.stores if _can_be_found(store, stage))
        rest = tuple(store for store in stage.stores if store not in chosen)
        if in_blocks and chosen and not rest and (block := _block_of(stage)) is not None:
            stages += _found_in_blocks(stage, chosen, block, local)
        elif chosen:
            stages += _found_in_rows(stage, chosen, rest, local)
        else:
            stages.append(stage)
    return replace(kernel, stages=tuple(stages), locals=tuple(locals_))


def _found_in_rows(stage: Stage, chosen: Sequence[Store], rest: tuple[Store, ...], local: Callable[..., Buffer]) -> list[Stage]:
    """Extremes, and what else the stage stores; then their places."""
    around = tuple(variable for variable in stage.inner if variable not in stage.reduced)
    here, number = _row_major(around), _row_major(variable for variable in stage.inner if variable in stage.reduced)
    firsts: list[Store] = []
    places: list[Store] = []
    results: list[Store] = []
    for store in chosen:
        extreme = local("extreme", store.value.dtype, *around)
        small = store.value.dtype.itemsize <= 4 and (bounds(number)[1] or LARGEST) < LARGEST
        place = local("place", torch.int32 if small else torch.int64, *around)
        firsts.append(Store(extreme.name, here, store.value, reduction=_extreme(store)))
        places.append(_first_place(place, here, store.value, load(extreme, here), number))
        results.append(replace(store, value=_as_int64(load(place, here)), reduction=None))
    return [replace(stage, stores=(*firsts, *rest)), Stage(stage.inner, stage.reduced, tuple(places)),
            Stage(around, frozenset(), tuple(results))]


def _found_in_blocks(stage: Stage, chosen: Sequence[Store], length: int, local: Callable[..., Buffer]) -> list[Stage]:
    """Extremes of blocks of the last loop; the first block that has the extreme of all; and the place in it."""
    *around, row = stage.inner
    count = index(row.extent).constant // length
    block, within = Var(f"{row.name} blocks", count), Var(f"{row.name} in a block", length)
    here, there = _row_major(around), _row_major((*around, block))
    stages: list[list[Store]] = [[], [], [], [], []]
    for store in chosen:
        extremes, extreme = local("extremes", store.value.dtype, *around, block), local("extreme", store.value.dtype, *around)
        which, place = local("block", torch.int64, *around), local("place", torch.int32, *around)
        found = index(Value(load(which, here), count, None)) * length
        in_block = Rewriter({row: index(block) * length + index(within)}).expr(store.value)
        in_first = Rewriter({row: found + index(within)}).expr(store.value)
        stages[0].append(Store(extremes.name, there, in_block, reduction=_extreme(store)))
        stages[1].append(Store(extreme.name, here, load(extremes, there), reduction=_extreme(store)))
        stages[2].append(_first_place(which, here, load(extremes, there), load(extreme, here), index(block)))
        stages[3].append(_first_place(place, here, in_first, load(extreme, here), index(within)))
        start = op("mul", torch.int64, load(which, here), constant(length, torch.int64))
        result = op("add", torch.int64, start, _as_int64(load(place, here)))
        stages[4].append(replace(store, value=result, reduction=None))
    in_blocks, over_blocks = ((*around, block, within), {within}), ((*around, block), {block})
    loops = in_blocks, over_blocks, over_blocks, ((*around, within), {within}), (tuple(around), set())
    return [Stage(inner, frozenset(reduced), tuple(stores)) for (inner, reduced), stores in zip(loops, stages)]


def _block_of(stage: Stage) -> int | None:
    """The length of blocks that divide a stage's only reduced loop evenly; None where there is none, or the loop is short."""
    extent = index(stage.inner[-1].extent).constant
    if extent is None or len(stage.reduced) != 1:
        return None
    least, most = BLOCKS
    lengths = (length for length in range(least, most + 1) if extent % length == 0)
    return max((length for length in lengths if extent // length >= FEWEST_BLOCKS), default=None)


def _extreme(store: Store) -> str:
    return store.reduction.removeprefix("arg")


def _first_place(place: Buffer, here: Index, value: Expr, extreme: Expr, number: Index) -> Store:
    """The least `number` at which a value is the extreme."""
    none = constant(torch.iinfo(place.dtype).max, place.dtype)
    value = op("where", place.dtype, _same(value, extreme), position(number, place.dtype), none)
    return Store(place.name, here, value, reduction="min")


def _as_int64(value: Expr) -> Expr:
    return value if value.dtype == torch.int64 else op("to", torch.int64, value)


def _can_be_found(store: Store, stage: Stage) -> bool:
    """Whether a store is the place of an extreme over the last loops of a stage, of values that the stage does not change."""
    kept = [variable not in stage.reduced for variable in stage.inner]
    own = {other.buffer for other in stage.stores}
    return (store.reduction in ("argmax", "argmin") and not store.scan and kept == sorted(kept, reverse=True)
            and not any(isinstance(node, Load) and node.buffer in own for node in postorder(store.value)))


def _same(value: Expr, extreme: Expr) -> Expr:
    """Equal, or both NaN."""
    equal = op("eq", torch.bool, value, extreme)
    if not value.dtype.is_floating_point:
        return equal
    return op("or", torch.bool, equal, op("and", torch.bool, op("isnan", torch.bool, extreme), op("isnan", torch.bool, value)))


def _row_major(variables: Iterable[Var]) -> Index:
    """The number of a point among those of some loops."""
    number = ZERO
    for variable in variables:
        number = number * variable.extent + index(variable)
    return number


def with_joined_rows(kernel: Kernel) -> Kernel:
    """The innermost reduced loop of a stage takes JOINED steps at once, where these divide its extent and the stage is small."""
    if not kernel.vectorized:
        return kernel
    return replace(kernel, stages=tuple(_joined(stage) if can_be_joined(stage, JOINED) else stage for stage in kernel.stages))


def _joined(stage: Stage) -> Stage:
    *outer, row = stage.inner
    rows = Var(f"{row.name} by {JOINED}", index(row.extent).constant // JOINED)
    stores = joined(stage.stores, row, [index(rows) * JOINED + step for step in range(JOINED)])
    return Stage((*outer, rows), stage.reduced - {row} | {rows}, stores)


def with_strip_values(kernel: Kernel) -> Kernel:
    """Local buffers for values that depend on the variable of the strips, but not on those of their stage."""
    if not kernel.vectorized or not any(stage.inner for stage in kernel.stages):
        return kernel
    lane = kernel.outer[-1]
    stages: list[Stage] = []
    locals_ = list(kernel.locals)
    known: dict[Expr, Expr] = {}
    for stage in kernel.stages:
        if not stage.inner:
            stages.append(stage)
            continue
        before: list[Store] = []
        for expr in _strip_values(stage, lane, {local.name for local in kernel.locals}):
            local = Buffer(f"strip value {len(locals_)}", expr.dtype, (), (), "local")
            locals_.append(local)
            before.append(Store(local.name, ZERO, expr))
            known[expr] = load(local, ZERO)
        if before:
            stages.append(Stage((), frozenset(), tuple(before)))
        stages.append(Stage(stage.inner, stage.reduced, _Replacing(known).stores(stage.stores)) if before else stage)
        known = {}      # a later stage may have stored what these were computed from
    return replace(kernel, stages=tuple(stages), locals=tuple(locals_))


class _Replacing(Rewriter):
    """Puts other expressions in the place of some."""

    def __init__(self, known: dict[Expr, Expr]) -> None:
        super().__init__({})
        self._done.update(known)


def _is_cheap(expr: Op) -> bool:
    """Whether an operation costs less than to keep its result. A conversion to float64 does not: a vector holds half as many of
    these, so it is several instructions."""
    return OPS[expr.name].cost == CHEAP and (expr.name != "to" or expr.dtype != torch.float64)


def _strip_values(stage: Stage, lane: Var, locals_: Iterable[str]) -> list[Expr]:
    """The largest expressions of a stage that are worth a local buffer: expensive, and the same throughout the stage's own loops,
    but not for all elements of a strip."""
    own = {store.buffer for store in stage.stores}
    every = [root for store in stage.stores for root in roots(store)]
    worth: dict[Expr, bool] = {}        # of expressions that do not change in the stage's loops: whether they are expensive
    order = postorder(*every)
    for expr in order:
        children = expr.children()
        if not all(child in worth for child in children) or not expr.variables().isdisjoint(stage.inner):
            continue
        if isinstance(expr, Load) and expr.buffer in own:
            continue
        expensive = isinstance(expr, Op) and not _is_cheap(expr) or any(worth[child] for child in children)
        per_lane = lane in expr.variables() or any(isinstance(node, Load) and node.buffer in locals_ for node in postorder(expr))
        worth[expr] = expensive and per_lane
    needed = set(every)
    for expr in order:
        if expr not in worth or not worth[expr]:
            needed.update(expr.children())
    return [expr for expr in order if worth.get(expr) and expr in needed]

