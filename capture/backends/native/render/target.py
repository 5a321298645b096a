"""What the text of kernels depends on the machine that it is for: one table for each target."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A dialect of C++. Texts with {} are formats."""

    prologue: str                               # of each translation unit
    signature: str                              # of a kernel: {name}
    buffer: str                                 # a buffer's pointer: {type}, {name}, {number}, {const}: "const " or "", {start}
    start: str                                  # behind it, unless the kernel uses the buffer from its beginning on: {number}
    number: str                                 # a run-time size: {name}, {number}
    independent: str                            # before a loop whose iterations do not depend on each other: {shared}, of `shared`
    shared: str                                 # an accumulator that these share: {reduction}, {name}
    shared_flags: str                           # bits that they only ever set: {name}
    flags: str                                  # declares the variable `invalid`: bits for what indices out of range raise
    report_flags: str                           # reports it: {number}, of the buffer


CPU = Target(
    prologue='#include "capture_kernel.h"\n#include "loops.h"\n',
    signature='extern "C" void {name}(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end)',
    buffer="{const}{type}* const {name} = static_cast<{const}{type}*>(buffers[{number}]){start};",
    start=" + numbers[{number}]",
    number="const int64_t {name} = numbers[{number}];",
    independent="#pragma omp simd{shared}",
    shared=" reduction(capture_{reduction}: {name})",
    shared_flags=" reduction(|: {name})",
    flags="uint8_t invalid = 0;",
    report_flags="if (invalid) __atomic_fetch_or(static_cast<uint8_t*>(buffers[{number}]), invalid, __ATOMIC_RELAXED);",
)
