"""Assumptions on tensors, whose values only a hit knows. They are checked when the graph has run, before anything else is done; if
one fails, the call runs natively.

A branch on a tensor whose other way only raises is a check. In torch's own code, and in other installed packages, a branch on a
tensor mostly chooses between ways to the same result (there is nothing to mask), or checks arguments, and nearly always goes one
way. It is assumed to do so until it once did not. The same holds for integers that torch itself reads out of tensors, and, in any
code, for whether two tensors are equal as a whole: programs mostly ask this to know whether they are the same tensor.
"""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture._C import is_a
from capture.errors import is_of_library, is_of_torch
from capture.interp.core.frame import Frame, Value
from capture.interp.core.instructions import Does, does
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import in_python
from capture.interp.function_models import replays
from capture.interp.recording import may_raise, recomputable_tensors, scalar_tensors
from capture.refgraph import runtime
from capture.refgraph.identical import INTEGERS, is_one_of
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.node import Build, Const, Expr, External, RefNode, Shadow, TensorState

COMPARISONS = frozenset({torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose})
MOST_STEPS = 100        # from a check to the exception that it raises


def truth_of_branch(interp: Interpreter, frame: Frame, value: Value, ways: dict[bool, int]) -> bool | None:
    """The truth of a branch condition that is a tensor, if the trace may assume it; None if the branch is of another kind, or the
    trace must end. ways: the two targets of the branch."""
    if not interp.tracking or not is_of_graph(interp, value):
        return None
    truth = interp.real(bool, value.real)
    is_check = raises(frame, ways[not truth]) and not (interp.can_cut and may_raise.is_watched(frame))    # by whom it may be caught
    compares = is_comparison(value.shadow) and not interp.recorder.seen.surprised
    if not (is_check or compares or may_suppose(interp)) or not can_look_back(interp):
        return None
    interp.track(assume, interp, value, truth, runtime.expect if is_check else runtime.suppose)
    return truth


def is_of_graph(interp: Interpreter, value: Value) -> bool:
    """Whether a value is a tensor of one element, or follows from tensors, and is known when the graph has run."""
    if is_a(value.real, torch.Tensor):
        if type(value.real) not in PLAIN_TENSORS or in_python(value.real, "__bool__"):
            return False
        if value.real.numel() != 1 or replays.is_known(interp, [value]) and not may_change_with_sizes(interp, value):
            return False
        return not (scalar_tensors.is_held(interp, operator.truth, [value]) or is_decided(interp, operator.truth, [value]))
    stack = [value.shadow]
    found = False
    while stack:
        shadow = stack.pop()
        if type(shadow) is Expr or isinstance(shadow, Build):
            stack += shadow.parts
        elif isinstance(shadow, RefNode) and type(shadow.state) is TensorState:
            found = True
        elif not isinstance(shadow, (Const, External)):
            return False
    return found and interp.graph.context.path_to(value.shadow) is None


def is_decided(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether a guard says what the truth of a tensor is. Where it would have to read many elements, only a library's question is
    worth it that the trace may not assume to come out as it does: a loop of the program's may ask anew in each round."""
    if not scalar_tensors.is_decidable(interp, function, args):
        return False
    if not recomputable_tensors.reads_many(interp.recorder, args[0].shadow):  # type: ignore[arg-type]
        return True
    asks = interp.frame is not None and is_of_library(interp.frame.code.co_filename)
    return asks and not (may_suppose(interp) and can_look_back(interp))


def may_change_with_sizes(interp: Interpreter, value: Value) -> bool:
    """Whether a tensor holds what follows from sizes that change, and the trace may assume that it holds the same for others."""
    return may_suppose(interp) and can_look_back(interp) and interp.recorder.rests_on_sizes(value.real)


def is_comparison(shadow: Shadow | None) -> bool:
    """Whether a value says that two tensors are equal as a whole, or that they are not."""
    while type(shadow) is Expr and shadow.op in (operator.not_, operator.truth, bool):
        shadow = shadow.args[0]
    return type(shadow) is Expr and shadow.op in COMPARISONS


def may_suppose(interp: Interpreter, is_truth: bool = True) -> bool:
    """Whether the trace may assume that the truth of a tensor, or its value, is the same on a hit as in the capture."""
    if interp.frame is None or interp.recorder.seen.surprised:
        return False
    return (is_of_library if is_truth else is_of_torch)(interp.frame.code.co_filename)


def can_look_back(interp: Interpreter) -> bool:
    """Whether all that was done so far can be undone if an assumption fails."""
    return interp.recorder.mutations.can_take_back()


def assume(interp: Interpreter, value: Value, held: bool | int, operation: Any) -> Shadow:
    """Notes an assumption on a value or its truth. operation: the function that checks it on a hit."""
    interp.recorder.expect(value, held, operation, at_once=bool(interp.blocks.began))
    return Const(held)


def supposed(interp: Interpreter, function: Any, args: list[Value], result: Any) -> Shadow | None:
    """The shadow of a number or truth that torch's own code reads out of a tensor, if the trace may assume that value."""
    if not is_one_of(function, bool, int, operator.not_) or len(args) != 1 or not is_a(args[0].real, torch.Tensor):
        return None
    if type(result) not in INTEGERS:
        return None
    if not may_suppose(interp, type(result) is bool) or not can_look_back(interp):
        return None
    assume(interp, args[0], not result if function is operator.not_ else result, runtime.suppose)
    return Const(result)


def raises(frame: Frame, start: int) -> bool:
    """Whether the instructions from `start` on raise an exception on every path."""
    for instruction in frame.instructions[start:start + MOST_STEPS]:
        facts = does(instruction)
        if Does.RAISES in facts:
            return True
        if facts & (Does.LEAVES | Does.JUMPS | Does.BRANCHES | Does.SUSPENDS):
            return False
    return False
