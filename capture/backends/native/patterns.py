"""Attention that a program writes out, as one `scaled_dot_product_attention`. Works on the torch-level graph, before autograd sees
it, so that the backward pass is the kernel's own as well.

Replaced is `softmax(query @ key^T * scale + mask) @ value`, where scores are scaled anywhere, masks are added to scores or written
over them, and keys and values may be shared by heads.

The kernel computes the same wherever scores are finite, except for rows that a mask leaves without a key. If numbers were written
over the scores, such a row is the mean of all values, times NaN if the number is -inf, and gives queries and keys no gradient: this
replaces the kernel's result. If numbers were added, the kernel adds them too, and only -inf makes the row NaN. But its backward
pass computes exp(score - logsumexp), where large numbers absorb the logarithm. So in training an added mask must be known to leave
a key in each row. Masks that follow from the graph alone are computed here: causal ones become the kernel's own.

Not replaced: dropout, since the kernel draws no random numbers; masks that require gradients, for which there is no kernel; small
numbers written over scores, which might not vanish beside others; weights that the program uses itself.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from capture.backends.native.constant_values import Values, propagate
from capture.backends.native.nodes import same

KERNEL_DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
VANISHES = -1e4         # written over a score, it has no weight beside any score that is not as low itself
RESHAPING = {"transpose", "permute", "contiguous", "reshape", "view", "flatten"}
SAFE = "safe_softmax"           # torch's name for the one whose rows of -inf are 0
SOFTMAXES = ("softmax", SAFE)
IN_PLACE = {"iadd": "add", "imul": "mul", "itruediv": "truediv", "idiv": "div"}


@dataclass(frozen=True, slots=True)
class Mask:
    """`fill`: what is written over scores where `node` is true, or false if `inverted`; None: `node` is added. `reader`: where."""

    node: fx.Node
    reader: fx.Node
    fill: float | fx.Node | None = None
    inverted: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """`softmax(query @ transposed * scale, -1) @ value` with a mask, ending in node `result`; `scores` is the first product.

    parts: the nodes in between and `scores`, the last one first. factors: what `scale` comes of, where, and whether it divides.
    """

    query: fx.Node
    transposed: fx.Node
    value: fx.Node
    scores: fx.Node
    result: fx.Node
    parts: tuple[fx.Node, ...]
    factors: tuple[tuple[float | fx.Node, fx.Node, bool], ...] = ()
    mask: Mask | None = None

    @property
    def softmax(self) -> fx.Node:
        return next(part for part in self.parts if name_of(part) in SOFTMAXES)


def fuse_attention(gm: fx.GraphModule, inputs: Sequence[torch.Tensor | int | float]) -> int:
    """Replaces every written-out attention in `gm` for which the kernel computes the same. Returns how many.

    inputs: fake tensors for the placeholders, and numbers; propagated, under the modes in force, only when there is a candidate.
    """
    candidates = [node for node in gm.graph.nodes if _attention(node) is not None]
    if not candidates:
        return 0
    values = propagate(gm, inputs)
    # One after the other: an attention may read the result of another, which is no longer there.
    count = sum((found := _attention(node)) is not None and _replaced(found, values) for node in candidates)
    if count:
        gm.recompile()
    return count


# What is attention, by its form.

def name_of(node: fx.Node) -> str:
    """What a node does, by the name of its function, method or operator, in place or not."""
    target = node.target.overloadpacket if isinstance(node.target, torch._ops.OpOverload) else node.target
    name = (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")
    return IN_PLACE.get(name, name)


def _attention(result: fx.Node) -> Attention | None:
    if name_of(result) not in ("matmul", "bmm") or len(result.args) != 2 or result.kwargs:
        return None
    node, value = result.args
    parts: list[fx.Node] = []
    factors: list[tuple[float | fx.Node, fx.Node, bool]] = []
    mask: Mask | None = None
    above = True                    # the softmax
    while isinstance(node, fx.Node) and isinstance(value, fx.Node) and _only_user(node):
        parts.append(node)
        name = name_of(node)
        if _converts(node) or above and _is_idle_dropout(node):
            node = node.args[0]
        elif above:
            if name not in SOFTMAXES or _argument(node, 1, "dim") is None:
                return None
            node, above = _argument(node, 0, "input"), False
        elif name in ("truediv", "div", "mul") and len(node.args) == 2 and not node.kwargs:
            left, right = node.args
            if name == "mul" and not _is_product(left):
                left, right = right, left
            factors.append((right, node, name != "mul"))
            node = left
        elif mask is None and (found := _masked(node)) is not None:
            node, mask = found
            if factors and mask.fill is None:
                return None         # the mask would have to be scaled as well
        elif name in ("matmul", "bmm") and len(node.all_input_nodes) == len(node.args) == 2 and not node.kwargs:
            query, transposed = node.args
            return Attention(query, transposed, value, node, result, tuple(parts), tuple(factors), mask)
        else:
            return None
    return None


def _masked(node: fx.Node) -> tuple[Any, Mask] | None:
    """The scores and their mask."""
    name, args = name_of(node), node.args
    if name == "add" and len(args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in args):
        scores, mask = args if _is_product(args[0]) else reversed(args)
        return scores, Mask(mask, node)
    if name == "masked_fill" and len(args) == 3 and isinstance(args[1], fx.Node):
        return args[0], Mask(args[1], node, args[2])
    if name == "where" and len(args) == 3 and isinstance(args[0], fx.Node):
        condition, yes, no = args
        return (yes, Mask(condition, node, no, True)) if _is_product(yes) else (no, Mask(condition, node, yes))
    return None


def _is_product(node: object) -> bool:
    """Whether a node is a matrix product, perhaps scaled, converted or masked."""
    while isinstance(node, fx.Node) and _only_user(node):
        if name_of(node) in ("matmul", "bmm"):
            return True
        if _converts(node) or name_of(node) in ("truediv", "div", "mul", "masked_fill"):
            candidates = [a for a in node.args if isinstance(a, fx.Node)]
        elif name_of(node) in ("where", "add"):
            return any(map(_is_product, node.args))
        else:
            return False
        if name_of(node) == "mul" and len(candidates) == 2:
            return any(map(_is_product, candidates))
        node = candidates[0] if candidates else None
    return False


def _only_user(node: fx.Node) -> bool:
    """Whether one node alone uses the result, beside unused ones that do nothing, such as conversions to the dtype that it has."""
    return sum(bool(user.users) or not (_is_idle_dropout(user) or _converts(user)) for user in node.users) == 1


def _is_idle_dropout(node: fx.Node) -> bool:
    if name_of(node) not in ("dropout", "feature_dropout"):
        return False
    training = _argument(node, 2, "training")
    return _argument(node, 1, "p") == 0 or training is False or _argument(node, 2, "train") is False


def _converts(node: fx.Node) -> bool:
    return name_of(node) in ("to", "type", "type_as", "float", "double", "bfloat16", "half") and bool(node.args)


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


# Whether the kernel computes the same.

def _replaced(found: Attention, values: Values) -> bool:
    """Puts the kernel in place of a candidate, if that changes nothing."""
    fakes = values.fakes
    nodes = (found.query, found.transposed, found.value, found.scores, found.result, *found.parts)
    if not all(node in fakes for node in nodes) or not _fits(found, values):
        return False
    scale = _scale(found, values)
    if scale is None:
        return False
    mask = found.mask
    if mask is not None:
        mask = _settled(mask, fakes[found.scores], scale, found, values)
        if mask is None:
            return False
    _emit(found, scale[0], mask, values)
    return True


def _fits(found: Attention, values: Values) -> bool:
    """Whether shapes, strides and dtypes are the kernel's, and what it reads is at `result` what it was for the program."""
    query, transposed, value, result = (values.fakes[n] for n in (found.query, found.transposed, found.value, found.result))
    softmax = found.softmax
    scores = values.fakes[found.scores]
    rank = query.dim()
    return (rank in (3, 4) and transposed.dim() == value.dim() == rank == result.dim()
            and query.dtype == transposed.dtype == value.dtype == scores.dtype == result.dtype and query.dtype in KERNEL_DTYPES
            and query.shape == result.shape and query.shape[-1] == transposed.shape[-2] and query.numel() > 0
            and scores.shape[-1] == value.shape[-2] > 0 and transposed.shape[-1] == value.shape[-2]
            and query.stride(-1) == transposed.stride(-2) == value.stride(-1) == 1
            and _argument(softmax, 1, "dim") in (-1, rank - 1)
            and all(part.shape == scores.shape and _holds(part.dtype, scores.dtype) for part in map(values.fakes.get, found.parts))
            and values.final(found.query, found.scores) and values.final(found.transposed, found.scores)
            and values.final(found.value, found.result))


def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    return dtype.is_floating_point and torch.promote_types(dtype, other) == dtype


def _scale(found: Attention, values: Values) -> tuple[float, float] | None:
    """What the scores are multiplied by, altogether and before a mask is written over them; None if that is not known."""
    scale = after = 1.0
    for factor, reader, divides in found.factors:
        number = _number(factor, reader, values)
        if number is None or not math.isfinite(number) or number == 0:
            return None
        scale *= 1.0 / number if divides else number
        if found.mask is not None and found.parts.index(reader) < found.parts.index(found.mask.reader):
            after = scale
    return scale, after


def _number(value: Any, reader: fx.Node, values: Values) -> float | None:
    if isinstance(value, fx.Node):
        constant = values.constant(value, reader)
        value = constant.item() if constant is not None and constant.dim() == 0 else None
    return float(value) if isinstance(value, (int, float)) else None


def _settled(mask: Mask, scores: torch.Tensor, scale: tuple[float, float], found: Attention, values: Values) -> Mask | None:
    """The mask with its number known, if it is one that the kernel can apply."""
    fake = values.fakes.get(mask.node)
    if fake is None or not values.final(mask.node, mask.reader) or not _broadcasts(fake.shape, scores.shape):
        return None
    if mask.fill is None:
        exact = fake.dtype == values.fakes[found.query].dtype == scores.dtype and fake.dtype != torch.float16
        return mask if exact and (not values.fakes[found.result].requires_grad or _leaves_keys(mask, values)) else None
    fill = _number(mask.fill, mask.reader, values)
    if fake.dtype != torch.bool or fill is None or scale[1] <= 0 or not fill * scale[1] <= VANISHES:
        return None
    return replace(mask, fill=fill)


def _leaves_keys(mask: Mask, values: Values) -> bool:
    """Whether it is known of a mask that is added that it spares a key for each query."""
    known = values.constant(mask.node, mask.reader)
    return known is not None and bool(((known.amax(-1) if known.dim() else known) > VANISHES).all())


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to)))


# The kernel.

def _emit(found: Attention, scale: float, mask: Mask | None, values: Values) -> None:
    """Puts the kernel in place of a candidate."""
    fakes, result = values.fakes, found.result
    rank, scores = fakes[result].dim(), fakes[found.scores]
    new = _Calls(result)
    key, value, heads = _ungrouped(found, values, new)
    query = found.query
    if rank == 3:
        query, key, value = (new.method("unsqueeze", node, 1) for node in (query, key, value))
    kwargs: dict[str, Any] = {"scale": scale} | ({"enable_gqa": True} if heads > 1 else {})
    empty = None
    if mask is not None:
        known = values.constant(mask.node, mask.reader)
        if known is not None and _is_causal(mask, known, scores.shape):
            kwargs["is_causal"] = True
        else:
            kwargs["attn_mask"], empty = _bias(new, mask, known, fakes[mask.node], scores)
    out = new.function(F.scaled_dot_product_attention, query, key, value, **kwargs)
    if mask is not None and empty is not None:
        if name_of(found.softmax) == SAFE and mask.fill in (None, -math.inf):
            out = new.method("masked_fill", out, empty, 0.0)
        else:
            out = _with_empty_rows(new, out, empty, mask, value, heads, scores.dtype)
    if rank == 3:
        out = new.method("squeeze", out, 1)
    like = fakes[found.query] if rank == 4 else fakes[found.query].unsqueeze(1)
    strided = F.scaled_dot_product_attention(like, like, like)
    if not _alike(result, strided if rank == 4 else strided.squeeze(1), values):
        out = new.method("contiguous", out)
    out.meta.update(result.meta)
    result.replace_all_uses_with(out)
    for node in (result, *found.parts):
        for unused in [user for user in node.users if not user.users]:
            node.graph.erase_node(unused)
        node.graph.erase_node(node)


class _Calls:
    """Makes nodes before a node of a graph."""

    def __init__(self, before: fx.Node) -> None:
        self.before = before

    def function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        with self.before.graph.inserting_before(self.before):
            return self.before.graph.call_function(target, args, kwargs)

    def method(self, name: str, *args: Any) -> fx.Node:
        with self.before.graph.inserting_before(self.before):
            return self.before.graph.call_method(name, args)


def _ungrouped(found: Attention, values: Values, new: _Calls) -> tuple[fx.Node, fx.Node, int]:
    """Key and value, (N, heads, keys, width), and how many heads of the query share one of theirs: as they were before the program
    repeated them, where it did."""
    repeated = found.transposed.args[0] if name_of(found.transposed) == "transpose" else None
    sources = [_repeated(node, values) for node in (repeated, found.value)]
    if None not in sources and sources[0][1] == sources[1][1] and values.final(repeated, found.transposed):
        (key, heads), (value, _) = sources
        return *(new.method("select", node, 2, 0) if values.fakes[node].dim() == 5 else node for node in (key, value)), heads
    key, value = new.method("transpose", found.transposed, -2, -1), found.value
    outer = values.fakes[found.query].shape[:-2]
    shapes = values.fakes[found.transposed].mT.shape, values.fakes[value].shape
    return *(node if shape[:-2] == outer else new.method("expand", node, *outer, *shape[-2:])
             for node, shape in zip((key, value), shapes, strict=True)), 1


def _repeated(node: Any, values: Values) -> tuple[fx.Node, int] | None:
    """What heads were made from by repeating each, and how often: with a dimension for the repetitions, or without them."""
    if not isinstance(node, fx.Node) or node not in values.fakes or values.fakes[node].dim() != 4 or not node.args:
        return None
    source, shape = node.args[0], values.fakes[node].shape
    if not isinstance(source, fx.Node) or source not in values.fakes or not values.final(source, node):
        return None
    fake = values.fakes[source]
    if fake.stride(-1) != 1:
        return None
    if name_of(node) in ("reshape", "view", "flatten") and fake.dim() == 5 and fake.stride(2) == 0:
        n, heads, times, *inner = fake.shape
        return (source, times) if times > 1 and shape == (n, heads * times, *inner) else None
    if name_of(node) == "repeat_interleave" and _argument(node, 2, "dim") in (1, -3):
        times = _argument(node, 1, "repeats")
        return (source, times) if isinstance(times, int) and times > 1 else None
    return None


def _is_causal(mask: Mask, known: torch.Tensor, scores: torch.Size) -> bool:
    """Whether each query sees the keys up to its own place, and no others."""
    if known.shape[-2:] != scores[-2:]:
        return False
    past = torch.ones(scores[-2:], dtype=torch.bool).tril().expand(known.shape)
    if mask.fill is None:
        return bool((known[past] == 0).all() and (known[~past] <= VANISHES).all())
    return torch.equal(known if mask.inverted else ~known, past)


def _bias(new: _Calls, mask: Mask, known: torch.Tensor | None, fake: torch.Tensor,
          scores: torch.Tensor) -> tuple[fx.Node, fx.Node | None]:
    """What is added to the scores, and which rows have no key left; None where no row has none."""
    node = mask.node
    if any(stride == 0 and size > 1 for size, stride in zip(fake.shape, fake.stride())):
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in fake.stride())
        node = new.function(operator.getitem, node, once)
    for _ in range(2 - fake.dim()):
        node = new.method("unsqueeze", node, 0)
    if fake.dim() == 3:
        node = new.method("unsqueeze", node, 1 if scores.dim() == 3 else 0)
    if mask.fill is None:
        hidden = None if known is None else known == -math.inf
        bias = node
        node = new.function(operator.eq, node, -math.inf)
    else:
        hidden = None if known is None else ~known if mask.inverted else known
        if mask.inverted:
            node = new.method("logical_not", node)
        bias = new.function(operator.mul, new.method("to", node, scores.dtype), torch.finfo(scores.dtype).min)
    if hidden is not None and not (hidden.all(-1) if hidden.dim() else hidden).any():
        return bias, None
    return bias, new.method("all", node, -1, True)


def _with_empty_rows(new: _Calls, out: fx.Node, empty: fx.Node, mask: Mask, value: fx.Node, heads: int,
                     dtype: torch.dtype) -> fx.Node:
    """The kernel's result with rows that no key is left for as if they were written out. Gradients go to the values alone."""
    mean = new.method("mean", value, -2, True)
    if heads > 1:
        mean = new.method("repeat_interleave", mean, heads, 1)
    if mask.fill is None or mask.fill == -math.inf:
        one = new.method("to", new.method("logical_not", empty), dtype)         # in other rows, where the mean's gradient is 0
        mean = new.function(operator.mul, mean, new.method("masked_fill", one, empty, math.nan))
    return new.function(torch.where, empty, mean, out)


def _alike(node: fx.Node, strided: torch.Tensor, values: Values) -> bool:
    """Whether all else that a program sees has the same strides, if the result of `node` has those of `strided`."""
    if same(strided.stride(), values.fakes[node].stride()):
        return True
    for user in node.users:
        if user.op != "call_method" or name_of(user) not in RESHAPING or user.args[0] is not node:
            return False
        try:
            args, kwargs = fx.map_arg((user.args[1:], user.kwargs), values.sizes.__getitem__)
            reshaped = getattr(strided, str(user.target))(*args, **kwargs)
        except (RuntimeError, ValueError):      # with these strides it would be no view
            return False
        if not _alike(user, reshaped, values):
            return False
    return True
