"""C++ as all machines understand it: the types and operators of expressions. What differs between machines is `target`."""
from __future__ import annotations

import math

import torch

TYPES = {
    torch.bool: "bool", torch.uint8: "uint8_t",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16", torch.float16: "half",
}
IN_MEMORY = {**TYPES, torch.bool: "boolean"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}                    # of floating-point operands, whose meaning C's is
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}        # the same of all dtypes


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of exactly the type that goes with `dtype`."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in (torch.float32, torch.float64):
        value = torch.tensor(value, dtype=dtype).item()
        if math.isnan(value):
            return f"capture::nan<{TYPES[dtype]}>"
        finite = repr(abs(value)) + ("f" if dtype == torch.float32 else "")
        text = f"capture::infinity<{TYPES[dtype]}>" if math.isinf(value) else finite
        return f"(-{text})" if math.copysign(1.0, value) < 0 else text
    if dtype.is_floating_point:
        return f"op_to<{TYPES[dtype]}>({literal(value, torch.float32)})"
    if value == torch.iinfo(torch.int64).min:
        return "int64_t(INT64_MIN)"
    return str(value) if dtype == torch.int32 and value >= 0 else f"{TYPES[dtype]}({value})"
