"""How many rows of a kernel one thread should take, so that small kernels run on a single thread."""
from __future__ import annotations

from capture.backends.native.index import Index, Size, index, product
from capture.backends.native.ir import Kernel, Load, Op, Stage
from capture.backends.native.rewrite import roots_of, walk

LEAST_WORK = 1 << 17        # per thread: some times what handing it to a thread that waits costs (0.1 µs)
SLOW_WORK = 8               # of an operation that is a polynomial or a division, in vectors; others count 1, as does a byte moved
SLOW = frozenset((
    "div floordiv truncdiv remainder fmod pow sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sigmoid "
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma hypot").split())


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
            work += SLOW_WORK if node.name in SLOW else 1
    return work + sum(store.value.dtype.itemsize for store in stage.stores)
