"""fx graphs whose source code does what their nodes do: fx writes a negative number to the power of `x` as `-1 ** x`, which is
`-(1 ** x)`."""
from __future__ import annotations

import operator
from typing import Any

from torch import fx

from capture._C import Classes

SIGNED = Classes((int, float, complex))


class PrintableGraph(fx.Graph):
    """A graph in which such a power is a call of `pow`."""

    def create_node(self, op: str, target: Any, args: tuple[Any, ...] | None = None, *others: Any, **named: Any) -> fx.Node:
        if target is operator.pow and args and type(args[0]) in SIGNED and repr(args[0]).startswith("-"):
            target = pow
        return super().create_node(op, target, args, *others, **named)
