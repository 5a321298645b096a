"""Loops that are left to CPython: where they end, and how the program goes on there.

If the rounds of a loop hold a break and no work for a graph, CPython runs the loop from that break on. Its continuation has exits
in the places that follow the loop. Each exit passes the locals and the value stack of the frame to the code that makes the
continuation of the rest, which is captured like any other.
"""
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.interp.breaks.continuation_code import continuation
from capture.interp.breaks.positions import FIRST, Position, Slot, Suspended, first_in_cell, live_locals, waiting_at
from capture.interp.core import generator_drivers
from capture.interp.core.frame import Resume
from capture.interp.core.instructions import decode, exception_table, stack_effect, successors
from capture.interp.recording.fx_recorder import FxRecorder
from capture.refgraph.node import SCALARS, Const


@dataclass(slots=True, eq=False)
class Left:
    """A frame whose loop has ended: its position, globals, the values that its continuation takes, and its cells."""

    code: types.CodeType
    position: Position
    scope: dict[str, Any]
    values: tuple[Any, ...]
    cells: tuple[types.CellType, ...]

    def outline(self) -> Suspended:
        """The frame as `continuation_code.build` takes it."""
        return Suspended(self.position, self.code, self.scope, Const(self.scope), [], [])


class Exit:
    """What a loop calls where it ends, before instruction `pc`: returns `then` of the frame that calls it."""

    def __init__(self, code: types.CodeType, pc: int, then: Callable[[Left], Any]) -> None:
        self.code, self.pc, self.then = code, pc, then

    def __call__(self, stack: tuple[Any, ...], cells: tuple[types.CellType, ...]) -> Any:
        frame, code = sys._getframe(1), self.code
        found, live, in_cell = frame.f_locals, live_locals(code)[self.pc], {*code.co_cellvars, *code.co_freevars}
        bound = tuple(name for name in code.co_varnames if name not in in_cell and name in found
                      and (name in live or not is_inert(found[name])))
        values = [found[name] for name in bound]
        if (first := first_in_cell(code)) is not None and first in found:
            bound, values = (FIRST, *bound), [found[first], *values]
        position = Position(id(code), self.pc, Resume.BEGIN, bound, (Slot.OBJECT,) * len(stack))
        return self.then(Left(code, position, frame.f_globals, (*values, *stack), cells))


def itself(left: Left) -> Left:
    """What a loop hands out of a frame that is not the outermost one."""
    return left


def is_inert(real: Any) -> bool:
    """Whether the death of an object only frees its memory."""
    return is_a(real, torch.Tensor) or type(real) in SCALARS


def left_to_cpython(code: types.CodeType, position: Position,
                    then: Callable[[Left], Any]) -> tuple[types.CodeType, types.CodeType] | None:
    """The continuation at `position`, with exits where the innermost loop around it ends; and its raising variant. None if there is
    no such loop, if the stack holds more than objects at an exit, and in a generator, which cannot be left by an exit."""
    if code.co_flags & generator_drivers.FLAGS:
        return None
    depths = stack_depths(code)
    if depths.get(position.pc) != len(position.stack) + position.resume.pushes:
        return None             # it resumes in the middle of an instruction
    ends = exits(code, waiting_at(position.pc, position.resume))
    if not ends or any(position.stack[:depths[end]] != (Slot.OBJECT,) * depths[end] for end in ends):
        return None
    stubs = {end: (depths[end], Exit(code, end, then)) for end in ends}
    plain, raising = (continuation(code, position, raises, stubs) for raises in (False, True))  # type: ignore[arg-type]
    return plain, raising


def loop_around(code: types.CodeType, at: int) -> tuple[int, frozenset[int]]:
    """The first instruction of the innermost loop around instruction `at`, and all its instructions, with handlers that lead back
    into it; none if there is no loop."""
    instructions, covers = decode(code), exception_table(code)
    before: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}         # of a loop: its first instruction -> those that lead back there
    for i, instruction in enumerate(instructions):
        for target in successors(instruction, i):
            before.setdefault(target, []).append(i)
            if target <= i:
                ends.setdefault(target, []).append(i)
        for cover in covers:
            if cover.start <= i < cover.end:
                before.setdefault(cover.target, []).append(i)
    loops = [(first, leading_to(last, first, before)) for first, last in ends.items()]
    return min((loop for loop in loops if at in loop[1]), key=lambda loop: len(loop[1]), default=(0, frozenset()))


def leading_to(ends: list[int], start: int, before: dict[int, list[int]]) -> frozenset[int]:
    """The instructions from which `ends` are reached without passing `start`, and that."""
    found, todo = {start}, list(ends)
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += before.get(at, ())
    return frozenset(found)


def exits(code: types.CodeType, at: int) -> list[int]:
    """The instructions to which the innermost loop around instruction `at` leads. What is left of a handler in it comes before."""
    first, loop = loop_around(code, at)
    depths, instructions = stack_depths(code), decode(code)
    found: set[int] = set()
    passed, todo = set(loop), list(loop)
    while todo:
        i = todo.pop()
        for target in successors(instructions[i], i):
            if target in depths and target not in passed:
                passed.add(target)
                if depths[target] <= depths[first]:
                    found.add(target)
                else:
                    todo.append(target)
    return sorted(found)


def works(frame: Suspended, depth: int, recorder: FxRecorder) -> bool:
    """Whether the loop around a break has recorded operations, as far as lines tell. depth: of the frame, below the outermost."""
    _, loop = loop_around(frame.code, waiting_at(frame.position.pc, frame.position.resume))
    lines = {decode(frame.code)[i].line for i in loop}
    return any(len(stack) > depth and stack[depth][2] in lines for node in recorder.fx.nodes if (stack := node.meta.get("stack")))


def stack_depths(code: types.CodeType) -> dict[int, int]:
    """How many items are on the stack before each instruction that can be reached."""
    instructions = decode(code)
    depths: dict[int, int] = {}
    todo = [(0, 0), *((cover.target, cover.depth + cover.lasti + 1) for cover in exception_table(code))]
    while todo:
        at, depth = todo.pop()
        if at not in depths:
            depths[at] = depth
            instruction = instructions[at]
            todo += [(target, depth + stack_effect(instruction, target != at + 1)) for target in successors(instruction, at)]
    return depths
