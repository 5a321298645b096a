"""Truths and integers that tensors from outside hold: flags, counters and pointers in buffers. They are numbers from outside like
any others: a guard tells them at entry, and each way that the program goes by one of them is a trace of its own."""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture.interp import fixed
from capture.interp.fixed import number_in
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.refgraph.node import Expr, External, RefNode, Shadow

# What reads a number out of a tensor, and what does the same to the number.
READERS = {torch.Tensor.item: None, int: int, torch.Tensor.__int__: int,
           operator.index: operator.index, torch.Tensor.__index__: operator.index,
           bool: operator.truth, operator.truth: operator.truth, torch.Tensor.__bool__: operator.truth,
           operator.not_: operator.not_}
TRUTHS = (operator.truth, operator.not_)
EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def is_held(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether what `function` reads is a number that a tensor has held since entry; of one that is no integer, the truth. Of one
    that held too many different numbers in the captures so far no more is guarded."""
    if len(args) != 1 or function not in READERS:
        return False
    tensor = args[0].real
    if not isinstance(tensor, torch.Tensor) or not fixed.holds_number(interp.graph, tensor):
        return False
    if tensor.dtype not in EXACT and READERS[function] not in TRUTHS:
        return False
    number = number_in(tensor)
    content = number if tensor.dtype in EXACT else bool(number)
    return not interp.recorder.seen.is_restless(args[0].shadow.source, hash(content))  # type: ignore[attr-defined]


def read(interp: Interpreter, function: Any, args: list[Value]) -> Shadow:
    """The shadow of what `function` has read, which `is_held`."""
    node: RefNode = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
    interp.graph.placed.add(node)           # what the trace writes to must not come to be its memory
    held = External(fixed.path_of_number(node), number_in(args[0].real))
    same = READERS[function]
    return held if same is None or same is int and type(held.value) is int else Expr(same, (held,))


def is_decided(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether `function` asks for the truth of a tensor that follows from constants, and from numbers which tensors have held since
    entry: these are guarded by value from now on, unless they were too many different ones in the captures so far."""
    return READERS.get(function) in TRUTHS and len(args) == 1 and isinstance(args[0].real, torch.Tensor) and (
        interp.recorder.pin_numbers(args[0].real))
