"""Arrays and numbers of numpy: what they hold, for guards, and tensors on the memory of arrays.

Numpy is not imported: where the program has not, there are none. What guards call sees for itself that it is given these.
"""
from __future__ import annotations

import sys
from typing import Any

import torch

from capture._C import is_a
from capture.refgraph.lookup import module_of, mro_of, name_of

LARGEST = 1 << 16           # bytes of an array whose content a guard compares
PLAIN_KINDS = "biufcSU"     # of elements which bytes tell all of
from_numpy = torch.from_numpy       # torch's own, whatever the program puts in its place


def is_value(x: Any) -> bool:
    """Whether an object is an array, a flat view or a number of numpy's own classes, which holds no objects of Python."""
    cls = type(x)
    if module_of(cls) != "numpy" or not any(name_of(base) in ("ndarray", "generic", "flatiter") for base in mro_of(cls)):
        return False
    return not (x if hasattr(x, "dtype") else x.base).dtype.hasobject


def is_array(x: Any) -> bool:
    """Whether a value of numpy is an array, rather than a number."""
    return any(name_of(base) in ("ndarray", "flatiter") for base in mro_of(type(x)))


def is_ndarray(x: Any) -> bool:
    """Whether an object is an array of numpy's own class, and of no subclass."""
    return name_of(type(x)) == "ndarray" and module_of(type(x)) == "numpy"


def is_all_content(x: Any) -> bool:
    """Whether `content` says all about an object: an array of numpy's own class, or a number."""
    return is_value(x) and (is_ndarray(x) or not is_array(x)) and x.dtype.kind in PLAIN_KINDS


def is_finite(x: Any) -> bool:
    """Whether there is no infinity and no NaN in an array or number of numpy."""
    return x.dtype.kind not in "fc" or bool(sys.modules["numpy"].isfinite(x).all())


def is_single_dtype(x: Any) -> bool:
    """Whether numpy has this dtype of its own once: neither byte-swapped, nor of a given length, nor with metadata."""
    return sys.modules["numpy"].dtype(x.char) is x


def layout(x: Any) -> tuple[Any, ...]:
    """Type, sizes and strides (in bytes) of the elements of an array. Raises TypeError for other objects."""
    if not is_ndarray(x):
        raise TypeError("no array of numpy's own class")
    return x.dtype.str, x.shape, x.strides


def content(x: Any) -> tuple[Any, ...]:
    """What an array or number is, bit for bit. Raises TypeError for what `is_all_content` does not hold for."""
    if not is_all_content(x):
        raise TypeError("neither an array of plain elements nor a number of numpy's own classes")
    return x.dtype.str, x.shape, x.strides, x.tobytes()


def copied(x: Any) -> Any:
    """An array with the same elements in the same order, on memory of its own."""
    copy = x.copy("K")
    copy.flags.writeable = x.flags.writeable
    return copy


def place_in(view: Any, owner: Any) -> tuple[Any, ...]:
    """Where a view lies in the array that it is a view of: what `view_on` makes it of."""
    start = view.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return start if view.size else 0, view.shape, view.strides, view.dtype, view.flags.writeable


def view_on(start: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, writeable: bool, owner: Any) -> Any:
    """A view on an array, so many bytes from its start. Raises TypeError for other objects."""
    if not is_ndarray(owner):
        raise TypeError("no array of numpy's own class")
    view = type(owner)(shape, dtype, owner.ravel("K"), start, strides)
    view.flags.writeable = writeable
    return view


def plain_number(x: Any) -> Any:
    """The number of Python that a number of numpy is. Raises TypeError for other objects."""
    if not is_value(x) or is_array(x):
        raise TypeError("no number of numpy's own classes")
    return x.item()


def is_scalar_of_torch(x: Any) -> bool:
    """Whether torch takes a number of numpy for the number of Python that it is: one of 64 bits without a sign, a complex one and a
    truth mean something else to some operations."""
    return is_value(x) and not is_array(x) and (x.dtype.kind in "if" or x.dtype.kind == "u" and x.dtype.itemsize < 8)


def scalar_of_torch(x: Any) -> Any:
    """The number of Python that torch takes a number of numpy's for. Raises TypeError for other objects."""
    if not is_scalar_of_torch(x):
        raise TypeError("no number of numpy's that is one of torch's")
    return x.item()


def tensor_on(array: Any, number: int) -> torch.Tensor:
    """`torch.from_numpy(array)`, a new tensor on the memory of the array, the one of this number that a call makes."""
    if not is_ndarray(array):
        raise TypeError("no array of numpy's own class")
    return from_numpy(array)


def array_on(tensor: torch.Tensor, number: int) -> Any:
    """`tensor.detach().numpy()`, a new array on the memory of the tensor, the one of this number that a call makes."""
    return tensor.detach().numpy()


def is_same_memory(tensor: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Whether two dense tensors are the same elements in memory."""
    return tensor is not None and tensor.layout is other.layout is torch.strided and tensor.data_ptr() == other.data_ptr() and (
        tensor.dtype, tensor.device, tensor.shape, tensor.stride()) == (other.dtype, other.device, other.shape, other.stride())


def overlaps(array: Any, tensor: torch.Tensor) -> bool:
    """Whether an array may share memory with a tensor's storage."""
    spans = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    first = array.__array_interface__["data"][0]
    start, end = first + sum(span for span in spans if span < 0), first + sum(span for span in spans if span > 0) + array.itemsize
    storage = tensor.untyped_storage()
    return array.size > 0 and start < storage.data_ptr() + storage.nbytes() and storage.data_ptr() < end


def is_apart(array: Any, tensor: Any) -> bool:
    """Whether an array shares no memory with a tensor."""
    if not (is_ndarray(array) and is_a(tensor, torch.Tensor)):
        raise TypeError("no array and tensor")
    return not overlaps(array, tensor)
