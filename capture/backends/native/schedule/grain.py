"""How many rows of a kernel one thread should take, so that small kernels run on a single thread."""
from __future__ import annotations

from capture.backends.native.index import Index, Size, index, product
from capture.backends.native.ir import Kernel, Load, Op, Stage
from capture.backends.native.ops import OPS
from capture.backends.native.rewrite import roots_of, walk


def work_per_row(kernel: Kernel) -> Index:
    """The work of one point of the parallel range: bytes that are loaded and stored, and operations; at least 1."""
    points = product(variable.extent for variable in kernel.outer[kernel.parallel:])
    stages = (product(variable.extent for variable in stage.inner) * _work_per_point(stage) for stage in kernel.stages)
    work = sum(stages, index(0)) * points
    return index(1) if work == 0 else work


def _work_per_point(stage: Stage) -> Size:
    work = 0
    for node in walk(roots_of(stage.stores)):
        if isinstance(node, Load):
            work += node.dtype.itemsize
        elif isinstance(node, Op):
            work += OPS[node.name].cost
    return work + sum(store.value.dtype.itemsize for store in stage.stores)
