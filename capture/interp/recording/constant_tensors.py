"""Tensors whose values follow from constants: `torch.tensor([4, 2])`, `torch.linspace(0, 1, n)`. What they hold may be read, and
may decide, as if it were a constant itself. What follows from numbers that tensors from outside hold too (`self.count == 0`) may
decide, for then these numbers are guarded."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from capture.refgraph.graph import RefGraph
from capture.refgraph.memory import PLAIN_TENSORS, storage_of
from capture.refgraph.node import RefNode, TensorState
from capture.refgraph.source import Computed

# Operations whose shapes, and whose second result, follow from this operand's values alone.
LENGTHS = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}
MOST_READ = 1 << 16     # elements that a guard computes again, in some 20 microseconds


def is_fixed(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor follow from constants, as they are now."""
    node = refs.find(tensor)
    if node is None or type(node.state) is not TensorState or not node.state.constant or None in refs.written:
        return False
    storage = storage_of(tensor)
    return storage is not None and storage[0] not in refs.written


def number_in(tensor: torch.Tensor) -> bool | int | float:
    """What a tensor of one element holds."""
    return tensor.item()


def path_of_number(node: RefNode) -> Computed:
    """The path to what a tensor from outside of one element holds."""
    return Computed(number_in, (node.source,))


def holds_one_number(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether a tensor from outside holds one number, and what it has held since entry."""
    storage = storage_of(tensor)
    return tensor.numel() == 1 and _is_readable(refs, tensor) and storage is not None and (
        None not in refs.written and storage[0] not in refs.written)


def _is_readable(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether a guard may read a tensor from outside: it holds one number, or a few integers, such as a mask."""
    if type(tensor) not in PLAIN_TENSORS or tensor.device.type != "cpu" or tensor.is_complex():
        return False
    if tensor.numel() != 1 and tensor.is_floating_point():
        return False
    node = refs.find(tensor)
    return (node is not None and type(node.state) is TensorState and node.source is not None and not node.state.dynamic
            and node.state.storage is not None)


def is_recomputable(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor follow from constants and from what tensors held at entry that guards may read, as far as is
    known of the memory it lies in."""
    node, storage = refs.find(tensor), storage_of(tensor)
    if node is None or type(node.state) is not TensorState or storage is None or None in refs.written:
        return False
    if refs.written.get(storage[0]) != refs.recomputable.get(storage[0]):
        return False
    return node.state.constant or torch.Tensor.numel(tensor) <= MOST_READ and (
        node.state.recomputable or _is_readable(refs, tensor))


def tenants(refs: RefGraph, storage: int) -> list[RefNode]:
    """The tensors from outside that lie in a storage."""
    return [node for node in refs.nodes if node.source is not None and type(node.state) is TensorState
            and node.state.storage is not None and node.state.storage[0] == storage]


def deciding(name: str, args: Sequence[Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands, of all `tensors` among `args`, on whose values the shape of the result of ATen's operator of a name depends."""
    place = LENGTHS.get(name)
    return tensors if place is None else [arg.real for arg in args[place:place + 1]]
