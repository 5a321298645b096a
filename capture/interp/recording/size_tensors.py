"""Sizes that the program gives as tensors, where these follow from constants and from sizes: `torch.div(x.size(1), 4,
rounding_mode="trunc")` is a tensor, which `x.view(-1, n)` takes as an integer. Operations are given integers in their place."""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from capture import _C
from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording import constant_tensors, fx_numbers
from capture.interp.recording.graph_builder import GraphBuilder
from capture.operators.facts import OpFacts
from capture.operators.schemas import name_of
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Build, Const, External, ListState, RefNode, Shadow, TensorState, source_of
from capture.refgraph.source import Computed

ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "floor_divide": operator.floordiv}
INTEGERS = (torch.int64, torch.int32)


def with_integers(builder: GraphBuilder, facts: OpFacts, where: int | str, value: Value) -> Value:
    """The argument `where` of an operation, with integers in place of tensors that say how large its results are and whose values
    follow from constants and sizes; the same value if there are none."""
    if facts.is_of_sizes(where, value.real) and fx_numbers.has_read(value.shadow) and not facts.takes_tensor(where):
        return _with_integers(builder, value)
    return value


def _with_integers(builder: GraphBuilder, value: Value) -> Value:
    shadow, real = value.shadow, value.real
    if isinstance(shadow, RefNode) and isinstance(shadow.state, TensorState):
        return _integer(builder, value) or value
    items: Sequence[Shadow] | None = None
    if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
        items = shadow.state.items
    elif isinstance(shadow, Build) and is_one_of(shadow.cls, tuple, torch.Size):
        items = shadow.items
    if items is None or not is_one_of(type(real), list, tuple, torch.Size) or len(items) != len(real):
        return value
    parts = [_with_integers(builder, Value(part, item)) for part, item in zip(real, items)]
    if all(part.real is before for part, before in zip(parts, real)):
        return value
    return Value(tuple(part.real for part in parts), Build(tuple, tuple(part.shadow for part in parts)))


def _integer(builder: GraphBuilder, value: Value) -> Value | None:
    """The integer that a tensor holds, if it is known."""
    tensor = value.real
    if not is_a(tensor, torch.Tensor) or tensor.dtype not in INTEGERS or torch.Tensor.numel(tensor) != 1:
        return None
    if not constant_tensors.is_fixed(builder.refs, tensor):
        return None
    number, node = int(tensor), builder.node(value.shadow)      # type: ignore[arg-type]
    if not builder.numbers_behind(tensor):
        made: Value | None = Value(number, Const(number))
    else:
        made = _computed(builder, node)
    if made is None or made.real != number:
        return None
    for each in builder.behind((tensor,)):
        each.meta["fails"] = False          # given what it is given on each call
    return made


def _computed(builder: GraphBuilder, operand: Any) -> Value | None:
    """What an operand of the graph is as an integer that is calculated from sizes, or None."""
    if type(operand) is int:
        return Value(operand, Const(operand))
    if not isinstance(operand, fx.Node):
        return None
    sizes = builder.refs.sizes
    if (source := builder.sizes.sources.get(operand)) is not None:
        known = sizes.value(source)
        return None if known is None else Value(known, External(source, known))
    name, kwargs = name_of(operand.target), dict(operand.kwargs)
    if name == "tensor" and len(operand.args) == 1 and not kwargs:
        return _computed(builder, operand.args[0])
    op, rounding = ARITHMETIC.get(name), kwargs.pop("rounding_mode", None)
    if name == "div" and rounding in ("floor", "trunc"):
        op = operator.floordiv
    if op is None or kwargs or len(operand.args) != 2:
        return None
    given = [_computed(builder, arg) for arg in operand.args]
    if given[0] is None or given[1] is None:
        return None
    left, right = given[0], given[1]
    if op is operator.floordiv and not (isinstance(right.shadow, Const) and right.real > 0 and (
            rounding != "trunc" or _is_size(left))):
        return None
    real = op(left.real, right.real)
    if isinstance(left.shadow, Const) and isinstance(right.shadow, Const):
        return Value(real, Const(real))
    return Value(real, builder.refs.computed(op, (left.shadow, right.shadow), real))


def _is_size(number: Value) -> bool:
    """Whether a number is a size itself, which is never negative, or a constant that is not."""
    source = source_of(number.shadow)
    return isinstance(number.shadow, Const) and number.real >= 0 or isinstance(source, Computed) and source.op is _C.size
