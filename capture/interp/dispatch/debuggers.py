"""Calls of debuggers: the frame that makes one goes on natively from there, so that the debugger stops in it and steps on."""
from __future__ import annotations

import types
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Args, Cut, Kwargs, Then, Value
from capture.refgraph.node import Const

TRACING = ("set_trace", "settrace")     # of a debugger after the interface of `bdb`; of `sys`, and of others


def is_debugger(function: Any) -> bool:
    """Whether a function begins to trace frames of its callers, as `breakpoint` and `pdb.set_trace` do."""
    if type(function) is not types.FunctionType:
        return function is breakpoint
    names = function.__code__.co_names
    return "f_back" in names and any(name in names for name in TRACING)


def pending(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """A call that a continuation makes itself; the items in the order in which it unpacks them."""
    return kwargs, args, function


def stop(function: Value, args: Args, kwargs: Kwargs, then: Then) -> Cut:
    """What ends the trace before the call of a debugger."""
    name = getattr(function.real, "__qualname__", "a debugger")
    return Cut(Break("debugger", f"{name}()"), Value(pending, Const(pending)), [function, *args], kwargs, then=then)
