"""`torch.nn.attention.flex_attention`: attention whose scores a function of the program's changes, and another one masks.

In eager mode torch compiles each call, to trace these functions, with a backend that then runs them under `vmap`. Here the call is
inlined up to the operator, and that is written out. So what the functions take from outside is guarded and differentiated like
all else. Calls that torch cannot trace, or whose functions raise, are made by torch itself between two traces.
"""
from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch.amp import autocast_mode
from torch.fx import traceback
from torch.nn.attention import flex_attention as module

from capture.interp.core.frame import Abandoned
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import NAMED_EFFECTS, model, polyfill
from capture.interp.function_models.control_flow import attempt, is_compiling
from capture.interp.function_models.overrides import ITEM_MODE
from capture.refgraph.node import Const, Shadow

Q_INDICES = 7                   # of `BlockMask.as_tuple()`
VMAPPED: Callable[..., Any] = module._vmap_for_bhqkv
LN2 = math.log(2)


def import_dynamo() -> None:
    """What follows takes marks and modes from there. The import takes seconds, and changes nothing that a trace depends on."""
    importlib.import_module("torch._dynamo")


@model(import_dynamo)
def imported(interp: Interpreter, result: None) -> Shadow:
    return Const(None)


@polyfill(module.create_mask, applies=lambda *args, **kwargs: "torch._dynamo" not in sys.modules)
def make_first_mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    """`create_mask(…)` before Dynamo is imported, which it would do in the trace."""
    import_dynamo()
    return module.create_mask(*args, **kwargs)


def is_outermost(*args: Any, **kwargs: Any) -> bool:
    """Whether this is no part of a call that torch would compile."""
    return not is_compiling()


@polyfill(module.flex_attention, applies=is_outermost)
def attend(*args: Any, **kwargs: Any) -> Any:
    """`flex_attention(…)`: as inside of what torch compiles, where it calls the operator."""
    import_dynamo()
    return attempt(module.flex_attention, args, kwargs, made_by_torch, module.flex_attention, args, kwargs)


def made_by_torch(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The same call in eager mode."""
    return function(*args, **kwargs)


@polyfill(torch.compiler.is_dynamo_compiling, applies=is_compiling)
def in_what_torch_compiles() -> bool:
    """Asked by torch's functions that call operators, and by what these call."""
    return True


@polyfill(module.create_block_mask, applies=lambda *args, _compile=False, **kwargs: bool(args[7] if len(args) > 7 else _compile))
def make_mask(*args: Any, _compile: Any = None, **kwargs: Any) -> Any:
    """`create_block_mask(…, _compile=True)`, which has torch compile what it does, and warns of it."""
    return module.create_block_mask(*(args[:7] + (False, *args[8:]) if len(args) > 7 else args), **kwargs)


def _register_attention(function: Any) -> None:
    @polyfill(function, applies=lambda *args, **kwargs: True)
    def attend_in_model(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, training: bool = False, **kwargs: Any) -> Any:
        """What transformers calls for attention: `torch.compile(flex_attention)`, but inside of what torch compiles."""
        return module.flex_attention(query, key, value, **kwargs)


NAMED_EFFECTS["transformers.integrations.flex_attention", "compile_friendly_flex_attention"] = _register_attention


@polyfill(traceback.annotate, applies=lambda notes: True)
def annotate(notes: dict[str, Any]) -> Any:
    """Remarks for graphs that torch's tracers make in a block; `create_block_mask` has some."""
    return contextlib.nullcontext()


def _register_mark(function: Any) -> None:
    @polyfill(function, applies=is_compiling)
    def mark_static(*args: Any, **kwargs: Any) -> None:
        """A remark to Dynamo about the operands."""


NAMED_EFFECTS["torch._dynamo.decorators", "mark_static"] = _register_mark


def mapped_alike(index: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same subscripts, all of which are mapped over if some are: on tensors without data, torch fails for a mixture."""
    mapped = [one for one in index if functorch.is_batchedtensor(one)]
    if not mapped or len(mapped) == len(index) or mapped[0].dtype is torch.bool:
        return index
    zero = mapped[0] * 0
    return [one if functorch.is_batchedtensor(one) or one.dtype is torch.bool else zero + one for one in index]


def _register_indexing(function: Any) -> None:
    @polyfill(function, applies=lambda *args, **kwargs: True)
    def looked_up(mode: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """`tensor[q_idx]` in a function for scores or masks: an operation on the index, and not with its value."""
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            if all(isinstance(one, torch.Tensor | int) for one in index):
                table = args[0]
                index = mapped_alike([torch.tensor(one, dtype=torch.int64, device=table.device) if isinstance(one, int) else one
                                      for one in index])
                if table.requires_grad and table.dtype in (torch.bfloat16, torch.float16):      # torch adds gradients in float32
                    return torch.ops.aten.index(table.to(torch.float32), index).to(table.dtype)
                return torch.ops.aten.index(table, index)
        return func(*args, **({} if kwargs is None else kwargs))


NAMED_EFFECTS[ITEM_MODE[0], f"{ITEM_MODE[1]}.__torch_function__"] = _register_indexing


@polyfill(FlexAttentionHOP.__call__, applies=is_outermost)
def attend_by_operator(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator, called by the program, or by a graph that torch has traced."""
    return attempt(op, args, kwargs, made_by_torch, op, args, kwargs)


@polyfill(FlexAttentionHOP.__call__, applies=is_compiling)
def written_out(op: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: Any,
                scale: float, kernel_options: dict[str, Any], score_mod_other_buffers: tuple[Any, ...] = (),
                mask_mod_other_buffers: tuple[Any, ...] = ()) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator. Besides results it returns the logarithms (to base 2) of the sums of the exponentials of scores, and the
    largest scores: something empty where torch says that nobody asks for these, as its kernels do."""
    try:
        device = query.device.type
        block: Any = contextlib.nullcontext()
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            query, key, value = [autocast_mode._cast(one, device, dtype) for one in (query, key, value)]
            block = torch.autocast(device, enabled=False)
        with block:
            scores = scores_of(query, key, score_mod, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
            given = query, key, value, scores, *score_mod_other_buffers
            if block_mask[Q_INDICES] is None and torch.is_grad_enabled() and any(one.requires_grad for one in given):
                raise RuntimeError("torch says that it needs `q_indices`")
            sums, largest = statistics(query, scores, kernel_options)
            return weighted(query, scores, value), sums, largest
    except Exception:
        raise Abandoned from None


def scores_of(query: torch.Tensor, key: torch.Tensor, score_mod: Any, block_mask: Any, scale: float,
              score_buffers: tuple[Any, ...], mask_buffers: tuple[Any, ...]) -> torch.Tensor:
    """The scores, changed and masked, as in torch's own `math_attention`. Their gradients are those of the operator's backward
    pass: none where scores are masked, whatever the derivative of `score_mod` is there."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    working = torch.float64 if query.dtype is torch.float64 else torch.float32
    key = in_dtype(for_each_query(key, query), working)
    scores = (in_dtype(query, working) @ key.transpose(-2, -1)) * scale
    places = [torch.arange(0, scores.size(dim), device=scores.device) for dim in range(4)]
    mask_mod, mask = block_mask[-1], None
    with TransformGetItemToIndex():
        if mask_mod is not module.noop_mask:
            mask = VMAPPED(mask_mod, prefix=(), suffix=(None,) * len(mask_buffers))(*places, *mask_buffers)
        if score_mod is not module._identity:
            if mask is not None and scores.requires_grad:
                scores = torch.where(mask, scores, scores.detach())
            scores = VMAPPED(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))(scores, *places, *score_buffers)
    return scores if mask is None else torch.where(mask, scores, -math.inf)


def for_each_query(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head and batch of queries."""
    groups = query.size(1) // tensor.size(1)
    if groups != 1:
        tensor = torch.repeat_interleave(tensor, groups, dim=1)
    if query.size(0) == tensor.size(0):
        return tensor
    if query.size(0) <= 1 or tensor.size(0) != 1:
        raise RuntimeError("torch says that batches do not broadcast")
    return tensor.expand((query.size(0), *tensor.size()[1:]))


def statistics(query: torch.Tensor, scores: torch.Tensor, kernel_options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums and the largest scores that the operator returns."""
    sums = largest = query.new_empty(0)
    if kernel_options.get("OUTPUT_LOGSUMEXP", True):
        empty = torch.all(scores == -math.inf, dim=-1)
        finite = torch.where(empty.unsqueeze(-1), 0.0, scores)          # else the gradient of an empty row were NaN
        sums = torch.where(empty, -math.inf, finite.logsumexp(-1)) / LN2
    if kernel_options.get("OUTPUT_MAX", True):
        largest = torch.max(scores.detach(), dim=-1)[0] / LN2
    return sums, largest


def weighted(query: torch.Tensor, scores: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The mean of the values, weighted by scores. Its dimensions lie in memory as those of the query, but for the last one."""
    weights = in_dtype(torch._safe_softmax(scores, dim=-1), query.dtype)
    result = weights @ in_dtype(for_each_query(value, query), query.dtype)
    if query.size(1) != 1 and query.size(2) != 1:           # asking for strides fixes all sizes
        if query.is_contiguous():
            return result
        if query.transpose(1, 2).is_contiguous():
            return result.transpose(1, 2).contiguous().transpose(1, 2)
    order: list[int] = []                                   # of dimensions, the innermost first
    for dim in range(3):
        place = len(order)
        while place and query.stride(order[place - 1]) >= query.stride(dim):
            place -= 1
        order.insert(place, dim)
    strides, step = [0] * 4, 1
    for dim in (3, *order):
        strides[dim] = step
        step *= result.size(dim)
    return result if order == [2, 1, 0] else result.new_empty_strided(result.size(), strides).copy_(result)


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)
