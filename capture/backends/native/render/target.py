"""What C text depends on the machine that it is for, and on nothing else: one table for each target."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Target:
    """A dialect of C++. Texts with {} are formats.

    types: C type of each dtype in expressions; memory: the same in memory. computed: the dtype in which values are added to what is
    in memory, where that is another one. infix: operators whose C meaning is the operation's, for floating-point operands.
    comparisons: the same for operands of all dtypes. simd: what stands before a loop whose iterations do not depend on each other;
    {clauses}: the accumulators that they share, by `clause`.
    """

    prologue: str                               # of each translation unit
    signature: str                              # of a kernel: {name}
    types: Mapping[torch.dtype, str]
    memory: Mapping[torch.dtype, str]
    computed: Mapping[torch.dtype, torch.dtype]
    infix: Mapping[str, str]
    comparisons: Mapping[str, str]
    simd: str
    clause: str                                 # {reduction}, {name}: the accumulator
    flag_clause: str                            # {name}: a flag that is only ever set
    buffer: str                                 # a buffer's pointer: {type}, {name}, {number}, {const}: "const " or "", {start}
    start: str                                  # behind it, unless the kernel uses the buffer from its beginning on: {number}
    number: str                                 # a run-time size: {name}, {number}
    invalid: str                                # declares the variable `invalid`: bits for what indices out of range raise
    report_invalid: str                         # reports it
    array: str                                  # an array on the stack: {type}, {name}, {length}
    heap: str                                   # the same from the heap
    free: str                                   # frees that: {name}
    fetch: str                                  # asks for {count} elements from {place} on, which will be read
    fetch_for_writing: str                      # the same of what will be written
    stream: str                                 # writes {count} elements of the array {line} to {place} and on, past the cache
    streamed: str                               # behind all of these
    constant: Callable[[bool | int | float, torch.dtype], str]


TYPES = {
    torch.bool: "bool", torch.uint8: "uint8_t",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16", torch.float16: "half",
}


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of C++, of exactly the type that goes with `dtype`."""
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


CPU = Target(
    prologue='#include "capture_kernel.h"\n#include "loops.h"\n',
    signature='extern "C" void {name}(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end)',
    types=TYPES,
    memory={**TYPES, torch.bool: "boolean"},
    computed={torch.bfloat16: torch.float32, torch.float16: torch.float32},
    infix={"add": "+", "sub": "-", "mul": "*", "div": "/"},
    comparisons={"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    simd="#pragma omp simd{clauses}",
    clause=" reduction(capture_{reduction}: {name})",
    flag_clause=" reduction(|: {name})",
    buffer="{const}{type}* const {name} = static_cast<{const}{type}*>(buffers[{number}]){start};",
    start=" + numbers[{number}]",
    number="const int64_t {name} = numbers[{number}];",
    invalid="uint8_t invalid = 0;",
    report_invalid="if (invalid) __atomic_fetch_or(static_cast<uint8_t*>(buffers[{number}]), invalid, __ATOMIC_RELAXED);",
    array="alignas(64) {type} {name}[{length}];",
    heap="{type}* const {name} = static_cast<{type}*>(__builtin_malloc(sizeof({type}) * ({length})));",
    free="__builtin_free({name});",
    fetch="fetch(&{place}, {count});",
    fetch_for_writing="fetch_for_writing(&{place}, {count});",
    stream="stream(&{place}, {line}, {count});",
    streamed="streamed();",
    constant=literal,
)
