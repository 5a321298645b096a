"""What AOTAutograd does besides making graphs, and nobody needs here: a fifth of its work on a small graph. It is left out."""
from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch._functorch import aot_autograd
from torch.fx import _symbolic_trace

_here = threading.local()       # has `traces` while this thread is within `graphs_alone`


class LeavingModules(_symbolic_trace._Patcher):
    """Replaces no methods of nn.Module, which AOTAutograd's tracer would only call: each time, Python forgets what it knows of all
    classes of modules, and modules that other threads call meanwhile would call the tracer."""

    def patch_method(self, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True) -> None:
        if cls is not nn.Module or not hasattr(_here, "traces"):
            super().patch_method(cls, name, new_fn, deduplicate)


INSTEAD: list[tuple[Any, str, Any]] = [
    # clears the states of generators that are inputs of graphs, of which there are none here, by operations that are traced
    (aot_autograd, "PhiloxStateTracker", contextlib.nullcontext),
    # writes each graph down as text for a log
    (aot_autograd, "AOTConfig", functools.partial(aot_autograd.AOTConfig, enable_log=False)),
    (_symbolic_trace, "_Patcher", LeavingModules),
]


@contextlib.contextmanager
def graphs_alone() -> Iterator[None]:
    """Within `undecomposed`, whose lock keeps other traces away: leaves it out."""
    # a torch without one of these does not do what it stands for
    before = [(module, name, getattr(module, name)) for module, name, _ in INSTEAD if hasattr(module, name)]
    for module, name, instead in INSTEAD:
        if hasattr(module, name):
            setattr(module, name, instead)
    _here.traces = True
    try:
        yield
    finally:
        del _here.traces
        for module, name, value in before:
            setattr(module, name, value)
