"""The backward pass inside of a trace, and what goes with it: `backward`, gradients, hooks of tensors.

A pass is one operation of the graph, which says whose gradients it makes or adds to (`operators/backward_pass.py`). Hooks are
Python code, which it would run unseen: where there may be one, nothing is recorded.
"""
from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from capture import _C
from capture._C import has, is_a
from capture.errors import Break, InternalError
from capture.interp.core.frame import NONE_VALUE, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import OPERATION_RULES, model, polyfill
from capture.interp.function_models import autograd_functions
from capture.interp.function_models.effects import effect, new_object
from capture.interp.function_models.shadows import node_of
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.may_raise import is_watched
from capture.interp.recording.tensors import put_drops_in_graph
from capture.interp.recording.writes import versions_of
from capture.operators import backward_pass
from capture.refgraph.changes import Final
from capture.refgraph.effects import CallEffect, Replayed, user_stack
from capture.refgraph.graph import RefGraph
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import Build, Const, HandleState, RefNode, Shadow, TensorState

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def leaves_of(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Iterator[tuple[RefNode, torch.Tensor]]:
    """The outside tensors that require gradients, and that a backward pass from `args` may come to."""
    given = [interp.graph.find(tensor) for tensor in tensors_in(args, kwargs)]
    for node in dict.fromkeys([*interp.recorder.inputs.tensors, *given]):
        if node is not None and node.source is not None and type(node.state) is TensorState:
            real = node.real
            if real is not None and real.requires_grad:
                yield node, real


def refusal(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Break | None:
    """Why a trace cannot hold a backward pass, or None; guards that there are no hooks. Two graphs that a backend can compile are
    better than one that it cannot: where the trace may be cut, it is."""
    if interp.recorder.bodies:
        return Break("autograd-inside", f"{function.__qualname__}() in a body of torch's control flow")
    if interp.can_cut and not (interp.graph.context.takes_backward() and (
            is_written_out(interp) if function is torch.autograd.grad else is_simple(function, args, kwargs))):
        return Break("autograd-inside", f"{function.__qualname__}()")
    functions = functions_of_program(interp)
    if interp.can_cut and functions and is_watched(interp.frame):
        return Break("autograd-inside", "a backward pass that calls code of the program, in a `try` that would take its exceptions")
    for cls in functions:
        if not autograd_functions.keeps_to_itself(interp, cls):
            return Break("own-code", f"{cls.__qualname__}.backward(), which works on objects of the program's")
    if torch.is_anomaly_enabled():      # as guarded with all modes
        return Break("autograd-inside", "a backward pass that looks for anomalies")
    if stays_in_level(args):
        return None
    if any(isinstance(done, CallEffect) and isinstance(done.function, Const) and done.function.value in REGISTERING
           for done in interp.graph.effects):
        return Break("autograd-inside", "a backward pass after a hook was registered")
    if any(node.real is None and node.state.properties.requires_grad for node in interp.recorder.inputs.tensors):
        return Break("autograd-inside", "a backward pass to a tensor from before the call, or a break, that is gone")
    for node, real in leaves_of(interp, args, kwargs):
        interp.graph.touch(node)
        if real.grad_fn is not None and not any(real is tensor for tensor in tensors_in(args[1:2], kwargs)):
            return Break("autograd-inside", "a backward pass through what was computed before the call")
        for name in HOOKS:
            hooks = getattr(real, name)
            known = interp.graph.slot(node, name, hooks)
            if hooks and isinstance(known, RefNode) and interp.graph.dict_keys(known):
                return Break("autograd-inside", "a backward pass with hooks")
            if hooks is not None and isinstance(known, RefNode):
                interp.graph.dict_keys(known)
        if real.grad_fn is None and _C.any_is_hooked((real,)):
            return Break("autograd-inside", "a backward pass with hooks")
        if real.is_leaf and real.grad is not None and real.grad.layout is not torch.strided:
            return Break("autograd-inside", "a backward pass that adds to a sparse gradient")
    return None


OPERATION_RULES[torch.autograd.grad] = refusal


def takes_iterables(outputs: Any, inputs: Any, *args: Any, **options: Any) -> bool:
    """Whether `torch.autograd.grad` makes tuples of what it is given: of `network.parameters()`, of the values of a dict."""
    return is_iterable(outputs) or is_iterable(inputs)


def is_iterable(given: Any) -> bool:
    """Whether an argument is neither a sequence nor like a tensor."""
    cls = type(given)
    return has(cls, "__iter__") and not is_a(given, (tuple, list)) and not has(cls, "__torch_function__")


@polyfill(torch.autograd.grad, applies=takes_iterables)
def gradients_of_iterables(outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
    outputs, inputs = (tuple(given) if is_iterable(given) else given for given in (outputs, inputs))
    return torch.autograd.grad(outputs, inputs, *args, **options)


def stays_in_level(args: Sequence[Value]) -> bool:
    """Whether a pass begins within a level of torch.func that has its own graph of autograd, as in `grad` and `vjp`. It ends at the
    inputs of the level: what these were computed from, or which hooks they have, it does not come to."""
    tensors = list(tensors_in(args[:1], {}))
    return bool(tensors) and all(map(functorch.is_gradtrackingtensor, tensors))


def functions_of_program(interp: Interpreter) -> dict[type, None]:
    """The autograd functions of the graph that a backward pass may call, and that are not known only to compute."""
    return {node.target.autograd_function: None for node in interp.recorder.fx.nodes
            if getattr(node.target, "passes", False) is None}


def is_written_out(interp: Interpreter) -> bool:
    """Whether backends of ours compile the graph so far together with gradients that it computes: not where torch's levels, or what
    takes their place, do not know the operations."""
    return not any(node.target is checkpoint or hasattr(node.target, "autograd_function") for node in interp.recorder.fx.nodes)


def is_simple(function: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a backward pass adds to the gradients of all leaves, and is not differentiable itself. So is one that raises, given
    other arguments than it takes."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return True
    values = [given[name].real for name in ("create_graph", "inputs", "grad_variables") if name in given]
    return all(value is None or value is False for value in values)


# -- backward ----------------------------------------------------------------------------------------------------------

@dataclass
class Before:
    """What was there before a backward pass. versions: of all tensors that it may write to. grads: of the leaves."""

    leaves: list[tuple[RefNode, torch.Tensor]]
    grads: list[torch.Tensor | None]
    versions: dict[int, int | None]
    called: Sequence[str] = ()


def prepare(interp: Interpreter, *args: Value, **kwargs: Value) -> None:
    """Notes what gradients there are before."""
    graph, recorder = interp.graph, interp.recorder
    recorder.wrote(())          # at first: it may end the trace
    put_drops_in_graph(interp)
    leaves = list(leaves_of(interp, list(args), kwargs))
    for node, real in leaves:
        if "grad" not in node.slots:
            graph.slot(node, "grad", real.grad)
    grads = [real.grad for _, real in leaves]
    written = [*tensors_in(args, kwargs), *(grad for grad in grads if grad is not None)]
    recorder.note_before_call(Before(leaves, grads, versions_of(written)))


def run(interp: Interpreter, tensors: Value, grad_tensors: Value, options: dict[str, Value]) -> Shadow:
    """Records a backward pass that has been made."""
    graph, recorder = interp.graph, interp.recorder
    before: Before = recorder.before_call()
    for name, value in list(options.items()):
        if value.real is None or value.real is False:       # as if it was not given
            graph.depend(value.shadow, value.real)
            del options[name]
    made, old, added = [], [], []
    for (node, real), grad in zip(before.leaves, before.grads, strict=True):
        if grad is None:
            if real.grad is not None:
                made.append((node, real))
        elif real.grad is not grad:
            raise InternalError("a backward pass has replaced a gradient")
        elif before.versions[id(grad)] != versions_of([grad])[id(grad)]:
            old.append(Value(real, node))
            added.append(Value(grad, node.slots["grad"]))
    lists = [listed(graph, values) for values in ([Value(real, node) for node, real in made], old, added)]
    result = tuple(real.grad for _, real in made)
    versions = before.versions | versions_of(real for _, real in before.leaves)
    shadow = recorder.record("call_function", backward_pass.backward, [tensors, grad_tensors, *lists], options, result, versions)
    assert isinstance(shadow, Build)
    for (node, _), new in zip(made, shadow.items, strict=True):
        node.slots["grad"] = new
    for node in graph.nodes:            # leaves of the trace's own: what they have now is asked of them
        if node.created and type(node.state) is TensorState:
            node.slots.pop("grad", None)
    return Const(None)


def listed(graph: RefGraph, values: Sequence[Value]) -> Value:
    """A tuple of values."""
    return Value(tuple(value.real for value in values), Build(tuple, tuple(value.shadow for value in values)))


def refusal_of(function: Any) -> Callable[..., Break | None]:
    return lambda interp, *args, **kwargs: refusal(interp, function, list(args), kwargs)


@model(torch.Tensor.backward, prepare=prepare, refuses=refusal_of(torch.Tensor.backward))
def from_tensor(interp: Interpreter, result: None, self: Value, gradient: Value = NONE_VALUE, *rest: Value,
                **options: Value) -> Shadow:
    """`tensor.backward(gradient, retain_graph, create_graph, inputs)`."""
    options |= dict(zip(("retain_graph", "create_graph", "inputs"), rest))
    return run(interp, self, gradient, options)


@model(torch.autograd.backward, prepare=prepare, refuses=refusal_of(torch.autograd.backward))
def from_tensors(interp: Interpreter, result: None, tensors: Value, grad_tensors: Value = NONE_VALUE, *rest: Value,
                 **options: Value) -> Shadow:
    """`torch.autograd.backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)`."""
    options |= dict(zip(("retain_graph", "create_graph", "grad_variables", "inputs"), rest))
    return run(interp, tensors, grad_tensors, options)


# -- hooks -------------------------------------------------------------------------------------------------------------

handles: weakref.WeakSet[RemovableHandle] = weakref.WeakSet()      # of hooks that traces have registered


@model(torch.Tensor.register_hook, applies=lambda self, hook: type(self) in PLAIN_TENSORS)
def register(interp: Interpreter, result: RemovableHandle, tensor: Value, hook: Value) -> Shadow:
    """`tensor.register_hook(hook)`: done after the graph, to the tensor that the graph has made."""
    graph, node = interp.graph, tensor.shadow
    if not isinstance(node, RefNode):
        raise Break("opaque-call", "a hook was registered on a tensor of unknown origin")
    graph.touch(node)
    call = graph.call_effect(Const(torch.Tensor.register_hook), (node, hook.shadow), positions=interp.positions())
    if node.source is None:
        interp.recorder.node(node).meta["obstacle"] = "makes a tensor with a hook"
    graph.forbid_changes(Final(node, storage_id(tensor.real), call.serial, "a hook was registered on a tensor",
                               user_stack(call.positions), unwritten=not tensor.real.is_leaf))
    handles.add(result)
    return new_object(interp, result, Replayed(call, ()))


def hook_node(node: Any, hook: Any) -> RemovableHandle:
    """`grad_fn.register_hook(hook)`. The method of C is another one for each class of nodes."""
    return node.register_hook(hook)


def hook_node_before(node: Any, hook: Any) -> RemovableHandle:
    """`grad_fn.register_prehook(hook)`."""
    return node.register_prehook(hook)


# By the names of the methods that they stand for.
OF_NODES = {"register_hook": hook_node, "register_prehook": hook_node_before}
REGISTERING = frozenset({torch.Tensor.register_hook, *OF_NODES.values()})


def on_node(function: Any) -> None:
    """Registers a function that gives a node of autograd a hook, once the graph has made that."""
    @model(function)
    def register_on_node(interp: Interpreter, result: RemovableHandle, node: Value, hook: Value) -> Shadow:
        known = node_of(node)
        if known.created:
            interp.recorder.node(known).meta["obstacle"] = "makes a node of autograd with a hook"
        call = interp.graph.call_effect(Const(function), (known, hook.shadow), positions=interp.positions())
        handles.add(result)
        return new_object(interp, result, Replayed(call, ()))


for _hooking in OF_NODES.values():
    on_node(_hooking)


def edges(interp: Interpreter, node: Value, result: tuple[tuple[Any, int], ...]) -> Shadow:
    """The shadow of `grad_fn.next_functions`. Of a node that the graph has made, its operations tell which there are, and the
    properties of its inputs."""
    graph, recorder, known = interp.graph, interp.recorder, node_of(node)
    if not known.created or recorder.node(known).args[0].op == "placeholder":  # type: ignore[union-attr]
        raise Break("data-dependent", "what a tensor from outside was computed from")
    whole = recorder.effect(getattr, recorder.node(known), "next_functions")
    whole.meta["obstacle"] = "looks at nodes of autograd"

    def function_at(index: int, real: Any) -> Shadow:
        if real is None or (found := graph.find(real)) is not None:
            return Const(None) if real is None else found  # type: ignore[return-value]
        edge = recorder.effect(operator.getitem, whole, index)
        return graph.create(real, HandleState(recorder.effect(operator.getitem, edge, 0), None))
    return Build(tuple, tuple(Build(tuple, (function_at(index, real), Const(number)))
                              for index, (real, number) in enumerate(result)))


effect(RemovableHandle.remove, returns=type(None), owner=True, applies=lambda handle: handle in handles)
