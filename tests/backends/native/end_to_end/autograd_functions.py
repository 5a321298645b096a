"""Autograd functions for tests, and their arguments."""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SCALE = 0.5


def double(x: Tensor) -> Tensor:
    return x * 2


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class Doubled(torch.autograd.Function):
    """Saves its result and a number; its gradient is not the true one."""

    @staticmethod
    def forward(ctx, x, factor=2.0):
        y = (x * factor).tanh()
        ctx.factor = factor
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        y, = ctx.saved_tensors
        return gradient * (1 - y * y) * ctx.factor * 3, None


class Normalised(torch.autograd.Function):
    """Saves what it has computed, and one of several arguments."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (var + eps).sqrt()
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1) * y + bias

    @staticmethod
    def backward(ctx, gradient):
        y, var, weight = ctx.saved_tensors
        g = gradient * weight.view(1, -1)
        mean, means = g.mean(dim=1, keepdim=True), (g * y).mean(dim=1, keepdim=True)
        gx = 1.0 / torch.sqrt(var + ctx.eps) * (g - y * means - mean)
        return gx, (gradient * y).sum(0), gradient.sum(0), None


class Kept(torch.autograd.Function):
    """Keeps what it has computed as an attribute: it is not checked for writes, nor freed."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        result = x.clone()
        result[~ctx.mask] = 0
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask


class Masked(torch.autograd.Function):
    """Puts zeros into its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + len(ctx.saved_tensors)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        found = gradient.clone()
        found[x < 0] = 0
        found[0].fill_(0.0)
        return found


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x.cos()


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y if ctx.needs_input_grad[0] else None, gradient * x if ctx.needs_input_grad[1] else None


class WithIndices(torch.autograd.Function):
    """One of its results has no gradient; another one is marked so."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.max(1)
        rounded = values.round()
        ctx.mark_non_differentiable(rounded)
        ctx.save_for_backward(x, places)
        return values, places, rounded

    @staticmethod
    def backward(ctx, gradient, _, other):
        x, places = ctx.saved_tensors
        return torch.zeros_like(x).scatter(1, places[:, None], gradient[:, None]) + other.sum()


class Calling(torch.autograd.Function):
    """Calls a function of the program's, a module's functions, and reads a number."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.no_grad():
            return nn.functional.softplus(double(x)) * SCALE + math.pi

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * torch.sigmoid(double(x))


class Reversed(torch.autograd.Function):
    """Returns a view of what it is given."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.factor, None


class Same(torch.autograd.Function):
    """Returns what it is given."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Row(torch.autograd.Function):
    """Returns a view of a part of what it is given, and saves that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[0]

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x


X = torch.linspace(-2, 2, 12).reshape(3, 4)
W = torch.linspace(1, 3, 4)


def differentiable(x: Tensor = X) -> Tensor:
    return x.clone().requires_grad_()
