"""Changes of what belongs to the process or thread: torch's modes, and what Python keeps."""
from __future__ import annotations

import contextlib
import decimal
import functools
import logging
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode

from tests.mutation.places import Undo


class Silent(TorchFunctionMode):
    """Asked for everything, and changes nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def entered(make: Callable[[], Any]) -> Callable[[], Undo]:
    """A change that enters a context."""
    def change() -> Undo:
        stack = contextlib.ExitStack()
        stack.enter_context(make())
        return stack.close
    return change


def assigned(read: Callable[[], Any], write: Callable[[Any], Any], new: Any) -> Callable[[], Undo]:
    """A change of what one function reads and another writes."""
    def change() -> Undo:
        old = read()
        write(new)
        return functools.partial(write, old)
    return change


MODES: dict[str, Callable[[], Undo]] = {
    "no_grad": entered(torch.no_grad), "inference mode": entered(torch.inference_mode),
    "autocast": entered(lambda: torch.autocast("cpu", torch.bfloat16)),
    "default dtype": assigned(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": assigned(torch.are_deterministic_algorithms_enabled, torch._C._set_deterministic_algorithms, True),
    "anomaly": entered(lambda: torch.autograd.detect_anomaly(check_nan=False)),
    "function mode": entered(Silent), "torch function disabled": entered(torch._C.DisableTorchFunctionSubclass),
    "matmul precision": assigned(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "mkldnn": entered(lambda: torch.backends.mkldnn.flags(enabled=False)),
    "print options": assigned(lambda: "default", lambda profile: torch.set_printoptions(profile=profile), "short"),
    "random seed": assigned(random.getstate, lambda state: random.setstate(state), random.Random(7).getstate()),
    "torch seed": assigned(torch.get_rng_state, torch.set_rng_state, torch.Generator().manual_seed(7).get_state()),
    "numpy seed": assigned(numpy.random.get_state, numpy.random.set_state, numpy.random.RandomState(7).get_state()),
    "errors of numpy": entered(lambda: numpy.errstate(all="raise")), "decimal": entered(lambda: decimal.localcontext(prec=3)),
    "warnings": entered(lambda: warnings.catch_warnings(action="error")),
    "logging": assigned(lambda: logging.root.manager.disable, logging.disable, 60),
    "saved tensors": entered(lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)),
    "save on cpu": entered(torch.autograd.graph.save_on_cpu),
    "device": entered(lambda: torch.device("cpu")), "meta": entered(lambda: torch.device("meta")),
    "multithreading": entered(lambda: torch.autograd.set_multithreading_enabled(False)),
    "module hook": lambda: torch.nn.modules.module.register_module_forward_hook(lambda m, a, r: r).remove,
    "sdpa": entered(lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
}
