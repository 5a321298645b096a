"""Arrays of numpy that become tensors, on their memory or as copies, and tensors that become arrays."""
from __future__ import annotations

import functools
import sys
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
from capture.interp.recording.arrays import is_drawn
from capture.refgraph import ndarrays
from capture.refgraph.identical import items_in_c
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


TO_ARRAY = torch.Tensor.__array__
numpy = sys.modules.get("numpy")
if numpy is not None:
    @polyfill(numpy.asarray, applies=lambda a, dtype=None: type(a) in PLAIN_TENSORS)
    def as_array(a: Any, dtype: Any = None) -> Any:
        """`numpy.asarray(tensor)`, which asks the tensor for its array."""
        ask = special_method(a, "__array__")
        if getattr(ask, "__func__", None) is TO_ARRAY:        # of which a graph holds the call of `numpy`
            array = a.numpy()
        else:
            array = ask() if dtype is None else ask(numpy.dtype(dtype))  # type: ignore[union-attr]
        if not is_a(array, numpy.ndarray):  # type: ignore[union-attr]
            raise ValueError("object __array__ method not producing an array")
        return array if dtype is None else array.astype(dtype, copy=False)
