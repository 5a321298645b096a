"""What groups of processes tell of themselves, which is the same as long as they exist: `dist.get_rank()` asks them."""
from __future__ import annotations

from torch import distributed as dist

from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.refgraph.node import Const, Shadow

if dist.is_available():
    @model(dist.ProcessGroup.rank, dist.ProcessGroup.size)
    def fixed(interp: Interpreter, result: int, group: Value) -> Shadow:
        """A number that belongs to which group it is."""
        interp.graph.depend(group.shadow, group.real)
        return Const(result)
