"""Truths and integers that tensors from outside hold: flags, counters and pointers in buffers. They are numbers from outside like
any others: a guard tells them at entry, and each way that the program goes by one of them is a trace of its own."""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.node import Expr, External, RefNode, Shadow, TensorState
from capture.refgraph.source import Computed

# What reads a number out of a tensor, and what does the same to the number.
READERS = {torch.Tensor.item: None, int: int, torch.Tensor.__int__: int,
           operator.index: operator.index, torch.Tensor.__index__: operator.index,
           bool: operator.truth, operator.truth: operator.truth, torch.Tensor.__bool__: operator.truth,
           operator.not_: operator.not_}
EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def number_in(tensor: torch.Tensor) -> bool | int:
    """What a tensor of one element holds."""
    return tensor.item()  # type: ignore[return-value]


def is_held(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether what `function` reads is a number that a tensor has held since entry. Of one that held too many different numbers
    in the captures so far no more is guarded."""
    if len(args) != 1 or function not in READERS:
        return False
    tensor, node, graph = args[0].real, args[0].shadow, interp.graph
    if not isinstance(node, RefNode) or type(node.state) is not TensorState or node.source is None:
        return False
    if type(tensor) not in PLAIN_TENSORS:
        return False
    state = node.state
    if tensor.numel() != 1 or tensor.dtype not in EXACT or tensor.device.type != "cpu" or state.dynamic or state.storage is None:
        return False
    if None in graph.written or state.storage[0] in graph.written:
        return False
    return not interp.recorder.seen.is_restless(node.source, hash(number_in(tensor)))


def read(interp: Interpreter, function: Any, args: list[Value]) -> Shadow:
    """The shadow of what `function` has read, which `is_held`."""
    node: RefNode = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
    interp.graph.placed.add(node)           # what the trace writes to must not come to be its memory
    held = External(Computed(number_in, (node.source,)), number_in(args[0].real))  # type: ignore[arg-type]
    same = READERS[function]
    return held if same is None or same is int and type(held.value) is int else Expr(same, (held,))
