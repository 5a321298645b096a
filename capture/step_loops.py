"""Loops whose body may make a training step: before such code runs for the first time it gets a gate in each of them.

A gate is a constant of the code. As long as it is empty, the loop runs as it is: `if not gate:` comes before its body.
Once there is a function for a round of the loop in it (`loop_bodies.py`), the frame calls that in place of the body, and goes on
where it says. So nothing is different until a loop was seen to make steps, and at each round the frame can go on by itself.

This module is imported before the program imports torch.
"""
from __future__ import annotations

import dis
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from bytecode import Bytecode, Instr, Label, TryBegin, TryEnd

from capture.code_names import SUSPENDS, names_of
from capture.config import STRICT

# Attributes that such a loop reads: this one, and one that ends like these.
STEP, PASSES = "step", ("backward", "training_step", "train_step")
READS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
NEXT_ROUND, RAISED, DECLINED = 0, -1, -2        # where the frame goes on, besides its exits

_PY312 = sys.version_info >= (3, 12)
_PY313 = sys.version_info >= (3, 13)
JUMP_IF_FALSE = "POP_JUMP_IF_FALSE" if _PY312 else "POP_JUMP_FORWARD_IF_FALSE"


class Gate(list[Any]):
    """A list, so that asking whether it is empty runs no Python code; with a hash, as constants have. A copy, as of a function that
    is sent to another process, is an empty list."""

    __slots__ = ("loop",)
    __hash__ = object.__hash__  # type: ignore[assignment]
    loop: StepLoop

    def __reduce__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()


@dataclass(slots=True, eq=False)
class StepLoop:
    """A loop with a gate. Instructions are numbered as they stand in the program's code."""

    code: types.CodeType                    # the program's own
    line: int
    start: int                              # of the body
    takes_item: bool                        # of a `for` loop: its stack has the item on top
    depth: int                              # of the stack below that
    body: frozenset[int]                    # with handlers, and what is left of them on the way out
    exits: tuple[int, ...]                  # where a round ends: the next round, and what follows the loop
    covered: int | None                     # one that a handler around the loop covers; None if there is none
    around: frozenset[int]                  # the instructions of the loop …
    offsets: frozenset[int] = frozenset()   # … by their offsets in the code with gates
    gate: Gate = field(default_factory=Gate)

    def open(self, body: Callable[..., tuple[int, Any]]) -> None:
        """Rounds of the loop are calls of `body` from the next one on."""
        self.gate.append(body)
        OPEN.append(self)


OPEN: list[StepLoop] = []                   # whose gates were opened


def with_gates(code: types.CodeType) -> types.CodeType:
    """The same code, with gates in the loops in it and in the code inside of it; `code` itself where there are none."""
    if not makes_steps(frozenset(names_of(code))):
        return code
    parts = [with_gates(part) if isinstance(part, types.CodeType) else part for part in code.co_consts]
    if any(made is not part for made, part in zip(parts, code.co_consts, strict=True)):
        code = code.replace(co_consts=tuple(parts))
    if code.co_flags & SUSPENDS:
        return code
    if not code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "<module>":
        return code                         # of a class
    try:
        loops = list(step_loops(code))
        return _gated(code, loops) if loops else code
    except Exception:                       # the program runs all the same
        if STRICT:
            raise
        return code


def loop_of(frame: types.FrameType) -> StepLoop | None:
    """The innermost loop with a gate that a frame is in."""
    loops = [c.loop for c in frame.f_code.co_consts if type(c) is Gate]
    return min((loop for loop in loops if frame.f_lasti in loop.offsets), key=lambda loop: len(loop.offsets), default=None)


def close() -> None:
    """All loops run as they are from now on."""
    for loop in OPEN:
        loop.gate.clear()
    OPEN.clear()


# -- analysis ----------------------------------------------------------------------------------------------------------

class Flow:
    """The instructions of a code object: what may come after each, which handler covers it, how deep the stack is before it (None:
    it is never reached)."""

    def __init__(self, code: types.CodeType, items: Bytecode | None = None) -> None:
        self.items = Bytecode.from_code(code, conserve_exception_block_stackdepth=True) if items is None else items
        self.instructions: list[Instr] = []
        self.covers: list[TryBegin | None] = []
        labels: dict[Label, int] = {}
        cover: TryBegin | None = None
        for item in self.items:
            if isinstance(item, Label):
                labels[item] = len(self.instructions)
            elif isinstance(item, TryBegin):
                cover = item
            elif isinstance(item, TryEnd):
                cover = None
            else:
                self.instructions.append(item)  # type: ignore[arg-type]
                self.covers.append(cover)
        self.targets = [labels[i.arg] if isinstance(i.arg, Label) else None for i in self.instructions]
        self.handlers = [None if cover is None else labels[cover.target] for cover in self.covers]  # type: ignore[index]
        self.depths = self._depths()

    def after(self, at: int) -> tuple[int, ...]:
        """The instructions that may come after one, unless it raises."""
        instruction, target = self.instructions[at], self.targets[at]
        if target is not None:
            return (target,) if instruction.is_uncond_jump() else (at + 1, target)
        return () if instruction.is_final() else (at + 1,)

    def _depths(self) -> list[int | None]:
        depths: list[int | None] = [None] * len(self.instructions)
        todo = [(0, 0)]
        while todo:
            at, depth = todo.pop()
            if depths[at] is not None:
                continue
            depths[at] = depth
            cover, handler = self.covers[at], self.handlers[at]
            if cover is not None and handler is not None:
                todo.append((handler, cover.stack_depth + cover.push_lasti + 1))
            for following in self.after(at):
                todo.append((following, depth + self.instructions[at].stack_effect(jump=following == self.targets[at])))
        return depths


def step_loops(code: types.CodeType) -> Iterator[StepLoop]:
    """The loops of a code object that may make a training step, and whose body leaves the stack below it alone."""
    flow = Flow(code)
    before: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}         # of a loop: its first instruction -> those that lead back there
    for at in range(len(flow.instructions)):
        handler = flow.handlers[at]
        for target in flow.after(at):
            before.setdefault(target, []).append(at)
            if target <= at:
                ends.setdefault(target, []).append(at)
        if handler is not None:
            before.setdefault(handler, []).append(at)
    for first, last in ends.items():
        loop = _step_loop(code, flow, first, last, before)
        if loop is not None:
            yield loop


def _step_loop(code: types.CodeType, flow: Flow, first: int, last: list[int], before: dict[int, list[int]]) -> StepLoop | None:
    instructions, depths = flow.instructions, flow.depths
    takes_item = instructions[first].name == "FOR_ITER"
    start, depth = first + takes_item, depths[first]
    loop = _leading_to(last, first, before)
    if depth is None:
        return None
    # A handler that does not lead back into the loop, and of no more items than are there before it, is one around the loop: if
    # that is a `for`, which has its iterator there. In a `while` it may be one that leaves the loop.
    covered = {flow.handlers[at]: at for at in loop if _is_left_through(flow, at, loop, depth - takes_item)}
    outer = next(iter(covered), None) if takes_item else flow.handlers[first]
    if takes_item and len(covered) > 1:
        return None
    if not makes_steps(_attributes(instructions, loop)):
        return None
    body, exits = _body(flow, loop - {first} if takes_item else loop, first, depth, outer)
    if any(depths[at] != depth for at in exits) or _reaches_below(flow, body, depth):
        return None
    return StepLoop(code, instructions[first].lineno or code.co_firstlineno, start, takes_item, depth, body, (first, *exits),
                    covered.get(outer), frozenset(loop))


def _is_left_through(flow: Flow, at: int, loop: set[int], depth: int) -> bool:
    """Whether the handler that covers an instruction does not lead back into a loop, and no more than `depth` items outlive it."""
    cover = flow.covers[at]
    return cover is not None and flow.handlers[at] not in loop and cover.stack_depth <= depth


def _leading_to(ends: Iterable[int], first: int, before: dict[int, list[int]]) -> set[int]:
    """The instructions from which `ends` are reached without passing `first`, and that."""
    found, todo = {first}, list(ends)
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += before.get(at, ())
    return found


def _body(flow: Flow, loop: set[int], first: int, depth: int, outer: int | None) -> tuple[frozenset[int], list[int]]:
    """What a round may run before the stack is as deep as at its beginning again, and no handler of its own covers it; and where it
    goes on then, besides `first`."""
    body, exits, todo = set(loop), set(), list(loop)
    while todo:
        at = todo.pop()
        handler = flow.handlers[at]
        for target in (*flow.after(at), *(() if handler in (None, outer) else (handler,))):
            if target == first or target in body:
                continue
            reached = flow.depths[target]
            if reached is not None and reached <= depth and flow.handlers[target] in (None, outer):
                exits.add(target)
            else:
                body.add(target)
                todo.append(target)
    return frozenset(body), sorted(exits)


def _reaches_below(flow: Flow, body: frozenset[int], depth: int) -> bool:
    """Whether a body touches what was on the stack before it, as far as can be told."""
    for at in body:
        instruction, reached = flow.instructions[at], flow.depths[at]
        if reached is None or reached - (instruction.arg if instruction.name in ("SWAP", "COPY") else 0) < depth:  # type: ignore[operator]
            return True
    return False


def makes_steps(names: Set[str]) -> bool:
    """Whether code that reads these attributes may make training steps."""
    return STEP in names and any(name.endswith(PASSES) for name in names)


def _attributes(instructions: list[Instr], among: Iterable[int]) -> set[str]:
    """The attributes that instructions read, and the names in functions that they make."""
    found: set[str] = set()
    for instruction in (instructions[at] for at in among):
        arg: Any = instruction.arg
        if instruction.name in READS_ATTRIBUTE:
            found.add(arg[-1] if isinstance(arg, tuple) else arg)
        elif isinstance(arg, types.CodeType):
            found.update(names_of(arg))
    return found


# -- the code with gates -----------------------------------------------------------------------------------------------

def _gated(code: types.CodeType, loops: list[StepLoop]) -> types.CodeType:
    """`code` with the gates of these loops in it."""
    body = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    starts = {loop.start: loop for loop in loops}
    exits = {at: Label() for loop in loops for at in loop.exits}
    body.argnames = list(code.co_varnames)  # all others would be numbered as they come
    items: list[Any] = []
    kept: list[Instr] = []                  # the program's own instructions
    covers = Flow(code, body).covers
    for item in body:
        if isinstance(item, Instr):
            at = len(kept)
            kept.append(item)
            if at in exits:
                items.append(exits[at])
            if at in starts:
                inside = Label()
                items += [*_covered(_gate(starts[at], inside, exits, item.location), covers, starts[at]), inside]
        items.append(item)
    body[:] = items
    made = body.to_code(stacksize=code.co_stacksize + 6, compute_exception_stack_depths=False)
    offsets = [i.offset for i in dis.get_instructions(made) if i.opcode != dis.EXTENDED_ARG]
    own = {id(item) for item in kept}
    placed = [offset for offset, item in zip(offsets, (i for i in items if isinstance(i, Instr)), strict=True) if id(item) in own]
    for loop in loops:
        loop.offsets = frozenset(placed[at] for at in loop.around)
        loop.gate.loop = loop
    return made


def _covered(gate: list[Any], covers: list[TryBegin | None], loop: StepLoop) -> list[Any]:
    """A gate under the handler around its loop. The first instruction of the body is not, if it cannot raise."""
    outer = None if loop.covered is None else covers[loop.covered]
    if outer is None or covers[loop.start] is not None:
        return gate
    block = TryBegin(outer.target, outer.push_lasti, outer.stack_depth)
    return [block, *gate, TryEnd(block)]


def _gate(loop: StepLoop, inside: Label, exits: dict[int, Label], location: Any) -> list[Instr]:
    """`if gate: where, value = gate[0](item)`; and goes on where that says."""
    def emit(name: str, *arg: Any) -> None:
        made.append(Instr(name, *arg, location=location))

    made: list[Instr] = []
    emit("LOAD_CONST", loop.gate)
    if _PY313:
        emit("TO_BOOL")
    emit(JUMP_IF_FALSE, inside)
    for name, *arg in ((("PUSH_NULL",), ("SWAP", 2)) if loop.takes_item else (("PUSH_NULL",),)) if not _PY313 else ():
        emit(name, *arg)
    emit("LOAD_CONST", loop.gate)
    emit("LOAD_CONST", 0)
    emit("BINARY_SUBSCR")
    if loop.takes_item:
        emit("SWAP", 2)
    if _PY313:
        emit("PUSH_NULL")
        if loop.takes_item:
            emit("SWAP", 2)
    if not _PY312:
        emit("PRECALL", int(loop.takes_item))
    emit("CALL", int(loop.takes_item))
    emit("UNPACK_SEQUENCE", 2)
    for where, target in itertools.chain(enumerate(loop.exits), ((DECLINED, None),)):
        other = Label()
        emit("COPY", 1)
        emit("LOAD_CONST", where)
        emit("IS_OP", 0)
        emit(JUMP_IF_FALSE, other)
        emit("POP_TOP")
        if target is None:
            if not loop.takes_item:
                emit("POP_TOP")
            emit("JUMP_FORWARD", inside)
        else:
            emit("POP_TOP")
            emit("JUMP_FORWARD" if target > loop.start else "JUMP_BACKWARD", exits[target])
        made.append(other)  # type: ignore[arg-type]
    emit("POP_TOP")
    emit("RERAISE", 0)
    return made
