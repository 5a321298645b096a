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

# What makes a tensor of nothing but numbers, and is the same each time.
FACTORIES = frozenset("""
    tensor as_tensor asarray scalar_tensor arange range linspace logspace zeros ones full eye tril_indices triu_indices hann_window
    hamming_window bartlett_window blackman_window kaiser_window""".split())
# What computes new tensors of tensors, writes to none, and draws no random numbers.
OPERATIONS = frozenset("""
    abs add all amax amin and any argmax argmin argsort atan2 bool broadcast_tensors broadcast_to bucketize cat ceil chunk clamp
    clip clone concat contiguous cos cumprod cumsum deepcopy detach diag diagonal diff div double eq exp expand expand_as flatten
    flip float floor floor_divide floordiv fmod full_like gather ge getitem gt half index_select int int32 int64 invert
    is_all_true isfinite isin isinf isnan kron le log log10 log2 logical_and logical_not logical_or logical_xor long lt
    masked_fill masked_select matmul max maximum mean meshgrid min minimum mm mod movedim mul narrow ne neg new_full new_ones
    new_tensor new_zeros nonzero norm ones_like or outer permute pow prod reciprocal remainder repeat repeat_interleave reshape
    roll round rsqrt rsub select sigmoid sign sin softmax sort split sqrt square squeeze stack std sub sum swapaxes t take tan
    tanh tile to topk transpose tril triu true_divide truediv trunc type type_as unbind unfold unique unique_consecutive
    unsqueeze var view view_as where xor zeros_like""".split())
# What changes a tensor and does no more than compute, besides those of these names that do so in place.
CHANGING = frozenset("copy fill iadd iand ifloordiv imod imul ior ipow isub itruediv ixor setitem zero".split())
# Operations whose shapes, and whose second result, follow from this operand's values alone.
LENGTHS = {"pack_padded_sequence": 1, "pad_packed_sequence": 1}


def is_fixed(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor follow from constants, as they are now."""
    node = refs.find(tensor)
    if node is None or type(node.state) is not TensorState or not node.state.fixed or None in refs.written:
        return False
    storage = storage_of(tensor)
    return storage is not None and storage[0] not in refs.written


def number_in(tensor: torch.Tensor) -> bool | int | float:
    """What a tensor of one element holds."""
    return tensor.item()


def path_of_number(node: RefNode) -> Computed:
    """The path to what a tensor from outside of one element holds."""
    return Computed(number_in, (node.source,))


def holds_number(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether a tensor from outside holds one number, and what it has held since entry."""
    storage = storage_of(tensor)
    return _held_number(refs, tensor) and storage is not None and None not in refs.written and storage[0] not in refs.written


def _held_number(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether a tensor from outside held one number at entry."""
    if type(tensor) not in PLAIN_TENSORS or tensor.numel() != 1 or tensor.device.type != "cpu" or tensor.is_complex():
        return False
    node = refs.find(tensor)
    return (node is not None and type(node.state) is TensorState and node.source is not None and not node.state.dynamic
            and node.state.storage is not None)


def is_told(refs: RefGraph, tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor follow from constants and from numbers that tensors held at entry, as far as is known of
    the memory it lies in."""
    node, storage = refs.find(tensor), storage_of(tensor)
    if node is None or type(node.state) is not TensorState or storage is None or None in refs.written:
        return False
    if refs.written.get(storage[0]) != refs.told.get(storage[0]):
        return False
    return node.state.fixed or node.state.told or _held_number(refs, tensor)


def tenants(refs: RefGraph, storage: int) -> list[RefNode]:
    """The tensors from outside that lie in a storage."""
    return [node for node in refs.nodes if node.source is not None and type(node.state) is TensorState
            and node.state.storage is not None and node.state.storage[0] == storage]


def deciding(name: str, args: Sequence[Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands, of all `tensors` among `args`, on whose values the shape of the result of an operation depends."""
    place = LENGTHS.get(name)
    return tensors if place is None else [arg.real for arg in args[place:place + 1]]


def computes(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether the result of an operation of this name, or what it writes, is fixed if its operands are."""
    return (name in FACTORIES or name in OPERATIONS or name in CHANGING) and "out" not in kwargs
