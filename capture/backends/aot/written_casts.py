"""Autocast where a graph is written out: the casts that it makes become operations, which run while autocast is paused."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _functorch as functorch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from capture import _C
from capture.backends.aot.aten import aten
from capture.backends.aot.casts import weights_among
from capture.backends.native.job import AUTOCAST_DEVICES, Modes, TensorSpec, nest

LEVELS = DispatchKey.FuncTorchDynamicLayerFrontMode        # where operators enter the levels of torch.func
KEYS = {"cpu": DispatchKey.AutocastCPU, "cuda": DispatchKey.AutocastCUDA}


def is_used(graph: fx.Graph, modes: Modes) -> bool:
    """Whether a part of a graph runs under autocast."""
    return bool(modes.autocast) or any(node.target is torch.set_autocast_enabled for node in graph.nodes)


def devices() -> tuple[str, ...]:
    """For which types of devices autocast is on."""
    return tuple(filter(torch.is_autocast_enabled, AUTOCAST_DEVICES))


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Has autocast afterwards as it was before, whatever happens in between."""
    before = {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in AUTOCAST_DEVICES}
    cache, depth = torch.is_autocast_cache_enabled(), _C.modes().autocast_nesting
    try:
        yield
    finally:
        for name, (enabled, dtype) in before.items():
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_cache_enabled(cache)
        nest(depth - _C.modes().autocast_nesting)


# --- which casts autocast keeps

class _Absent(Exception):
    """A cast is not kept."""


class _Refusing(TorchDispatchMode):
    """Lets no cast be made. An exception must not leave the midst of a level: it is raised before, or without levels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":            # what is asked of a tensor without data
            return func(*args, **(kwargs or {}))
        raise _Absent


def look_up(tensor: Tensor) -> Tensor | None:
    """The cast of a tensor, if autocast keeps one already. The tensor is plain, or in a level that `before_levels` is for."""
    if not (tensor.is_leaf and tensor.requires_grad and tensor.dtype is torch.float32 and torch.is_autocast_cache_enabled()):
        return None
    no_levels = contextlib.nullcontext() if functorch.is_gradtrackingtensor(tensor) else torch._C._DisableFuncTorch()
    with contextlib.suppress(_Absent), no_levels, _Refusing():
        found = _C.cached_casts((tensor,), (0,))
        return found and found[0]
    return None


def mark_others(graph: fx.Graph, specs: Sequence[TensorSpec]) -> None:
    """Tells casts of weights that the program makes from those that autocast keeps, which look the same: `casts.Casts` takes no
    cast for kept that has a memory format, even one that means nothing."""
    inputs = graph.find_nodes(op="placeholder")
    for place in weights_among(specs):
        for node in list(inputs[place].users):
            if node.target is aten._to_copy.default and node.kwargs.keys() == {"dtype"}:
                node.kwargs = {**node.kwargs, "memory_format": torch.preserve_format}


# --- levels that eager mode does not enter

class CastsFirst:
    """A base of modes: under one, autocast comes before the levels of torch.func, as it comes first in eager mode without levels.
    In a level it would come after them, when operators that are composed of others have been taken apart."""


def before_levels() -> None:
    """Has autocast come before levels under a mode that is a CastsFirst, where Python dispatches operators."""
    for name in KEYS:
        for operator in torch._C._dispatch_get_registrations_for_dispatch_key(KEYS[name].name):
            _register(operator)
    for operator in ("aten::to.dtype", "aten::_to_copy"):       # for `look_up`
        _register(operator)


@functools.cache
def _register(name: str) -> None:
    packet, _, overload = name.partition(".")
    namespace, _, packet = packet.partition("::")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    found.py_impl(LEVELS)(functools.partial(_dispatched, found))


def _dispatched(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    modes = _get_current_dispatch_mode_stack()
    if modes and isinstance(modes[-1], _Refusing):
        raise _Absent
    key = _key(func, args, kwargs) if any(isinstance(mode, CastsFirst) for mode in modes) else None
    return func.redispatch(DispatchKeySet(key or LEVELS), *args, **kwargs)


def _key(func: OpOverload, args: Any, kwargs: Any) -> DispatchKey | None:
    """That of autocast, if it does something to a call."""
    given = {leaf.device.type for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    return next((key for name, key in KEYS.items() if name in given and torch.is_autocast_enabled(name)
                 and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key.name)), None)
