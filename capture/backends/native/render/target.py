"""What the text of kernels depends on the machine that it is for: one table for each target."""
from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Dialect:
    """A dialect of C++. Texts with {} are formats."""

    prologue: str                               # of each translation unit
    signature: str                              # of a kernel: {name}, {parameters}, {bounds}
    buffer: str                                 # a buffer's pointer: {type}, {name}, {number}, {const}: "const " or "", {start}
    start: str                                  # behind it, unless the kernel uses the buffer from its beginning on: {number}
    number: str                                 # a run-time size: {name}, {number}
    flags: str                                  # declares the variable `invalid`: bits for what indices out of range raise
    report_flags: str                           # reports it: {number}, of the buffer
    value: str = ""                             # a buffer's one element: {type}, {name}
    flags_parameter: str | None = None          # where that is a parameter, and so is all else; None: these are statements
    opening: str = ""                           # defines which `block` of how many `blocks` this is
    table: str = ""                             # the parameters of several kernels: {room}, of how many; {parameters}, of each
    table_opening: str = ""                     # defines which of them is the block's, and `block` and `blocks` of it
    of_table: str = ""                          # defines a parameter: {declared}, {type}, {number}
    independent: str = ""                       # before a loop whose iterations do not depend on each other: {shared}, of `shared`
    shared: str = ""                            # an accumulator that these share: {reduction}, {name}
    shared_flags: str = ""                      # bits that they only ever set: {name}
    bounds: str = ""                            # of a kernel's registers: {threads}, of a block
    bounds_of_waiting: str = ""                 # where these wait for each other: {threads}; {blocks}, that should fit
    behind: str = ""                            # after a kernel: {name}, {waits}: "true" where its threads do
    unit_lines: int = 400                       # of a translation unit, about; what has more is compiled as several, side by side


CPU = Dialect(
    prologue='#include "capture_kernel.h"\n#include "loops.h"\n',
    signature='extern "C" void {name}(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end)',
    buffer="{const}{type}* const {name} = static_cast<{const}{type}*>(buffers[{number}]){start};",
    start=" + numbers[{number}]",
    number="const int64_t {name} = numbers[{number}];",
    flags="uint8_t invalid = 0;",
    report_flags="if (invalid) __atomic_fetch_or(static_cast<uint8_t*>(buffers[{number}]), invalid, __ATOMIC_RELAXED);",
    independent="#pragma omp simd{shared}",
    shared=" reduction(capture_{reduction}: {name})",
    shared_flags=" reduction(|: {name})",
)
CUDA = Dialect(
    prologue='#include "cuda_kernel.h"\n',
    signature='extern "C" __global__ void {bounds} {name}({parameters})',
    buffer="{const}{type}* {name}",
    start="",
    number="int64_t {name}",
    value="{type} {name}",
    flags="uint8_t invalid = 0;",
    report_flags="report(reported, invalid);",
    flags_parameter="uint8_t* reported",
    bounds="__launch_bounds__({threads})",
    bounds_of_waiting="CAPTURE_BOUNDS({threads}, {blocks})",
    opening="const unsigned block = blockIdx.x, blocks = gridDim.x;",
    table="const __grid_constant__ Table<{room}, {parameters}> table",
    table_opening="const unsigned entry = table.entry(), block = table.block(entry), blocks = table.blocks(entry);",
    of_table="{declared} = table.at<{type}>(entry, {number});",
    unit_lines=1,
)
# The same text, run by threads of the processor: for tests.
CUDA_ON_CPU = replace(
    CUDA,
    prologue='#include "cuda_on_cpu.h"\n#include "cuda_kernel.h"\n',
    behind="""extern "C" void {name}__emulated(unsigned blocks, unsigned threads, void** parameters) {{
  emulator::launch({name}, {waits}, blocks, threads, parameters);
}}
""",
    unit_lines=400,
)
