"""Gradients for which eager mode's formula looks at values, so that torch has another one for fake tensors: eager mode's own
formula, in operations that can be traced. They read the same tensors as eager mode (ATen's FunctionsManual.cpp)."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
AUTOGRAD = torch._C.DispatchKey.Autograd
Formula = Callable[..., Tensor]
FORMULAS: dict[Any, Formula] = {}


def formula(*ops: Any) -> Callable[[Formula], Formula]:
    """Registers a function of the gradient of the result, the operand, the result and the operator's other arguments, which
    returns the gradient of the operand."""
    def register(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(ops, function))
        return function
    return register


@contextlib.contextmanager
def eager_formulas() -> Iterator[None]:
    """While a backward pass is traced, within `undecomposed`: operators have these gradients."""
    for op in FORMULAS:
        op.py_kernels[AUTOGRAD] = _kernel(op)
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op in FORMULAS:
            del op.py_kernels[AUTOGRAD]
            op._dispatch_cache.clear()


def _kernel(op: Any) -> Callable[..., Tensor]:
    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _Operation.apply(op, kwargs, x, *args)
    return kernel


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Any, options: dict[str, Any], x: Tensor, *args: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = op(x, *args, **options)
        ctx.save_for_backward(x, result)
        ctx.gradient, ctx.args = FORMULAS[op], args
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, result = ctx.saved_tensors
        return None, None, ctx.gradient(grad, x, result, *ctx.args).to(x.dtype), *[None] * len(ctx.args)


@formula(aten.max.default, aten.min.default, aten.median.default, aten.nanmedian.default)
def evenly_distribute(grad: Tensor, x: Tensor, result: Tensor) -> Tensor:
    """The places of those that are equal to the result are filled, and the others zeros: also if the gradient is infinite."""
    mask = torch.logical_or(x == result, torch.logical_and(x.isnan(), result.isnan()))
    return torch.where(mask, grad / mask.sum(), 0.0)


@formula(aten.prod.default)
def product_of_all(grad: Tensor, x: Tensor, result: Tensor) -> Tensor:
    if x.dim() == 0:
        return grad.clone()
    if x.numel() == 0:
        return torch.zeros_like(x)
    x = x.to(grad.dtype)
    zeros = (x == 0).sum()
    of_others = grad * _products_of_others(x.reshape(-1), 0).view(x.shape)
    return torch.where(zeros == 0, grad * (result / x).conj(), torch.where(zeros > 1, 0.0, of_others))


@formula(aten.prod.dim_int)
def product(grad: Tensor, x: Tensor, result: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    if x.dim() == 0:
        return grad.clone()
    if x.numel() == 0:
        return torch.zeros_like(x)
    x = x.to(grad.dtype)
    if not keepdim:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    return torch.where((x == 0).any(), grad * _products_of_others(x, dim), grad * (result / x).conj())


def _products_of_others(x: Tensor, dim: int) -> Tensor:
    """For each element, the product of all others along a dimension."""
    rest = x.shape[dim] - 1
    one = torch.ones_like(x.narrow(dim, 0, 1))
    before = torch.cat([one, x.narrow(dim, 0, rest)], dim).cumprod(dim)
    behind = torch.cat([one, x.narrow(dim, 1, rest).flip(dim)], dim).cumprod(dim).flip(dim)
    return (before * behind).conj()


@formula(aten.cumprod.default)
def cumulative_product(grad: Tensor, x: Tensor, result: Tensor, dim: int) -> Tensor:
    """Before the first zero of a row, at it, and behind it, where there is a zero at all."""
    if x.numel() <= 1 or x.shape[dim] == 1:
        return grad.clone()
    grad, kept, result = grad.to(x.dtype), x.conj(), result.conj()
    weighted, zero = result * grad, x == 0
    zeros = zero.cumsum(dim)
    before = _sum_of_rest(torch.where(zeros == 0, weighted, 0.0), dim) / kept
    first = torch.logical_and(zero, zeros == 1)
    until = torch.cat([torch.ones_like(result.narrow(dim, 0, 1)), result.narrow(dim, 0, x.shape[dim] - 1)], dim)
    between = torch.logical_and(zeros == 1, torch.logical_not(zero))
    products = torch.where(between, kept, 1.0).cumprod(dim)
    at_first = torch.where(zeros == 1, products * grad, 0.0).sum(dim, keepdim=True) * until
    with_zeros = torch.where(zeros == 0, before, torch.where(first, at_first, 0.0))
    return torch.where(zero.any(), with_zeros, _sum_of_rest(weighted, dim) / kept)


def _sum_of_rest(x: Tensor, dim: int) -> Tensor:
    """For each element, the sum of it and of those behind it."""
    return x.flip(dim).cumsum(dim).flip(dim)
