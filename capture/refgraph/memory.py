"""Tensors, storages and autograd nodes: where they lie in memory, and which classes override what torch does with them."""
from __future__ import annotations

import itertools
import operator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from capture._C import is_a
from capture.errors import Break
from capture.refgraph.class_attributes import pin_mro, pin_special
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import instance_dict, is_heap_type, lookup_class, name_of
from capture.refgraph.node import Expr, Shadow
from capture.refgraph.source import Computed, Constant
from capture.refgraph.state_queries import own_names

# Tensors of torch's own classes.
PLAIN_TENSORS = Classes((torch.Tensor, torch.nn.Parameter))
# What torch's own class answers: under these names a derived one may have code, which is none of ours to run, and which may fail.
device_of, layout_of, version_of, requires_grad_of = (
    getattr(torch.Tensor, name).__get__ for name in ("device", "layout", "_version", "requires_grad"))
# `as_subclass(tensor, cls)`: the tensor as one of another class. Asks no `__torch_function__`.
as_subclass = torch._C.TensorBase.as_subclass
# Objects of torch that operations take and change, and of which nothing matters but what they are used for.
HANDLES = Classes((torch.Generator, torch.UntypedStorage))
_HANDLES_OF_C: dict[int, bool] = {}     # by the identity of a class of C's, which lives as long as the process
DISABLED = torch._C._disabled_torch_function_impl       # the `__torch_function__` of a class that has no say
# What asks for the address of memory, and what may be done with it.
ADDRESSES = frozenset({torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr})
COMPARISONS = frozenset({operator.eq, operator.ne})
# What a subclass of tensors may define without operations on its instances being any others than torch's.
OWN = frozenset(
    "__new__ __init__ __repr__ __module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __slots__ __init_subclass__ "
    "__class_getitem__ __orig_bases__ __parameters__ __static_attributes__ __firstlineno__".split())


def is_plain_class(cls: type) -> bool:
    """Whether tensors of a class hold their values as torch's own do: the class has no `__torch_dispatch__`, and is not that of a
    lazy module (whose tensors have no values). It may have `__torch_function__`."""
    return cls in PLAIN_TENSORS or issubclass(cls, torch.Tensor) and not issubclass(cls, UninitializedTensorMixin) and (
        lookup_class(cls, "__torch_dispatch__") is torch._C._disabled_torch_dispatch_impl)


def hides_methods(tensor: torch.Tensor) -> bool:
    """Whether a tensor has attributes of its own under names of Tensor's methods: it would answer our own questions by them."""
    return any(type(name) is not str or lookup_class(torch.Tensor, name) is not None for name in instance_dict(tensor) or ())


def is_overriding(cls: type) -> bool:
    """Whether operations on tensors of a class may differ from torch's own, or the class adds more than attributes and methods; for
    other classes, whether they have `__torch_function__`."""
    if cls in PLAIN_TENSORS:
        return False
    if issubclass(cls, torch.Tensor):
        return not all(map(adds_only, additions(cls)))
    return lookup_class(cls, "__torch_function__", DISABLED) is not DISABLED


def asking_nobody(cls: type) -> AbstractContextManager[Any]:
    """A context in which our own questions about a tensor call no `__torch_function__` of its class."""
    return nullcontext() if cls in PLAIN_TENSORS else torch._C.DisableTorchFunction()


def additions(cls: type) -> tuple[type, ...]:
    """The classes by which a subclass of tensors differs from torch's own."""
    return tuple(itertools.takewhile(lambda base: base not in PLAIN_TENSORS, type.__getattribute__(cls, "__mro__")))


def adds_only(cls: type) -> bool:
    """Whether a class redefines no attribute of Tensor. It may have operations return plain tensors."""
    namespace = type.__getattribute__(cls, "__dict__")
    return all(not hasattr(torch.Tensor, name) or name in OWN or value is DISABLED for name, value in namespace.items())


def is_handle(real: Any) -> bool:
    """Whether an object is a generator, a storage or a node of autograd. (`issubclass` of torch's abstract class would hash the
    class.)"""
    cls = type(real)
    if is_heap_type(cls):
        return cls in HANDLES or issubclass(cls, BackwardCFunction)
    known = _HANDLES_OF_C.get(id(cls))
    if known is None:
        known = _HANDLES_OF_C[id(cls)] = cls in HANDLES or cls is getattr(torch._C._functions, name_of(cls), None)
    return known


def is_address(shadow: Shadow) -> bool:
    """Whether a value is the address of a tensor's memory."""
    return type(shadow) is Expr and shadow.op in ADDRESSES


def storage_of(real: torch.Tensor) -> tuple[int, int] | None:
    """Identity of a tensor's storage and its offset there in bytes, or None when it has no single one, or is not plain."""
    if not is_plain_class(type(real)):
        return None
    with asking_nobody(type(real)):
        if layout_of(real) is not torch.strided or not torch._C._has_storage(real):
            return None
        offset = torch.Tensor.storage_offset(real) * torch.Tensor.element_size(real)
        return torch.Tensor.untyped_storage(real)._cdata, offset  # type: ignore[return-value]


def storage_id(real: torch.Tensor) -> int | None:
    """The identity alone."""
    return (storage_of(real) or (None,))[0]


def held_storage(real: torch.Tensor) -> StorageWeakRef | None:
    """A weak reference to a tensor's storage: as long as it lives, no other storage has that identity (`cdata`)."""
    if storage_of(real) is None:
        return None
    with asking_nobody(type(real)):
        return StorageWeakRef(torch.Tensor.untyped_storage(real))


def gradient_of(tensor: Any) -> Any:
    """The gradient of a tensor, without `__torch_function__`. Raises TypeError for other objects."""
    if not is_a(tensor, torch.Tensor):
        raise TypeError("no tensor")
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.grad


def pin_tensor_class(graph: Any, cls: type) -> None:
    """Guards which attributes of Tensor the class overrides. Raises Break for a class whose tensors are not plain."""
    if cls in PLAIN_TENSORS:
        return
    if issubclass(cls, UninitializedTensorMixin):
        raise Break("uninitialized-tensor", f"a {cls.__name__} was used")
    if not is_plain_class(cls) or graph.is_made(cls):
        raise Break("unsupported-tensor", f"a {cls.__name__} was used")
    if is_overriding(cls):
        graph.note_overriding()
    pin_mro(graph, cls)
    pin_special(graph, cls, "__torch_function__")
    for added in additions(cls):
        graph.require(Computed(own_names, (Constant(added),)), "VALUE", own_names(added))


def size_of(tensor: torch.Tensor) -> int:
    """The bytes that its elements take."""
    return torch.Tensor.numel(tensor) * torch.Tensor.element_size(tensor)
