"""Functions of TorchScript: one operation each, where what they do follows from their arguments, but for the values of tensors."""
from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from capture.interp.fx_recorder import DYNAMIC_SHAPE

SCRIPT = torch.jit.ScriptFunction
# Steps that read the value of a tensor, on which shapes, aliasing and the path through the function may depend …
READS = frozenset({"aten::Bool", "aten::Int", "aten::Float", "aten::Complex", "aten::item", "aten::IntImplicit", "aten::FloatImplicit",
                   "aten::ComplexImplicit", "aten::ScalarImplicit", "aten::tolist", "prim::tolist", "aten::equal", "aten::is_nonzero",
                   "aten::allclose"})
# … and those that reach beyond tensors.
ACTS = frozenset({"prim::PythonOp", "prim::Print", "prim::SetAttr", "prim::CallFunction", "prim::CallMethod", "prim::fork", "aten::wait",
                  "aten::manual_seed", "aten::warn"})


def is_operation(function: Any) -> bool:
    """Whether a callable is a scripted function that a graph may call on every hit, as it would an operation of torch's."""
    if not isinstance(function, SCRIPT):
        return False
    kinds = set(_kinds(function.inlined_graph))
    return not kinds & (READS | ACTS) and not any(kind.partition("::")[2] in DYNAMIC_SHAPE for kind in kinds)


def named(function: Any) -> Any:
    """The function under a name that generated code can refer to."""
    target: Any = functools.partial(function)
    target.__name__, target.__module__ = function.name, "script"
    return target


def _kinds(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)
