"""Tensor operations by what the shapes of their results follow from."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from capture.interp.core.frame import Value
from capture.operators.facts import OpFacts
from capture.operators.schemas import plain_name

ROWS = frozenset({"nonzero", "argwhere"})       # of whose results only the number of rows depends on values


def is_dynamic(facts: OpFacts, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
    """Whether the operation's result has a shape which depends on the values of its arguments."""
    return facts.is_dynamic([a.real for a in args] + [v.real for v in kwargs.values()])


def is_counted(facts: OpFacts, args: Sequence[Value], kwargs: dict[str, Value], operands: Sequence[torch.Tensor],
               maker: Any) -> bool:
    """Whether the shapes of its operands say how many tensors, or dimensions, an operation on tensors returns. maker: the fx target
    that made the first operand. Of rows, only the number depends on values."""
    if facts.drops_dimensions:
        dims = [value.real for value in (*args, *kwargs.values()) if value.real is not operands[0]]
        return dims not in ([1], [-1]) or plain_name(maker) not in ROWS
    given = [value.real for value in (*args[1:], *kwargs.values())]
    return facts.lists_elements and not (facts.splits and any(isinstance(real, (list, tuple)) for real in given))
