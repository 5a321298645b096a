"""Tensors and other objects of torch's own: where they lie in memory, and what asks for it."""
from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from capture.errors import Break
from capture.refgraph.class_attributes import pin_mro, pin_special
from capture.refgraph.facts import own_names
from capture.refgraph.node import Expr, Shadow
from capture.refgraph.source import Computed, Constant

# Tensors of torch's own classes.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Objects of torch that operations take and change, and of which nothing matters but what they are used for.
HANDLES = (torch.Generator, torch.UntypedStorage)
# What asks for the address of memory, and what may be done with it.
ADDRESSES = frozenset({torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr})
COMPARISONS = frozenset({operator.eq, operator.ne})
# What a subclass of tensors may define without operations on its instances being any others than torch's.
OWN = frozenset(
    "__new__ __init__ __repr__ __module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __slots__ __init_subclass__ "
    "__class_getitem__ __orig_bases__ __parameters__ __static_attributes__ __firstlineno__".split())


def is_plain(cls: type) -> bool:
    """Whether operations on tensors of a class are torch's own, to which it adds attributes and methods of its own at most."""
    return cls in PLAIN_TENSORS or issubclass(cls, torch.Tensor) and all(map(adds_only, additions(cls)))


def additions(cls: type) -> tuple[type, ...]:
    """The classes by which a subclass of tensors differs from torch's own."""
    return tuple(itertools.takewhile(lambda base: base not in PLAIN_TENSORS, type.__getattribute__(cls, "__mro__")))


def adds_only(cls: type) -> bool:
    """Whether a class redefines nothing that tensors have. It may say that operations return tensors of torch's own class."""
    namespace = type.__getattribute__(cls, "__dict__")
    return all(not hasattr(torch.Tensor, name) or name in OWN or value is torch._C._disabled_torch_function_impl
               for name, value in namespace.items())


def is_handle(real: Any) -> bool:
    """Whether an object is one of these, or a node of autograd."""
    return type(real) in HANDLES or issubclass(type(real), torch.autograd.graph.Node)


def is_address(shadow: Shadow) -> bool:
    """Whether a value is the address of a tensor's memory."""
    return type(shadow) is Expr and shadow.op in ADDRESSES


def storage_of(real: torch.Tensor) -> tuple[int, int] | None:
    """Identity of a tensor's storage and its offset there in bytes, or None when it has no single one, or is not plain."""
    if not is_plain(type(real)) or real.layout is not torch.strided or not torch._C._has_storage(real):
        return None
    return real.untyped_storage()._cdata, real.storage_offset() * real.element_size()  # type: ignore[return-value]


def pin_tensor_class(graph: Any, cls: type) -> None:
    """Guards that operations on tensors of a class stay torch's own. Raises Break where they are not."""
    if cls in PLAIN_TENSORS:
        return
    if issubclass(cls, UninitializedTensorMixin):
        raise Break("uninitialized-tensor", f"a {cls.__name__} was used")
    if not is_plain(cls) or graph.is_made(cls):
        raise Break("unsupported-tensor", f"a {cls.__name__} was used")
    pin_mro(graph, cls)
    pin_special(graph, cls, "__torch_function__")
    for added in additions(cls):
        graph.require(Computed(own_names, (Constant(added),)), "VALUE", own_names(added))
