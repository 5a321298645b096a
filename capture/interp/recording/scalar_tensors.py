"""Bools and integers held by outside tensors of one element (flags, counters and pointers in buffers): guards can read them."""
from __future__ import annotations

import operator
import struct
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.recording import constant_tensors, recomputable_tensors
from capture.interp.recording.constant_tensors import number_in
from capture.operators.properties import NUMBER_READERS
from capture.refgraph.identical import is_one_of
from capture.refgraph.memory import PLAIN_TENSORS, storage_of
from capture.refgraph.node import Const, Expr, External, RefNode, Shadow
from capture.refgraph.source import Computed, Literal

READERS = {reader: same for reader, same in NUMBER_READERS.items() if same is not float}
TRUTHS = (operator.truth, operator.not_)
EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
ADDING = frozenset({operator.iadd, torch.Tensor.add_, torch.Tensor.__iadd__})
FLOAT = struct.Struct("f")
MOST_ADDED = 1 << 24    # up to here every whole number is one of float32


def is_held(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether `function` reads a number that a tensor has held since entry (of a number that is no integer, only the truth)."""
    if len(args) != 1 or function not in READERS:
        return False
    if counted(interp, function, args) is not None:
        return True
    tensor = args[0].real
    if not is_a(tensor, torch.Tensor) or not constant_tensors.holds_one_number(interp.graph, tensor):
        return False
    return tensor.dtype in EXACT or READERS[function] in TRUTHS


def read(interp: Interpreter, function: Any, args: list[Value]) -> Shadow:
    """The shadow of what `function` has read, which `is_held`."""
    number = counted(interp, function, args)
    if number is not None:
        return number
    node: RefNode = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
    interp.graph.note_sharing(node)          # what the trace writes to must not come to be its memory
    held = External(constant_tensors.path_of_number(node), number_in(args[0].real))
    same = READERS[function]
    return held if same is None or same is int and type(held.value) is int else Expr(same, (held,))


def is_decidable(interp: Interpreter, function: Any, args: list[Value]) -> bool:
    """Whether `function` asks for the truth of a tensor that is computed from constants and from numbers that tensors held at
    entry."""
    return READERS.get(function) in TRUTHS and len(args) == 1 and _path(interp, args[0]) is not None


def decide(interp: Interpreter, value: Value, result: bool) -> Shadow:
    """The shadow of the `result` of asking for such a truth, which is guarded."""
    path = _path(interp, value)
    assert path is not None
    recomputable_tensors.require_truth(interp.recorder, path, bool(number_in(value.real)))
    return Const(result)


def _path(interp: Interpreter, value: Value) -> Computed | None:
    one = type(value.real) in PLAIN_TENSORS and value.real.numel() == 1
    return recomputable_tensors.path_of_tensor(interp.recorder, value.shadow) if one else None


# -- numbers that the trace counts in tensors ---------------------------------------------------------------------------

def number_after(tensor: torch.Tensor, added: int) -> float:
    """What a tensor of one float holds once a whole number is added."""
    total = number_in(tensor) + added
    return total if tensor.dtype is torch.float64 else FLOAT.unpack(FLOAT.pack(total))[0]


def count(interp: Interpreter, function: Any, args: list[Value]) -> External | None:
    """Returns the shadow of a counter tensor after `counter += constant`: an expression over its value at entry. None if the
    operation is not of this kind. Called before the operation is recorded, when it has been performed."""
    if function not in ADDING or len(args) != 2 or not isinstance(args[1].shadow, Const) or type(args[1].real) is not int:
        return None
    tensor, added = args[0].real, args[1].real
    if abs(added) >= MOST_ADDED or type(tensor) not in PLAIN_TENSORS or tensor.dtype not in (torch.float32, torch.float64):
        return None
    if tensor.requires_grad or not constant_tensors.holds_one_number(interp.graph, tensor):
        return None
    node: RefNode = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
    return External(Computed(number_after, (node.source, Literal(added))), number_in(tensor))


def keep(interp: Interpreter, tensor: Value, number: External) -> None:
    """Notes the shadow of what a tensor holds, until it is written to again."""
    storage, _ = storage_of(tensor.real)  # type: ignore[misc]
    interp.recorder.note_counted(tensor.shadow, number, interp.graph.written[storage])  # type: ignore[arg-type]


def counted(interp: Interpreter, function: Any, args: list[Value]) -> External | None:
    """The shadow of the number that `function` reads, if the trace has counted it in a tensor; else None."""
    known = interp.recorder.counted.get(args[0].shadow)  # type: ignore[call-overload]
    if known is None or not is_one_of(function, torch.Tensor.item, float, torch.Tensor.__float__):
        return None
    number, serial = known
    storage, _ = storage_of(args[0].real)  # type: ignore[misc]
    if None in interp.graph.written or interp.graph.written[storage] != serial:
        return None
    interp.graph.note_sharing(args[0].shadow)  # type: ignore[arg-type]
    interp.recorder.seen.note_varying([str(number.source)])
    return number
