"""What is to be compiled: a graph, what is known of its inputs, torch's modes, and options. All of it plain data."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from capture import _C
from capture.backends.native.index import LEAST_SIZE

AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")     # kernels that torch.backends.cuda allows: a bit each


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the guards of a graph promise of one of its inputs."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]             # in elements; empty for layouts that have none
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    leaf: bool                          # also after a write to it (unlike a view that was made under `no_grad`)
    state: bool                         # a parameter, or a buffer of a module
    keys: int                           # the raw dispatch keys, with conjugate and negative bits
    # If the graph writes to a tensor: the number of the input's storage among those of all inputs, and the offset in it in bytes.
    # None if the guards promise nothing of it.
    storage: tuple[int, int] | None
    number: bool = False                # a Python number, in whose place compiled code takes a CPU tensor of one element
    # Shape and strides if sizes change from call to call, as in `_C.TensorProperties`: a size of -1 is any from LEAST_SIZE on, a
    # stride of -1 - d the product of size and stride of dimension d; others are as in one call. None if none change.
    free: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    is_view_leaf: bool = False          # a leaf that is a view of what requires no gradients

    @classmethod
    def of(cls, tensor: torch.Tensor | None, properties: Any = None, storage: tuple[int, int] | None = None,
           state: bool = False) -> TensorSpec:
        """The spec of `tensor`. `properties`: a `_C.TensorProperties` of it at an earlier time, used instead; the tensor may have
        died since (None). `state`: whether a module holds it as a parameter or buffer; a Parameter always counts as such.

        Raises TypeError for tensors whose properties are not plain.
        """
        p = properties or _C.tensor_properties(tensor)
        if tensor is None and len(p.shape) != len(p.stride):
            raise TypeError("an input is a sparse tensor which has died")
        layout = torch.strided if tensor is None else tensor.layout
        free = (p.shape, p.stride) if p.open_sizes else None
        if free is not None and (tensor is None or tensor.dim() != len(p.shape)):
            raise TypeError("an input whose sizes change has died, or has other dimensions by now")
        shape, stride = (p.shape, p.stride) if free is None or tensor is None else (tuple(tensor.shape), tensor.stride())
        if free is not None:
            sizes, strides = zip(p.shape, shape, strict=True), zip(p.stride, stride, strict=True)
            free = (tuple(now if size < 0 and now < LEAST_SIZE else size for size, now in sizes),
                    tuple(now if expected <= _C.AROUND else expected for expected, now in strides))
        return cls(shape, stride, p.dtype, p.device, layout, p.requires_grad, p.is_leaf and p.base_grad in ("none", "own"),
                   state or issubclass(p.type, torch.nn.Parameter), p.keys, storage, free=free,
                   is_view_leaf=p.base_grad == "own")


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of torch under which a graph runs. `autocast`: (device type, dtype) where it is on. `text`: all that guards
    compare, as text."""

    grad: bool
    inference: bool
    default_dtype: torch.dtype
    default_device: torch.device | None
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    autocast_nesting: int           # how many autocast blocks the graph is within
    deterministic: bool
    deterministic_warn_only: bool
    fill_uninitialized: bool
    attention_kernels: int
    text: str

    @classmethod
    def current(cls) -> Modes:
        """The modes in force in this thread."""
        modes = _C.modes()
        index = f":{modes.default_device_index}" if modes.default_device_index >= 0 else ""
        device = torch.device(f"{modes.default_device_type}{index}") if modes.has_default_device else None
        autocast = tuple((name, torch.get_autocast_dtype(name)) for name in AUTOCAST_DEVICES if torch.is_autocast_enabled(name))
        return cls(modes.grad, modes.inference, torch.get_default_dtype(), device, autocast, modes.autocast_cache,
                   modes.autocast_nesting, modes.deterministic, modes.deterministic_warn_only, modes.fill_uninitialized,
                   modes.attention_kernels, repr(modes))

    @contextlib.contextmanager
    def promoting(self) -> Iterator[None]:
        """Puts their default dtype in force, for the whole process: dtypes are promoted to it."""
        before = torch.get_default_dtype()
        if before != self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        try:
            yield
        finally:
            if before != self.default_dtype:
                torch.set_default_dtype(before)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Puts them in force for the duration of a `with` block: for this thread, but the default dtype, determinism and the
        kernels of attention for the whole process, where they differ. A default device in force already must be the same."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.promoting())
            determinism = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
            if determinism != (self.deterministic, self.deterministic_warn_only):
                stack.callback(torch.use_deterministic_algorithms, determinism[0], warn_only=determinism[1])
                torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warn_only)
            if torch.utils.deterministic.fill_uninitialized_memory != self.fill_uninitialized:
                stack.callback(setattr, torch.utils.deterministic, "fill_uninitialized_memory", not self.fill_uninitialized)
                torch.utils.deterministic.fill_uninitialized_memory = self.fill_uninitialized
            now = _C.modes().attention_kernels
            for bit, name in enumerate(ATTENTION):
                allow = getattr(torch.backends.cuda, f"enable_{name}_sdp")
                if (now ^ self.attention_kernels) >> bit & 1:
                    stack.callback(allow, bool(now >> bit & 1))
                    allow(bool(self.attention_kernels >> bit & 1))
            if self.default_device is not None and not _C.modes().has_default_device:
                stack.enter_context(self.default_device)
            dtypes = dict(self.autocast)
            for name in AUTOCAST_DEVICES:
                if name in dtypes or torch.is_autocast_enabled(name):
                    stack.enter_context(torch.autocast(name, dtypes.get(name), name in dtypes, self.autocast_cache))
            stack.enter_context(_nested(self.autocast_nesting))
            if self.inference or torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield


@contextlib.contextmanager
def _nested(depth: int) -> Iterator[None]:
    """Has torch count this many autocast blocks around its body."""
    before = _C.modes().autocast_nesting
    nest(depth - before)
    try:
        yield
    finally:
        nest(before - depth)


def nest(levels: int) -> None:
    """Has torch count this many autocast blocks more."""
    for _ in range(levels):
        torch.autocast_increment_nesting()
    for _ in range(-levels):
        torch.autocast_decrement_nesting()


@dataclass(frozen=True, slots=True)
class Job:
    """One graph to compile, its inputs in placeholder order, and the options that the compiled code depends on."""

    graph: fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    modes: Modes
    options: Mapping[str, bool | int | str]

    @property
    def device(self) -> torch.device:
        """The GPU on which the graph's inputs lie, else the processor."""
        return next((spec.device for spec in self.inputs if spec.device.type != "cpu"), torch.device("cpu"))

    def for_any_sizes(self) -> Job | None:
        """The job without the sizes of the one call, if sizes change from call to call; else None."""
        if not any(spec.free for spec in self.inputs):
            return None
        return replace(self, inputs=tuple(replace(spec, shape=spec.free[0], stride=spec.free[1]) if spec.free else spec
                                          for spec in self.inputs))
