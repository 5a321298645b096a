"""Sizes of results of functions of neural networks."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, pointwise, rule
from capture.refgraph.sizes import Size, as_size, product


@rule(*"""
    alpha_dropout celu dropout dropout1d dropout2d dropout3d elu feature_alpha_dropout feature_dropout gelu gumbel_softmax
    hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax logsigmoid mish normalize relu relu6 rrelu selu
    sigmoid silu softmax _safe_softmax softmin softplus softshrink softsign tanh tanhshrink threshold""".split(), total=True)
def like_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the input, which may have any sizes."""
    return c.shape(input)


@rule("layer_norm", "rms_norm", total=True)
def normalized(c: Shaper, input: Value, normalized_shape: Value, weight: Value | None = None, bias: Value | None = None,
               eps: Value | None = None) -> Shape:
    shape = c.shape(input)
    inner = c.given([normalized_shape])
    parts = [c.shape(part) for part in (weight, bias) if part is not None and is_a(part.real, torch.Tensor)]
    for part in (shape[-len(inner):], *parts):
        for size, wanted in zip(part, inner, strict=True):
            c.same(size, wanted)
    return shape


@rule("batch_norm", total=True)
def batch_norm(c: Shaper, input: Value, *args: Value, training: Value | None = None, momentum: Value | None = None,
               eps: Value | None = None, cudnn_enabled: Value | None = None, **kwargs: Value) -> Shape:
    """Which refuses single values in training."""
    shape = c.shape(input)
    for part in (*args, *kwargs.values()):
        if is_a(part.real, torch.Tensor):
            c.same(c.shape(part)[0], shape[1])
    c.sizes.decide(operator.ne, product([shape[0], *shape[2:]]), as_size(1))
    return shape


@rule("group_norm", "instance_norm", "local_response_norm", "prelu")
def like_valid_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the input. The operation raises where weights, groups or the like do not fit its sizes."""
    return c.shape(input)


@rule("glu")
def glu(c: Shaper, input: Value, dim: Value | None = None) -> Shape:
    shape = c.shape(input)
    place = c.dim(dim, len(shape), -1)
    half = c.sizes.quotient(shape[place], as_size(2))
    c.same(half * 2, shape[place])
    shape[place] = half
    return shape


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", total=True)
def broadcast_loss(c: Shaper, input: Value, target: Value, *args: Value, **kwargs: Value) -> Shape:
    return pointwise_loss(c, input, target, *args, **kwargs)


@rule("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "poisson_nll_loss")
def pointwise_loss(c: Shaper, input: Value, target: Value, *args: Value, reduction: Value | None = None, **kwargs: Value) -> Shape:
    if args:
        raise Unknown
    shape = pointwise(c, input, target)
    return shape if c.fixed(reduction, "mean") == "none" else []


@rule("cross_entropy", "nll_loss", total=True)
def class_loss(c: Shaper, input: Value, target: Value, *args: Value, weight: Value | None = None, reduction: Value | None = None,
               **kwargs: Value) -> Shape:
    shape, classes = c.shape(target), c.shape(input)
    if args or len(classes) != len(shape) + 1:
        raise Unknown
    if weight is not None and weight.real is not None:
        c.same(c.shape(weight)[0], classes[bool(shape)])
    for one, other in zip(shape, [*classes[:1], *classes[2:]] if shape else [], strict=True):
        c.same(one, other)
    return shape if c.fixed(reduction, "mean") == "none" else []


@rule("linear_cross_entropy")
def class_loss_of_products(c: Shaper, input: Value, linear_weight: Value, target: Value, *, reduction: Value | None = None,
                           **kwargs: Value) -> Shape:
    shape, rows = c.shape(target), c.shape(input)
    if len(shape) != 1 or len(rows) != 2:
        raise Unknown
    c.same(shape[0], rows[0])
    return shape if c.fixed(reduction, "mean") == "none" else []


@rule("ctc_loss")
def sequence_loss(c: Shaper, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value,
                  blank: Value | None = None, reduction: Value | None = None, zero_infinity: Value | None = None) -> Shape:
    return [c.shape(log_probs)[1]] if c.fixed(reduction, "mean") in ("none", 0) else []


def window(c: Shaper, size: Size, kernel: Size, stride: Size, padding: int, dilation: int, *, up: bool = False) -> Size:
    """How often a window fits, which is moved by `stride`. up: a whole number of times even if the last one is not full."""
    room = size + (2 * padding + dilation - 1) - kernel * dilation
    c.sizes.decide(operator.ge, room, 0)
    count = c.sizes.quotient(room + (stride - 1 if up else 0), stride) + 1
    if up and c.sizes.decide(operator.ge, (count - 1) * stride, size + padding):
        return count - 1                # the last window would begin in the padding behind
    return count


def per_dim(value: Any, count: int) -> list[int]:
    """A setting of each dimension, which may be given as one number."""
    numbers: list[Any] = list(value) if is_a(value, (list, tuple)) else [value]
    numbers = numbers * count if len(numbers) == 1 else numbers
    if any(type(number) is not int for number in numbers) or len(numbers) != count:
        raise Unknown
    return numbers


def window_sizes(c: Shaper, value: Value, count: int) -> list[Size]:
    """How large a window is in each dimension, which may be a size of the program's: of a whole image."""
    items = [value] if is_a(value.real, int) else c.items(value)
    sizes = [c.size(item) if c.sizes.is_free(item.shadow) else as_size(number) for item in items for number in per_dim(
        [item.real if c.sizes.is_free(item.shadow) else c.fixed(item)], 1)]
    if len(sizes) not in (1, count):
        raise Unknown
    return sizes * (count // len(sizes))


def for_dims(function: Callable[..., Shape | Many], dims: int) -> Callable[..., Shape | Many]:
    """The rule of the function for so many dimensions."""
    def of_dims(c: Shaper, *args: Value, **kwargs: Value) -> Shape | Many:
        return function(c, dims, *args, **kwargs)
    return of_dims


def convolution(c: Shaper, dims: int, input: Value, weight: Value, bias: Value | None = None, stride: Value | None = None,
                padding: Value | None = None, dilation: Value | None = None, groups: Value | None = None) -> Shape:
    shape, filters = c.shape(input), [c.sizes.fix(size) for size in c.shape(weight)]
    c.same(shape[-dims - 1], as_size(filters[1] * c.fixed(groups, 1)))
    if bias is not None and bias.real is not None:
        c.same(c.shape(bias)[0], as_size(filters[0]))
    pads = c.fixed(padding, 0)
    steps, spread = per_dim(c.fixed(stride, 1), dims), per_dim(c.fixed(dilation, 1), dims)
    if pads == "valid":
        pads = 0
    spatial = shape[-dims:]
    if pads == "same":
        sizes = spatial
    else:
        sizes = [window(c, size, as_size(width), as_size(step), *settings) for size, width, step, *settings in zip(
            spatial, filters[2:], steps, per_dim(pads, dims), spread, strict=True)]
    return [*shape[:-dims - 1], as_size(filters[0]), *sizes]


def pooled(c: Shaper, dims: int, input: Value, kernel_size: Value, stride: Value | None = None, padding: Value | None = None,
           dilation: Value | None = None, ceil_mode: Value | None = None, return_indices: Value | None = None) -> Shape | Many:
    shape, kernel = c.shape(input), window_sizes(c, kernel_size, dims)
    steps = window_sizes(c, stride, dims) if stride is not None and stride.real not in (None, [], ()) else kernel
    pads, spreads = per_dim(c.fixed(padding, 0), dims), per_dim(c.fixed(dilation, 1), dims)
    up = bool(c.fixed(ceil_mode, False))
    sizes = [window(c, size, width, step, pad, spread, up=up) for size, width, step, pad, spread in zip(
        shape[-dims:], kernel, steps, pads, spreads, strict=True)]
    result = [*shape[:-dims], *sizes]
    return Many([result, list(result)]) if c.fixed(return_indices, False) else result


def averaged(c: Shaper, dims: int, input: Value, kernel_size: Value, stride: Value | None = None, padding: Value | None = None,
             ceil_mode: Value | None = None, *args: Value, **kwargs: Value) -> Shape | Many:
    return pooled(c, dims, input, kernel_size, stride, padding, None, ceil_mode)


def of_norms(c: Shaper, dims: int, input: Value, norm_type: Value, kernel_size: Value, stride: Value | None = None,
             ceil_mode: Value | None = None) -> Shape | Many:
    return pooled(c, dims, input, kernel_size, stride, None, None, ceil_mode)


def adaptive_maximum(c: Shaper, dims: int, input: Value, output_size: Value, return_indices: Value | None = None) -> Shape | Many:
    result = adaptive(c, dims, input, output_size)
    return Many([result, list(result)]) if c.fixed(return_indices, False) else result


def adaptive(c: Shaper, dims: int, input: Value, output_size: Value) -> Shape:
    shape, wanted = c.shape(input), c.fixed(output_size)
    wanted = list(wanted) if is_a(wanted, (list, tuple)) else [wanted] * dims
    return [*shape[:-dims], *(size if want is None else as_size(want) for size, want in zip(shape[-dims:], wanted, strict=True))]


def unpooled(c: Shaper, dims: int, input: Value, indices: Value, kernel_size: Value, stride: Value | None = None,
             padding: Value | None = None, output_size: Value | None = None) -> Shape:
    """Of torch.nn.functional: the operator is told how large the result is."""
    shape = c.shape(input)
    if output_size is not None and output_size.real is not None:
        return [*shape[:-dims], *c.given([output_size])[-dims:]]
    kernel, pads = per_dim(c.fixed(kernel_size), dims), per_dim(c.fixed(padding, 0), dims)
    steps = kernel if stride is None or stride.real is None else per_dim(c.fixed(stride), dims)
    return [*shape[:-dims], *((size - 1) * step + (width - 2 * pad) for size, step, width, pad in zip(
        shape[-dims:], steps, kernel, pads, strict=True))]


@rule("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def sampled(c: Shaper, input: Value, grid: Value, *args: Value, **kwargs: Value) -> Shape:
    shape, places = c.shape(input), c.shape(grid)
    c.same(shape[0], places[0])
    return [*shape[:2], *places[1:-1]]


@rule("affine_grid")
def affine_grid(c: Shaper, theta: Value, size: Value, align_corners: Value | None = None) -> Shape:
    sizes = c.given([size])
    return [sizes[0], *sizes[2:], as_size(len(sizes) - 2)]


@rule("im2col")
def columns(c: Shaper, input: Value, kernel_size: Value, dilation: Value | None = None, padding: Value | None = None,
            stride: Value | None = None) -> Shape:
    """Of `torch.nn.functional.unfold`."""
    shape, kernel = c.shape(input), per_dim(c.fixed(kernel_size), 2)
    settings = (per_dim(c.fixed(value, default), 2) for value, default in ((stride, 1), (padding, 0), (dilation, 1)))
    sizes = [window(c, size, as_size(width), as_size(step), *rest) for size, width, step, *rest in zip(
        shape[-2:], kernel, *settings, strict=True)]
    return [*shape[:-3], shape[-3] * (kernel[0] * kernel[1]), sizes[0] * sizes[1]]


for _family, _rule in (("conv", convolution), ("max_pool", pooled), ("avg_pool", averaged), ("lp_pool", of_norms),
                       ("adaptive_avg_pool", adaptive), ("adaptive_max_pool", adaptive_maximum),
                       ("functional.max_unpool", unpooled)):
    for _dims in (1, 2, 3):
        rule(f"{_family}{_dims}d", total=_rule is convolution)(for_dims(_rule, _dims))
