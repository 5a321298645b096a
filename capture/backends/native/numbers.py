"""Numbers of Python among a graph's inputs, made tensors of one element, which all that follows understands.

A tensor takes part in type promotion with its own type, a number only with its kind; so every operation on a number becomes one
on a tensor of the type to which eager mode converts the number there. That is written down for each operation, and happens while
the graph is traced, when the types of the other operands are known. What is not written down stays with the graph as it is.
"""
from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import checkpoint

from capture.backends.native.job import TensorSpec
from capture.backends.native.signature import Unsupported

Perform = Callable[..., Any]

DTYPES = {int: torch.int64, float: torch.float64}               # of the tensor that stands for a number
FLOATS = (torch.float32, torch.float64)
FILLED = (*FLOATS, torch.int64)                                 # what a number in the range of `fits` converts to without overflow
NARROW = (torch.float16, torch.bfloat16)
ADDITIONS, PRODUCTS = ("add", "sub", "subtract", "rsub"), ("mul", "multiply")
DIVISIONS = ("truediv", "div", "divide", "true_divide")
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")
WIDENED = frozenset((*PRODUCTS, *DIVISIONS))                    # where eager does not round a number to a narrow float
WRAPPED = frozenset((*ADDITIONS, *PRODUCTS))                    # where a number that is too great for an integer type is no error
LIMITS = {float: torch.finfo(torch.float32).max, int: 2**63 - 1}


def fits(value: int | float) -> bool:
    """Whether compiled code takes a number: a greater one may overflow, which is an error in some operations alone."""
    return abs(value) <= LIMITS[type(value)] or value != value or value in (float("inf"), float("-inf"))


def spec_of(cls: type) -> TensorSpec:
    """What stands for a number of this type."""
    return replace(TensorSpec.of(torch.empty((), dtype=DTYPES[cls], device="cpu")), number=True)


@dataclass(frozen=True, slots=True)
class Number:
    """A number while the graph is traced."""

    value: Tensor

    def beside(self, other: Any, name: str) -> Tensor:
        """As the operand of a binary operation `name` on the tensor `other`."""
        if not isinstance(other, Tensor) or other.is_complex():
            raise Unsupported(f"{name} of numbers that change from call to call")
        floating = self.value.is_floating_point()
        if other.dtype in NARROW and name in WIDENED:
            if other.dim() == 0:        # then the result would be as wide
                raise Unsupported(f"{name} of a {other.dtype} and a number that changes from call to call")
            return self.value.to(torch.float32)
        if other.is_floating_point():
            return self.value.to(other.dtype)
        if floating or name in DIVISIONS:
            return self.value.to(torch.get_default_dtype())
        if other.dtype not in (torch.bool, torch.int64) and name not in WRAPPED:
            raise Unsupported(f"{name} of a {other.dtype} and a number that changes from call to call, which may overflow")
        return self.value if other.dtype == torch.bool else self.value.to(other.dtype)

    def as_dtype(self, dtype: torch.dtype) -> Tensor:
        """As an element of a tensor."""
        if dtype not in FILLED or dtype == torch.int64 and self.value.is_floating_point():
            raise Unsupported(f"a {dtype} is made of a number that changes from call to call")
        return self.value.to(dtype)


HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `handler(perform, name, *args, **kwargs)` for operations of these names, of which `perform` does the one meant."""
    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler
    return register


@handles(*ADDITIONS, *PRODUCTS, *DIVISIONS, *TESTS)
def arithmetic(perform: Perform, name: str, x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    if isinstance(alpha, Number):
        if isinstance(x, Number) or isinstance(y, Number) or name == "rsub":
            raise Unsupported(f"{name} of several numbers that change from call to call")
        if x.dtype not in FLOATS or y.dtype != x.dtype:
            raise Unsupported(f"{name} of types that differ, with a factor that changes from call to call")
        return perform(x, y * alpha.as_dtype(y.dtype))
    if alpha != 1:
        raise Unsupported(f"{name} of a number that changes from call to call, with a factor")
    if isinstance(y, Number):
        return perform(x, y.beside(x, name))
    if perform is operator.truediv:         # Tensor.__rtruediv__
        inverse = y.reciprocal()
        return inverse * x.beside(inverse, "mul")
    return perform(x.beside(y, name), y)


@handles("floordiv", "floor_divide", "mod", "remainder", "fmod", "pow")
def exact_arithmetic(perform: Perform, name: str, x: Any, y: Any) -> Tensor:
    """Operations which ATen does otherwise for some numbers, or where integers may raise: on floats alone. A power of a tensor it
    does otherwise for many."""
    if isinstance(x, Number) or name != "pow":
        other = y if isinstance(x, Number) else x
        if isinstance(other, Tensor) and other.dtype in FLOATS:
            return perform(x.beside(other, name), y) if isinstance(x, Number) else perform(x, y.beside(other, name))
    raise Unsupported(f"{name} with a number that changes from call to call")


@handles("addcmul", "addcdiv")
def scaled(perform: Perform, name: str, x: Tensor, a: Tensor, b: Tensor, *, value: Number) -> Tensor:
    if x.dtype not in FLOATS or not x.dtype == a.dtype == b.dtype:
        raise Unsupported(f"{name} of types that differ, with a factor that changes from call to call")
    return perform(x, a * value.as_dtype(a.dtype), b)


@handles("lerp")
def lerp(perform: Perform, name: str, x: Tensor, end: Tensor, weight: Number) -> Tensor:
    return perform(x, end, weight.as_dtype(x.dtype))


@handles("where")
def where(perform: Perform, name: str, condition: Tensor, x: Any, y: Any) -> Tensor:
    x, y = (value.beside(other, name) if isinstance(value, Number) else value for value, other in ((x, y), (y, x)))
    return perform(condition, x, y)


@handles("clamp", "clip")
def clamp(perform: Perform, name: str, x: Tensor, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    if x.dtype not in FLOATS:
        raise Unsupported(f"{name} of a {x.dtype} by a number that changes from call to call")

    def as_tensor(limit: Any) -> Any:
        if isinstance(limit, (int, float)):
            return torch.scalar_tensor(limit, dtype=x.dtype)
        return limit.as_dtype(x.dtype) if isinstance(limit, Number) else limit
    return perform(x, as_tensor(low if min is None else min), as_tensor(high if max is None else max))


@handles("masked_fill")
def masked_fill(perform: Perform, name: str, x: Tensor, mask: Tensor, value: Number) -> Tensor:
    return perform(x, mask, value.as_dtype(x.dtype))


@handles("setitem")
def setitem(perform: Perform, name: str, x: Tensor, index: Any, value: Number) -> None:
    if isinstance(index, Number):
        raise Unsupported("a row of a tensor that changes from call to call is picked")
    perform(x, index, value.as_dtype(x.dtype))


@handles("fill")
def fill(perform: Perform, name: str, x: Tensor, value: Number) -> Tensor:
    return perform(x, value.as_dtype(x.dtype))


@handles("full_like")
def full_like(perform: Perform, name: str, x: Tensor, fill_value: Number, **options: Any) -> Tensor:
    made = torch.empty_like(x, **options)
    return made.fill_(fill_value.as_dtype(made.dtype))


@handles("full")
def full(perform: Perform, name: str, size: Any, fill_value: Number, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    made = torch.empty(size, dtype=dtype or _dtype_of(fill_value), **options)
    return made.fill_(fill_value.as_dtype(made.dtype))


@handles("tensor", "as_tensor", "scalar_tensor")
def tensor(perform: Perform, name: str, data: Number, *, dtype: torch.dtype | None = None) -> Tensor:
    if name == "scalar_tensor":
        dtype = dtype or torch.get_default_dtype()
    return data.as_dtype(dtype or _dtype_of(data)).clone()


def _dtype_of(value: Number) -> torch.dtype:
    """The type that a tensor gets when it is made of a number."""
    return torch.get_default_dtype() if value.value.is_floating_point() else torch.int64


# -- graphs --------------------------------------------------------------------------------------------------------------

def as_tensors(gm: fx.GraphModule, specs: Sequence[TensorSpec]) -> fx.GraphModule:
    """Makes `gm` take tensors where `specs` say that it takes numbers, of the types in DTYPES.

    Raises Unsupported, now or when the graph is traced, where they do not stand for the numbers.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    numbers = {node for node, spec in zip(placeholders, specs, strict=True) if spec.number}
    if numbers:
        _adapt(gm, numbers)
    return gm


def _adapt(gm: fx.GraphModule, numbers: set[fx.Node]) -> None:
    """Changes every operation on one of `numbers`."""
    for node in gm.graph.nodes:
        if node.op == "output" or numbers.isdisjoint(node.all_input_nodes):
            continue
        if node.target is checkpoint.checkpoint:
            body, *values = node.args
            inner = getattr(gm, body.target)
            inner = fx.GraphModule(inner, copy.deepcopy(inner.graph))
            placeholders = (n for n in inner.graph.nodes if n.op == "placeholder")
            _adapt(inner, {n for n, value in zip(placeholders, values, strict=True) if value in numbers})
            setattr(gm, body.target, inner)
            continue
        places = [place for place, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg in numbers]
        names = [name for name, arg in node.kwargs.items() if isinstance(arg, fx.Node) and arg in numbers]
        name = name_of(node)
        if len(places) + len(names) < sum(arg in numbers for arg in node.all_input_nodes) or name not in HANDLERS:
            raise Unsupported(f"{name} with a number that changes from call to call")
        perform = _method(node.target) if node.op == "call_method" else node.target
        node.op, node.target = "call_function", _adapted(HANDLERS[name], perform, name, tuple(places), tuple(names))
    gm.recompile()


def name_of(node: fx.Node) -> str:
    """What an operation is called, in place or not, of Python or of torch."""
    name = (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).strip("_")
    shifted = name[:1] in ("i", "r") and name != "rsub" and hasattr(operator, name[1:]) and hasattr(operator, f"i{name[1:]}")
    return name[1:] if shifted else name


def _method(name: str) -> Perform:
    return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)


def _adapted(handler: Callable[..., Any], perform: Perform, name: str, places: tuple[int, ...], names: tuple[str, ...]) -> Perform:
    """What calls `handler` with the tensors at these places marked as numbers."""
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        marked = [Number(arg) if place in places else arg for place, arg in enumerate(args)]
        named = {key: Number(value) if key in names else value for key, value in kwargs.items()}
        try:
            return handler(perform, name, *marked, **named)
        except (TypeError, AttributeError) as error:
            raise Unsupported(f"{name} with a number that changes from call to call, in an unusual form: {error}") from error
    return with_numbers
