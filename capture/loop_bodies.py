"""The body of a loop that makes training steps, as a function: what a gate in the loop (`step_loops.py`) calls.

The function takes the local variables that the body may read, and the item of a `for` loop; it returns where the loop goes on, and
what the variables are then. It is made of the program's own code, and its frame stands in for that of the loop.
"""
from __future__ import annotations

import dis
import inspect
import itertools
import os
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

from bytecode import Bytecode, Instr, Label, TryBegin, TryEnd

from capture import _C
from capture.config import STRICT
from capture.interp.breaks.continuation_code import Emit, over_closure
from capture.interp.breaks.positions import closure_names, live_locals, slot_names
from capture.interp.core.instructions import WITHIN, Does, decoded, facts_of, halves
from capture.step_loops import StepLoop
from capture.unit import Unit

ITEM = "__item"
LOAD_IF_BOUND = "LOAD_FAST_CHECK" if sys.version_info >= (3, 12) else "LOAD_FAST"       # which raises where a variable is unbound
UNBOUND = _C.LoopBody           # in the place of a variable that is unbound
MOST_VARIABLES = 60
MOST_VARIANTS = 4               # of a body, by which of its variables are bound
OFTEN = 8                       # rounds of a further variant, of which the first ones run as they are: most begin the loop anew
# What an instruction may do and mean the same in a function for the body: not end its frame, suspend it, or look at all its names.
ALLOWED = (WITHIN | Does.MAKES | Does.READS_LOCAL | Does.LOADS_LOCAL | Does.WRITES_LOCAL | Does.LOADS_CELL | Does.STORES_CELL
           | Does.LOADS_CONSTANT | Does.LOADS_GLOBAL | Does.STORES_NAME | Does.LOADS_ATTRIBUTE | Does.STORES_ATTRIBUTE
           | Does.DELETES_ATTRIBUTE | Does.READS_ITEM | Does.TAKES_ITEMS | Does.STORES_ITEM | Does.CHANGES_OPERAND | Does.CALLS
           | Does.PUSHES_NULL | Does.IMPORTS | Does.BUILDS_CLASS | Does.ENTERS | Does.RAISES | Does.JUMPS | Does.BRANCHES)
# What looks at the variables or at the frame of the code that calls it.
ATTRIBUTES_OF_FRAME = frozenset({"breakpoint", "_getframe", "currentframe", "set_trace"})
NAMES_OF_FRAME = ATTRIBUTES_OF_FRAME | {"locals", "vars", "dir", "eval", "exec", "super"}
# What reads and writes a name in a module, and in a function.
IN_FUNCTION = {"LOAD_NAME": "LOAD_GLOBAL", "STORE_NAME": "STORE_GLOBAL", "DELETE_NAME": "DELETE_GLOBAL"}


class LoopBody:
    """The functions for the body of a loop, one for each set of variables that were bound when a round began.

    make_unit(function, name) compiles one; is_unfit(unit) tells when the loop is to run as it is again. Raises ValueError for a
    body that cannot be a function.
    """

    def __init__(self, loop: StepLoop, gated: types.CodeType, make_unit: Callable[[types.FunctionType, str], Unit],
                 is_unfit: Callable[[Unit], bool]) -> None:
        self.loop, self.make_unit, self.is_unfit = loop, make_unit, is_unfit
        refuse_unfit(loop)
        code = loop.code
        self.name = f"{os.path.basename(code.co_filename)}:{loop.line}"
        self.units: dict[int, Unit] = {}        # by the variables that are passed, as bits
        self.rounds: Counter[int] = Counter()   # … those without a unit
        used, written = variables(loop)
        if len(used) > MOST_VARIABLES:
            raise ValueError(f"it uses {len(used)} variables, and {MOST_VARIABLES} are the most")
        self.used = [name for name in slot_names(code) if name in used]
        self.written = [name for name in self.used if name in written]
        live, slots = live_locals(code)[start_of(loop)], slot_names(gated)
        self.runner = _C.LoopBody(
            gated, self.choose, self.salvage, tuple((slots.index(name), name in self.written, name in live) for name in self.used),
            tuple(map(slots.index, closure_names(code))))

    def open(self, scope: dict[str, Any]) -> None:
        """Rounds of the loop are calls of the function from the next one on. scope: the globals of its frame."""
        self.scope = scope
        self.loop.open(self.runner)

    def choose(self, passed: int) -> Any:
        """The compiled function for a round that is passed these variables; None if the frame is to run it."""
        unit = self.units.get(passed)
        if unit is None:
            self.rounds[passed] += 1
            if self.units and self.rounds[passed] < OFTEN or len(self.units) >= MOST_VARIANTS:
                return None
            try:
                unit = self.units.setdefault(passed, self.make_unit(self.function(passed), self.name))
            except Exception:
                if STRICT:
                    raise
        if unit is None or self.is_unfit(unit):
            self.loop.gate.clear()
            return None
        return unit.compiled

    def function(self, passed: int) -> types.FunctionType:
        """The function for rounds that are passed these variables."""
        code = code_of(self.loop, [name for i, name in enumerate(self.used) if passed >> i & 1], self.written)
        return types.FunctionType(code, self.scope, code.co_name, None, tuple(types.CellType() for _ in code.co_freevars))

    def salvage(self, exception: BaseException) -> tuple[Any, ...] | None:
        """What the variables that the body writes to were when it raised, as its traceback shows. None if that shows nothing."""
        traceback = exception.__traceback__
        if traceback is None or traceback.tb_frame.f_code.co_filename != self.loop.code.co_filename:
            return None
        left = traceback.tb_frame.f_locals
        return tuple(left.get(name, UNBOUND) for name in self.written) if left else None


def refuse_unfit(loop: StepLoop) -> None:
    """Raises ValueError if the body of a loop does what would mean something else in a function of its own."""
    for instr in map(_in_function, instructions(loop)):
        facts, arg = facts_of(instr), instr.arg
        read: Any = getattr(arg, "name", arg[-1] if isinstance(arg, tuple) else arg)
        by_name, by_attribute = facts & (Does.LOADS_GLOBAL | Does.LOADS_CELL), facts & Does.LOADS_ATTRIBUTE
        if by_name and read in NAMES_OF_FRAME or by_attribute and read in ATTRIBUTES_OF_FRAME:
            raise ValueError(f"it looks at its own frame, by `{read}`")
        if isinstance(arg, types.CodeType) and "__class__" in arg.co_freevars:
            raise ValueError("it looks at the class that it is in")
        if Does.LEAVES in facts and Does.RAISES not in facts:
            raise ValueError("it returns from inside of a block or an inner loop")
        if facts & ~(ALLOWED | Does.LEAVES):
            raise ValueError(f"it does what only the frame of the loop can do ({instr.name})")


def variables(loop: StepLoop) -> tuple[set[str], set[str]]:
    """The local variables that the body of a loop uses, without those in cells, and those of them that it writes to."""
    used: set[str] = set()
    written: set[str] = set()
    in_cell = {*closure_names(loop.code)}
    for instr in instructions(loop):
        facts = facts_of(instr)
        if facts & (Does.READS_LOCAL | Does.WRITES_LOCAL) and isinstance(instr.arg, str) and instr.arg not in in_cell:
            used.add(instr.arg)
            if Does.WRITES_LOCAL in facts:
                written.add(instr.arg)
    return used, written


def instructions(loop: StepLoop) -> list[Instr]:
    """The instructions of the body of a loop."""
    all_ = [item for item in Bytecode.from_code(loop.code) if isinstance(item, Instr)]
    return [half for at in sorted(loop.body) for half in halves(all_[at])]


def start_of(loop: StepLoop) -> int:
    """Where the body begins, in `decode(code)`."""
    offsets = (i.offset for i in dis.get_instructions(loop.code) if i.opcode != dis.EXTENDED_ARG)
    return decoded(loop.code).index[next(itertools.islice(offsets, loop.start, None))]


def code_of(loop: StepLoop, bound: list[str], written: list[str]) -> types.CodeType:
    """The code of the function. bound: the variables that it takes; written: those that it returns."""
    code = loop.code
    body = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    all_ = [item for item in body if isinstance(item, Instr)]
    made = Bytecode()
    made.name, made.qualname, made.filename, made.first_lineno = code.co_name, code.co_qualname, code.co_filename, loop.line
    flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) | inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
    made.flags = flags  # type: ignore[assignment]
    made.argnames = [*bound, *([ITEM] if loop.takes_item else [])]
    made.argcount = len(made.argnames)
    made.freevars = list(closure_names(code))
    made.docstring = None
    emit = Emit(made, all_[loop.start].location)
    if made.freevars:
        emit("COPY_FREE_VARS", len(made.freevars))
    emit("RESUME", 0)
    for _ in range(loop.depth):
        emit("PUSH_NULL")                   # in the place of what the frame of the loop has on its stack
    if loop.takes_item:
        emit.take(ITEM)
    start = Label()
    emit("JUMP_FORWARD", start)
    handlers: list[Any] = []
    _append(made, body, loop, start, lambda where, location: _exit(loop, where, written, handlers, location))
    made.extend(handlers)
    size = code.co_stacksize + len(written) + 6
    return made.to_code(stacksize=size, compute_exception_stack_depths=False)


def _append(made: Bytecode, body: Bytecode, loop: StepLoop, start: Label, leave: Callable[[int, Any], list[Any]]) -> None:
    """Appends the body of the loop, with `leave` where it ends."""
    in_cell = {*made.freevars}
    inner = {item: _holds(body, item, loop.body) for item in body if isinstance(item, TryBegin)}
    open_: list[Any] = []                   # the beginning of a block, until there is something in it
    at = -1
    for item in body:
        if isinstance(item, TryBegin):
            open_ = [item] if inner[item] else []
        elif isinstance(item, TryEnd):
            if inner[item.entry] and not open_:
                made.append(item)
            open_ = []
        elif not isinstance(item, Instr):
            made.append(item)
        else:
            at += 1
            if at in loop.exits:
                made.extend(leave(loop.exits.index(at), item.location))
            if at == loop.start:
                made.append(start)
            if at in loop.body:
                made.extend(open_)
                open_ = []
                made.extend(map(_in_function, (over_closure(half, in_cell) for half in halves(item))))


def _holds(body: Bytecode, block: TryBegin, among: frozenset[int]) -> bool:
    """Whether the handler of a block is in the body of the loop."""
    before = itertools.takewhile(lambda item: item is not block.target, body)
    return sum(isinstance(item, Instr) for item in before) in among


def _in_function(instr: Instr) -> Instr:
    """An instruction of a module's code as one of a function's."""
    if instr.name not in IN_FUNCTION:
        return instr
    arg: Any = (False, instr.arg) if instr.name == "LOAD_NAME" else instr.arg
    return Instr(IN_FUNCTION[instr.name], arg, location=instr.location)


def _exit(loop: StepLoop, where: int, written: list[str], handlers: list[Any], location: Any) -> list[Any]:
    """`return where, *variables`, with UNBOUND for those that are not bound."""
    made: list[Any] = []

    def emit(to: list[Any], name: str, *arg: Any) -> None:
        to.append(Instr(name, *arg, location=location))

    emit(made, "LOAD_CONST", where)
    for depth, name in enumerate(written, loop.depth + 1):
        handler, back = Label(), Label()
        block = TryBegin(handler, False, depth)
        made.append(block)
        emit(made, LOAD_IF_BOUND, name)
        made += [TryEnd(block), back]
        handlers.append(handler)
        for step in ("PUSH_EXC_INFO",), ("POP_TOP",), ("POP_EXCEPT",), ("LOAD_CONST", UNBOUND), ("JUMP_BACKWARD", back):
            emit(handlers, *step)
    emit(made, "BUILD_TUPLE", len(written) + 1)
    emit(made, "RETURN_VALUE")
    return made

