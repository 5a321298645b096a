"""Lowering of random numbers. They are ATen's, drawn in the order of the graph, so that the generator advances as in eager mode."""
from __future__ import annotations

from typing import Any

import torch

from capture.backends.native.ir import Extern
from capture.backends.native.lowering.lazy import Lazy, in_memory
from capture.backends.native.lowering.registry import Call, lowers

aten = torch.ops.aten


@lowers(aten.bernoulli.p)
def bernoulli(call: Call, x: Lazy, p: float = 0.5, *, generator: Any = None) -> Any:
    """What ATen does, which only asks for the layout of `x`: draws into new memory. `x` need not be computed."""
    if generator is not None:
        return NotImplemented
    builder, spec = call.builder, call.result
    stored = builder.memory(spec.shape, spec.dtype, spec.strides)
    result = in_memory(stored, spec.shape)
    name = builder.name(f"{builder.label}_call")
    builder.program.body.append(
        Extern(name, "aten::bernoulli_.float", (), {"self": result.view, "p": p}, (stored.buffer.name,), out=True))
    return result
