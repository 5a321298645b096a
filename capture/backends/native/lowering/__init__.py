"""From ATen graphs to the fusion IR.

A value of the graph is a function from indices to a scalar expression (`lazy.Lazy`). Pointwise operations compose these, views
change the indices, and so nothing becomes a loop until it must: where a reduction or a call of ATen needs memory, where several
use what is not cheap to compute twice, or where the graph returns it. One module per family of operators fills the table, which
is in `registry`.
"""
from __future__ import annotations

from torch.fx import GraphModule

from capture.backends.native.ir import Program
from capture.backends.native.lowering import (  # noqa: F401 (they fill the table)
    activations,
    creation,
    indexing,
    pointwise,
    pooling,
    random,
    reductions,
    resampling,
    scatters,
    views,
)
from capture.backends.native.lowering.graph import GraphLowering


def lower(gm: GraphModule) -> Program:
    """The program of a functional ATen graph, each node of which has a fake tensor, a size or a tuple of these as `meta["val"]`.
    Inputs may be written to by `aten.copy_`. Operators without a lowering are called (`Extern`). Raises Unsupported for nodes that
    cannot be called either: operators that are not ATen's, sizes that depend on data, tensors that are not strided or lie on
    several devices."""
    return GraphLowering(gm).run()
