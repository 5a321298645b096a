"""Collectives of `torch.distributed` on plain tensors are operations of the graph, in their order.

Other ranks take part: to make one twice is something else than to make it once. So a call that has made one does not run again, as
after a write that no copy undoes. And they come in the order in which the program does what others may see: after a file was
written, the trace ends.
"""
from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import distributed as dist

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import SIDE_EFFECTS, model
from capture.interp.function_models import data_parallel
from capture.interp.function_models.shadows import elements
from capture.interp.function_models.torch_objects import begin_range, end_range
from capture.interp.recording import may_raise
from capture.operators import collectives
from capture.refgraph.effects import CallEffect
from capture.refgraph.identical import is_one_of
from capture.refgraph.memory import is_plain_class
from capture.refgraph.node import Const, Shadow, source_of
from capture.refgraph.source import Computed, Constant, Literal

# Calls by which nothing reaches another process. Nor does it by one whose function is no constant: it asks a cache, for what that
# holds.
UNSEEN = frozenset({begin_range, end_range, *data_parallel.bound_functions(getattr(dist, "Reducer", None), "prepare_for_backward")})
SIGNATURES = {function: inspect.signature(function) for function in collectives.WRITTEN}


def bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names. Raises TypeError if they do not fit."""
    return SIGNATURES[function].bind(*args, **kwargs).arguments


def op_name(op: Any) -> str | None:
    """The name of a plain operation to reduce by; None for one with a factor, and for anything else."""
    return op.name if type(op) is dist.ReduceOp.RedOpType else None


def is_plain(real: Any) -> bool:
    """Whether an argument is a tensor, or are tensors, that autograd does not follow: what it makes of a collective only torch can
    do."""
    items = real if is_one_of(type(real), list, tuple) else [real]
    return all(is_a(item, torch.Tensor) and is_plain_class(type(item)) and not (item.requires_grad and torch.is_grad_enabled())
               for item in items)


def covers(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call can be an operation: on plain tensors, at once, in a group that has a name."""
    given = bound(function, args, kwargs)
    group, op = given.pop("group", None), given.pop("op", dist.ReduceOp.SUM)
    if given.pop("async_op", False) is not False or op_name(op) is None or dist.distributed_c10d._world.pg_coalesce_state:
        return False
    if group is not None and not (is_a(group, dist.ProcessGroup) and collectives.is_named(group, group.group_name)):
        return False
    return dist.is_initialized() and all(type(value) is int or value is None or is_plain(value) for value in given.values())


def refusal(interp: Interpreter, function: Any) -> Break | None:
    """Why a collective must not be part of the trace as it is now."""
    calls = (effect for effect in interp.graph.effects if isinstance(effect, CallEffect) and effect not in interp.graph.early)
    if any(isinstance(call.function, Const) and call.function.value not in UNSEEN for call in calls):
        return Break("side-effect-call", f"dist.{function.__name__}() after a call that others may see")
    if may_raise.is_watched(interp.frame) or interp.graph.overriding or interp.recorder.bodies:
        return Break("side-effect-call", f"dist.{function.__name__}() where a handler is in force")
    return None


def record(interp: Interpreter, function: Any, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Shadow:
    """Appends a collective that was made."""
    graph, recorder = interp.graph, interp.recorder
    given = bound(function, args, kwargs)
    group, op = given.pop("group", None), given.pop("op", None)
    for value in (group, op, given.pop("async_op", None)):
        if value is not None:
            graph.depend(value.shadow, value.real)
    named = None if group is None or group.real is None else group.real.group_name
    if named is not None:       # a group that is left has no name, and others may get the one it had
        path = source_of(group.shadow) or Constant(group.real)
        graph.require(Computed(collectives.is_named, (path, Literal(named))), "VALUE", True)
    reducing = None if "op" not in SIGNATURES[function].parameters else "SUM" if op is None else op_name(op.real)
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        if is_a(value.real, (list, tuple)):
            arguments[name] = [recorder.argument(*item) for item in zip(elements(interp, value), value.real, strict=True)]
        else:
            arguments[name] = recorder.argument(value.shadow, value.real)
    may_raise.may_raise(interp)
    recorder.expectations.communicates(len(graph.effects))
    recorder.wrote((), for_good=True)       # other ranks' state, whoever made the tensors
    recorder.wrote(collectives.written(function, {name: value.real for name, value in given.items()}))
    node = recorder.effect(collectives.collective, function.__name__, named, reducing)
    node.kwargs = arguments
    node.meta |= {"obstacle": "communicates with other processes", "contained": True}
    return Const(None)


def register(function: Any) -> None:
    """Registers what a collective means."""
    def applies(*args: Any, **kwargs: Any) -> bool:
        return covers(function, *args, **kwargs)

    def refuses(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        return refusal(interp, function)

    @model(function, applies=applies, refuses=refuses)
    def made(interp: Interpreter, result: None, *args: Value, **kwargs: Value) -> Shadow:
        return record(interp, function, args, kwargs)
    SIDE_EFFECTS.add(function)


for _function in collectives.WRITTEN:
    register(_function)
