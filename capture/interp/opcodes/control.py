"""Opcodes of jumps, loops and returns."""
from __future__ import annotations

import operator
from collections.abc import Callable

from capture.interp.core.frame import Frame, Resume, Value, resuming
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import generators
from capture.interp.coroutines.iteration import advance
from capture.interp.dispatch import callables, calls, kind_handlers, plain_questions, speculation
from capture.interp.function_models import long_work
from capture.refgraph.effects import Replayed
from capture.refgraph.node import SCALARS, Const, Expr, External, RefNode, Shadow


def branch(interp: Interpreter, value: Value, then: Callable[[bool], None], resume: Resume = Resume.RETRY) -> None:
    """Calls `then` with the truth of `value`, on which the program depends from here on."""
    real = value.real
    if not interp.tracking and type(real) in SCALARS:
        return then(bool(real))

    def decided(truth: Value) -> None:
        interp.track(callables.pin, interp, truth)
        then(truth.real)
    resuming(decided, resume)
    if type(real) in SCALARS:
        truth = bool(real)
        interp.describe(lambda: _depend_on_truth(interp, value), Value(bool, Const(bool)), [value], {}, truth, decided)
        return then(truth)
    known = plain_questions.truth(interp, value)
    if known is not None:
        return then(known)
    calls.apply(interp, operator.truth, value, then=decided)


def _depend_on_truth(interp: Interpreter, value: Value) -> Shadow:
    shadow = value.shadow
    source = interp.graph.context.path_to(shadow) if isinstance(shadow, (External, Expr)) else None
    if source is not None:
        interp.graph.require(source, "TRUTH", bool(value.real))
    else:
        interp.graph.depend(shadow, value.real, kind_handlers.BRANCH)
    return Const(bool(value.real))


def is_decided(interp: Interpreter, value: Value) -> bool:
    """Whether nothing but the real value, which is True or False, says which way the program goes."""
    return (value.real is True or value.real is False) and (type(value.shadow) is Const or not interp.tracking)


def assumed(interp: Interpreter, frame: Frame, value: Value, ways: dict[bool, int], then: Callable[[bool], None]) -> bool:
    """Whether the trace goes on with the truth of a tensor as it is now; `then` has been called in this case."""
    truth = speculation.truth_of_branch(interp, frame, value, ways)
    if truth is not None:
        then(truth)
    return truth is not None


def is_none(interp: Interpreter, value: Value) -> bool:
    """Whether `value` is None, on which the program depends from here on."""
    interp.track(_depend_on_none, interp, value)
    return value.real is None


def _depend_on_none(interp: Interpreter, value: Value) -> Shadow:
    shadow, real = value.shadow, value.real
    if isinstance(shadow, RefNode):
        interp.graph.touch(shadow)
    elif isinstance(shadow, External) and real is not None:
        interp.graph.require(shadow.source, "TYPE", type(real))
    elif isinstance(shadow, Replayed):
        if shadow.returns is None:
            interp.graph.depend(shadow, real)
    elif isinstance(shadow, External) or isinstance(shadow, Expr) and real is None:
        interp.graph.depend(shadow, real)
    return Const(real is None)      # an Expr computes a value of its own type, whatever it computes it from


# -- jumps -------------------------------------------------------------------------------------------------------------

@opcode("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT", does=Does.JUMPS)
def jump(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.pc = instruction.value


@opcode("JUMP_BACKWARD", does=Does.JUMPS)
def jump_backward(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    jump_to(interp, frame, instruction.value)


def jump_to(interp: Interpreter, frame: Frame, pc: int) -> None:
    """Goes on at another instruction: in another round of a loop if it is an earlier one."""
    again = pc < frame.pc
    frame.pc = pc
    if again:
        interp.new_round(frame)
        if interp.is_idle():
            long_work.leave_loop(interp, frame)


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", does=Does.BRANCHES, until=(3, 11))
@opcode("POP_JUMP_IF_FALSE", does=Does.BRANCHES, since=(3, 12))
def pop_jump_if_false(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if is_decided(interp, value):
        if value.real is False:
            jump_to(interp, frame, instruction.value)
        return

    def decided(truth: bool) -> None:
        if not truth:
            jump_to(interp, frame, instruction.value)
    if not assumed(interp, frame, value, {True: frame.pc, False: instruction.value}, decided):
        branch(interp, value, decided)


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", does=Does.BRANCHES, until=(3, 11))
@opcode("POP_JUMP_IF_TRUE", does=Does.BRANCHES, since=(3, 12))
def pop_jump_if_true(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if is_decided(interp, value):
        if value.real is True:
            jump_to(interp, frame, instruction.value)
        return

    def decided(truth: bool) -> None:
        if truth:
            jump_to(interp, frame, instruction.value)
    if not assumed(interp, frame, value, {True: instruction.value, False: frame.pc}, decided):
        branch(interp, value, decided)


@opcode("JUMP_IF_FALSE_OR_POP", does=Does.BRANCHES, until=(3, 11))
def jump_if_false_or_pop(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _jump_or_pop(interp, frame, instruction, False, Resume.AND)


@opcode("JUMP_IF_TRUE_OR_POP", does=Does.BRANCHES, until=(3, 11))
def jump_if_true_or_pop(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _jump_or_pop(interp, frame, instruction, True, Resume.OR)


def _jump_or_pop(interp: Interpreter, frame: Frame, instruction: Instruction, jumps_on: bool, resume: Resume) -> None:
    value = frame.stack[-1]

    def decided(truth: bool) -> None:
        if truth is jumps_on:
            frame.pc = instruction.value
        else:
            frame.stack.pop()
    if not assumed(interp, frame, value, {jumps_on: instruction.value, not jumps_on: frame.pc}, decided):
        branch(interp, value, decided, resume)


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", does=Does.BRANCHES, until=(3, 11))
@opcode("POP_JUMP_IF_NONE", does=Does.BRANCHES, since=(3, 12))
def pop_jump_if_none(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if is_none(interp, frame.pop()):
        jump_to(interp, frame, instruction.value)


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", does=Does.BRANCHES, until=(3, 11))
@opcode("POP_JUMP_IF_NOT_NONE", does=Does.BRANCHES, since=(3, 12))
def pop_jump_if_not_none(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if not is_none(interp, frame.pop()):
        jump_to(interp, frame, instruction.value)


@opcode("TO_BOOL", does=Does.OPERATES, since=(3, 13))
def to_bool(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.apply(interp, operator.truth, frame.pop())


# -- loops -------------------------------------------------------------------------------------------------------------

@opcode("FOR_ITER", does=Does.BRANCHES, effect=lambda instruction, jumps: -1 if jumps else 1)
def for_iter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    def exhausted() -> None:
        frame.stack.pop()
        frame.pc = instruction.value

    advance(interp, frame.stack[-1], frame.push_item, exhausted)


# -- returns -----------------------------------------------------------------------------------------------------------

@opcode("RETURN_VALUE", does=Does.LEAVES)
def return_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    interp.returned(frame, frame.pop())


@opcode("RETURN_CONST", does=Does.LEAVES, since=(3, 12))
def return_const(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    interp.returned(frame, instruction.value)


# Before 3.13 CPython does not count what a generator is first sent.
@opcode("RETURN_GENERATOR", does=Does.OPERATES, effect=lambda instruction, jumps: 1)
def return_generator(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = None if frame.generator is not None else generators.create(interp, frame)   # None: its object is there already
    then = frame.then
    interp.detach(frame)
    frame.then = frame.on_raise = frame.generator = None
    if value is not None:
        interp.deliver(value, then)


@opcode("YIELD_VALUE", does=Does.SUSPENDS)
def yield_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.generator.suspend(interp, frame.pop())
