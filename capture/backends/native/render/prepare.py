"""What is done to a kernel before it is written: rewrites of the IR, after which the text follows its structure.

1. `without_single_points`: no loop runs exactly once.
2. `with_nonpositive_exponents`: what the maximum was subtracted from is at most 0, and its exponential cannot overflow.
3. `with_extremes_first`: within rows, the place of an extreme is found in a pass after the extreme: each vectorises by itself.
4. `with_joined_rows`: in strips, several rows are reduced at a time, so that accumulators are loaded and stored less often.
5. `with_strip_values`: in strips, what is expensive and does not change within a stage's own loops is computed before them.

`with_starts` is apart: it changes what an index means.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from capture.backends.native.index import ZERO, Index, Value, Var, bounds, contiguous_strides, index
from capture.backends.native.ir import Buffer, Expr, Kernel, Load, Op, Stage, Store, constant, intern, load, op, position
from capture.backends.native.rewrite import Rewriter, loads_of, roots_of, stores_of, walk
from capture.backends.native.show import postorder, roots

JOINED = 4              # rows that are reduced at a time
JOINED_NODES = 24       # of a stage, at most
COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
LARGEST = torch.iinfo(torch.int32).max
CHEAP = frozenset("add sub mul neg abs maximum minimum eq ne lt le gt ge and or xor not where to".split())  # as fast as a load


def prepared(kernel: Kernel) -> Kernel:
    """An equal kernel that is ready to be written."""
    return with_strip_values(with_joined_rows(with_extremes_first(with_nonpositive_exponents(without_single_points(kernel)))))


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
    """Whether `most` is the maximum of all that `value` is in the last of some stages."""
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
    """An expression over one stage's loops, over those of another one; None where these are not alike."""
    if [index(variable.extent) for variable in stage.inner] != [index(variable.extent) for variable in other.inner]:
        return None
    return Rewriter(dict(zip(stage.inner, map(index, other.inner)))).expr(expr)


def with_extremes_first(kernel: Kernel) -> Kernel:
    """argmax as max, and then the least position at which that is. (In strips, both vectorise in one pass.)"""
    if kernel.vectorized:
        return kernel
    stages: list[Stage] = []
    locals_ = list(kernel.locals)
    for stage in kernel.stages:
        chosen = [store for store in stage.stores if _can_be_found(store, stage)]
        places: list[Store] = []
        results: list[Store] = []
        first: dict[Store, Store] = {}
        around = tuple(variable for variable in stage.inner if variable not in stage.reduced)
        for store in chosen:
            extreme = _local(f"extreme {len(locals_)}", store.value.dtype, around)
            number = _row_major(stage)
            small = store.value.dtype.itemsize <= 4 and (bounds(number)[1] or LARGEST) < LARGEST
            place = _local(f"place {len(locals_)}", torch.int32 if small else torch.int64, around)
            locals_ += [extreme, place]
            where = _row_major(Stage(around, frozenset(around), ()))
            first[store] = Store(extreme.name, where, store.value, reduction=store.reduction.removeprefix("arg"))
            none = constant(torch.iinfo(place.dtype).max, place.dtype)
            here = op("where", place.dtype, _same(store.value, load(extreme, where)), position(number, place.dtype), none)
            places.append(Store(place.name, where, here, reduction="min"))
            found = load(place, where)
            results.append(replace(store, value=found if not small else op("to", torch.int64, found), reduction=None))
        stages.append(replace(stage, stores=tuple(first.get(store, store) for store in stage.stores)))
        if chosen:
            stages += [Stage(stage.inner, stage.reduced, tuple(places)), Stage(around, frozenset(), tuple(results))]
    return replace(kernel, stages=tuple(stages), locals=tuple(locals_))


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


def _local(name: str, dtype: torch.dtype, variables: tuple[Var, ...]) -> Buffer:
    sizes = tuple(variable.extent for variable in variables)
    return Buffer(name, dtype, sizes, contiguous_strides(sizes), "local")


def _row_major(stage: Stage) -> Index:
    """The number of a point among those of the reduced variables."""
    number = ZERO
    for variable in stage.inner:
        if variable in stage.reduced:
            number = number * variable.extent + index(variable)
    return number


def with_joined_rows(kernel: Kernel) -> Kernel:
    """The innermost reduced loop of a stage takes JOINED steps at once, where these divide its extent and the stage is small."""
    if not kernel.vectorized:
        return kernel
    return replace(kernel, stages=tuple(_joined(stage) if _can_be_joined(stage) else stage for stage in kernel.stages))


def _can_be_joined(stage: Stage) -> bool:
    if not stage.inner or stage.inner[-1] not in stage.reduced:
        return False
    extent = index(stage.inner[-1].extent).constant
    nodes = postorder(*(root for store in stage.stores for root in roots(store)))
    return (extent is not None and extent % JOINED == 0 and len(nodes) <= JOINED_NODES
            and all(store.reduction in COMBINED and not store.scan and store.mask is None for store in stage.stores)
            and not any(isinstance(node, Load) and (node.mask is not None or _values(node)) for node in nodes))


def _values(node: Load) -> bool:
    return any(isinstance(atom, Value) for atom in node.index.atoms())


def _joined(stage: Stage) -> Stage:
    *outer, row = stage.inner
    rows = Var(f"{row.name} by {JOINED}", index(row.extent).constant // JOINED)
    steps = [Rewriter({row: index(rows) * JOINED + step}) for step in range(JOINED)]

    def joined(store: Store) -> Store:
        values = [step.expr(store.value) for step in steps]
        while len(values) > 1:
            values = [op(COMBINED[store.reduction], store.value.dtype, a, b) for a, b in zip(values[::2], values[1::2])]
        return replace(store, value=values[0])
    return Stage((*outer, rows), stage.reduced - {row} | {rows}, tuple(map(joined, stage.stores)))


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

    def index(self, old: Index) -> Index:
        return old.substitute(self._atom)


def _strip_values(stage: Stage, lane: Var, locals_: Iterable[str]) -> list[Expr]:
    """The largest expressions of a stage that are worth it."""
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
        expensive = isinstance(expr, Op) and expr.name not in CHEAP or any(worth[child] for child in children)
        per_lane = lane in expr.variables() or any(isinstance(node, Load) and node.buffer in locals_ for node in postorder(expr))
        worth[expr] = expensive and per_lane
    needed = set(every)
    for expr in order:
        if expr not in worth or not worth[expr]:
            needed.update(expr.children())
    return [expr for expr in order if worth.get(expr) and expr in needed]

