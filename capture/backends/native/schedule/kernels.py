"""From nests that are to be fused to one kernel: passes over a row, values passed on in registers, buffers that stay local."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from capture.backends.native import cost
from capture.backends.native.index import Index, Var, contiguous_strides, index
from capture.backends.native.ir import Buffer, Expr, Kernel, Load, Nest, Stage, Store, constant, intern, op
from capture.backends.native.loops import linear_terms, merged, ordered
from capture.backends.native.machine import CPU
from capture.backends.native.rewrite import Rewriter, loads_of

PARALLEL_ROWS = 4 * CPU.threads     # enough to share among threads evenly


@dataclass(slots=True)
class _Pass:
    """A stage in the making."""

    inner: tuple[Var, ...]
    reduced: frozenset[Var]
    positional: bool                # some result depends on the order of the loops: argmax, scans, scatters
    stores: list[Store] = field(default_factory=list)
    forward: dict[tuple[str, Index], Expr] = field(default_factory=dict)    # what was stored where, for loads at the same point
    read: list[Load] = field(default_factory=list)      # all loads, also those that took a value from `forward`


def kernel_of(nests: Sequence[Nest], outer: frozenset[Var], strip: Var | None, needed: set[str],
              buffers: Mapping[str, Buffer]) -> Kernel:
    """The kernel that runs `nests`, given in program order, for each point of `outer`.

    strip: the variable whose values are to be neighbours in a vector, if it is one of `outer`; in pointwise kernels it is chosen
    here. needed: the buffers that must be written to memory; the others are kept in registers or local buffers where possible.
    """
    passes: list[_Pass] = []
    for nest in nests:
        _place(nest, outer, passes)
    stores = [store for one in passes for store in one.stores]
    read = {node.buffer for node in loads_of(stores)}
    stores = [store for store in stores if store.buffer in needed or store.buffer in read]
    pointwise = all(not one.inner for one in passes)
    last = strip if strip is not None and strip in outer else None
    if pointwise and outer and last is None:
        last = contiguous(sorted(outer, key=lambda v: v.name), stores)
    vectorized = last is not None
    rows = ordered(outer, stores, last)
    stages = [Stage(_inner_order(one), one.reduced, tuple(s for s in one.stores if s.buffer in needed or s.buffer in read))
              for one in passes]
    name = "_".join(dict.fromkeys(n.name.removesuffix("_nest") for n in nests))
    kernel = Kernel(name, rows, len(rows), vectorized, tuple(s for s in stages if s.stores))
    kernel = _localized(kernel, needed, buffers)
    return _parallelized(merged(kernel))


def _place(nest: Nest, outer: frozenset[Var], passes: list[_Pass]) -> None:
    """Puts a nest into the earliest pass over the same loops in which all that it depends on has been computed."""
    inner = tuple(v for v in (*nest.space, *nest.reduced) if v not in outer)
    positional = any(s.reduction in ("argmax", "argmin") or s.scan or s.scatters for s in nest.stores)
    loads = loads_of(nest.stores)
    written = {s.buffer for s in nest.stores}
    least = 0
    for number, one in enumerate(passes):
        for store in one.stores:
            for node in loads:
                if node.buffer == store.buffer:
                    same = store.reduction is None and store.mode == "set" and store.mask is None and node.index == store.index
                    least = max(least, number if same else number + 1)
            if store.buffer in written:                                                # written again
                least = max(least, number + 1)
        for node in one.read:
            if node.buffer in written:                                                 # read before it is overwritten
                same = any(s.buffer == node.buffer and s.index == node.index for s in nest.stores)
                least = max(least, number if same else number + 1)
    target = next((one for one in passes[least:] if set(one.inner) == set(inner)
                   and not ((positional or one.positional) and (one.inner, one.reduced) != (inner, frozenset(nest.reduced)))
                   and _agree(one, nest)), None)
    if target is None:
        target = _Pass(inner, frozenset(nest.reduced), positional)
        passes.append(target)
    target.reduced |= frozenset(nest.reduced)
    target.positional |= positional
    rewriter = Rewriter({}, lambda node: _forwarded(node, target))
    for store in rewriter.stores(nest.stores):
        target.stores.append(store)
        if store.reduction is None and store.mode == "set" and store.mask is None:
            target.forward[store.buffer, store.index] = store.value
    target.read += loads


def _agree(one: _Pass, nest: Nest) -> bool:
    """Whether a nest's reductions may run in the loops of a pass: each reduces over all variables that the pass reduces over, so a
    reduction joins only where both reduce the same; stores without reduction run anywhere."""
    if any(s.reduction is not None for s in nest.stores) and any(s.reduction is not None for s in one.stores):
        return one.reduced == frozenset(nest.reduced)
    return True


def _forwarded(node: Load, target: _Pass) -> Expr | None:
    value = target.forward.get((node.buffer, node.index))
    if value is None or node.mask is None:
        return value
    return op("where", node.dtype, node.mask, value, constant(0, node.dtype))


def contiguous(loops: Sequence[Var], stores: Sequence[Store]) -> Var | None:
    """The loop along which most elements are contiguous in memory; the last of the best. None where there are no loops.

    An access counts as many elements as its index has values: what is the same for a whole row is read once for it. Stores count
    double.
    """
    votes = dict.fromkeys(loops, 0)
    accesses = [(node.index, 1) for node in loads_of(stores)] + [(s.index, 2) for s in stores if s.reduction is None or s.scan]
    for expression, weight in accesses:
        variables = expression.variables()
        for variable in variables:
            if variable in votes and expression.coefficient(variable) == 1:
                votes[variable] += weight * cost.elements(variables)
    return max(reversed(loops), key=votes.__getitem__, default=None)


def _inner_order(one: _Pass) -> tuple[Var, ...]:
    if one.positional or len(one.inner) < 2:
        return one.inner
    last = contiguous(one.inner, one.stores)
    return ordered(one.inner, one.stores, last)


def _localized(kernel: Kernel, needed: set[str], buffers: Mapping[str, Buffer]) -> Kernel:
    """With buffers that nobody else needs made local: an instance for each row, addressed by the inner loops alone."""
    rows = frozenset(kernel.outer)
    stores = [store for stage in kernel.stages for store in stage.stores]
    loads = loads_of(stores)
    locals_: list[Buffer] = []
    places: dict[str, dict[Index, Index]] = {}         # buffer -> index in memory -> index in the row
    for name in dict.fromkeys(store.buffer for store in stores):
        if name in needed:
            continue
        writers = [store for store in stores if store.buffer == name]
        uses = [store.index for store in writers] + [node.index for node in loads if node.buffer == name]
        compact = _compact(writers[0].index, rows)
        if compact is None:
            continue
        sizes, strides = compact
        moved = {use: _moved(use, rows, strides) for use in uses}
        if None in moved.values():
            continue
        lanes = cost.STRIP if kernel.vectorized else 1
        local = Buffer(name, buffers[name].scalar, sizes, contiguous_strides(sizes), "local")
        if cost.bytes_of(local) * lanes <= cost.LOCAL_BYTES:
            locals_.append(local)
            places[name] = moved
    if not locals_:
        return kernel

    def within_row(node: Load) -> Expr | None:
        place = places.get(node.buffer, {}).get(node.index)
        return None if place is None else intern(Load, node.buffer, place, node.dtype, node.mask)
    rewriter = Rewriter({}, within_row)
    stages = []
    for stage in kernel.stages:
        new = []
        for store in stage.stores:
            changed = rewriter.store(store)
            if store.buffer in places:
                changed = replace(changed, index=places[store.buffer][store.index])
            new.append(changed)
        stages.append(replace(stage, stores=tuple(new)))
    return replace(kernel, stages=tuple(stages), locals=tuple(locals_))


def _compact(expression: Index, rows: frozenset[Var]) -> tuple[tuple[int, ...], dict[int, Index]] | None:
    """Sizes of a row's own buffer, and the stride in it for each stride in memory; None when the index is not affine in numbers."""
    terms = linear_terms(expression)
    if terms is None:
        return None
    inner = sorted(((stride.constant, v) for v, stride in terms.items() if v not in rows and stride.constant is not None),
                   key=lambda digit: -digit[0])
    if len(inner) != sum(v not in rows for v in terms) or len({stride for stride, _ in inner}) != len(inner):
        return None
    sizes = tuple(v.extent for _, v in inner)
    return sizes, {stride: new for (stride, _), new in zip(inner, contiguous_strides(sizes))}


def _moved(expression: Index, rows: frozenset[Var], strides: Mapping[int, Index]) -> Index | None:
    """An index in memory as an index in the row's own buffer; None when it does not follow the same strides."""
    terms = linear_terms(expression)
    if terms is None or expression.terms.get(()):
        return None
    total = index(0)
    for variable, stride in terms.items():
        if variable in rows:
            continue
        if stride.constant not in strides:
            return None
        total = total + index(variable) * strides[stride.constant]
    return total


def _parallelized(kernel: Kernel) -> Kernel:
    """As few leading loops in parallel as give enough rows. The strip is cut only where there are too few rows besides it."""
    rows = kernel.outer[:-1] if kernel.vectorized else kernel.outer
    for count in range(1, len(rows) + 1):
        if cost.elements(rows[:count]) >= PARALLEL_ROWS:
            return replace(kernel, parallel=count)
    if kernel.vectorized and cost.elements(rows) < cost.LEAST_ROWS:
        return replace(kernel, parallel=len(kernel.outer))
    return replace(kernel, parallel=len(rows) or min(1, len(kernel.outer)))
