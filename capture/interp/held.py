"""Truths and integers that tensors from outside hold: flags, counters and pointers in buffers. They are numbers from outside like
any others: a guard tells them at entry, and each way that the program goes by one of them is a trace of its own. So is each way
that it goes by the truth of what it calculates of them."""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture.interp import fixed, told
from capture.interp.fixed import number_in
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.refgraph.node import Const, Expr, External, RefNode, Shadow
from capture.refgraph.source import Computed

# What reads a number out of a tensor, and what does the same to the number.
READERS = {torch.Tensor.item: None, int: int, torch.Tensor.__int__: int,
           operator.index: operator.index, torch.Tensor.__index__: operator.index,
           bool: operator.truth, operator.truth: operator.truth, torch.Tensor.__bool__: operator.truth,
           operator.not_: operator.not_}
TRUTHS = (operator.truth, operator.not_)
EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def is_held(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether what `function` reads is a number that a tensor has held since entry; of one that is no integer, the truth."""
    if len(args) != 1 or function not in READERS:
        return False
    tensor = args[0].real
    if not isinstance(tensor, torch.Tensor) or not fixed.holds_number(interp.graph, tensor):
        return False
    return tensor.dtype in EXACT or READERS[function] in TRUTHS


def read(interp: Interpreter, function: Any, args: list[Value]) -> Shadow:
    """The shadow of what `function` has read, which `is_held`."""
    node: RefNode = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
    interp.graph.placed.add(node)           # what the trace writes to must not come to be its memory
    held = External(fixed.path_of_number(node), number_in(args[0].real))
    same = READERS[function]
    return held if same is None or same is int and type(held.value) is int else Expr(same, (held,))


def is_decided(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether `function` asks for the truth of a tensor that follows from constants and from numbers that tensors held at entry."""
    return READERS.get(function) in TRUTHS and len(args) == 1 and _path(interp, args[0]) is not None


def decide(interp: Interpreter, value: Value, result: bool) -> Shadow:
    """The shadow of the `result` of asking for such a truth, which is guarded from now on."""
    path = _path(interp, value)
    assert path is not None
    if path.args:
        interp.graph.require(Computed(number_in, (path,)), "TRUTH", bool(number_in(value.real)))
    return Const(result)


def _path(interp: Interpreter, value: Value) -> Computed | None:
    one = isinstance(value.real, torch.Tensor) and value.real.numel() == 1
    return told.path_of_tensor(interp.recorder, value.shadow) if one else None
