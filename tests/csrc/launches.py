"""Kernels in CUDA's form, as the processor runs them, and plans that launch them: written by hand."""
from __future__ import annotations

from collections.abc import Sequence

from capture.backends.native.plan import Entry, ExternStep, Fit, KernelStep, LaunchStep, Plan, Slot, Variant

SOURCE = r"""
#include <stdint.h>
#define KERNEL(NAME, ...) extern "C" void NAME##__emulated(unsigned blocks, unsigned threads, void** p) { \
  for (unsigned block = 0; block < blocks; block++) for (unsigned thread = 0; thread < threads; thread++) { __VA_ARGS__ } }
#define BUFFER(TYPE, NUMBER) (*(TYPE**)p[NUMBER])
#define NUMBER(PLACE) (*(int64_t*)p[PLACE])
#define EACH(COUNT) for (int64_t i = int64_t(block) * threads + thread; i < COUNT; i += int64_t(blocks) * threads)

KERNEL(twice, EACH(NUMBER(2)) BUFFER(float, 1)[i] = BUFFER(float, 0)[i] * 2;)
KERNEL(ramp, EACH(NUMBER(1)) BUFFER(float, 0)[i] = i;)
KERNEL(plain, EACH(NUMBER(2)) BUFFER(float, 1)[i] = 1;)
KERNEL(fours, EACH(NUMBER(2)) BUFFER(float, 1)[i] = 4;)
KERNEL(report, BUFFER(float, 0)[0] = 5; if (BUFFER(uint8_t, 2)) *BUFFER(uint8_t, 2) |= NUMBER(1); else BUFFER(float, 0)[0] = 6;)
KERNEL(numbers, BUFFER(float, 0)[0] = 100 * NUMBER(1) + NUMBER(2);)

// Kernels of which up to three are launched at a time. `launches` counts.
extern "C" { int launches = 0; }
struct Table { uint32_t first[4]; uint64_t of[3][3]; };
#define TABLE_KERNEL(NAME, FACTOR) extern "C" void NAME##__emulated(unsigned all, unsigned threads, void** p) { \
  launches++; \
  const Table& table = *(Table*)p[0]; \
  for (unsigned at = 0; at < all; at++) { \
    int entry = 0; \
    while (entry < 2 && table.first[entry + 1] <= at) entry++; \
    const unsigned block = at - table.first[entry], blocks = table.first[entry + 1] - table.first[entry]; \
    for (unsigned thread = 0; thread < threads; thread++) \
      EACH(int64_t(table.of[entry][2])) ((float*)table.of[entry][1])[i] = ((const float*)table.of[entry][0])[i] * FACTOR; } }
TABLE_KERNEL(table_twice, 2)
TABLE_KERNEL(table_triple, 3)

// Two parameters: a value, and the address of where it is to be.
struct Values { uint32_t first[4]; uint64_t of[3][2]; };
extern "C" void table_value__emulated(unsigned all, unsigned, void** p) {
  const Values& table = *(Values*)p[0];
  for (unsigned entry = 0; entry < all; entry++) {
    uint32_t bits = uint32_t(table.of[entry][0]);
    if (table.of[entry][0] >> 32) bits = 0;
    __builtin_memcpy((void*)table.of[entry][1], &bits, 4);
  }
  if (p[1]) **(uint8_t**)p[1] |= all == 3;
}

extern "C" void negated(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) ((float*)buffers[1])[i] = -((const float*)buffers[0])[i];
}
"""


class PlanBuilder:
    """Builds a plan of vectors of floats."""

    def __init__(self) -> None:
        self.rows: dict[tuple, int] = {}
        self.slots: list[Slot] = []
        self.inputs: list[int] = []
        self.steps: list[KernelStep | LaunchStep | ExternStep] = []
        self.constants = 0
        self.arena = self.number(0)

    def row(self, *row) -> int:
        return self.rows.setdefault(row, len(self.rows))

    def number(self, value: int) -> int:
        return self.row("const", value)

    def slot(self, kind: str, size: int, position: int = 0) -> int:
        """A vector; `size`: a Number."""
        name = f"{kind}{len(self.slots)}"
        self.slots.append(Slot(kind, position, name, "float32", (size,), (self.number(1),), kind != "input"))
        return len(self.slots) - 1

    def input(self, size: int) -> int:
        self.inputs.append(self.slot("input", size, len(self.inputs)))
        return self.inputs[-1]

    def constant(self, size: int) -> int:
        self.constants += 1
        return self.slot("constant", size, self.constants - 1)

    def launch(self, variants: str | Sequence[tuple[Variant, Fit]], buffers: Sequence[int], numbers: Sequence[int],
               checks: bool = False, blocks: int = 3, threads: int = 32, released: Sequence[int] = ()) -> None:
        if isinstance(variants, str):
            variants = [(Variant(variants, threads), Fit(self.number(blocks)))]
        entry = Entry(tuple(buffers), tuple(numbers), tuple(fit for _, fit in variants))
        self.launches([variant for variant, _ in variants], [entry], 0, checks, released)

    def launches(self, variants: Sequence[Variant], entries: Sequence[Entry], room: int, checks: bool = False,
                 released: Sequence[int] = ()) -> None:
        name = f"step{len(self.steps)}"
        self.steps.append(LaunchStep("launch", name, tuple(variants), tuple(entries), room, checks, tuple(released)))

    def plan(self, *outputs: int) -> Plan:
        return Plan(tuple(self.rows), tuple(self.inputs), self.constants, tuple(self.slots), tuple(self.steps),
                    tuple(("tensor", slot) for slot in outputs), (-1,) * len(outputs), self.arena)


def choosing() -> Plan:
    """The argument's size and address say which variant can be used: the first writes fours, the second ones."""
    build = PlanBuilder()
    size = build.row("size", 0, 0)
    x = build.input(size)
    y = build.slot("fresh", size)
    wide, any_ = (Variant("fours", 16), Fit(build.number(2), (x, y), ((size, 4),))), (Variant("plain", 64), Fit(build.number(5)))
    build.launch([wide, any_], [x, y], [size])
    return build.plan(y)


def several(count: int, room: int = 3, blocks: Sequence[int] = (1, 4, 0, 2)) -> Plan:
    """Arguments of the same size, each doubled by a kernel of its own, `room` at a time; some have nothing to do: zeros stay. Those
    at multiples of 16 bytes are tripled instead."""
    build = PlanBuilder()
    size = build.number(20)
    entries, results = [], []
    for number in range(count):
        x, y = build.input(size), build.slot("fresh", size)
        many = build.number(blocks[number % len(blocks)])
        entries.append(Entry((x, y), (size,), (Fit(many, (x,)), Fit(many))))
        results.append(y)
    build.launches([Variant("table_triple", 8), Variant("table_twice", 8)], entries, room)
    return build.plan(*results)


def values(count: int) -> Plan:
    """Numbers of the processor, of which each kernel is passed its own by value. Three at a time mean an index out of range."""
    build = PlanBuilder()
    one = build.number(1)
    entries = []
    for _ in range(count):
        build.inputs.append(build.slot("host", one, len(build.inputs)))
        entries.append(Entry((build.inputs[-1], build.slot("fresh", one)), (), (Fit(one),)))
    build.launches([Variant("table_value", 1)], entries, 3, checks=True)
    return build.plan(*(entry.buffers[1] for entry in entries))


def indices(bits: int) -> Plan:
    """A kernel that meets an index out of range: its result is 5, 6 where there is no byte to tell of it."""
    build = PlanBuilder()
    y = build.slot("fresh", build.number(1))
    build.launch("report", [y], [build.number(bits)], checks=True, blocks=1, threads=1)
    return build.plan(y)


def through_arena() -> Plan:
    """ramp -> arena -> result, doubled."""
    build = PlanBuilder()
    size = build.number(100)
    build.arena = build.number(400)
    t, y = build.slot("arena", size, build.number(0)), build.slot("fresh", size)
    build.launch("ramp", [t], [size])
    build.launch("twice", [t, y], [size])
    return build.plan(y)


def doubling(of: str = "input") -> Plan:
    build = PlanBuilder()
    size = build.number(100)
    x = build.input(size) if of == "input" else build.constant(size)
    y = build.slot("fresh", size)
    build.launch("twice", [x, y], [size])
    return build.plan(y)


def ramp() -> Plan:
    build = PlanBuilder()
    size = build.number(100)
    y = build.slot("fresh", size)
    build.launch("ramp", [y], [size])
    return build.plan(y)
