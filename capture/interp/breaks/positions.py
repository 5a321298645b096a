"""Positions: the instruction at which a frame waits, and which of its variables are live there."""
from __future__ import annotations

import functools
import types
import weakref
from dataclasses import dataclass
from enum import Enum
from typing import Any

from capture.interp.core.frame import Frame, Resume, Value
from capture.interp.core.instructions import Does, decode, decoded, does, exception_table, successors
from capture.refgraph.node import Const, Shadow

RESULT = "__result"
FIRST = "__first"
# Names by which a function may look at its own locals, so that none of them is dead.
INTROSPECTION = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint", "set_trace"})


class Slot(Enum):
    """What is in one place of a value stack: an object; CPython's NULL; the exception that was handled before the one that is
    handled from there on."""

    OBJECT = "object"
    NULL = "null"
    HANDLED = "handled"


@dataclass(frozen=True)
class Position:
    """Where a frame waits, in the program's own code: before `decode(code)[pc]`, for a value; `resume` says what to do with it.
    `bound`: the live locals that are bound, in order, behind FIRST if that is needed (`first_in_cell`). `cells`: names of cells, in
    the order of the continuation's closure. Code objects are compared by identity: equal ones may hold different constants."""

    code_id: int
    pc: int
    resume: Resume
    bound: tuple[str, ...]
    stack: tuple[Slot, ...]

    @property
    def taken(self) -> int:
        """The number of values that its continuation takes, besides what it waits for."""
        return len(self.bound) + sum(slot is not Slot.NULL for slot in self.stack)


@dataclass(slots=True, eq=False)
class Suspended:
    """One live frame at a break: its position, its code, and the values that its continuation takes.

    `generator`: whose body the frame is that runs, or None.
    """

    position: Position
    code: types.CodeType
    scope: dict[str, Any]
    globals: Shadow
    values: list[Value]
    cells: list[Value]
    generator: Value | None = None

    @property
    def passed(self) -> list[Value]:
        """The values that are passed to the continuation, except those of the frames inside."""
        return self.values if self.generator is None else [self.generator]

    @property
    def taken(self) -> int:
        """How many values that are."""
        return self.position.taken if self.generator is None else 1

    def outline(self) -> Suspended:
        """The same without the values."""
        return Suspended(self.position, self.code, self.scope, Const(self.scope), [], [])


def waiting_at(pc: int, resume: Resume) -> int:
    """The index of the instruction that waits. Its handlers catch exceptions of the call that it waits for."""
    return pc if resume.runs_at_next or resume is Resume.YIELD else pc - 1


# -- in the program's own code -----------------------------------------------------------------------------------------

# By id of a continuation's code: a weak reference to that, the program's code, the position, and the length of the prologue.
_origins: dict[int, tuple[weakref.ref[types.CodeType], types.CodeType, Position, int]] = {}


def note_origin(made: types.CodeType, code: types.CodeType, position: Position, prologue: int) -> None:
    """A continuation was made of the program's own code."""
    key = id(made)
    _origins[key] = weakref.ref(made, functools.partial(_origins.pop, key)), code, position, prologue


def own_position(frame: Frame, resume: Resume) -> tuple[types.CodeType, int, Resume]:
    """Code, pc and what becomes of the value in terms of the program's own code."""
    origin = _origins.get(id(frame.code))
    if origin is None:
        code, pc = frame.code, frame.pc
    else:
        _, code, position, prologue = origin
        if frame.pc <= prologue:                    # it waits where it waited before
            return code, position.pc, position.resume
        pc = len(decode(code)) - (len(decode(frame.code)) - frame.pc)
    return (code, pc - 1, resume) if resume in (Resume.RETRY, Resume.YIELD) else (code, pc, resume)


def has_begun(frame: Frame) -> bool:
    """Whether a frame is past the prologue of a continuation, or past that in which CPython makes cells and generators."""
    origin = _origins.get(id(frame.code))
    if origin is not None:
        return frame.pc > origin[3]
    return any(Does.BEGINS in does(instruction) for instruction in frame.instructions[:frame.pc])


# -- what is alive -----------------------------------------------------------------------------------------------------

def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of a frame's slots: locals, cells that are not arguments, free variables."""
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames), *code.co_freevars)


def closure_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of the cells that a continuation of `code` closes over, in the order of its closure."""
    return (*code.co_cellvars, *code.co_freevars)


def live_while_waiting(code: types.CodeType, pc: int, resume: Resume) -> frozenset[str]:
    """The locals that may be read once the waiting instruction is done, or by a handler of it."""
    live, at = live_locals(code), waiting_at(pc, resume)
    after = (pc,) if resume.runs_at_next else successors(decode(code)[at], at)
    handlers = (cover.target for cover in exception_table(code) if cover.start <= at < cover.end)
    return frozenset().union(*(live[i] for i in (*after, *handlers)))


def live_locals(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """For each instruction, the fast locals that may be read before they are written, from it on."""
    known = decoded(code)
    if known.live is None:
        known.live = _live_locals(code)
    return known.live


def asks_super(code: types.CodeType) -> bool:
    """Whether code may call `super()`, which looks at its first parameter."""
    return "super" in code.co_names and "__class__" in code.co_freevars


def first_in_cell(code: types.CodeType) -> str | None:
    """The first parameter, if `super()` finds it in a cell. A continuation, for which the cell is one of its closure, takes what it
    holds as FIRST."""
    return code.co_varnames[0] if asks_super(code) and code.co_argcount and code.co_varnames[0] in code.co_cellvars else None


def _live_locals(code: types.CodeType) -> tuple[frozenset[str], ...]:
    instructions, covers = decode(code), exception_table(code)
    if INTROSPECTION.intersection(code.co_names):
        return (frozenset(code.co_varnames),) * (len(instructions) + 1)
    handlers = [[cover.target for cover in covers if cover.start <= i < cover.end] for i in range(len(instructions))]
    unseen = {*code.co_varnames[:1]} if asks_super(code) else set()
    live: list[frozenset[str]] = [frozenset()] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            instruction = instructions[i]
            after = set(unseen)
            for successor in (*successors(instruction, i), *handlers[i]):
                after |= live[successor]
            name = instruction.value
            facts = does(instruction)
            if Does.WRITES_LOCAL in facts:
                after.discard(name)
            if Does.READS_LOCAL in facts:
                after.add(name)
            if after != live[i]:
                live[i], changed = frozenset(after), True
    return tuple(live)
