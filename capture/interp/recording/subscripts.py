"""Slices of tensors whose bounds change from call to call: where these may lie, and how many elements they take."""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import parts
from capture.refgraph.node import Build, Const, Shadow, source_of
from capture.refgraph.source import Computed, Literal


def length(start: int | None, stop: int | None, step: int | None, size: int) -> int:
    """How many elements a slice of a dimension of this size has."""
    return len(range(*slice(start, stop, step).indices(size)))


def length_at_entry(bounds: Sequence[Shadow], size: int) -> Computed | None:
    """The same as a path, which a guard can check; None where a bound is computed on every call."""
    sources = [source_of(bound) for bound in bounds]
    return None if None in sources else Computed(length, (*sources, Literal(size)))  # type: ignore[arg-type]


def with_known_bounds(shadow: Build, real: Any, pin: Callable[[torch.Tensor], bool]) -> tuple[Build, Any]:
    """A slice, or a tuple with slices in it: a bound that is a tensor becomes a number where its value follows from constants, as
    `pin` tells, and guards."""
    if not is_one_of(shadow.cls, tuple, slice):
        return shadow, real
    items, reals = list(shadow.items), list(parts(real))
    for place, (part, item) in enumerate(zip(shadow.items, reals)):
        if isinstance(part, Build) and part.cls is slice:
            items[place], reals[place] = with_known_bounds(part, item, pin)
        elif shadow.cls is slice and type(item) is torch.Tensor and pin(item):
            reals[place] = operator.index(item)
            items[place] = Const(reals[place])
    if items == list(shadow.items):
        return shadow, real
    return Build(shadow.cls, tuple(items)), slice(*reals) if shadow.cls is slice else tuple(reals)


def is_short(key: Any, tensor: torch.Tensor) -> bool:
    """Whether a subscript has a slice of more of the last elements than there are."""
    key = key if type(key) is tuple else (key,)
    bounds = [(bound, size) for part, size in zip(key, sizes(key, tensor), strict=True) if type(part) is slice and size
              for bound in (part.start, part.stop)]
    return any(type(bound) is int and bound < -size for bound, size in bounds)


def sizes(key: Sequence[Any], tensor: torch.Tensor) -> list[int | None]:
    """For each part of a subscript, the size of the dimension from which it takes elements; None if it takes none, or is a tensor,
    or if that is not simple (there are lists or booleans among the parts)."""
    taken = [_dimensions(part) for part in key]
    dim, found = 0, []
    for part, count in zip(key, taken):
        if count is None:
            return [None] * len(key)
        takes = is_one_of(type(part), int, slice) and dim < tensor.dim()
        found.append(tensor.shape[dim] if takes else None)
        dim += tensor.dim() - sum(filter(None, taken)) if part is Ellipsis else count
    return found


def _dimensions(part: Any) -> int | None:
    """How many dimensions a part of a subscript takes elements from; None if that is not simple."""
    if part is None or part is Ellipsis:
        return 0
    if is_one_of(type(part), int, slice):
        return 1
    if type(part) is torch.Tensor:
        return part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
    return None
