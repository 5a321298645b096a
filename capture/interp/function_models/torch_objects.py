"""What torch's own C objects and classes mean: inference mode, parameters, devices."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import grad_mode, profiler

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import BREAKING, PURE, model, polyfill
from capture.interp.function_models.effects import effect
from capture.interp.function_models.shadows import depend_type, elements, node_of, shadow_of
from capture.interp.function_models.torch_legacy import is_data
from capture.interp.recording import leaf_functions
from capture.operators.facts import OWN
from capture.refgraph import memory
from capture.refgraph.identical import LISTS
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.node import Const, RefNode, Shadow
from capture.refgraph.source import Computed
from capture.refgraph.state_queries import seed_of

# Functions that set what guards and entries assume.
BREAKING.update(dict.fromkeys((
    torch._C._set_default_dtype, torch._C._set_default_tensor_type, torch._C._set_deterministic_algorithms,
    torch._C._set_mkldnn_enabled, torch._C._set_float32_matmul_precision, torch.set_anomaly_enabled, torch.set_num_threads,
    torch.set_flush_denormal),
    "changing-global-state"))
PURE.update({torch.device, torch.Size, torch.finfo, torch.iinfo, torch.Size.numel})       # see `shapes` for sizes that change


@polyfill(iter, applies=lambda *args: len(args) == 1 and is_a(args[0], torch.Tensor))
def iterate_tensor(tensor: torch.Tensor) -> Any:
    """`Tensor.__iter__`, outside of tracing."""
    if tensor.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(tensor.unbind(0))


@polyfill(grad_mode.inference_mode.__enter__, applies=lambda *args: True)
def enter_inference_mode(self: Any) -> None:
    """Through the functions that a graph can call."""
    self._inference_mode_context = grad_mode._enter_inference_mode(self.mode)


@polyfill(grad_mode.inference_mode.__exit__, applies=lambda *args: True)
def exit_inference_mode(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
    """The counterpart of `enter_inference_mode`."""
    grad_mode._exit_inference_mode(self._inference_mode_context)


@model(grad_mode._enter_inference_mode)
def enter(interp: Interpreter, result: Any, mode: Value) -> Shadow:
    """`__enter__` of a guard object (inference mode): a node of the graph, to which the exit refers."""
    node, recorder = interp.graph.create(result), interp.recorder
    entered = recorder.effect(grad_mode._enter_inference_mode, recorder.argument(mode.shadow, mode.real))
    node.slots["fx"] = Const(entered)
    recorder.mutations.leave_behind()
    interp.opened(node)
    return node


def entered_before(interp: Interpreter, guard: Value) -> Break | None:
    """An inference mode ends in the trace that it began in, or between two traces."""
    if guard.shadow in interp.blocks.began:
        return None
    return Break("changing-global-state", "an inference mode is left that was entered before")


@model(grad_mode._exit_inference_mode, refuses=entered_before)
def leave(interp: Interpreter, result: Any, guard: Value) -> Shadow:
    """Ends what `enter` began."""
    interp.recorder.effect(grad_mode._exit_inference_mode, guard.shadow.slots["fx"].value)  # type: ignore[attr-defined]
    interp.blocks.end(guard.shadow)  # type: ignore[arg-type]
    return Const(None)


@polyfill(profiler.record_function.__enter__, applies=lambda self: True)
def enter_range(self: Any) -> Any:
    """A range of the profiler, through functions that are repeated on every hit."""
    self.record = begin_range(self.name, self.args)
    return self


@polyfill(profiler.record_function.__exit__, applies=lambda self, *exception: True)
def leave_range(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
    """The counterpart of `enter_range`."""
    if self.run_callbacks_on_exit:
        end_range(self.record)


def begin_range(name: str, args: str | None) -> Any:
    """Tells the profiler that a range begins."""
    return torch.ops.profiler._record_function_enter_new(name, args)


def end_range(record: Any) -> None:
    """Tells the profiler that a range is over."""
    torch.ops.profiler._record_function_exit._RecordFunction(record)


effect(begin_range, fresh=True)
effect(end_range, returns=type(None), owner=True)


@model(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(interp: Interpreter, result: dict[Any, Any], lists: Value, with_indices: Value | None = None) -> Shadow:
    """Tensors, list by list, sorted by properties that are guarded; the lists returned are new."""
    if with_indices is not None:
        interp.graph.depend(with_indices.shadow, with_indices.real)
    for shadow, tensors in zip(elements(interp, lists), lists.real, strict=True):
        for item, tensor in zip(elements(interp, Value(tensors, shadow)), tensors, strict=True):
            depend_type(interp, Value(tensor, item))
            if tensor is None:
                interp.graph.depend(item, tensor)
    return shadow_of(interp, result)


@model(torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
def has_torch_function(interp: Interpreter, result: bool, *args: Value) -> Shadow:
    """Whether a class among the arguments, or among the items of the one argument, overrides torch's functions."""
    for arg in args:
        items = elements(interp, arg) if is_a(arg.real, (list, tuple)) else [arg.shadow]
        for shadow, real in zip(items, arg.real if is_a(arg.real, (list, tuple)) else [arg.real]):
            depend_type(interp, Value(real, shadow))
    return Const(result)


@model(torch.Tensor._make_subclass)
def make_subclass(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`nn.Parameter(tensor)`."""
    return record_made(interp, result, torch.Tensor._make_subclass, cls, *args, **kwargs)


@model(torch.Tensor.__new__, applies=lambda cls, *args, **kwargs: is_made_of(cls, args))
def new_tensor(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`super().__new__(cls, data)` in a class of the program's."""
    return record_made(interp, result, torch.Tensor.__new__, cls, *args, **kwargs)


def is_made_of(cls: Any, args: tuple[Any, ...]) -> bool:
    """Whether the constructor of old makes a tensor of a subclass, and of what is known."""
    return issubclass(cls, torch.Tensor) and cls not in PLAIN_TENSORS and len(args) == 1 and (
        is_a(args[0], torch.Tensor) or type(args[0]) in LISTS and is_data(args[0]))


@polyfill(torch.Tensor.as_subclass, applies=lambda tensor, cls: issubclass(cls, torch.Tensor))
def as_subclass(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """`tensor.as_subclass(cls)`."""
    return as_class(cls, tensor)


def as_class(cls: type[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """The same with the class first."""
    return memory.as_subclass(tensor, cls)


@model(as_class)
def made_of_class(interp: Interpreter, result: Any, cls: Value, tensor: Value) -> Shadow:
    """A tensor of a class of the program's."""
    return record_made(interp, result, as_class, cls, tensor)


def record_made(interp: Interpreter, result: Any, function: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """A tensor that `function(cls, …)` has made. torch asks no class of an argument about that, nor do we."""
    interp.graph.depend(cls.shadow, cls.real)
    for value in args:
        depend_type(interp, value)      # by which the trace knows of classes that would answer
    with interp.unasked():
        return interp.recorder.record("call_function", maker(function, cls.real), args, kwargs, result, {})


def maker(function: Any, cls: type[torch.Tensor]) -> Any:
    """`function(cls, …)`, which makes a tensor of a class, under a name that generated code can refer to."""
    if cls is torch.nn.Parameter:
        return make_parameter
    target: Any = functools.partial(function, cls)
    target.__name__, target.__module__, target.facts = f"make_{cls.__name__}", "tensors", OWN
    target.conversion = function is as_class
    return target


def make_parameter(data: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """What `nn.Parameter(tensor)` does, under a name that generated code can refer to."""
    return torch.Tensor._make_subclass(torch.nn.Parameter, data, requires_grad)


# -- generators --------------------------------------------------------------------------------------------------------

# As targets of fx nodes.
SEEDING = frozenset({*leaf_functions.RANDOM_STATE, *(function.__name__ for function in leaf_functions.RANDOM_STATE)})


def reseeded(interp: Interpreter, generator: Value) -> Break | None:
    """Why the seed of a generator is not the one that it had at entry, if it may be another."""
    node = generator.shadow
    changed = any(done.target in SEEDING for done in interp.recorder.fx.nodes)
    if isinstance(node, RefNode) and not node.created and not changed:
        return None
    return Break("data-dependent", "initial_seed() of a generator that was seeded in the call")


@model(torch.Generator.initial_seed, refuses=reseeded)
def initial_seed(interp: Interpreter, result: int, generator: Value) -> Shadow:
    """`generator.initial_seed()`: state of the generator at entry."""
    node = node_of(generator)
    return interp.graph.external(result, Computed(seed_of, (interp.graph.touch(node).source,)))
