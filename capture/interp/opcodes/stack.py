"""Opcodes of the value stack, constants and local variables."""
from __future__ import annotations

from typing import NoReturn

from capture.interp.core import unwind
from capture.interp.core.frame import Frame
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.refgraph.node import RefNode


# Its argument after a `yield from` (2) or `await` (3); 3.13 adds 4 outside of `try`.
@opcode("RESUME", does=Does.BEGINS, with_argument=dict.fromkeys((2, 3, 6, 7), Does.BEGINS | Does.DELEGATES))
def resume(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    pass


@opcode("POP_TOP", does=Does.OPERATES)
def pop_top(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if value is not None and type(value.shadow) is RefNode:
        node = value.shadow
        del value
        interp.let_go(frame, node)


@opcode("PUSH_NULL", does=Does.PUSHES_NULL)
def push_null(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.push(None)


@opcode("COPY", does=Does.COPIES)
def copy(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.stack[-instruction.arg])


@opcode("SWAP", does=Does.SWAPS)
def swap(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    stack, at = frame.stack, -instruction.arg
    stack[-1], stack[at] = stack[at], stack[-1]


@opcode("LOAD_CONST", does=Does.MAKES | Does.LOADS_CONSTANT)
def load_const(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(instruction.value)


@opcode("LOAD_FAST", does=Does.READS_LOCAL | Does.LOADS_LOCAL)
@opcode("LOAD_FAST_CHECK", does=Does.READS_LOCAL | Does.LOADS_LOCAL, since=(3, 12))
def load_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.locals[instruction.arg]
    if value is None:
        unbound(instruction.value)
    frame.stack.append(value)


@opcode("LOAD_CLOSURE", does=Does.READS_LOCAL, until=(3, 12))
def load_closure(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.locals[instruction.arg])


@opcode("LOAD_FAST_AND_CLEAR", does=Does.READS_LOCAL | Does.WRITES_LOCAL, since=(3, 12))
def load_fast_and_clear(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.locals[instruction.arg])
    frame.locals[instruction.arg] = None


@opcode("STORE_FAST", does=Does.WRITES_LOCAL)
def store_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    old, frame.locals[instruction.arg] = frame.locals[instruction.arg], frame.stack.pop()
    if old is not None and type(old.shadow) is RefNode:
        node = old.shadow
        del old
        interp.let_go(frame, node)


@opcode("DELETE_FAST", does=Does.READS_LOCAL | Does.WRITES_LOCAL)
def delete_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    old, frame.locals[instruction.arg] = frame.locals[instruction.arg], None
    if old is None:
        unbound(instruction.value)
    if type(old.shadow) is RefNode:
        node = old.shadow
        del old
        interp.let_go(frame, node)


def unbound(name: str) -> NoReturn:
    """Raises what CPython raises for a local variable without a value."""
    text = f"cannot access local variable {name!r} where it is not associated with a value"
    unwind.throw(UnboundLocalError(text, name=name))
