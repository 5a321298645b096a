"""Reductions several steps at a time: accumulators are converted, loaded and stored less often, and do not wait for each other.

Along rows the compiler makes vectors of neighbours. A block is JOINED such vectors, of the machine's lanes each: these are combined
with one another, in pairs, and then with accumulators, one for each lane. What is left of a row behind its last block, and the
lanes' results, are combined at the end.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from capture.backends.native.index import Index, Value, Var, index
from capture.backends.native.ir import COMBINED, JOINED, OF_PARTS, Buffer, Expr, Load, Op, Stage, Store, load, op
from capture.backends.native.machine import CPU
from capture.backends.native.rewrite import Rewriter
from capture.backends.native.show import postorder, roots

JOINED_NODES = 24       # of a stage, at most
LANES = CPU.lanes


def in_blocks(stage: Stage, number: int) -> tuple[list[Stage], list[Buffer]]:
    """The stages that stand for stage `number` of a kernel of rows, and the local buffers between them."""
    if not _has_blocks(stage):
        return [stage], []
    *outer, row = stage.inner
    extent = index(row.extent).constant
    count, rest = divmod(extent, JOINED * LANES)
    block, lane, left = (Var(f"{row.name} {name}", size) for name, size in (("block", count), ("lane", LANES), ("left", rest)))
    parts = Var(f"{row.name} parts", LANES + bool(rest))
    locals_: list[Buffer] = []
    partial: list[Store] = []
    results: list[Store] = []
    for store in stage.stores:
        if store.reduction is None:
            partial.append(store)
            continue
        local = Buffer(f"parts {number} {len(locals_)}", store.dtype, (parts.extent,), (1,), "local")
        locals_.append(local)
        partial.append(replace(store, buffer=local.name, index=index(lane)))
        results.append(replace(store, value=load(local, index(parts)), reduction=OF_PARTS[store.reduction]))
    places = [index(block) * (JOINED * LANES) + step * LANES + index(lane) for step in range(JOINED)]
    stages = [Stage((*outer, block, lane), stage.reduced - {row} | {block}, joined(partial, row, places))]
    if rest:
        behind = Rewriter({row: index(left) + count * JOINED * LANES, lane: index(LANES)})
        stages.append(Stage((*outer, left), stage.reduced - {row} | {left}, behind.stores(partial)))
    return [*stages, Stage((parts,), frozenset((parts,)), tuple(results))], locals_


def _has_blocks(stage: Stage) -> bool:
    """Whether it is worth it: for sums in float64. Those in float32 have blocks of their own (`plan_stage`)."""
    sums = {store.dtype for store in stage.stores if store.reduction in ("sum", "total")}
    return (torch.float64 in sums and torch.float32 not in sums and can_be_joined(stage, 1)
            and stage.reduced == frozenset(stage.inner) and index(stage.inner[-1].extent).constant >= JOINED * LANES)


def can_be_joined(stage: Stage, divisor: int) -> bool:
    """Whether the innermost loop of a stage can take several steps at once: a reduced loop in a small stage, whose extent is a
    known multiple of `divisor`."""
    if not stage.inner or stage.inner[-1] not in stage.reduced:
        return False
    extent = index(stage.inner[-1].extent).constant
    nodes = postorder(*(root for store in stage.stores for root in roots(store)))
    return (extent is not None and extent % divisor == 0 and len(nodes) <= JOINED_NODES
            and all(_can_be_repeated(store) for store in stage.stores)
            and not any(isinstance(node, Load) and (node.mask is not None or _is_computed(node.index)) for node in nodes))


def _can_be_repeated(store: Store) -> bool:
    plain = store.reduction is None and not store.scatters
    return store.mask is None and not store.scan and (plain or store.reduction in COMBINED)


def _is_computed(where: Index) -> bool:
    return any(isinstance(atom, Value) for atom in where.atoms())


def joined(stores: Sequence[Store], row: Var, places: Sequence[Index]) -> tuple[Store, ...]:
    """Stores that do at one point what `stores` do at several `places` of the loop `row`, a power of two."""
    steps = [Rewriter({row: place}) for place in places]
    result: list[Store] = []
    for store in stores:
        if store.reduction is None:
            result += [step.store(store) for step in steps]
            continue
        result.append(replace(store, value=_combined([step.expr(store.value) for step in steps], COMBINED[store.reduction])))
    return tuple(result)


def _combined(values: Sequence[Expr], name: str) -> Expr:
    """Values combined in pairs by the operation `name`; products are added to one another, which rounds less often."""
    if name == "add" and all(_is_product(value) for value in values):
        total, *rest = values
        for product in rest:
            total = op("muladd", total.dtype, *product.args, total)
        return total
    while len(values) > 1:
        values = [op(name, a.dtype, a, b) for a, b in zip(values[::2], values[1::2])]
    return values[0]


def _is_product(value: Expr) -> bool:
    return isinstance(value, Op) and value.name == "mul" and value.dtype.is_floating_point
