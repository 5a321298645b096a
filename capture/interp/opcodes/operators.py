"""Opcodes of operators: each is a call of the function of module `operator` that means it."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from capture.interp.core.frame import Frame, Resume, Value, discard, resuming
from capture.interp.core.instructions import IN_PLACE, Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.dispatch import calls, plain_questions
from capture.interp.opcodes.containers import make_slice
from capture.refgraph.node import ABSENT, SCALARS, Const


def operate(interp: Interpreter, frame: Frame, function: Callable[..., Any], left: Value, right: Value) -> None:
    """Pushes `function(left, right)`. Between two known scalars, by far the most frequent case, there is nothing to look up."""
    if type(left.real) in SCALARS and type(right.real) in SCALARS and (
            not interp.tracking or type(left.shadow) is Const and type(right.shadow) is Const):
        result = interp.real(function, left.real, right.real)
        frame.stack.append(Value(result, Const(result)))
    else:
        calls.apply(interp, function, left, right)


@opcode("UNARY_POSITIVE", does=Does.MAKES, until=(3, 11))
@opcode("UNARY_NEGATIVE", "UNARY_NOT", "UNARY_INVERT", does=Does.MAKES)
def unary(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.apply(interp, instruction.value, frame.pop())


@opcode("GET_ITER", does=Does.TAKES_ITEMS)
def get_iter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.apply(interp, iter, frame.pop())


@opcode("BINARY_OP", does=Does.MAKES, with_argument=dict.fromkeys(IN_PLACE, Does.MAKES | Does.CHANGES_OPERAND))
@opcode("COMPARE_OP", does=Does.MAKES)
def binary(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    stack = frame.stack
    right, left = stack.pop(), stack.pop()
    operate(interp, frame, instruction.value, left, right)


@opcode("IS_OP", does=Does.OPERATES)
def is_op(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    operate(interp, frame, operator.is_not if instruction.arg else operator.is_, left, right)


@opcode("CONTAINS_OP", does=Does.TAKES_ITEMS)
def contains_op(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    container, item = frame.pop(), frame.pop()
    if plain_questions.looked_up(interp, container, item) is not None:
        result = interp.real(operator.contains, container.real, item.real) is not bool(instruction.arg)
        return frame.stack.append(Value(result, Const(result)))

    def negated(result: Value) -> None:
        calls.apply(interp, operator.not_, result)
    calls.apply(interp, operator.contains, container, item, then=resuming(negated, Resume.NEGATE) if instruction.arg else None)


@opcode("BINARY_SUBSCR", does=Does.READS_ITEM)
def binary_subscr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    known = plain_questions.looked_up(interp, container, key)
    if known is not None and known is not ABSENT:
        return frame.stack.append(Value(interp.real(operator.getitem, container.real, key.real), known))
    calls.apply(interp, operator.getitem, container, key)


@opcode("STORE_SUBSCR", does=Does.STORES_ITEM)
def store_subscr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value, container, key = frame.popn(3)
    calls.apply(interp, operator.setitem, container, key, value, then=discard)


@opcode("DELETE_SUBSCR", does=Does.STORES_ITEM)
def delete_subscr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    calls.apply(interp, operator.delitem, container, key, then=discard)


@opcode("BINARY_SLICE", does=Does.OPERATES, since=(3, 12))
def binary_slice(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    container, start, stop = frame.popn(3)
    calls.apply(interp, operator.getitem, container, make_slice(interp, [start, stop]))


@opcode("STORE_SLICE", does=Does.STORES_ITEM, since=(3, 12))
def store_slice(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value, container, start, stop = frame.popn(4)
    calls.apply(interp, operator.setitem, container, make_slice(interp, [start, stop]), value, then=discard)
