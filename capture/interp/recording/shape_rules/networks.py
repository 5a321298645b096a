"""Sizes of results of layers that resample, recur or attend."""
from __future__ import annotations

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.layers import per_dim
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, pointwise, rule
from capture.refgraph.identical import NUMBERS
from capture.refgraph.sizes import Size, as_size

EXACT = 1 << 12         # a product of numbers up to this and of sizes is exact in floating point


@rule("interpolate", "upsample")
def interpolate(c: Shaper, input: Value, size: Value | None = None, scale_factor: Value | None = None, *args: Value,
                **kwargs: Value) -> Shape:
    shape = c.shape(input)
    dims = len(shape) - 2
    if size is not None and size.real is not None:
        wanted = c.given([size])
        wanted = wanted * dims if is_a(size.real, int) else wanted
    else:
        factors = c.fixed(scale_factor)
        factors = list(factors) if is_a(factors, (list, tuple)) else [factors] * dims
        wanted = [scaled(c, one, factor) for one, factor in zip(shape[2:], factors, strict=True)]
    if len(wanted) != dims:
        raise Unknown
    return [*shape[:2], *wanted]


def scaled(c: Shaper, size: Size, factor: object) -> Size:
    """A size times a factor, rounded down."""
    if type(factor) not in NUMBERS:
        raise Unknown
    numerator, denominator = factor.as_integer_ratio()  # type: ignore[attr-defined]
    if max(numerator, denominator) > EXACT:
        raise Unknown
    return c.sizes.quotient(size * numerator, as_size(denominator))


@rule("col2im")
def fold(c: Shaper, input: Value, output_size: Value, kernel_size: Value, *settings: Value) -> Shape:
    *batch, columns, _ = c.shape(input)
    kernel = per_dim(c.fixed(kernel_size), 2)
    return [*batch, divided(c, columns, kernel[0] * kernel[1]), *c.given([output_size])]


@rule("channel_shuffle")
def channel_shuffle(c: Shaper, input: Value, groups: Value) -> Shape:
    shape = c.shape(input)
    divided(c, shape[1], c.fixed(groups))
    return shape


@rule("pixel_shuffle")
def pixel_shuffle(c: Shaper, input: Value, upscale_factor: Value) -> Shape:
    *batch, channels, height, width = c.shape(input)
    factor = c.fixed(upscale_factor)
    return [*batch, divided(c, channels, factor * factor), height * factor, width * factor]


@rule("pixel_unshuffle")
def pixel_unshuffle(c: Shaper, input: Value, downscale_factor: Value) -> Shape:
    *batch, channels, height, width = c.shape(input)
    factor = c.fixed(downscale_factor)
    return [*batch, channels * (factor * factor), divided(c, height, factor), divided(c, width, factor)]


def divided(c: Shaper, size: Size, number: int) -> Size:
    """A size, of which it is guarded that it is a multiple of a number."""
    quotient = c.sizes.quotient(size, as_size(number))
    c.same(quotient * number, size)
    return quotient


def transposed_convolution(c: Shaper, input: Value, weight: Value, bias: Value | None = None, stride: Value | None = None,
                           padding: Value | None = None, output_padding: Value | None = None, groups: Value | None = None,
                           dilation: Value | None = None) -> Shape:
    shape, filters = c.shape(input), [c.sizes.fix(size) for size in c.shape(weight)]
    dims = len(filters) - 2
    c.same(shape[-dims - 1], as_size(filters[0]))
    steps, pads, more, spread = (per_dim(c.fixed(value, default), dims) for value, default in (
        (stride, 1), (padding, 0), (output_padding, 0), (dilation, 1)))
    sizes = [(size - 1) * step + (far * (kernel - 1) + 1 + extra - 2 * pad) for size, kernel, step, pad, extra, far in zip(
        shape[-dims:], filters[2:], steps, pads, more, spread, strict=True)]
    return [*shape[:-dims - 1], as_size(filters[1] * c.fixed(groups, 1)), *sizes]


rule(*(f"conv_transpose{dims}d" for dims in (1, 2, 3)))(transposed_convolution)


@rule("rnn_tanh", "rnn_relu", "gru", "lstm")
def recurrent(c: Shaper, input: Value, hx: Value, params: Value, has_biases: Value, num_layers: Value, dropout: Value, train: Value,
              bidirectional: Value, batch_first: Value) -> Many:
    if is_a(params.real, torch.Tensor) or is_a(hx.real, torch.Tensor) and is_a(params.real, bool):
        raise Unknown                               # of a packed sequence
    shape = c.shape(input)
    states = [c.shape(hx)] if is_a(hx.real, torch.Tensor) else list(map(c.shape, c.items(hx)))
    if len(shape) != 3:
        raise Unknown
    for state in states:
        c.same(state[1], shape[0 if c.fixed(batch_first) else 1])
    return Many([[*shape[:2], states[0][-1] * (2 if c.fixed(bidirectional) else 1)], *states])


@rule("rnn_tanh_cell", "rnn_relu_cell", "gru_cell")
def cell(c: Shaper, input: Value, hx: Value, *args: Value) -> Shape:
    return c.shape(hx)


@rule("lstm_cell")
def lstm_cell(c: Shaper, input: Value, hx: Value, *args: Value) -> Many:
    return Many(map(c.shape, c.items(hx)))


@rule("multi_head_attention_forward")
def multi_head_attention(c: Shaper, query: Value, key: Value, value: Value, embed_dim_to_check: Value, num_heads: Value,
                         *args: Value, need_weights: Value | None = None, average_attn_weights: Value | None = None,
                         **kwargs: Value) -> Many:
    shape, keys = c.shape(query), c.shape(key)
    if len(args) > 8 or kwargs.keys() & {"static_k", "static_v"} or any(
            kwargs[name].real is not None for name in ("bias_k", "bias_v") if name in kwargs) or any(
            arg.real is not None for arg in args[2:4]) or any(arg.real for arg in args[4:5]) or _truth(kwargs.get("add_zero_attn")):
        raise Unknown
    if not c.fixed(need_weights, True):
        return Many([shape])
    heads = [] if c.fixed(average_attn_weights, True) else [as_size(c.fixed(num_heads))]
    return Many([shape, [*shape[1:-1], *heads, shape[0], keys[0]]])


@rule("_native_multi_head_attention")
def native_attention(c: Shaper, query: Value, key: Value, value: Value, embed_dim: Value, num_head: Value, qkv_weight: Value,
                     qkv_bias: Value, proj_weight: Value, proj_bias: Value, mask: Value | None = None,
                     need_weights: Value | None = None, average_attn_weights: Value | None = None, mask_type: Value | None = None,
                     ) -> Many:
    """Of batches that come first, in evaluation."""
    shape, keys = c.shape(query), c.shape(key)
    if not c.fixed(need_weights, True):
        return Many([shape])
    heads = [] if c.fixed(average_attn_weights, True) else [as_size(c.fixed(num_head))]
    return Many([shape, [shape[0], *heads, shape[1], keys[1]]])


@rule("_transformer_encoder_layer_fwd")
def native_encoder_layer(c: Shaper, src: Value, *args: Value, **kwargs: Value) -> Shape:
    return c.shape(src)


def _truth(value: Value | None) -> bool:
    return value is not None and bool(value.real)


@rule("cosine_similarity")
def cosine_similarity(c: Shaper, x1: Value, x2: Value, dim: Value | None = None, eps: Value | None = None) -> Shape:
    shape = c.broadcast(c.shape(x1), c.shape(x2))
    del shape[c.dim(dim, len(shape), 1)]
    return shape


@rule("pairwise_distance")
def pairwise_distance(c: Shaper, x1: Value, x2: Value, p: Value | None = None, eps: Value | None = None,
                      keepdim: Value | None = None) -> Shape:
    shape = c.broadcast(c.shape(x1), c.shape(x2))
    return [*shape[:-1], as_size(1)] if c.fixed(keepdim, False) else shape[:-1]


@rule("margin_ranking_loss", "triplet_margin_loss", "gaussian_nll_loss", "hinge_embedding_loss", "cosine_embedding_loss",
      "multilabel_soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss")
def loss(c: Shaper, *args: Value, reduction: Value | None = None, **kwargs: Value) -> Shape:
    if c.fixed(reduction, "mean") == "none" or any(is_a(value.real, (str, bool)) for value in args):
        raise Unknown
    list(map(c.shape, (value for value in args if is_a(value.real, torch.Tensor))))
    return []


@rule("bilinear")
def bilinear(c: Shaper, input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Shape:
    left, right = c.shape(input1), c.shape(input2)
    for one, other in zip(left[:-1], right[:-1], strict=True):
        c.same(one, other)
    return [*left[:-1], c.shape(weight)[0]]


@rule("complex", "polar", total=True)
def combined(c: Shaper, input: Value, other: Value) -> Shape:
    return pointwise(c, input, other)
