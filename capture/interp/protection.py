"""What a graph leaves behind when it raises, and must not: levels of torch.func, choices of kernels, default devices, random
numbers drawn before a check that failed; and what the program has silenced in it."""
from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, overrides

from capture import _C
from capture.errors import CheckFailed

# Switches of the process for attention: setter -> getter.
KERNELS: dict[Callable[..., Any], Callable[[], Any]] = {
    torch._C._set_sdp_use_flash: torch._C._get_flash_sdp_enabled,
    torch._C._set_sdp_use_math: torch._C._get_math_sdp_enabled,
    torch._C._set_sdp_use_mem_efficient: torch._C._get_mem_efficient_sdp_enabled,
    torch._C._set_sdp_use_cudnn: torch._C._get_cudnn_sdp_enabled,
    torch._C._set_sdp_use_overrideable: torch._C._get_overrideable_sdp_enabled,
    torch._C._set_sdp_priority_order: torch._C._get_sdp_priority_order}


def enter_device(device: torch.device) -> None:
    """Begins `with device:`, in which tensors are made on that device."""
    device.__enter__()


def leave_device(device: torch.device) -> None:
    """Ends it."""
    device.__exit__(None, None, None)


def restore_modes(modes: list[Any]) -> None:
    """Makes these the modes in Python in which functions of torch are called, outermost first."""
    while overrides._len_torch_function_stack():
        overrides._pop_mode()
    for mode in modes:
        overrides._push_mode(mode)


def protected(gm: fx.GraphModule) -> Callable[..., Any]:
    """The forward function of a graph, which leaves these as it found them when it raises."""
    def run(*args: Any) -> Any:
        random = _C.get_random_state()
        kernels = [(setter, getter()) for setter, getter in KERNELS.items()]
        modes = overrides._get_current_function_mode_stack()
        try:
            return type(gm).forward(gm, *args)      # a backend may have changed the graph
        except BaseException as error:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
            for setter, value in kernels:
                setter(value)
            restore_modes(modes)
            if isinstance(error, CheckFailed):
                _C.set_random_state(random)
            raise
    return run


def unheard(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward function of a graph without its warnings: what they came to was seen in the capture, under filters of the
    program's that are not in force while the graph runs."""
    def run(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return forward(*args)
    return run


_latest = threading.local()


def rewinding(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that takes back the random numbers that it has drawn when it fails, for the call to run again; or `rewind` does."""
    def graph(*inputs: Any) -> Any:
        state = _C.get_random_state()
        try:
            return compiled(*inputs)
        except Exception:
            _C.set_random_state(state)
            raise
        finally:
            _latest.state = state
    return graph


def rewind() -> None:
    """Takes back the random numbers that such a graph, the last one in this thread, has drawn."""
    _C.set_random_state(_latest.state)
