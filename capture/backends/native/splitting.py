"""Reductions with many inputs and few results, in two steps: parts that run in parallel, then the reduction of the parts."""
from __future__ import annotations

import math
from dataclasses import replace

import torch

from capture.backends.native.cost import LIMITS, elements
from capture.backends.native.index import Index, Var, contiguous_strides, index
from capture.backends.native.ir import OF_PARTS, Batch, Buffer, Extern, Kernel, Nest, Program, Store, load
from capture.backends.native.loops import fresh, size_of, split
from capture.backends.native.machine import CUDA
from capture.backends.native.schedule.kernels import contiguous

MOST_PARTS = 64
ABREAST = 4             # results side by side that a device's thread adds up
LEAST_POINTS = 64       # of a part that a device's thread, or group of threads for each warp, adds up


def split_reductions(program: Program) -> Program:
    """With a pair of nests in place of each large reduction that leaves too few results to run in parallel."""
    buffers = dict(program.buffers)
    body: list[Nest | Kernel | Batch | Extern] = []
    variable_to_split = _variable_to_split if program.device.type == "cpu" else _variable_for_device
    for statement in program.body:
        part = variable_to_split(statement) if isinstance(statement, Nest) and _can_be_split(statement) else None
        body += [statement] if part is None else _parts(statement, *part, buffers)
    return replace(program, buffers=buffers, body=body)


def _can_be_split(nest: Nest) -> bool:
    return bool(nest.reduced) and all(s.reduction in OF_PARTS and not s.scan and s.mode == "set" for s in nest.stores)


def _variable_for_device(nest: Nest) -> tuple[Var, int] | None:
    """The reduced variable to cut into parts, and the elements of a part, for as many threads as keep a device busy."""
    points = elements(nest.reduced)
    strip = contiguous((*nest.space, *nest.reduced), nest.stores)
    threads = elements(nest.space) * (min(points, CUDA.typical_row) if strip in nest.reduced else 1 / ABREAST)
    least = LEAST_POINTS * (CUDA.warp if strip in nest.reduced else 1)      # of a part
    wanted = min(math.ceil(CUDA.busy / max(threads, 1)), points // least)
    if wanted < 2:
        return None
    choices = [(parts, v, extent // parts) for v in nest.reduced if (extent := size_of(v.extent)) is not None
               for parts in range(2, min(extent, 2 * wanted) + 1) if extent % parts == 0]
    _, variable, inner = min(choices, key=lambda choice: (abs(choice[0] - wanted), choice[1] == strip), default=(0, None, 0))
    return None if variable is None else (variable, inner)


def _variable_to_split(nest: Nest) -> tuple[Var, int] | None:
    """The reduced variable to cut into parts, and the elements of a part."""
    limits = LIMITS["cpu"]
    if elements(nest.space) >= limits.rows or elements((*nest.space, *nest.reduced)) < limits.much:
        return None
    extents = [(v, size_of(v.extent)) for v in nest.reduced]
    choices = [(parts, v, extent // parts) for v, extent in extents if extent is not None
               for parts in range(2, MOST_PARTS + 1) if extent % parts == 0]
    if not choices:
        return None
    parts, variable, inner = max(choices, key=lambda c: c[0])
    return (variable, inner) if parts >= 4 else None


def _parts(nest: Nest, variable: Var, inner: int, buffers: dict[str, Buffer]) -> list[Nest]:
    cut, (major, _) = split(nest, variable, inner)
    sizes = (major.extent, *(v.extent for v in nest.space))
    place = _linear((major, *nest.space), sizes)
    reduced = fresh(major.extent)
    partial_stores, final_stores = [], []
    for number, store in enumerate(cut.stores):
        dtype = buffers[store.buffer].scalar if store.reduction not in ("any", "all") else torch.bool
        buffer = Buffer(f"{store.buffer}_parts{number}", dtype, sizes, contiguous_strides(sizes))
        buffers[buffer.name] = buffer
        partial_stores.append(replace(store, buffer=buffer.name, index=place, mask=None))
        value = load(buffer, place.substitute(lambda atom: index(reduced) if atom == major else None))
        final_stores.append(Store(store.buffer, store.index, value, store.mode, OF_PARTS[store.reduction], mask=store.mask))
    first = Nest(f"{nest.name}_parts", (major, *cut.space), tuple(v for v in cut.reduced if v != major), tuple(partial_stores))
    return [first, Nest(nest.name, nest.space, (reduced,), tuple(final_stores))]


def _linear(variables: tuple[Var, ...], sizes: tuple[object, ...]) -> Index:
    total = index(0)
    for variable, stride in zip(variables, contiguous_strides(sizes)):
        total = total + index(variable) * stride
    return total
