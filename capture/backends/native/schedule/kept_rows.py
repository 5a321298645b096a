"""Elements of a row that several stages of a CUDA kernel need are read once, and stay in registers of their thread."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from capture.backends.native.index import Index, Value, Var, index
from capture.backends.native.ir import Buffer, Expr, Kernel, Load, Stage, Store, intern
from capture.backends.native.rewrite import Rewriter, loads_of, stores_of
from capture.backends.native.schedule.device_stages import registers_of

Place = tuple[str, Index]       # a buffer, and where in it, as a function of POINT
POINT = "point"


def with_kept_rows(kernel: Kernel, group: int, width: int) -> Kernel:
    """An equal kernel with a local buffer for what several stages read at the same places of a row, as far as there are registers
    for it. group, width: the threads of a row, and the neighbouring points that each does in turn."""
    rows = [stage for stage in kernel.stages if len(stage.inner) == 1]
    if group == 1 or len(rows) < 2 or (extent := index(rows[0].inner[0].extent).constant) is None:
        return kernel
    point = Var(POINT, extent)
    rows = [stage for stage in rows if stage.inner[0].extent == extent]
    written = {store.buffer for store in stores_of(kernel)}
    readers: dict[Place, list[Load]] = {}
    for stage in rows:
        for place, node in _places(stage, point).items():
            if place[0] not in written:
                readers.setdefault(place, []).append(node)
    slots = -(-extent // (group * width)) * width       # of each thread
    room = registers_of(group) - sum((local.span.constant or 0) * local.dtype.itemsize // group
                                     for local in kernel.locals)
    kept: dict[Place, Buffer] = {}
    for place, loads in readers.items():
        size = slots * loads[0].dtype.itemsize
        if len(loads) > 1 and size <= room:
            room -= size
            kept[place] = Buffer(f"{place[0]} kept {len(kept)}", loads[0].dtype, (extent,), (1,), "local")
    if not kept:
        return kernel
    stages = tuple(_reading_kept(kernel.stages, rows, point, kept))
    return replace(kernel, stages=stages, locals=(*kernel.locals, *kept.values()))


def _places(stage: Stage, point: Var) -> dict[Place, Load]:
    """What a stage reads at each of its points, by its place."""
    as_point = Rewriter({stage.inner[0]: index(point)})
    return {(node.buffer, as_point.index(node.index)): node for node in loads_of(stage.stores)
            if node.mask is None and stage.inner[0] in node.index.variables()
            and not any(isinstance(atom, Value) for atom in node.index.atoms())}


def _reading_kept(stages: tuple[Stage, ...], rows: list[Stage], point: Var, kept: Mapping[Place, Buffer]) -> Iterator[Stage]:
    """The stages: the first that reads something also keeps it, the others read what it kept."""
    filled: set[Place] = set()
    for stage in stages:
        if stage not in rows:
            yield stage
            continue
        here = index(stage.inner[0])
        known: dict[Load, Expr] = {}
        stores: list[Store] = []
        for place, node in _places(stage, point).items():
            if place in filled:
                known[node] = intern(Load, kept[place].name, here, node.dtype, None)
            elif place in kept:
                stores.append(Store(kept[place].name, here, node))
                filled.add(place)
        reading = Rewriter({}, known.get)
        yield replace(stage, stores=(*stores, *reading.stores(stage.stores)))
