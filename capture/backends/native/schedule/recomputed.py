"""What a row of a CUDA kernel would keep in memory for a later stage, for want of registers, is computed again there instead.

That takes away a pass over memory that is written and one that is read, such as for the exponentials of a softmax over a large
vocabulary, and costs operations, for which a device that waits for memory has time.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from capture.backends.native.index import index
from capture.backends.native.ir import Expr, Kernel, Load, Stage, Store
from capture.backends.native.rewrite import Rewriter, loads_of, walk


def with_recomputed(kernel: Kernel, outside: Collection[str]) -> Kernel:
    """An equal kernel without those of the buffers `outside`, of which nobody else reads, that later stages can as well compute."""
    if not outside:
        return kernel
    stages = kernel.stages
    for name in sorted(outside):
        stages = _without(name, stages) or stages
    read = {node.buffer for stage in stages for node in loads_of(stage.stores)}
    gone = {name for name in outside if name not in read}
    stages = tuple(replace(stage, stores=tuple(store for store in stage.stores if store.buffer not in gone)) for stage in stages)
    return replace(kernel, stages=tuple(stage for stage in stages if stage.stores),
                   locals=tuple(local for local in kernel.locals if local.name not in gone))


def _without(name: str, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
    """The stages with nothing read of a buffer, None where something must be."""
    writers = [(number, store) for number, stage in enumerate(stages) for store in stage.stores if store.buffer == name]
    if len(writers) != 1:
        return None
    (number, store), = writers
    if store.reduction is not None or store.mode != "set" or store.mask is not None or _changes(store.value, stages[number:]):
        return None
    found = [*stages[:number + 1]]
    for stage in stages[number + 1:]:
        reads = [node for node in loads_of(stage.stores) if node.buffer == name]
        value = _value_at(store, stages[number], stage)
        if reads and (value is None or any(node is not value[0] for node in reads) or not _is_worth(value[1], value[0], stage)):
            return None
        if reads and value is not None:
            known = {value[0]: value[1]}
            stage = replace(stage, stores=Rewriter({}, known.get).stores(stage.stores))
        found.append(stage)
    return tuple(found)


def _changes(value: Expr, stages: Sequence[Stage]) -> bool:
    """Whether what a value is computed from is written by one of the stages."""
    written = {store.buffer for stage in stages for store in stage.stores}
    return any(isinstance(node, Load) and node.buffer in written for node in walk([value]))


def _value_at(store: Store, stage: Stage, later: Stage) -> tuple[Load, Expr] | None:
    """How a later stage reads what a store has written at its own point, and what that is; None where their loops differ."""
    if [index(variable.extent) for variable in stage.inner] != [index(variable.extent) for variable in later.inner]:
        return None
    moved = Rewriter(dict(zip(stage.inner, map(index, later.inner))))
    node = next((node for node in loads_of(later.stores) if node.buffer == store.buffer and node.mask is None
                 and node.index == moved.index(store.index)), None)
    return None if node is None else (node, moved.expr(store.value))


def _is_worth(value: Expr, instead: Load, stage: Stage) -> bool:
    """Whether no more has to be read for the value than is written and read otherwise."""
    inner, there = set(stage.inner), set(loads_of(stage.stores))
    more = [node for node in walk([value]) if isinstance(node, Load) and node not in there and inner & node.index.variables()]
    return sum(node.dtype.itemsize for node in more) <= 2 * instead.dtype.itemsize
