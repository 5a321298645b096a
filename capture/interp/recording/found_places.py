"""Tensors whose elements are in range whatever the graph is given: places that an operation finds along a dimension, truths, and
integers that it bounds."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from capture._C import is_a
from capture.operators.beyond_schemas import BOUNDING, FINDING, REMAINDERS
from capture.operators.facts import OpFacts, facts_of
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.sizes import Size, as_size, product


def bound(node: fx.Node, sizes: Callable[[], Sequence[Size | int]], result: Any) -> tuple[torch.Tensor, Size] | None:
    """The tensor among the results of an operation whose elements are at least 0, and the size that they are less than; None if
    there is none. sizes: tells those of its first argument."""
    facts = facts_of(node.target)
    if not facts.is_of_torch or "out" in node.kwargs:
        return None
    if facts.name in FINDING:
        position = FINDING[facts.name]
        if position is None:
            found = result
        elif is_a(result, tuple) and len(result) > position:
            found = result[position]
        else:
            return None                         # the larger of two tensors, or the largest element of all
        size = _searched(node, facts, sizes())
    else:
        found, size = result, _limit(node, facts, result)
    return None if size is None or type(found) not in PLAIN_TENSORS else (found, size)


def _searched(node: fx.Node, facts: OpFacts, sizes: Sequence[Size | int]) -> Size | None:
    """How many elements an operation has looked through for each place that it returns."""
    at = facts.dim_place
    default = None if facts.name in ("argmax", "argmin") else -1
    dim = default if at is None else node.args[at] if len(node.args) > at else node.kwargs.get("dim", default)
    if "axis" in node.kwargs or not sizes:
        return None
    if dim is None:
        return product(map(as_size, sizes))
    return as_size(sizes[dim]) if type(dim) is int else None


def _limit(node: fx.Node, facts: OpFacts, result: Any) -> Size | None:
    """What all elements of the result are less than, because it holds truths or follows from numbers that stay as they are."""
    if type(result) not in PLAIN_TENSORS or result.is_floating_point() or result.is_complex():
        return None
    if result.dtype is torch.bool:      # memory that was not written to, or written to as another type, may hold anything
        return as_size(2) if facts.is_pointwise else None
    args, name = node.args, facts.name
    if name == "randperm":
        return as_size(args[0]) if args and type(args[0]) is int else None
    if name == "randint":
        low, high = args[:2] if len(args) > 1 and not isinstance(args[1], (tuple, list)) else (0, *args[:1], None)[:2]
        return as_size(high) if type(low) is type(high) is int and low >= 0 and "high" not in node.kwargs else None
    if not args or not isinstance(args[0], fx.Node):
        return None
    if name in BOUNDING:
        least, most = (args[at] if len(args) > at else node.kwargs.get(key) for at, key in ((1, "min"), (2, "max")))
        return as_size(most + 1) if type(least) is int and type(most) is int and 0 <= least <= most else None
    if name in REMAINDERS and len(args) == 2:
        divisor = args[1]
        return as_size(divisor) if type(divisor) is int and 0 < divisor <= torch.iinfo(result.dtype).max else None
    return None


def is_less(bounded: Size, rows: Size) -> bool:
    """Whether places below the one size are always below the other."""
    difference = (rows - bounded).constant
    return difference is not None and difference >= 0
