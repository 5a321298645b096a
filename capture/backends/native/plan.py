"""Plans: what the executor does in one call of a compiled graph, as plain data.

A plan is nested tuples of ints, strings and literals: `serialization.py` makes bytes of it, and `_C.Executor` reads it as it is.
Every size, stride, offset and range is a position in one table of integers, `Plan.numbers`, which is computed at the start of a
call. What holds tensors are slots; steps run kernels and ATen operators on them.

How the executor calls a kernel::

    extern "C" void name(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end)

- It runs the points [begin, end) of the kernel's parallel range: the row-major numbers of the points of `outer[:parallel]`, of
  which there is one when `parallel` is 0. Several threads call it at the same time, for ranges that do not overlap; never for an
  empty one.
- `buffers[i]` is the address of element 0 of the buffer that `Rendered.buffers` names i-th; of buffers without elements, any
  address.
- `numbers[i]` is the value of the i-th size of `Rendered.numbers`.
- A kernel that computes indices has one more buffer, the last one, called `INVALID`: a `uint8_t*`, 0 at the beginning, shared
  by all threads. When an index is out of range, the kernel sets the bit of the exception that this means (by its number among
  `index.ERRORS`), and must touch nothing at such an index. It never clears one. The executor raises it when all threads are done.
- A kernel neither throws nor calls Python; it keeps no state, and no pointers.

A kernel in CUDA's form (`LaunchStep`) is a grid of `blocks` blocks of `threads` threads, both of one dimension::

    extern "C" __global__ void name(T0* b0, T1* b1, …, int64_t n0, …, uint8_t* invalid)

- Its parameters are the addresses of the buffers, in place of which there are values for slots of kind "host", then the numbers,
  then `invalid` if it checks indices; else as above.
- The parameters of several kernels but for `invalid` are one, a `Table` (`include/cuda_kernel.h`): the first block of each kernel,
  and 8 bytes for each of its parameters.
- A GPU runs it on the stream that torch uses on the calling thread. When the plan has returned, it may still run.
- On a GPU `invalid` is a null pointer, since nobody could look there without waiting for the GPU. A kernel that meets an index out
  of range stops the GPU by a failed assertion, as eager mode's do.
- The emulator runs it on the processor, `name__emulated` in the library of the plan's kernels (`csrc/cuda/launcher.h`).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from capture.backends.native.index import Div, Index, Mod, Size, Symbol, index, product
from capture.backends.native.ir import Batch, Buffer, Extern, Kernel, Program, View
from capture.backends.native.machine import CPU
from capture.backends.native.memory import Layout, allocated, finished, returned
from capture.backends.native.render import INVALID, Form, Rendered
from capture.backends.native.rewrite import reads, writes
from capture.backends.native.schedule.grain import work_per_row
from capture.errors import InternalError

Number = int            # a position in Plan.numbers
Argument = tuple[Any, ...]


class Slot(NamedTuple):
    """What holds a tensor.

    kind: "input" (`position`: of the argument), "host" (the same, on the processor though the plan is not: kernels are passed the
    value of its one element, and operators the tensor), "constant" (`position`: among the constants), "arena" (`position`: the
    Number of its offset in bytes), "fresh" (allocated when it is first needed), "result" (of an operator that allocates).
    `written`: the plan writes to it.
    """

    kind: str
    position: int
    name: str
    dtype: str
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    written: bool


class KernelStep(NamedTuple):
    """Runs a kernel. `buffers`: slots. `released`: slots that are not needed any more."""

    kind: str                       # "kernel"
    name: str
    symbol: str
    buffers: tuple[int, ...]
    numbers: tuple[Number, ...]
    total: Number                   # points of the parallel range
    grain: Number                   # points that are worth a thread
    checks: bool                    # whether the function takes INVALID
    released: tuple[int, ...]


class Variant(NamedTuple):
    """One function of a kernel in CUDA's form, for addresses and sizes that suit it. All of a step take the same parameters."""

    symbol: str
    threads: int


class Fit(NamedTuple):
    """When an entry can have a variant, and of how many blocks.

    aligned: slots that must begin at a multiple of 16 bytes. divisible: numbers, and what each must be a multiple of.
    """

    blocks: Number                  # 0: there is nothing to do
    aligned: tuple[int, ...] = ()
    divisible: tuple[tuple[Number, int], ...] = ()


class Entry(NamedTuple):
    """One kernel of a launch: its parameters. fits: one for each variant, of which it takes the first whose conditions hold in this
    call. The last one has none."""

    buffers: tuple[int, ...]        # slots
    numbers: tuple[Number, ...]
    fits: tuple[Fit, ...]


class LaunchStep(NamedTuple):
    """Launches a kernel in CUDA's form, or several that differ in their parameters.

    room: for how many kernels one launch has parameters, in a table; entries that take the same variant share launches. 0: there is
    one entry, and the parameters are its own.
    """

    kind: str                       # "launch"
    name: str
    variants: tuple[Variant, ...]
    entries: tuple[Entry, ...]
    room: int
    checks: bool                    # whether the functions take `invalid`
    released: tuple[int, ...]


class ExternStep(NamedTuple):
    """Calls an ATen operator. `results`: the slot of each result, -1 for those that are not kept; empty where out arguments take
    them.

    Arguments are ("tensor", slot), ("view", slot, sizes, strides, offset, dtype or None), ("number", Number), ("list", arguments),
    ("torch", name) for dtypes, layouts and memory formats, ("device", text) or ("literal", value).
    """

    kind: str                       # "extern"
    name: str
    op: str                         # "aten::mm"
    overload: str                   # "out"; "" for the default one
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    results: tuple[int, ...]
    released: tuple[int, ...]


class Plan(NamedTuple):
    """The run of one program.

    numbers: rows ("const", value), ("argument", input), ("size", input, dimension), and ("add" | "mul" | "div" | "mod" | "max",
    Number, Number) of earlier rows; div rounds down. input_slots: for each argument its slot, -1 for an int. constants: how many
    there are. outputs: tensor Arguments, ("number", Number) or ("literal", None). finished: for each output the step after which
    nothing reads or writes it but who is given it, -1 where that is not known. arena: the Number of its bytes.
    """

    numbers: tuple[tuple[Any, ...], ...]
    input_slots: tuple[int, ...]
    constants: int
    slots: tuple[Slot, ...]
    steps: tuple[KernelStep | LaunchStep | ExternStep, ...]
    outputs: tuple[Argument, ...]
    finished: tuple[int, ...]
    arena: Number


def make_plan(program: Program, rendered: Rendered, layout: Layout) -> Plan:
    """The plan of a program whose body is Kernels and Externs. Its constants are passed to the executor in the order of
    `program.constants`. Raises InternalError where a statement names something that the program does not have."""
    return _Planner(program, rendered, layout).plan()


class _Numbers:
    """Builds the table of integers; equal expressions share a row."""

    def __init__(self, symbols: Mapping[Symbol, tuple[int, int | None]]) -> None:
        self.rows: dict[tuple[Any, ...], Number] = {}
        self._symbols = symbols

    def row(self, *row: Any) -> Number:
        return self.rows.setdefault(row, len(self.rows))

    def of(self, value: Size | Symbol) -> Number:
        """The Number of a size."""
        expression = index(value)
        if (constant := expression.constant) is not None:
            return self.row("const", constant)
        terms = []
        for monomial, coefficient in expression.terms.items():
            factors = [self._atom(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.row("const", coefficient))
            terms.append(self._chain("mul", factors))
        return self._chain("add", terms)

    def most(self, *values: Number) -> Number:
        return self._chain("max", values)

    def divide(self, left: Number, right: Number) -> Number:
        return self.row("div", left, right)

    def _chain(self, operation: str, operands: Sequence[Number]) -> Number:
        total, *rest = operands
        for operand in rest:
            total = self.row(operation, total, operand)
        return total

    def _atom(self, atom: Any) -> Number:
        if isinstance(atom, Symbol) and atom in self._symbols:
            position, dimension = self._symbols[atom]
            return self.row("argument", position) if dimension is None else self.row("size", position, dimension)
        if isinstance(atom, (Div, Mod)):
            return self.row("div" if isinstance(atom, Div) else "mod", self.of(atom.dividend), self.of(atom.divisor))
        raise InternalError(f"{atom} is not known when the plan runs")


class _Planner:
    def __init__(self, program: Program, rendered: Rendered, layout: Layout) -> None:
        self.program = program
        self.rendered = rendered
        self.layout = layout
        arguments = {name: (position, None) for position, name in enumerate(program.inputs) if isinstance(name, Symbol)}
        self.numbers = _Numbers({**arguments, **program.symbols})
        self.slots: dict[str, Slot] = {}
        self.written = {name for statement in program.body for name in writes(statement)}
        self.allocated = allocated(program)

    def plan(self) -> Plan:
        program = self.program
        for position, name in enumerate(program.inputs):
            if isinstance(name, str):
                self._slot(program.buffers[name], "host" if name in program.hosts else "input", position)
        for position, name in enumerate(program.constants):
            self._slot(program.buffers[name], "constant", position)
        for name in (name for statement in program.body for name in sorted(_mentioned(statement))):
            self._other_slot(name)
        for output in program.outputs:
            if isinstance(output, View):
                self._other_slot(output.buffer)
        numbered = {name: number for number, name in enumerate(self.slots)}
        self.position = numbered
        released = self._released()
        steps = tuple(self._step(statement, released[number]) for number, statement in enumerate(program.body))
        outputs = tuple(map(self._output, program.outputs))
        arena = self.numbers.of(self.layout.bytes)
        inputs = tuple(numbered[name] if isinstance(name, str) else -1 for name in program.inputs)
        ends = finished(program)
        done = tuple(ends.get(output.buffer, -1) if isinstance(output, View) else -1 for output in program.outputs)
        slots, constants = tuple(self.slots.values()), len(program.constants)
        return Plan(tuple(self.numbers.rows), inputs, constants, slots, steps, outputs, done, arena)

    # Slots.

    def _slot(self, buffer: Buffer, kind: str, position: int) -> None:
        name, of = buffer.name, self.numbers.of
        sizes, strides = tuple(map(of, buffer.sizes)), tuple(map(of, buffer.strides))
        self.slots[name] = Slot(kind, position, name, _name(buffer.dtype), sizes, strides, name in self.written)

    def _other_slot(self, name: str) -> None:
        if name in self.slots:
            return
        buffer = self.program.buffers.get(name)
        if buffer is None:
            raise InternalError(f"there is no buffer {name}")
        if name in self.allocated:
            self._slot(buffer, "result", 0)
        elif name in self.layout.offsets:
            self._slot(buffer, "arena", self.numbers.of(self.layout.offsets[name]))
        else:
            self._slot(buffer, "fresh", 0)

    def _released(self) -> list[tuple[int, ...]]:
        """For each statement the slots which nothing needs after it. The arena's stay, as it does."""
        last: dict[str, int] = {}
        for number, statement in enumerate(self.program.body):
            last.update(dict.fromkeys(_mentioned(statement), number))
        outlive = returned(self.program)
        released: list[list[int]] = [[] for _ in self.program.body]
        for name, number in last.items():
            if name not in outlive and self.slots[name].kind in ("input", "host", "fresh", "result"):
                released[number].append(self.position[name])
        return [tuple(sorted(slots)) for slots in released]

    # Steps.

    def _step(self, statement: Any, released: tuple[int, ...]) -> KernelStep | LaunchStep | ExternStep:
        if isinstance(statement, Batch):
            return self._launch(statement.name, statement.kernels, released)
        if isinstance(statement, Kernel):
            launched = statement.name in self.rendered.forms
            return self._launch(statement.name, [statement], released) if launched else self._kernel(statement, released)
        if isinstance(statement, Extern):
            return self._extern(statement, released)
        raise InternalError(f"{statement.name} was not made a kernel")

    def _kernel(self, kernel: Kernel, released: tuple[int, ...]) -> KernelStep:
        buffers, numbers, checks = self._parameters(kernel)
        total = self.numbers.of(product(variable.extent for variable in kernel.outer[:kernel.parallel]))
        return KernelStep("kernel", kernel.name, self.rendered.symbols[kernel.name], buffers, numbers, total, self._grain(kernel),
                          checks, released)

    def _parameters(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[Number, ...], bool]:
        """The slots and numbers that a kernel takes, and whether it takes INVALID."""
        names = self.rendered.buffers[kernel.name]
        checks = bool(names) and names[-1] == INVALID
        buffers = tuple(self.position[name] for name in (names[:-1] if checks else names))
        return buffers, tuple(map(self.numbers.of, self.rendered.numbers[kernel.name])), checks

    def _launch(self, name: str, kernels: Sequence[Kernel], released: tuple[int, ...]) -> LaunchStep:
        first = kernels[0].name
        variants = tuple(Variant(form.symbol, form.launch.threads) for form in self.rendered.forms[first])
        entries = []
        for kernel in kernels:
            buffers, numbers, checks = self._parameters(kernel)
            entries.append(Entry(buffers, numbers, tuple(map(self._fit, self.rendered.forms[kernel.name]))))
        return LaunchStep("launch", name, variants, tuple(entries), self.rendered.rooms[first], checks, released)

    def _fit(self, form: Form) -> Fit:
        divisible = tuple((self.numbers.of(size), width) for size, width in form.divisible)
        return Fit(self.numbers.of(form.launch.blocks), tuple(sorted(self.position[name] for name in form.aligned)), divisible)

    def _grain(self, kernel: Kernel) -> Number:
        numbers, work = self.numbers, work_per_row(kernel)
        if work.constant is not None:
            return numbers.of(max(1, CPU.hand_out // max(1, work.constant)))
        one = numbers.of(1)
        return numbers.most(one, numbers.divide(numbers.of(CPU.hand_out), numbers.most(one, numbers.of(work))))

    def _extern(self, extern: Extern, released: tuple[int, ...]) -> ExternStep:
        op, _, overload = extern.op.partition(".")
        results = () if extern.out else tuple(-1 if name is None else self.position[name] for name in extern.results)
        kwargs = tuple((name, self._argument(value)) for name, value in extern.kwargs.items())
        return ExternStep("extern", extern.name, op, overload, tuple(map(self._argument, extern.args)), kwargs, results, released)

    def _argument(self, value: Any) -> Argument:
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, (Index, Symbol)):
            return "number", self.numbers.of(value)
        if isinstance(value, (list, tuple)):
            return "list", tuple(map(self._argument, value))
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return "torch", _name(value)
        if isinstance(value, torch.device):
            return "device", str(value)
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return "literal", value
        raise InternalError(f"{type(value).__name__} cannot be an argument in a plan")

    def _view(self, view: View) -> Argument:
        buffer, of = self.program.buffers[view.buffer], self.numbers.of
        sizes, strides = tuple(map(of, view.sizes)), tuple(map(of, view.strides))
        slot = self.slots[view.buffer]
        dtype = None if view.dtype is None or view.dtype == buffer.dtype else _name(view.dtype)
        if dtype is None and index(view.offset) == 0 and (sizes, strides) == (slot.sizes, slot.strides):
            return "tensor", self.position[view.buffer]
        return "view", self.position[view.buffer], sizes, strides, of(view.offset), dtype

    def _output(self, output: View | Size | None) -> Argument:
        if isinstance(output, View):
            return self._view(output)
        return ("literal", None) if output is None else ("number", self.numbers.of(output))


def _mentioned(statement: Any) -> set[str]:
    """The program's buffers that a statement reads or writes."""
    kernels = statement.kernels if isinstance(statement, Batch) else (statement,) if isinstance(statement, Kernel) else ()
    return (reads(statement) | writes(statement)) - {local.name for kernel in kernels for local in kernel.locals}


def _name(value: torch.dtype | torch.layout | torch.memory_format) -> str:
    return str(value).removeprefix("torch.")


# Plans as text.

def dump(plan: Plan) -> str:
    """A plan as text, for people: slots, steps with what they release, outputs."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    texts = _number_texts(plan)
    yield f"arguments {len(plan.input_slots)}, constants {plan.constants}, arena of {texts[plan.arena]} bytes"
    for slot in plan.slots:
        place = {"input": f"argument {slot.position}", "host": f"argument {slot.position} on the processor",
                 "constant": f"constant {slot.position}"}.get(slot.kind, slot.kind)
        if slot.kind == "arena":
            place = f"arena + {texts[slot.position]}"
        shape = f"{slot.dtype}({_joined(slot.sizes, texts)}) strides ({_joined(slot.strides, texts)})"
        yield f"{slot.name}: {shape} = {place}{', written' if slot.written else ''}"
    for step in plan.steps:
        if isinstance(step, KernelStep):
            names = ", ".join(plan.slots[slot].name for slot in step.buffers)
            text = (f"{step.symbol}[{texts[step.total]} by {texts[step.grain]}]({names}{'; ' if step.numbers else ''}"
                    f"{_joined(step.numbers, texts)}){' checked' if step.checks else ''}")
        elif isinstance(step, LaunchStep):
            rows = [_entry_text(entry, step, plan, texts) for entry in step.entries]
            text = "".join(f"\n  {row}" for row in rows)
            text = f"at most {step.room} at a time of{text}" if step.room else rows[0]
            text += " checked" if step.checks else ""
        else:
            args = [_argument_text(arg, plan, texts) for arg in step.args]
            args += [f"{name}={_argument_text(arg, plan, texts)}" for name, arg in step.kwargs]
            results = ", ".join("_" if slot < 0 else plan.slots[slot].name for slot in step.results)
            op = step.op + (f".{step.overload}" if step.overload else "")
            text = f"{results + ' = ' if results else ''}{op}({', '.join(args)})"
        released = ", ".join(plan.slots[slot].name for slot in step.released)
        yield text + (f"  releases {released}" if released else "")
    yield f"return {', '.join(_argument_text(output, plan, texts) for output in plan.outputs)}"


def _entry_text(entry: Entry, step: LaunchStep, plan: Plan, texts: list[str]) -> str:
    names = ", ".join(plan.slots[slot].name for slot in entry.buffers)
    variants = " or ".join(_variant_text(variant, fit, plan, texts) for variant, fit in zip(step.variants, entry.fits, strict=True))
    return f"{variants}({names}{'; ' if entry.numbers else ''}{_joined(entry.numbers, texts)})"


def _variant_text(variant: Variant, fit: Fit, plan: Plan, texts: list[str]) -> str:
    conditions = [f"{plan.slots[slot].name} aligned" for slot in fit.aligned]
    conditions += [f"{texts[number]} % {width} == 0" for number, width in fit.divisible]
    return f"{variant.symbol}<{texts[fit.blocks]}, {variant.threads}>" + (f" if {', '.join(conditions)}" if conditions else "")


def _number_texts(plan: Plan) -> list[str]:
    texts: list[str] = []
    signs = {"add": "+", "mul": "*", "div": "//", "mod": "%"}
    for kind, *operands in plan.numbers:
        if kind == "const":
            texts.append(str(operands[0]))
        elif kind == "argument":
            texts.append(f"argument{operands[0]}")
        elif kind == "size":
            texts.append(f"argument{operands[0]}.size({operands[1]})")
        elif kind == "max":
            texts.append(f"max({_joined(operands, texts)})")
        else:
            texts.append(f"({texts[operands[0]]} {signs[kind]} {texts[operands[1]]})")
    return texts


def _argument_text(argument: Argument, plan: Plan, texts: list[str]) -> str:
    kind, *rest = argument
    if kind == "tensor":
        return plan.slots[rest[0]].name
    if kind == "view":
        slot, sizes, strides, offset, dtype = rest
        text = f"{plan.slots[slot].name}({_joined(sizes, texts)}) strides ({_joined(strides, texts)}) offset {texts[offset]}"
        return text + (f" as {dtype}" if dtype else "")
    if kind == "number":
        return texts[rest[0]]
    if kind == "list":
        return f"[{', '.join(_argument_text(item, plan, texts) for item in rest[0])}]"
    return repr(rest[0]) if kind == "literal" else str(rest[0])


def _joined(numbers: Iterable[Number], texts: Sequence[str]) -> str:
    return ", ".join(texts[number] for number in numbers)
