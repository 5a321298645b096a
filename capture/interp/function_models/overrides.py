"""`torch.overrides`: entering and leaving `__torch_function__` modes, and disabling overrides. The trace calls the overrides
itself, once, and its graph calls none. So a hit does nothing of this, and what begins in a trace must end in it."""
from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models.shadows import NONE, elements, node_of
from capture.interp.polyfills.overrides import RESULTS
from capture.refgraph.identical import LISTS
from capture.refgraph.node import Build, Shadow


def _switch(cls: Any) -> None:
    @model(cls)
    def make(interp: Interpreter, result: Any) -> Shadow:
        return interp.graph.create(result)

    @model(cls.__enter__)
    def begin(interp: Interpreter, result: None, switch: Value) -> Shadow:
        interp.opened(node_of(switch), level=True)
        interp.recorder.stop_asking()
        return NONE

    @model(cls.__exit__, refuses=begun_before)
    def end(interp: Interpreter, result: None, switch: Value, *exception: Value) -> Shadow:
        interp.blocks.end(node_of(switch))
        interp.recorder.ask_again()
        return NONE


def begun_before(interp: Interpreter, switch: Value, *exception: Value) -> Break | None:
    """Why a block that began before the trace cannot end in it; None for a block that began in it."""
    if switch.shadow in interp.blocks.began:
        return None
    return Break("changing-global-state", f"a {type(switch.real).__name__} ends that began before")


_switch(torch._C.DisableTorchFunctionSubclass)
_switch(torch._C.DisableTorchFunction)


# A mode of torch's own that is part of what a program computes (of `flex_attention`): module, class. Others change how torch works.
ITEM_MODE = "torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"


def not_of_python(interp: Interpreter, mode: Value) -> Break | None:
    """Modes of torch's own are known by other means."""
    cls = type(mode.real)
    of_torch = cls.__module__.startswith("torch.") and (cls.__module__, cls.__qualname__) != ITEM_MODE
    if of_torch or not is_a(mode.real, TorchFunctionMode):
        return Break("changing-global-state", f"{type(mode.real).__name__} comes to be asked what functions of torch do")
    return None


@model(torch._C._push_on_torch_function_stack, refuses=not_of_python)
def push(interp: Interpreter, result: None, mode: Value) -> Shadow:
    """The program enters a mode."""
    opening = interp.graph.create(Opening())
    interp.opened(opening, level=True)
    interp.blocks.enter_mode(mode.shadow, opening)
    interp.graph.note_overriding()
    return NONE


class Opening:
    """Stands for a mode that is in force."""

    __slots__ = ("__weakref__",)


def nothing_pushed(interp: Interpreter) -> Break | None:
    """Why a mode cannot be left that the trace has not entered; None if it has entered one."""
    return None if interp.blocks.modes else Break("changing-global-state", "a mode ends that began before")


@model(torch._C._pop_torch_function_stack, refuses=nothing_pushed)
def pop(interp: Interpreter, result: Any) -> Shadow:
    """The program leaves a mode."""
    return interp.blocks.leave_mode()


@model(*RESULTS, applies=lambda items: type(items) in LISTS)
def result_of(interp: Interpreter, result: Any, items: Value) -> Shadow:
    """`torch.return_types.max((values, indices))`: what an operation with named results returns."""
    return Build(type(result), tuple(elements(interp, items)))
