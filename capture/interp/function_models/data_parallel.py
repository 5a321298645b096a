"""What `DistributedDataParallel` tells its reducer and its logger, which are objects of C++: counts, times, and that a pass begins.

The reducer's hooks, on the nodes of autograd that accumulate the gradients of parameters, do the rest while the backward pass runs.
"""
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as wrappers

from capture._C import is_a
from capture.errors import Break, InternalError
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import SIDE_EFFECTS, model, polyfill
from capture.interp.function_models.effects import effect
from capture.interp.function_models.shadows import elements
from capture.interp.recording import may_raise
from capture.refgraph.node import Const, DictState, Display, RefNode, Shadow
from capture.torch_versions import existing


def rebuild_again(reducer: dist.Reducer) -> None:
    """`reducer._rebuild_buckets()` for a wrapper whose reducer has done so, and has nothing more to do than to see that the last
    backward pass is over. A copy of such a wrapper has a reducer of its own, which does it now."""
    if reducer._rebuild_buckets():
        wrappers.logger.info("Reducer buckets have been rebuilt in this iteration.")


NOT_YET = "Reducer._rebuild_buckets() of a reducer that has not done so yet"


def wrapper_of(interp: Interpreter, reducer: Value) -> RefNode | None:
    """The wrapper that the trace has read a reducer from."""
    for node in interp.graph.nodes:
        held = node.attrs.state if is_a(node.real, DistributedDataParallel) and node.attrs is not None else None
        if isinstance(held, DictState) and held.items.get("reducer") is reducer.shadow:
            return node
    return None


MOST_PREPARING = 32     # calls of a wrapper that run natively; then it seems that nobody makes a backward pass
prepared: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()        # reducers -> how many calls have run natively


def refuse_or_run_natively(interp: Interpreter, reducer: Value) -> Break | None:
    """Ends the trace for good, and counts the call, until the reducer has rebuilt its buckets.

    After its first backward pass the reducer does rebuild its buckets, once in a program's life, and the program goes on in
    another way. One that looks for unused parameters never does, as far as the wrapper tells.
    """
    wrapper = wrapper_of(interp, reducer)
    attributes = None if wrapper is None else interp.graph.attributes(wrapper)
    if wrapper is None or attributes is None:
        return Break("side-effect-call", NOT_YET)
    done = wrapper.real.__dict__["_has_rebuilt_buckets"]
    interp.graph.depend(interp.graph.dict_get(attributes, "_has_rebuilt_buckets"), done)
    if done:
        return None
    calls = prepared.setdefault(reducer.real, 0)
    if calls >= MOST_PREPARING or wrapper.real.find_unused_parameters and not wrapper.real.static_graph:
        return Break("side-effect-call", NOT_YET)
    prepared[reducer.real] += 1
    interp.give_up(Break("preparing", NOT_YET))
    return None


def bound_functions(cls: Any, names: str) -> list[Any]:
    """The functions that methods of a class of pybind11 are bound to, of those that exist."""
    return [method.__func__ for method in existing(cls, names)]


if dist.is_available():
    # Before the graph, and again if the call runs again: that changes no more than the times in a log.
    effect(*bound_functions(dist.Logger, "set_runtime_stats_and_log"), *bound_functions(dist.Reducer, "prepare_for_forward"),
           returns=type(None), owner=True, ahead=True)
    effect(*bound_functions(dist.Reducer, "prepare_for_backward"), returns=type(None), owner=True,
           applies=lambda reducer, outputs: type(outputs) is list and not outputs)
    SIDE_EFFECTS.update(bound_functions(dist.Reducer, "_rebuild_buckets"))

    @model(*bound_functions(dist.Reducer, "_rebuild_buckets"), refuses=refuse_or_run_natively)
    def rebuild(interp: Interpreter, result: bool, reducer: Value) -> Shadow:
        """Whether it has rebuilt its buckets, of a reducer that has done so before."""
        if result:
            raise Break("side-effect-call", NOT_YET)
        interp.graph.call_effect(Const(rebuild_again), (reducer.shadow,), early=True, positions=interp.positions())
        return Const(False)


# -- buffers -----------------------------------------------------------------------------------------------------------

BROADCASTING = {function.__name__: function for function in existing(
    DistributedDataParallel, "_sync_module_buffers _default_broadcast_coalesced _distributed_broadcast_coalesced")}


def broadcasts(wrapper: Any) -> bool:
    """Whether a wrapper sends the first rank's buffers to all others, and no code of the program's is asked for anything else."""
    return not wrapper._join_config.enable and not hasattr(wrapper, "buffer_hook") and all(
        getattr(getattr(wrapper, name), "__func__", None) is function for name, function in BROADCASTING.items())


@polyfill(*existing(DistributedDataParallel, "_sync_buffers"), applies=broadcasts)
def sync_buffers(self: Any) -> None:
    """Sends the first rank's buffers to all others."""
    if not broadcasts(self):        # asked again, for guards
        raise InternalError("a wrapper sends buffers in another way than it said")
    self._assign_modules_buffers()
    broadcast(self.process_group, self.modules_buffers, self.broadcast_bucket_size)


def broadcast(group: Any, buffers: list[torch.Tensor], size: int) -> None:
    """Overwrites buffers with the first rank's, so many bytes at a time. Their versions stay: what autograd has saved of them is
    taken to be the same."""
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(buffers)):
        dist._broadcast_coalesced(group, buffers, size, 0)


def cannot_broadcast(interp: Interpreter, group: Value, buffers: Value, size: Value) -> Break | None:
    """Why buffers cannot be sent before the graph runs."""
    if interp.recorder.operations or any(getattr(buffer, "source", None) is None for buffer in elements(interp, buffers)):
        return Break("side-effect-call", "buffers are sent to other processes after operations on tensors")
    return Break("side-effect-call", "buffers are sent where a handler is in force") if may_raise.is_watched(interp.frame) else None


SIDE_EFFECTS.add(broadcast)


@model(broadcast, refuses=cannot_broadcast)
def note_broadcast(interp: Interpreter, result: None, group: Value, buffers: Value, size: Value) -> Shadow:
    """All ranks do so once: a call that has done so does not run again."""
    graph, given = interp.graph, tuple(elements(interp, buffers))
    graph.depend(group.shadow, group.real)
    graph.depend(size.shadow, size.real)
    may_raise.may_raise(interp)
    interp.recorder.wrote(buffers.real, for_good=True)
    graph.call_effect(Const(broadcast), (group.shadow, Display(list, given), size.shadow), early=True, once=True,
                      positions=interp.positions())
    return Const(None)
