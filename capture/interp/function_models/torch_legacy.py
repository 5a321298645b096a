"""Legacy tensor constructors (`torch.FloatTensor`), `Variable` and copies of tensors, as operations that a graph can hold."""
from __future__ import annotations

import copy
import numbers
import warnings
from typing import Any

import torch
from torch.autograd import Variable

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.recording.leaf_functions import duplicate, shallow
from capture.refgraph.identical import LISTS, is_one_of
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.ndarrays import is_array, is_value

# Of the CPU: class -> the type of its elements; None: the default.
LEGACY = {torch.Tensor: None, torch.FloatTensor: torch.float32, torch.DoubleTensor: torch.float64, torch.HalfTensor: torch.float16,
          torch.BFloat16Tensor: torch.bfloat16, torch.LongTensor: torch.int64, torch.IntTensor: torch.int32,
          torch.ShortTensor: torch.int16, torch.CharTensor: torch.int8, torch.ByteTensor: torch.uint8, torch.BoolTensor: torch.bool}
REMOVED = "volatile was removed (Variable.volatile is always False)"
NO_EFFECT = "volatile was removed and now has no effect. Use `with torch.no_grad():` instead."
TWINS = "capture: tensors copied so far"        # a key of the memo of `copy.deepcopy`


def is_variable(data: Any, requires_grad: Any = False, volatile: Any = False) -> bool:
    return type(data) in PLAIN_TENSORS and type(requires_grad) is type(volatile) is bool


@polyfill(Variable, applies=is_variable)
def variable(data: torch.Tensor, requires_grad: bool = False, volatile: bool = False) -> torch.Tensor:
    """`torch.autograd.Variable(data, requires_grad)`: a leaf on the same memory."""
    if volatile:
        warnings.warn(NO_EFFECT, UserWarning, stacklevel=1)
    result = data.detach()
    return result.requires_grad_() if requires_grad else result


def is_volatile(x: torch.Tensor) -> bool:
    """`x.volatile`."""
    warnings.warn(REMOVED, UserWarning, stacklevel=1)
    return False


def is_data(x: Any, depth: int = 8) -> bool:
    """Whether `x` is numbers, of Python or numpy, in lists and tuples."""
    if type(x) in LISTS:
        return depth > 0 and all(is_data(item, depth - 1) for item in x)
    return is_one_of(type(x), int, float, bool) or is_value(x) and not is_array(x) and x.dtype.kind in "iuf"


def of_data(cls: Any, data: Any) -> bool:
    """Whether a legacy constructor is given numbers, of the type that it makes of them."""
    if type(data) not in LISTS or not is_data(data):
        return False
    return LEGACY[cls] is None or LEGACY[cls].is_floating_point or all_integers(data)  # type: ignore[union-attr]


def all_integers(x: Any) -> bool:
    return all(map(all_integers, x)) if type(x) in LISTS else is_a(x, numbers.Integral)


def of_sizes(*sizes: Any) -> bool:
    """Whether a legacy constructor is given a size, and leaves the memory as it is."""
    return all(type(size) is int for size in sizes) or len(sizes) == 1 and type(sizes[0]) is torch.Size


def constructor(cls: Any, dtype: torch.dtype | None) -> None:
    """Registers what a class of tensors of old makes."""
    @polyfill(cls, applies=lambda data: of_data(cls, data))
    def make(data: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=torch.get_default_dtype() if dtype is None else dtype, device="cpu")

    @polyfill(cls, applies=of_sizes)
    def make_empty(*sizes: Any) -> torch.Tensor:
        shape = sizes if sizes else (0,)
        return torch.empty(*shape, dtype=dtype, device="cpu")


for _cls, _dtype in LEGACY.items():
    constructor(_cls, _dtype)


@polyfill(torch.Tensor.new, applies=lambda self, *sizes, device=None: type(self) in PLAIN_TENSORS and of_sizes(*sizes))
def new(self: torch.Tensor, *sizes: Any, device: Any = None) -> torch.Tensor:
    """`x.new(sizes)`. It tells a `torch.Size` from a tuple, which is data; in a graph both are tuples."""
    shape = sizes if sizes else (0,)
    return torch.empty(*shape, dtype=self.dtype, layout=self.layout, device=self.device if device is None else device)


@polyfill(torch.Tensor.__deepcopy__, applies=lambda self, memo: type(self) is torch.Tensor)
def deepcopy(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """`Tensor.__deepcopy__`, which keeps what shares memory sharing it."""
    if id(self) in memo:
        return memo[id(self)]
    twins = memo.setdefault(TWINS, [])
    result = duplicate(self, *twins)
    memo[id(self)] = result
    twins.extend((self, result))
    return result


@polyfill(copy.deepcopy, applies=lambda x, memo=None: type(x) is torch.Tensor and memo is None)
def deepcopy_alone(x: torch.Tensor, memo: None = None) -> torch.Tensor:
    """`copy.deepcopy` of a tensor."""
    return duplicate(x)


@polyfill(copy.copy, applies=lambda x: type(x) in PLAIN_TENSORS)
def copy_(x: torch.Tensor) -> torch.Tensor:
    """`copy.copy` of a tensor: another one on the same memory."""
    return shallow(x)
