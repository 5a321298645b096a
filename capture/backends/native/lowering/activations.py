"""Activation functions and their gradients: eager's formulas, in eager's order of operations. One line per operator."""
from __future__ import annotations

import math
from typing import Any

import torch

from capture.backends.native.lowering.elementwise import apply, pointwise
from capture.backends.native.lowering.lazy import Lazy
from capture.backends.native.lowering.pointwise import clamped, limits
from capture.backends.native.lowering.promotion import Kind
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import Number, Scalar, call, where
from capture.torch_versions import VERSION

aten = torch.ops.aten

SQRT_HALF = math.sqrt(0.5)
BETA = math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5        # of gelu's approximation by tanh
KAPPA = 0.044715


def _exp(x: Scalar) -> Scalar:
    return call("exp", x)


def _logistic(x: Scalar) -> Scalar:
    return 1 / (1 + _exp(-x))


def _clamp(x: Scalar, low: Number, high: Number) -> Scalar:
    return where(x < low, low, where(x > high, high, x))


pointwise(aten.relu, formula=lambda x: x if x.dtype == torch.bool else where(x < 0, 0, x))
pointwise(aten.threshold, formula=lambda x, threshold, value: where(x <= threshold, value, x), operands=(0,))
pointwise(aten.threshold_backward, formula=lambda g, x, threshold: where(x <= threshold, 0, g), operands=(0, 1))
pointwise(aten.leaky_relu, formula=lambda x, slope: where(x > 0, x, x * slope), operands=(0,))
pointwise(aten.leaky_relu_backward, formula=lambda g, x, slope, is_result: where(x > 0, g, g * slope), operands=(0, 1))
pointwise(aten._prelu_kernel, formula=lambda x, weight: where(x > 0, x, weight * x))

pointwise(aten.sigmoid_backward, formula=lambda g, y: g * (1 - y) * y)
pointwise(aten.tanh_backward, formula=lambda g, y: g * (1 - y * y))
pointwise(aten.silu, formula=lambda x: x / (1 + _exp(-x)))


def _silu_backward(g: Scalar, x: Scalar) -> Scalar:
    sigmoid = _logistic(x)
    return g * sigmoid * (1 + x * (1 - sigmoid))


pointwise(aten.silu_backward, formula=_silu_backward)

@lowers(aten.hardtanh.default, numbers=True)
def hardtanh(call_: Call, x: Lazy, low: Any = -1, high: Any = 1) -> Any:
    if x.dtype.is_floating_point:
        return clamped(call_, x, low, high)
    return apply(call_, _clamp, Kind.DEFAULT, [x, *limits(x.dtype, low, high)], (0,))


pointwise(aten.hardtanh_backward, formula=lambda g, x, low, high: where((x <= low) | (x >= high), 0, g), operands=(0, 1))
pointwise(aten.hardsigmoid, formula=lambda x: _clamp(x + 3, 0, 6) / 6)
pointwise(aten.hardsigmoid_backward, formula=lambda g, x: where((x > -3) & (x < 3), g / 6, 0))
pointwise(aten.hardswish, formula=lambda x: x * _clamp(x + 3, 0, 6) / 6)
pointwise(aten.hardswish_backward, formula=lambda g, x: where(x <= -3, 0, where(x >= 3, g, g * (x / 3 + 0.5))))      # NaN stays
pointwise(aten.hardshrink, formula=lambda x, limit: where((x >= -limit) & (x <= limit), 0, x), operands=(0,), rounded=(1,))
pointwise(aten.hardshrink_backward, aten.softshrink_backward, operands=(0, 1), rounded=(2,),
          formula=lambda g, x, limit: where((x >= -limit) & (x <= limit), 0, g))
pointwise(aten.softshrink, formula=lambda x, limit: where(x > limit, x - limit, where(x < -limit, x + limit, x * 0)), operands=(0,),
          rounded=(1,) if VERSION >= (2, 15) else ())


def _gelu(x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "none":
        return x * 0.5 * (1 + call("erf", x * SQRT_HALF))
    return 0.5 * x * (1 + call("tanh", BETA * (x + KAPPA * (x * x * x))))


def _gelu_backward(g: Scalar, x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "none":
        cdf = 0.5 * (1 + call("erf", x * SQRT_HALF))
        pdf = _exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (cdf + x * pdf)
    tanh = call("tanh", BETA * (x + KAPPA * (x * x * x)))
    left = 0.5 * (1 + tanh)
    right = 0.5 * x * (1 - tanh * tanh) * (BETA * (1 + 3 * KAPPA * x * x))
    return g * (left + right)


pointwise(aten.gelu, formula=_gelu, operands=(0,))
pointwise(aten.gelu_backward, formula=_gelu_backward, operands=(0, 1))


def _elu(x: Scalar, alpha: Number, scale: Number, input_scale: Number) -> Scalar:
    return where(x < 0, call("expm1", x * input_scale) * (alpha * scale), x * scale)


def _elu_backward(g: Scalar, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Scalar) -> Scalar:
    negative = alpha * scale
    if is_result:
        return where(x <= 0, g * input_scale * (x + negative), g * scale)
    return where(x <= 0, g * (input_scale * negative) * _exp(x * input_scale), g * scale)


pointwise(aten.elu, formula=_elu, operands=(0,))
pointwise(aten.elu_backward, formula=_elu_backward, operands=(0, 5))


def _softplus_backward(g: Scalar, x: Scalar, beta: Number, threshold: Number) -> Scalar:
    z = _exp(x * beta)
    return where(x * beta > threshold, g, g * z / (z + 1))


def _mish_backward(g: Scalar, x: Scalar) -> Scalar:
    tanh = call("tanh", call("log1p", _exp(x)))
    return g * (tanh + x * _logistic(x) * (1 - tanh * tanh))


pointwise(aten.softplus, operands=(0,),
          formula=lambda x, beta, threshold: where(x * beta > threshold, x, call("log1p", _exp(x * beta)) / beta))
pointwise(aten.softplus_backward, formula=_softplus_backward, operands=(0, 1))
pointwise(aten.mish, formula=lambda x: x * call("tanh", call("log1p", _exp(x))))
pointwise(aten.mish_backward, formula=_mish_backward)
