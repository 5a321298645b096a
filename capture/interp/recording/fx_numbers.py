"""Numbers that the program read out of tensors of the graph and calculates with in the graph: `x * loss.item()`.

Where that gives the same bits, the number stays a tensor, so that every backend can compile the graph. Elsewhere the graph reads it
out as the program did.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.recorder import Recorder
from capture.interp.recording.scalar_specialization import Place
from capture.operators.facts import OpFacts
from capture.operators.properties import NUMBER_READERS
from capture.refgraph.effects import Keywords, Replayed, calls_in
from capture.refgraph.identical import LISTS, NUMBERS
from capture.refgraph.lookup import UNBOUND_IN_C
from capture.refgraph.node import Build, Const, Display, Expr, External, ListState, RefNode, Shadow, TensorState, source_of

READERS = frozenset(reader for reader, same in NUMBER_READERS.items() if same in (None, float))
EXACT = (operator.add, operator.sub, operator.mul, operator.neg)        # of doubles: in torch as in Python
TYPED = frozenset((*EXACT, operator.truediv))                           # the type of the result follows from those of the operands
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_operand(facts: OpFacts, shadow: Shadow | None) -> bool:
    """Whether an operation may calculate with a number that was read out of tensors, known as `shadow`; those on lists of tensors
    take lists of numbers."""
    if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState) and facts.name.startswith("_foreach_"):
        return any(map(is_read, shadow.state.items)) and all(map(is_computed, shadow.state.items))
    return facts.calculates_with_numbers and type(shadow) is Expr and calls_in(shadow) is None and is_computed(shadow)


def is_read(shadow: Shadow | None) -> bool:
    """Whether a number was read out of tensors, or follows from such numbers: only the graph knows it."""
    return type(shadow) is Expr and source_of(shadow) is None and calls_in(shadow) is None and is_computed(shadow)


def has_read(shadow: Shadow | None) -> bool:
    """Whether a subscript, or what tells a size, is read out of a tensor, or is one, as a whole or in part."""
    if isinstance(shadow, RefNode):
        if type(shadow.state) is TensorState:
            return shadow.real is not None and not shadow.real.is_floating_point()
        return isinstance(shadow.state, ListState) and any(map(has_read, shadow.state.items))
    return any(map(has_read, shadow.items)) if isinstance(shadow, Build) else is_read(shadow)


def operand(recorder: Recorder, facts: OpFacts, shadow: Shadow | None, args: Sequence[Value]) -> Any:
    """A number, known as `shadow`, as an operand beside `args`; None if it is not such a number."""
    if not is_operand(facts, shadow):
        return None
    assert shadow is not None
    if isinstance(shadow, RefNode):
        return [write(recorder, item, False) for item in shadow.state.items]
    tensor = next((arg.real for arg in args if is_a(arg.real, torch.Tensor)), None)
    if tensor is None or len(args) != 2 or not facts.converts_numbers or tensor.dim() == 0 or tensor.dtype not in (
            torch.float32, torch.float64) or not is_exact(shadow):
        return write(recorder, shadow, False)
    return recorder.effect(torch.Tensor.to, write(recorder, shadow, True), tensor.dtype)


def write(recorder: Recorder, shadow: Shadow, as_tensor: bool, place: Place = Place.FIXED) -> Any:
    """A number as a tensor of one double, or as a Python number. `place`: makes the node of a number from outside."""
    if isinstance(shadow, Const):
        return recorder.literal(shadow.value)
    if isinstance(shadow, (External, Replayed)):
        return recorder.argument(shadow, shadow.value, place)
    if isinstance(shadow, RefNode):
        return recorder.node(shadow)
    if isinstance(shadow, (Display, Build)):
        return shadow.cls(write(recorder, item, False) for item in shadow.items)
    key = shadow, as_tensor
    if key not in recorder.numbers:
        inner = Place.VALUE if shadow.op in TYPED else Place.FIXED  # type: ignore[attr-defined]
        args = [write(recorder, arg, as_tensor, inner) for arg in shadow.args]  # type: ignore[attr-defined]
        if as_tensor and shadow.op in READERS:  # type: ignore[attr-defined]
            scalar = recorder.effect(torch.Tensor.reshape, args[0], ())
            made = recorder.effect(torch.Tensor.to, scalar, torch.float64)
        else:
            made = recorder.effect(nameable(shadow.op), *args)  # type: ignore[attr-defined]
        recorder.note_number(shadow, as_tensor, made)
    return recorder.numbers[key]


def nameable(op: Any) -> Callable[..., Any]:
    """The same operation as a function that generated code can name: methods of str and of numbers cannot be named."""
    if type(op) not in UNBOUND_IN_C or issubclass(torch.Tensor, op.__objclass__):
        return op
    return Keywords(op, ())


def is_computed(shadow: Shadow) -> bool:
    """Whether a value follows from tensors of the graph, from constants, from scalars that can be guarded, and from numbers that
    calls returned."""
    if isinstance(shadow, RefNode):
        return isinstance(shadow.state, TensorState)
    if isinstance(shadow, (Display, Build)):
        return shadow.cls in LISTS and all(map(is_computed, shadow.items))
    if isinstance(shadow, Replayed):
        return shadow.returns in (int, float)
    if type(shadow) is Expr:
        return shadow.op is not id and all(map(is_computed, shadow.args))
    return isinstance(shadow, (Const, External))


def is_exact(shadow: Shadow) -> bool:
    """Whether torch computes on doubles what Python computes on floats, bit for bit."""
    if isinstance(shadow, (Const, External, Replayed)):
        return type(shadow.value) in NUMBERS
    if not isinstance(shadow, Expr):
        return False
    if shadow.op in READERS:
        tensor = shadow.args[0]
        return isinstance(tensor, RefNode) and tensor.real is not None and tensor.real.dtype in FLOATS
    return shadow.op in EXACT and all(map(is_exact, shadow.args))
