"""What tensors are asked that is no operation: properties, which follow from no values, and the values themselves."""
from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import torch


class Property(enum.Flag):
    """What is known of the answer to a question about a tensor. FIXED: it is the same whatever its shape is. UNGUARDED: no guard on
    a tensor tells it. TRUTH: it is True or False. ANY: anything may be asked so, not only a tensor."""

    PLAIN = 0
    FIXED = enum.auto()
    UNGUARDED = enum.auto()
    TRUTH = enum.auto()
    ANY = enum.auto()


# By the names of methods, attributes and functions: of each the answer is a constant of the trace, unless said otherwise.
PROPERTIES: dict[str, Property] = {name: kind for kind, names in {
    Property.PLAIN: """
        size numel nelement stride shape len __len__ nbytes dim_order names name broadcast_shapes sparse_dim dense_dim
        _has_compatible_shallow_copy_type _parse_to""",
    Property.FIXED: """
        dim ndim ndimension element_size itemsize dtype device layout requires_grad get_device is_leaf result_type can_cast
        promote_types is_floating_point is_complex is_signed is_conj is_neg is_inference is_cuda is_cpu is_mps is_xpu is_meta
        is_sparse is_sparse_csr is_quantized is_nested type""",
    Property.FIXED | Property.ANY: "is_tensor",
    Property.TRUTH: """
        is_contiguous is_non_overlapping_and_dense is_same_size is_mkldnn is_vulkan is_maia is_ipu is_xla is_mtia is_distributed
        has_names _is_zerotensor""",
    Property.TRUTH | Property.ANY: "is_storage",
    Property.TRUTH | Property.UNGUARDED: "is_pinned is_shared retains_grad _is_view",
    Property.UNGUARDED: "storage_offset",
}.items() for name in names.split()}

# Attributes that are views, and nothing but tensors.
VIEWS = frozenset("T mT H mH real imag".split())

# What reads a number or a truth out of a tensor …
SCALAR_READERS = frozenset("item __int__ __float__ __complex__ __bool__ __index__ equal allclose is_nonzero".split())
# … as Python's functions and methods of tensors do, and what does the same to the number.
NUMBER_READERS: dict[Callable[..., Any], Callable[..., Any] | None] = {
    torch.Tensor.item: None, int: int, torch.Tensor.__int__: int, float: float, torch.Tensor.__float__: float,
    operator.index: operator.index, torch.Tensor.__index__: operator.index,
    bool: operator.truth, operator.truth: operator.truth, torch.Tensor.__bool__: operator.truth, operator.not_: operator.not_}
# … or text or lists, which a copy would give as well …
REPEATABLE_READERS = SCALAR_READERS | frozenset("tolist __repr__ __str__ __format__".split())
# … or asks for its memory or identity, or hands its values to others.
READERS = REPEATABLE_READERS | frozenset("""
    numpy __contains__ __array__ data_ptr storage __reduce_ex__ __deepcopy__ __dlpack__ __hash__ cpu_data""".split())


def has(name: str, kind: Property) -> bool:
    """Whether a property is known to be of a kind."""
    return kind in PROPERTIES.get(name, Property.PLAIN)
