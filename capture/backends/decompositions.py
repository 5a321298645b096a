"""Which ATen operators are decomposed, and into what.

Decomposed: everything that becomes elementwise operations, reductions, views and gathers, since the compiler fuses those (softmax,
normalisations, losses, activations, and their backward formulas). Kept: operators with a good ATen kernel (matrix products,
convolutions, attention, sorting) or a lowering of their own (pooling, resampling, scatters), and everything that draws random
numbers, so that the generator advances exactly as in eager mode.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import math
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch._prims
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from capture.backends.native.lowering.registry import TABLE
from capture.backends.recurrent import with_dropout
from capture.operators import beyond_schemas

aten = torch.ops.aten

# Operators of torch's core table that stay calls of ATen, with all their overloads …
CALLED = (
    "baddbmm", "addr", "dot", "vdot", "mv", "embedding_bag",
    "_scaled_dot_product_flash_attention_for_cpu", "bernoulli", "rrelu", "rrelu_with_noise", "col2im", "im2col", "max_unpool2d",
    "max_unpool3d", "renorm", "_convolution_double_backward", "adaptive_max_pool1d")
# … as do those that the compiler has a lowering of, more exact in low precision than a sequence of roundings; but for these: what
# torch makes of them is as good, and they are lowered where other graphs have them.
TAKEN_APART = frozenset("""
    _reshape_alias _unsafe_index _unsafe_index_put _unsafe_view all arange detach empty_like fill floor_divide isfinite isneginf
    isposinf new_empty new_full new_ones new_zeros ones ones_like split square squeeze stack sum t transpose true_divide unbind
    where zero zeros zeros_like""".split())
# Those that torch decomposes before autograd sees them, unless `undecomposed`: their gradients would be scatters; or they would be
# rounded more than once; or what torch makes of them counts targets behind the end of a list, and checks none.
EARLY = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "softshrink", "hardshrink", "multi_margin_loss", "multilabel_margin_loss_forward")
# Operators whose decompositions, which torch applies before autograd, lack something (`recurrent.py`).
RECURRENT = tuple(sorted(beyond_schemas.RECURRENT))
# Operators that torch's core table leaves as they are, and which are decomposed.
ADDED = (
    "_softmax", "_log_softmax", "native_batch_norm", "_native_batch_norm_legit", "batch_norm_backward", "addmv")


class Layout(NamedTuple):
    """How the results of an operator lie: channels last where the argument at this place does, or (None) contiguous in any case; on
    other devices than the CPU perhaps as torch's decompositions make them."""

    as_argument: int | None = None
    on_cpu_alone: bool = False


# Operators whose results lie otherwise than those of torch's decompositions, which lie as the arguments do.
LAID_OUT = {"_log_softmax_backward_data": Layout(), "channel_shuffle": Layout(0, on_cpu_alone=True), "glu_backward": Layout(),
            "huber_loss_backward": Layout(), "log_sigmoid_forward": Layout(on_cpu_alone=True), "mse_loss_backward": Layout(),
            "nll_loss2d_forward": Layout(), "reflection_pad2d_backward": Layout(1, on_cpu_alone=True),
            "reflection_pad3d_backward": Layout(1, on_cpu_alone=True), "smooth_l1_loss_backward": Layout()}


def laying_out(decomposed: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """Such an operator: what `decomposed` makes, laid out so."""
    @functools.wraps(decomposed)
    def made(*args: Any, **kwargs: Any) -> Any:
        results = decomposed(*args, **kwargs)
        if results is NotImplemented or layout.on_cpu_alone and args[0].device.type != "cpu":
            return results
        place = layout.as_argument
        format = torch.contiguous_format if place is None else suggest_memory_format(args[place])
        several = isinstance(results, tuple)
        laid = tuple(result.contiguous(memory_format=format) for result in (results if several else (results,)))
        return laid if several else laid[0]
    return made


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The table for AOTAutograd: operator overload -> the function, of smaller operators, that stands for it."""
    table = dict(core_aten_decompositions())
    lowered = {op.overloadpacket for op in TABLE if op in table} - {getattr(aten, name) for name in TAKEN_APART}
    for packet in (*lowered, *map(functools.partial(getattr, aten), CALLED + EARLY)):
        for name in packet.overloads():
            table.pop(getattr(packet, name), None)
    table |= get_decompositions([getattr(aten, name) for name in ADDED if hasattr(aten, name)]) | OWN
    for name, layout in LAID_OUT.items():
        for overload in map(functools.partial(getattr, getattr(aten, name)), getattr(aten, name).overloads()):
            if overload in table and not overload._schema.is_mutable:
                table[overload] = laying_out(table[overload], layout)
    for name in torch._prims.__all__:
        prim = getattr(getattr(torch.ops.prims, name, None), "default", None)
        told_by = getattr(getattr(prim, "prim_meta_impl", None), "func", None)
        if prim not in table and told_by is torch._prims._prim_elementwise_meta:
            table[prim] = as_computed(prim)
    return table


def as_computed(prim: Any) -> Callable[..., Any]:
    """One of torch's elementwise primitives by the operator that computes it, where its result has another dtype than torch tells:
    of `prims.signbit`, or of `prims.exp` of integers."""
    @functools.wraps(prim)
    def made(*args: Any, **kwargs: Any) -> Any:
        with disable_proxy_modes_tracing():
            told, computed = prim(*args, **kwargs), prim.impl_aten(*args, **kwargs)
        return NotImplemented if told.dtype == computed.dtype else prim.impl_aten(*args, **kwargs)
    return made


@contextlib.contextmanager
def undecomposed() -> Iterator[None]:
    """While a graph is traced: EARLY reaches autograd, and the table, as it is, of whatever size, and RECURRENT is complete. Torch
    keeps Python kernels with its operators; those of other threads that trace at the same time are set aside, too, which changes no
    values."""
    taken: list[tuple[Any, Any, Any]] = []
    with _tracing:
        try:
            for packet in map(functools.partial(getattr, aten), EARLY + RECURRENT):
                for op in map(functools.partial(getattr, packet), packet.overloads()):
                    for key in (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd):
                        if key in op.py_kernels:
                            taken.append((op, key, op.py_kernels.pop(key)))
                            if packet.__name__ in RECURRENT and op._overloadname == "input":
                                op.py_kernels[key] = with_dropout(taken[-1][2])
                            elif op._overloadname == "vec":
                                op.py_kernels[key] = resampled(packet)
                            op._dispatch_cache.clear()
            yield
        finally:
            for op, key, kernel in taken:
                op.py_kernels[key] = kernel
                op._dispatch_cache.clear()


def resampled_backward(grad: Tensor, output_size: list[int], input_size: list[int], *options: Any, **scales: Any) -> Tensor:
    """What the gradients of a resampling look like. Torch's own, in C++, takes no size that is a symbol."""
    return grad.new_empty(input_size).contiguous(memory_format=suggest_memory_format(grad))


for _op in (getattr(aten, f"{name}_backward").default for name in EARLY if "upsample" in name):
    if torch._C.DispatchKey.Meta not in _op.py_kernels:         # passes over traced graphs ask for it as well
        _op.py_impl(torch._C.DispatchKey.Meta)(resampled_backward)


def resampled(packet: Any) -> Callable[..., Tensor]:
    """The overload of a resampling that takes either a size or scales, by the one that takes both: torch's own, in C++, takes no
    size that is a symbol."""
    def resample(input: Tensor, output_size: list[int] | None, *options: Any) -> Tensor:
        *aligned, factors = options
        size = upsample_compute_output_size(input.size(), output_size, factors)
        return packet.default(input, size, *aligned, *(factors or [None] * len(size)))
    return resample


_tracing = threading.RLock()        # within it no other thread takes or gives back kernels
OWN: dict[Any, Callable[..., Any]] = {}


def decomposition(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for operator overloads, instead of torch's own decomposition."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OWN.update(dict.fromkeys(ops, function))
        return function
    return register


def rounded(value: float, dtype: torch.dtype) -> float:
    """A Python number as float32 holds it, unless `dtype` is float64: what a kernel makes of a scalar argument."""
    return value if dtype == torch.float64 else struct.unpack("f", struct.pack("f", value))[0]


@decomposition(aten.native_dropout.default)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """As eager mode does on a CPU: one draw for each element, in the order of memory, scaled by 1 / (1 - p). On a GPU, where which
    number an element gets depends on the kernel, it stays as it is."""
    if input.device.type != "cpu" and train is not False and 0 < p < 1 and input.numel():
        return NotImplemented
    if train is False or p == 0 or input.numel() == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device), torch.zeros_like(input, dtype=torch.bool)
    keep = 1 - p
    strides = torch.empty_like(input).stride()
    order = sorted(range(input.dim()), key=lambda dim: -strides[dim])
    drawn = aten.bernoulli.p(torch.empty([input.shape[dim] for dim in order], dtype=torch.bool, device=input.device), keep)
    mask = drawn if order == sorted(order) else drawn.permute([order.index(dim) for dim in range(input.dim())])
    return input * (mask.to(input.dtype) * rounded(1 / rounded(keep, input.dtype), input.dtype)), mask


@decomposition(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) * rounded(scale, grad.dtype))


# --- normalisations: as eager mode on a CPU, squares are those of the input's dtype, whereas those of `var` are double

def moments(values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Over `dims`, which stay, with size 1: the mean, the mean square of the difference to it, and that difference's own mean,
    which is not 0, since the mean is rounded."""
    mean = values.mean(dims, keepdim=True)
    difference = mean - values          # not the other way round: one value for this and for outputs would be kept for both
    return mean, (difference * difference).mean(dims, keepdim=True), difference.mean(dims, keepdim=True)


# over channels: one multiplication and addition for each element, by what is the same for the whole channel

def over_channels(values: Tensor, input: Tensor) -> Tensor:
    """One value per channel, shaped to be broadcast over a batch [N, C, ...]."""
    return values.view(1, values.shape[0], *[1] * (input.dim() - 2))


def scaled(input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`(input - mean) * rstd * weight + bias` of an input [N, C, ...], all else being [C]; in the dtype of the input. As in eager
    mode, whose compiler makes one operation of each product and sum, products are not rounded."""
    scale = rstd if weight is None else rstd * weight
    shift = -mean * scale if bias is None else torch.addcmul(bias.to(scale.dtype), -mean, scale)
    return torch.addcmul(over_channels(shift, input), input, over_channels(scale, input)).to(input.dtype)


def laid_out(output: Tensor, input: Tensor) -> Tensor:
    """The output in the layout that eager mode gives it: channels last, if the input is, else contiguous."""
    return output.contiguous(memory_format=suggest_memory_format(input))


def accumulated(tensor: Tensor) -> Tensor:
    """The tensor in the dtype in which its statistics are computed."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@decomposition(aten._softmax_backward_data.default)
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """As eager mode has it: a product of the sum, which may be infinite, would be subtracted from another infinite one."""
    grad, values = accumulated(grad_output), accumulated(output)
    return (values * (grad - (grad * values).sum(dim, keepdim=True))).to(input_dtype).contiguous()


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
               training: bool, momentum: float, eps: float) -> tuple[Tensor, ...]:
    """Returns the output, mean and reciprocal deviation (both empty in evaluation), and the new running statistics."""
    if not training:
        evaluated = batch_norm_evaluated(input, weight, bias, running_mean, running_var, momentum, eps)
        return *evaluated, running_mean.clone(), running_var.clone()
    output, mean, rstd, var = batch_norm_trained(input, weight, bias, eps)
    count = input.numel() // input.shape[1]
    unbiased = var * (count / (count - 1)) if count > 1 else var
    return (output, mean, rstd, (momentum * mean + (1 - momentum) * running_mean).to(running_mean.dtype),
            (momentum * unbiased + (1 - momentum) * running_var).to(running_var.dtype))


@decomposition(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
                           momentum: float, eps: float) -> tuple[Tensor, ...]:
    """`batch_norm` in training, with memory that cuDNN would keep for the backward pass: here there is none."""
    output, mean, rstd, *running = batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    reserve = torch.empty(0, dtype=torch.uint8, device=input.device)
    return output, kept(mean, input, weight, bias), kept(rstd, input, weight, bias), reserve, *running


def batch_norm_trained(input: Tensor, weight: Tensor | None, bias: Tensor | None,
                       eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the output, and of each channel the mean, reciprocal deviation and variance."""
    dims = [dim for dim in range(input.dim()) if dim != 1]
    exact = accumulated(input)
    mean, var, residue = (moment.reshape(-1) for moment in moments(exact, dims))
    exact_var = var.double() - residue.double() ** 2        # eager mode's mean has more digits; in float32 inf - inf
    var, rstd = exact_var.to(var.dtype), torch.rsqrt(exact_var + eps).to(var.dtype)
    scale = rstd if weight is None else rstd * weight
    shift = residue * scale if bias is None else bias + residue * scale
    output = (exact - over_channels(mean, input)) * over_channels(scale, input) + over_channels(shift, input)
    return laid_out(output.to(input.dtype), input), mean, rstd, var


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                                  eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm_trained(input, weight, bias, eps)[:3]


@decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_evaluated(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
                         momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output, and two empty tensors."""
    output = scaled(accumulated(input), accumulated(running_mean), torch.rsqrt(accumulated(running_var) + eps), weight, bias)
    return laid_out(output.to(input.dtype), input), running_mean.new_empty(0), running_mean.new_empty(0)


def kept(statistics: Tensor, input: Tensor, *parameters: Tensor | None) -> Tensor:
    """A mean or deviation in the dtype in which eager mode keeps it: the input's, unless a parameter has another one."""
    same = all(parameter is None or parameter.dtype == input.dtype for parameter in parameters)
    return statistics.to(input.dtype) if same else statistics


@decomposition(aten.native_layer_norm.default)
def layer_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None,
               eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output, mean and reciprocal deviation."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    values = accumulated(input).contiguous()
    mean, var, _ = moments(values, dims)
    rstd = torch.rsqrt(var + eps)
    output = (values - mean) * rstd
    output = output if weight is None else output * weight
    output = output if bias is None else output + bias
    if input.device.type != "cpu":
        return output.to(input.dtype), mean, rstd
    return output.to(input.dtype), kept(mean, input, weight, bias), kept(rstd, input, weight, bias)


@decomposition(aten.native_group_norm.default)
def group_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int,
               eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output [N, C, ...], and mean and reciprocal deviation [N, group]."""
    grouped = accumulated(input).reshape(N, group, C // group, HxW)
    mean, var, _ = moments(grouped, [2, 3])
    rstd = torch.rsqrt(var + eps)
    scale = rstd if weight is None else rstd * weight.view(1, group, C // group, 1)
    output = (grouped - mean) * scale
    output = output if bias is None else output + bias.view(1, group, C // group, 1)
    output = laid_out(output.to(input.dtype).view(input.shape), input)      # torch 2.13 gives it contiguous inputs only
    return output, *(kept(statistics.view(N, group), input, weight, bias) for statistics in (mean, rstd))


# gradients: by means of normalized values, which keep their digits whatever the mean, and no product with a number of elements

def of_groups(slope: Tensor, normalized: Tensor, dims: list[int]) -> Tensor:
    """The gradient of what was normalized over `dims`. `slope` is that of the normalized values, times the reciprocal deviation."""
    return slope - slope.mean(dims, keepdim=True) - normalized * (slope * normalized).mean(dims, keepdim=True)


@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_backward(grad_out: Tensor, input: Tensor, normalized_shape: list[int], mean: Tensor, rstd: Tensor,
                        weight: Tensor | None, bias: Tensor | None, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    outer = list(range(input.dim() - len(normalized_shape)))
    inner = list(range(len(outer), input.dim()))
    grad, values = accumulated(grad_out).contiguous(), accumulated(input).contiguous()
    normalized = (values - mean) * rstd
    slope = grad * rstd if weight is None else grad * rstd * weight
    input_grad = of_groups(slope, normalized, inner).to(input.dtype) if output_mask[0] else None
    weight_grad = total(grad * normalized, outer).to(weight.dtype) if output_mask[1] and weight is not None else None
    bias_grad = total(grad, outer).to(bias.dtype) if output_mask[2] and bias is not None else None
    return input_grad, weight_grad, bias_grad


def total(values: Tensor, dims: list[int]) -> Tensor:
    return values.sum(dims) if dims else values.clone()     # torch would take all dimensions in place of none


@decomposition(aten.native_group_norm_backward.default)
def group_norm_backward(grad_output: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int, C: int,
                        HxW: int, group: int, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    grad, values = (accumulated(tensor).reshape(N, group, C // group, HxW) for tensor in (grad_output, input))
    mean = mean.view(N, group, 1, 1)
    # per channel; not of values - mean, which would be kept for both passes over the group
    sums, products = grad.sum(3), -(grad * (mean - values)).sum(3)
    rstd = rstd.view(N, group, 1)
    scale = rstd if weight is None else rstd * weight.view(1, group, C // group)
    share = 1.0 / (C // group * HxW)
    slope, projection = ((total * scale).sum(2, keepdim=True) * share for total in (sums, products))
    input_grad = grad * scale.unsqueeze(3) - slope.unsqueeze(3) - (values - mean) * (projection * rstd * rstd).unsqueeze(3)
    dtype = input.dtype if weight is None else weight.dtype
    weight_grad = (products * rstd).sum(0).view(C).to(dtype) if output_mask[1] else None
    bias_grad = sums.sum(0).view(C).to(dtype) if output_mask[2] else None
    return input_grad.reshape(input.shape).to(input.dtype) if output_mask[0] else None, weight_grad, bias_grad


@decomposition(aten._weight_norm_interface.default)
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """As eager mode has it: torch's own decomposition takes one norm of a whole vector, not that of each element."""
    others = [place for place in range(v.dim()) if place != dim]
    norm = torch.linalg.vector_norm(v, 2, others, keepdim=True, dtype=accumulated(g).dtype) if others else accumulated(v).abs()
    return v * (g / norm.to(g.dtype)), norm


# --- losses and their gradients

@decomposition(aten.binary_cross_entropy.default)
def binary_cross_entropy(self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Torch's own decomposition, with eager mode's check: what is no probability is read at a place out of range."""
    beyond = torch.where((self >= 0) & (self <= 1), 0, 1)
    checked = self.unsqueeze(-1).gather(-1, beyond.unsqueeze(-1)).squeeze(-1)
    return torch._decomp.decompositions.binary_cross_entropy(checked, target, weight, reduction)


@decomposition(aten.smooth_l1_loss_backward.default)
def smooth_l1_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """As eager mode has it, NaN where a difference is none: torch's own decomposition takes the sign of that, which is 0."""
    difference = accumulated(self) - accumulated(target)
    slope = torch.where(difference <= -beta, -1.0, torch.where(difference >= beta, 1.0, difference / beta))
    norm = 1.0 / self.numel() if reduction == 1 else 1.0
    return (norm * slope * accumulated(grad_output)).to(self.dtype)


# --- sequences of numbers

COARSE = (torch.float16, torch.bfloat16)


def of_exact_bounds(sequence: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Torch's own decomposition, but for types that the bounds are not of: ATen truncates or rounds these, then computes."""
    @functools.wraps(sequence)
    def made(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        of = dtype or torch.get_default_dtype()
        if of in COARSE or not (of.is_floating_point or of.is_complex):
            return NotImplemented
        return sequence(*args, dtype=dtype, **kwargs)
    return made


for _packet, _sequence in ((aten.linspace, torch._refs.linspace), (aten.logspace, torch._refs.logspace)):
    for _overload in _packet.overloads():
        if "out" not in _overload:
            decomposition(getattr(_packet, _overload))(of_exact_bounds(_sequence))


# --- special functions

@decomposition(aten.special_log_ndtr.default)
def log_ndtr(x: Tensor) -> Tensor:
    """Torch's own decomposition uses the first formula up to 1, where it cancels."""
    t = x * math.sqrt(0.5)
    return torch.where(x < -1, torch.log(torch.special.erfcx(-t) / 2) - t * t, torch.log1p(-torch.erfc(t) / 2))


# --- products

@decomposition(aten.linalg_cross.default)
def cross(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    """As eager mode on a CPU, whose compiler rounds the first product of each difference once, together with the difference."""
    x, y = torch.broadcast_tensors(accumulated(a), accumulated(b))
    subtracted = x.roll(-2, dim) * y.roll(-1, dim)
    return torch.addcmul(-subtracted, x.roll(-1, dim), y.roll(-2, dim)).to(a.dtype)


# --- operations on lists of tensors: as eager mode on a CPU, one after the other

def _in_turn(name: str) -> Callable[..., list[Tensor]]:
    """The functional form of `_foreach_{name}`: lists give an item to each call, all else goes to all."""
    single = getattr(torch, FOREACH_NAMES.get(name, name))

    def in_turn(*args: Any, **kwargs: Any) -> list[Tensor]:
        if name.startswith("addc") and len(args) > 3:
            *args, kwargs["value"] = args
        named = kwargs.keys()
        return [single(*items[:len(args)], **dict(zip(named, items[len(args):], strict=True)))
                for items in zip(*(value if isinstance(value, (list, tuple)) else itertools.repeat(value)
                                   for value in (*args, *kwargs.values())))]
    return in_turn


FOREACH_NAMES = {"maximum": "clamp_min", "minimum": "clamp_max"}
for _name in ("add sub mul div addcmul addcdiv lerp clamp_min clamp_max maximum minimum abs neg sign sqrt rsqrt reciprocal exp "
              "expm1 log log2 log10 log1p sigmoid tanh sin cos tan floor ceil round trunc frac erf erfc").split():
    _packet = getattr(aten, f"_foreach_{_name}", None)
    for _overload in _packet.overloads() if _packet is not None else ():
        if _overload.startswith("Tensor") and _name.startswith("addc"):     # factors in a tensor, one for each call
            continue
        if (_op := getattr(_packet, _overload))._schema.returns and not _op._schema.is_mutable:
            decomposition(_op)(_in_turn(_name))


# --- automatic mixed precision

@decomposition(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscaled(grads: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns the gradients, multiplied by the inverse of their scale, and 1 where one of their elements is not finite."""
    for grad in grads:
        found_inf = torch.where(grad.isfinite().all(), found_inf, torch.ones_like(found_inf))
    return [(accumulated(grad) * inv_scale.view(())).to(grad.dtype) for grad in grads], found_inf
