"""What a graph writes to outside tensors, and whether copies made before it runs could undo that."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd import forward_ad

from capture._C import is_a
from capture.refgraph.memory import requires_grad_of, storage_id, storage_of
from capture.refgraph.node import RefNode

MOST_BYTES = 1 << 20    # copied on a hit: as long as it takes to write them


@dataclass(frozen=True, slots=True)
class Overwritten:
    """inputs: those of the graph that hold what was written to, and how many bytes they reach over; 0 where only versions count on.
    for_good: something was changed that copies of them do not bring back."""

    inputs: Mapping[RefNode, int] = field(default_factory=dict)
    for_good: bool = False

    @property
    def bytes(self) -> int:
        """How much is to be copied."""
        return sum(self.inputs.values())

    def beyond_recall(self) -> Overwritten:
        """The same, and something that was changed for good."""
        return self if self.for_good else replace(self, for_good=True)

    def adding(self, written: Iterable[torch.Tensor], inputs: Iterable[RefNode],
               find: Callable[[Any], RefNode | None], keeps_values: bool = False) -> Overwritten:
        """The same, and tensors that were written to just now. inputs: of the graph; find: the node of an object. keeps_values:
        they hold what they held."""
        if self.for_good:
            return self
        found = dict(self.inputs)
        for tensor in written:
            holder = None if is_followed(tensor) else holder_of(tensor, inputs, find)
            if holder is None:
                return self.beyond_recall()
            found[holder] = found.get(holder, 0) if keeps_values else len(reach(holder.real))
        return replace(self, inputs=found)


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether autograd has noted that a tensor was written to."""
    return requires_grad_of(tensor) and torch.is_grad_enabled() or forward_ad._current_level >= 0


def holder_of(tensor: torch.Tensor, inputs: Iterable[RefNode], find: Callable[[Any], RefNode | None]) -> RefNode | None:
    """The input of a graph in whose memory a tensor lies: the smallest, or itself. None where there is none."""
    place = storage_of(tensor)
    if place is None:
        return None
    own = find(tensor)
    around = [node for node in inputs if node.state.storage is not None and node.state.storage[0] == place[0]]
    if own is not None and any(node is own for node in around):
        return own
    extent = reach(tensor)
    holders = [node for node in around if is_a(node.real, torch.Tensor) and is_within(extent, reach(node.real))]
    return min(holders, key=lambda node: len(reach(node.real)), default=None)


def reach(tensor: torch.Tensor) -> range:
    """The bytes of its storage between a tensor's first element and the end of its last."""
    size = torch.Tensor.element_size(tensor)
    start = torch.Tensor.storage_offset(tensor) * size
    if torch.Tensor.numel(tensor) == 0:
        return range(start, start)
    dims = zip(torch.Tensor.size(tensor), torch.Tensor.stride(tensor), strict=True)
    return range(start, start + size * (1 + sum((n - 1) * stride for n, stride in dims)))


def meets_another(tensor: torch.Tensor, operands: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor among operands may lie, in part, where another of these does: a running mean that is the variance, too."""
    storage, own = storage_of(tensor), reach(tensor)
    if storage is None:
        return False
    near = [reach(other) for other in operands if storage_id(other) == storage[0]]
    return sum(other.start < own.stop and own.start < other.stop for other in near) > 1


def is_within(inner: range, outer: range) -> bool:
    """Whether one stretch of memory is part of another."""
    return not inner or outer.start <= inner.start and inner.stop <= outer.stop
