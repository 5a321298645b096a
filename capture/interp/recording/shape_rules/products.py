"""Sizes of results of matrix products and attention."""
from __future__ import annotations

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Shape, Shaper, Unknown, rule


@rule("matmul", "mm", "bmm", "mv", "dot", total=True)
def matmul(c: Shaper, input: Value, other: Value, **kwargs: Value) -> Shape:
    left, right = c.shape(input), c.shape(other)
    if not left or not right or kwargs.keys() - {"out_dtype"}:
        raise Unknown
    c.same(left[-1], right[-2] if len(right) > 1 else right[-1])
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else []
    return [*c.broadcast(left[:-2], right[:-2]), *rows, *columns]


@rule("linear", total=True)
def linear(c: Shaper, input: Value, weight: Value, bias: Value | None = None) -> Shape:
    shape, filters = c.shape(input), c.shape(weight)
    c.same(shape[-1], filters[-1])
    if bias is not None and is_a(bias.real, torch.Tensor):
        c.broadcast(filters[:-1], c.shape(bias))
    return [*shape[:-1], *filters[:-1]]


@rule("addmm", "baddbmm", "addmv", total=True)
def addmm(c: Shaper, input: Value, one: Value, other: Value, **kwargs: Value) -> Shape:
    shape = matmul(c, one, other)
    for size, same in zip(c.broadcast(c.shape(input), shape), shape, strict=True):
        c.same(size, same)
    return shape


@rule("addbmm")
def addbmm(c: Shaper, input: Value, batch1: Value, batch2: Value, **kwargs: Value) -> Shape:
    return matmul(c, batch1, batch2)[1:]


@rule("grouped_mm", "_grouped_mm")
def grouped_mm(c: Shaper, mat_a: Value, mat_b: Value, offs: Value | None = None, *args: Value, **kwargs: Value) -> Shape:
    """Products of groups of rows, or of columns, with a matrix each."""
    left, right = c.shape(mat_a), c.shape(mat_b)
    if len(left) == len(right) == 3:
        return matmul(c, mat_a, mat_b)
    c.same(left[-1], right[-2])
    groups = c.shape(offs) if len(left) == len(right) == 2 and offs is not None else []
    return [*groups, left[-2], right[-1]]


@rule("vdot")
def vdot(c: Shaper, input: Value, other: Value) -> Shape:
    c.same(*c.shape(input), *c.shape(other))
    return []


@rule("tensordot")
def tensordot(c: Shaper, a: Value, b: Value, dims: Value | None = None) -> Shape:
    left, right, places = c.shape(a), c.shape(b), c.fixed(dims, 2)
    if type(places) is int:
        here, there = list(range(len(left) - places, len(left))), list(range(places))
    else:
        here, there = ([place % len(shape) for place in one] for one, shape in zip(places, (left, right), strict=True))
    for place, other in zip(here, there, strict=True):
        c.same(left[place], right[other])
    return [*(size for place, size in enumerate(left) if place not in here),
            *(size for place, size in enumerate(right) if place not in there)]


@rule("outer", "ger", total=True)
def outer(c: Shaper, input: Value, vec2: Value) -> Shape:
    return [*c.shape(input), *c.shape(vec2)]


@rule("einsum")
def einsum(c: Shaper, equation: Value, *operands: Value) -> Shape:
    text = c.fixed(equation)
    if type(text) is not str or "." in text or "->" not in text:
        raise Unknown
    tensors = list(operands) if len(operands) != 1 or not is_a(operands[0].real, (list, tuple)) else c.items(operands[0])
    inputs, _, result = text.replace(" ", "").partition("->")
    known = {}
    for letters, tensor in zip(inputs.split(","), tensors, strict=True):
        for letter, size in zip(letters, c.shape(tensor), strict=True):
            known[letter] = c.joined(known[letter], size) if letter in known else size
    return [known[letter] for letter in result]


@rule("scaled_dot_product_attention", total=True)
def attention(c: Shaper, query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: Value | None = None,
              is_causal: Value | None = None, *, scale: Value | None = None, enable_gqa: Value | None = None) -> Shape:
    shape, keys, values = c.shape(query), c.shape(key), c.shape(value)
    if not len(shape) == len(keys) == len(values):
        raise Unknown
    c.same(shape[-1], keys[-1])
    c.same(keys[-2], values[-2])
    if c.fixed(enable_gqa, False):          # several heads of the query have one of the others
        for heads in keys, values:
            c.same(c.sizes.quotient(shape[-3], heads[-3]) * heads[-3], shape[-3])
            heads[-3] = shape[-3]
    batch = c.broadcast(shape[:-2], keys[:-2], values[:-2])
    if attn_mask is not None and attn_mask.real is not None:
        scores = [*batch, shape[-2], keys[-2]]
        for size, other in zip(c.broadcast(c.shape(attn_mask), scores), scores, strict=True):
            c.same(size, other)
    return [*batch, shape[-2], values[-1]]
