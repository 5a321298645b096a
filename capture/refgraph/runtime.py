"""What mock functions call to repeat an effect as the program did it: tensors that print as in eager mode, calls whose callers are
the program's own frames."""
from __future__ import annotations

import functools
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

from capture import _C
from capture.errors import AssumptionFailed, CheckFailed
from capture.refgraph.ndarrays import layout

# Frames of code from such a file are passed over by `warnings` and `logging`, when these look for a caller.
INVISIBLE = "<capture importlib._bootstrap>"


def extend(last: types.TracebackType | None, *entries: Any) -> types.TracebackType | None:
    """A traceback with further entries in front: for each the function, its code, the offset of the instruction, and the line."""
    for at in range(0, len(entries), 4):
        function, code, offset, line = entries[at:at + 4]
        last = _C.make_traceback(last, code, function.__globals__, offset, line)
    return last


def dress(values: torch.Tensor, cls: type, grad_fn: str | None) -> torch.Tensor:
    """A tensor with these detached values that looks like one that requires gradients: `grad_fn` is the name of its autograd
    node, None for a leaf. (A compiled graph has autograd nodes of other names.)"""
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(values)
    return values.requires_grad_() if grad_fn is None else values.as_subclass(_result_of(grad_fn))


def frozen(values: torch.Tensor) -> torch.nn.Parameter:
    """A parameter with these values that requires no gradient."""
    return torch.nn.Parameter(values, requires_grad=False)


@functools.cache
def _result_of(grad_fn: str) -> type:
    """A class for tensors that print `grad_fn=<name>` as results of that operation do."""
    node = type(grad_fn, (), {})()
    return type("tensor", (torch.Tensor,), {
        "__torch_function__": torch._C._disabled_torch_function_impl, "__format__": _format,
        "grad_fn": property(lambda self: node), "requires_grad": property(lambda self: True)})


def _format(self: torch.Tensor, spec: str) -> str:
    """`Tensor.__format__`, which asks for the exact class."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def text_of_exception(exception: BaseException, limit: int | None = None, chain: bool = True) -> str:
    """`traceback.format_exc()` while an exception is being handled."""
    return "".join(traceback.format_exception(exception, limit=limit, chain=chain))


def shuffled(stream: Any, items: tuple[Any, ...]) -> list[Any]:
    """The items in the order in which a stream of random numbers shuffles a list of them."""
    mixed = list(items)
    stream.shuffle(mixed)
    return mixed


def expect(tensor: torch.Tensor, truth: bool) -> None:
    """Raises CheckFailed unless the truth of a tensor is as expected."""
    if bool(tensor) is not truth:
        raise CheckFailed(f"a tensor of the graph is {not truth}")


def expect_layout(array: Any, expected: tuple[Any, ...]) -> None:
    """Raises CheckFailed unless an array of the graph has the type, sizes and strides that it had."""
    if layout(array) != expected:
        raise CheckFailed(f"an array of the graph is {layout(array)}, not {expected}")


def expect_kind(number: Any, expected: str) -> None:
    """Raises CheckFailed unless a number of numpy's that the graph computes is of the type that it was of."""
    if number.dtype.str != expected:
        raise CheckFailed(f"a number of the graph is {number.dtype.str}, not {expected}")


def suppose(tensor: torch.Tensor, held: bool | int) -> None:
    """Raises AssumptionFailed unless a tensor, or its truth, is what the trace assumed."""
    if type(held)(tensor) != held:
        raise AssumptionFailed(f"a tensor of the graph is not {held}")


class CallFrom:
    """Calls functions from frames with these code objects, innermost first, which make one call each: of what is given as
    their arguments `function, args, kwargs`. `logging` and `warnings` find in them the program's file, line and function."""

    __slots__ = ("codes",)
    __name__ = "call_from"

    def __init__(self, codes: tuple[types.CodeType, ...]) -> None:
        self.codes = codes

    def __call__(self, scopes: tuple[dict[str, Any], ...], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """scopes: the globals of each frame."""
        call: tuple[Any, tuple[Any, ...], dict[str, Any]] = function, args, kwargs
        for code, scope in zip(self.codes, scopes, strict=True):
            call = types.FunctionType(code, scope), call, {}
        return call[0](*call[1], **call[2])


CallFrom.__call__.__code__ = CallFrom.__call__.__code__.replace(co_filename=INVISIBLE)
