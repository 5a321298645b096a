"""Arrays of numpy that become tensors, on their memory or as copies, and tensors that become arrays."""
from __future__ import annotations

import sys
from typing import Any

import torch

from capture.errors import Break
from capture.interp.arrays import is_drawn
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides.torch_legacy import LEGACY
from capture.interp.models import model, polyfill
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.ndarrays import is_ndarray
from capture.refgraph.node import RefNode, Shadow


def shared(array: Any) -> torch.Tensor:
    """`torch.from_numpy(array)`."""
    return torch.from_numpy(array)


def not_shareable(interp: Interpreter, array: Value) -> Break | None:
    """Why an array cannot become a tensor in this trace."""
    return interp.recorder.arrays.unshareable(interp.graph, array.shadow, array.real)


@model(shared, refuses=not_shareable)
def share(interp: Interpreter, result: torch.Tensor, array: Value) -> Shadow:
    """A tensor on the memory of an array: of one from outside it is a tensor from outside."""
    node: RefNode = array.shadow  # type: ignore[assignment]
    if node.source is not None or is_drawn(node):
        return interp.recorder.arrays.tensor(interp.recorder, node, result)
    return interp.recorder.record("call_function", torch.from_numpy, [array], {}, result, {})


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


numpy = sys.modules.get("numpy")
if numpy is not None:
    @polyfill(numpy.asarray, applies=lambda a, dtype=None: type(a) in PLAIN_TENSORS)
    def as_array(a: Any, dtype: Any = None) -> Any:
        """`numpy.asarray(tensor)`."""
        array = a.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)
