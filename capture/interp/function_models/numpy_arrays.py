"""Arrays of numpy that become tensors, on their memory or as copies, and tensors that become arrays."""
from __future__ import annotations

import functools
import inspect
import sys
import warnings
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model, polyfill
from capture.interp.core.special import special_method
from capture.interp.function_models.shadows import depend_type, items_of
from capture.interp.function_models.torch_legacy import LEGACY
from capture.interp.recording import graph_arrays, may_raise
from capture.interp.recording.arrays import is_drawn, is_kind
from capture.refgraph import ndarrays
from capture.refgraph.identical import LISTS, items_in_c
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.ndarrays import is_array, is_ndarray, is_value
from capture.refgraph.node import Const, RefNode, Shadow


def shared(array: Any) -> torch.Tensor:
    """`torch.from_numpy(array)`."""
    return ndarrays.from_numpy(array)


def not_shareable(interp: Interpreter, array: Value) -> Break | None:
    """Why an array cannot become a tensor in this trace."""
    if graph_arrays.can_become_tensor(interp.recorder, array):
        return None
    return interp.recorder.arrays.unshareable(interp.graph, array.shadow, array.real)


@model(shared, refuses=not_shareable)
def share(interp: Interpreter, result: torch.Tensor, array: Value) -> Shadow:
    """A tensor on the memory of an array: of one from outside it is a tensor from outside."""
    node: RefNode = array.shadow  # type: ignore[assignment]
    if graph_arrays.can_become_tensor(interp.recorder, array):
        may_raise.may_raise(interp)
        return graph_arrays.share(interp.recorder, array, result)
    if node.source is not None or is_drawn(node):
        return interp.recorder.arrays.tensor(interp.recorder, node, result)
    return interp.recorder.record("call_function", ndarrays.from_numpy, [array], {}, result, {})


def is_writeable(data: Any) -> bool:
    """Whether an array becomes a tensor without a warning."""
    return is_ndarray(data) and data.flags.writeable


@polyfill(torch.from_numpy, applies=is_ndarray)
def from_numpy(array: Any) -> torch.Tensor:
    """`torch.from_numpy(array)`."""
    return shared(array)


@polyfill(torch.tensor, applies=lambda data, *, dtype=None, device=None, requires_grad=False: is_writeable(data))
def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    """`torch.tensor(array)`: a copy."""
    device = torch.get_default_device() if device is None else device
    result = shared(data).to(device=device, dtype=dtype, copy=True)
    return result.requires_grad_() if requires_grad else result


@polyfill(torch.Tensor.new_tensor, applies=lambda self, data, dtype=None, device=None, requires_grad=False: is_writeable(data))
def new_tensor(self: torch.Tensor, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    """`tensor.new_tensor(array)`: a copy, of the tensor's own type."""
    device = self.device if device is None else device
    result = shared(data).to(device=device, dtype=self.dtype if dtype is None else dtype, copy=True)
    return result.requires_grad_() if requires_grad else result


@polyfill(torch.as_tensor, applies=lambda data, dtype=None, device=None: is_writeable(data))
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """`torch.as_tensor(array)`: on the same memory, where that is possible."""
    return shared(data).to(device=torch.get_default_device() if device is None else device, dtype=dtype)


def constructor(cls: Any, dtype: torch.dtype | None) -> None:
    """Registers what a class of tensors of old makes of an array: it is on the same memory if it is of the same type."""
    @polyfill(cls, applies=lambda data: is_writeable(data) and data.ndim > 0)
    def make(data: Any) -> torch.Tensor:
        return shared(data).to(dtype=torch.get_default_dtype() if dtype is None else dtype)


for _cls, _dtype in LEGACY.items():
    constructor(_cls, _dtype)


# -- numbers -----------------------------------------------------------------------------------------------------------

def holds_number_of_numpy(data: Any) -> bool:
    """Whether data from which torch makes a tensor holds a number of numpy: the tensor then has the number's type, unlike with one
    of Python."""
    return any(map(holds_number_of_numpy, items_in_c(data))) or is_value(data) and not is_array(data)


def type_of(data: Any) -> torch.dtype:
    """The type of a tensor that torch makes of such data. A model gives its shadow."""
    if is_a(data, (list, tuple)):
        return functools.reduce(torch.promote_types, map(type_of, data)) if data else torch.get_default_dtype()
    return data.dtype if is_a(data, torch.Tensor) else torch.tensor(data).dtype


@model(type_of)
def tell_type(interp: Interpreter, result: torch.dtype, data: Value) -> Shadow:
    """What follows from the types of all numbers."""
    depend_type(interp, data)
    if is_a(data.real, (list, tuple)):
        for shadow, item in zip(items_of(interp, data), data.real, strict=True):
            tell_type(interp, result, Value(item, shadow))
    return Const(result)


def keeps_types(function: Any) -> None:
    """Registers what a function makes of numbers of numpy: the graph is given such as numbers of Python, and the type with them."""
    @polyfill(function, applies=lambda data, *, dtype=None, **named: dtype is None and holds_number_of_numpy(data))
    def make(data: Any, *, dtype: Any = None, **named: Any) -> torch.Tensor:
        return function(data, dtype=type_of(data), **named)


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    keeps_types(_function)


# -- arrays of tensors -------------------------------------------------------------------------------------------------

TO_ARRAY = torch.Tensor.__array__
ORDERS = ("K", "A", "C", "F")
MOST_DIMENSIONS = 33        # that all versions of numpy take
numpy: Any = sys.modules.get("numpy")


def warning_of_copies() -> str:
    """What numpy warns of when it makes a copy of what its object gives as an array, and that cannot be told to copy: since 2.0."""
    class Given:
        def __array__(self, dtype: Any = None) -> Any:
            return numpy.empty(0)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        numpy.array(Given())
    return str(told[0].message) if told else ""


def array_of(tensor: torch.Tensor, dtype: Any, copies: bool) -> Any:
    """The array that numpy gets of a tensor which it is given."""
    if copies and CANNOT_COPY:
        warnings.warn(CANNOT_COPY, DeprecationWarning, stacklevel=1)
    ask = special_method(tensor, "__array__")
    if getattr(ask, "__func__", None) is TO_ARRAY:        # of which a graph holds the call of `numpy`
        return tensor.numpy()
    array = ask() if dtype is None else ask(numpy.dtype(dtype))
    if not is_a(array, numpy.ndarray):
        raise ValueError("object __array__ method not producing an array")
    return array


def is_kind_of_numpy(dtype: Any) -> bool:
    """Whether this says of which type an array is to be: None, a type, or its name. Raises TypeError if numpy knows none of that
    name."""
    return dtype is None or is_kind(dtype) or type(dtype) is str and numpy.dtype(dtype) is not None


def of_tensor(function: Any, *names: str) -> None:
    """Registers what a function of numpy, with keywords `names`, makes of a tensor: what it makes of its array. What it refuses is
    left to it: it warns of nothing then."""
    default = True if function is numpy.array else None

    def applies(a: Any, dtype: Any = None, **named: Any) -> bool:
        copies, order, dimensions = (named.get(name, usual) for name, usual in (("copy", default), ("order", "K"), ("ndmin", 0)))
        known = type(order) is str and order in ORDERS and type(dimensions) is int and dimensions in range(MOST_DIMENSIONS)
        return type(a) in PLAIN_TENSORS and known and named.keys() <= set(names) and is_kind_of_numpy(dtype) and (
            copies is None or copies is True and type(a).__array__ is TO_ARRAY and not TOLD_TO_COPY)

    @polyfill(function, applies=applies)
    def make(a: Any, dtype: Any = None, **named: Any) -> Any:
        array = array_of(a, dtype, bool(named.get("copy", default)))
        return function(array, **named) if dtype is None else function(array, dtype, **named)


def is_kind_of_number(dtype: Any) -> bool:
    """Whether numpy makes numbers of a list for such a type, or for none. For objects, texts and bytes it takes the items
    themselves, or what they are as text. Raises TypeError if it knows none of this name."""
    return dtype is None or numpy.dtype(dtype).kind in "biufc"


def of_tensors(function: Any) -> None:
    """Registers what a function of numpy makes of a list of tensors: what it makes of their arrays."""
    def applies(a: Any, *args: Any, **named: Any) -> bool:
        tensors = type(a) in LISTS and bool(a) and all(type(item) in PLAIN_TENSORS and not item.requires_grad for item in a)
        return tensors and named.get("copy", True) is True and all(
            type(one) is int or is_kind_of_number(one) for one in (*args, named.get("dtype")))

    @polyfill(function, applies=applies)
    def make(a: Any, *args: Any, **named: Any) -> Any:
        return function([array_of(tensor, None, False) for tensor in a], *args, **named)


if numpy is not None:
    TOLD_TO_COPY = "copy" in inspect.signature(TO_ARRAY).parameters
    CANNOT_COPY = warning_of_copies()

    @polyfill(numpy.asarray, applies=lambda a, dtype=None: type(a) in PLAIN_TENSORS)
    def as_array(a: Any, dtype: Any = None) -> Any:
        """`numpy.asarray(tensor)`."""
        array = array_of(a, dtype, False)
        return array if dtype is None else array.astype(dtype, copy=False)

    of_tensor(numpy.array, "copy", "order", "subok", "ndmin")
    of_tensor(numpy.asarray, "copy", "order")
    of_tensor(numpy.asanyarray, "copy", "order")
    of_tensor(numpy.ascontiguousarray)
    of_tensor(numpy.asfortranarray)
    for _function in (numpy.array, numpy.asarray, numpy.asanyarray, numpy.concatenate, numpy.stack, numpy.vstack, numpy.hstack,
                      numpy.dstack, numpy.column_stack):
        of_tensors(_function)
