"""Python numbers among the inputs of a graph: the tensors that compiled code takes in their place, and which numbers it accepts."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import fx

from capture.backends.native.job import TensorSpec

DTYPES = {int: torch.int64, float: torch.float64}               # of the tensor that stands for a number
LIMITS = {float: torch.finfo(torch.float32).max, int: 2**63 - 1}


@dataclass(frozen=True, slots=True)
class Domain:
    """Numbers that an operation treats alike: from `least` on, but for those `apart`; NaN among them if `nan`. Of more than `most`,
    positive or negative, only infinities."""

    least: float = -inf
    most: float = inf
    apart: frozenset[float] = frozenset()
    nan: bool = True

    def __and__(self, other: Domain) -> Domain:
        return Domain(max(self.least, other.least), min(self.most, other.most), self.apart | other.apart, self.nan and other.nan)

    def holds(self, value: int | float) -> bool:
        if value != value:
            return self.nan
        return value >= self.least and value not in self.apart and (abs(value) <= self.most or abs(value) == inf)


ALL = Domain()


def fits(value: int | float, domain: Domain = ALL) -> bool:
    """Whether compiled code takes a number: a very great one may overflow, which is an error in some operations alone."""
    representable = abs(value) <= LIMITS[type(value)] or value != value or value in (inf, -inf)
    return representable and domain.holds(value)


def put_in(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> list[fx.Node]:
    """Puts numbers in the places of nodes, which stay, and returns the nodes that took these."""
    taking = [node for node in graph.nodes if not values.keys().isdisjoint(node.all_input_nodes)]
    for node in taking:
        node.args, node.kwargs = (fx.node.map_arg(value, lambda arg: values.get(arg, arg)) for value in (node.args, node.kwargs))
    return taking


def spec_of(cls: type) -> TensorSpec:
    """What stands for a number of this type."""
    return replace(TensorSpec.of(torch.empty((), dtype=DTYPES[cls], device="cpu")), number=True)
