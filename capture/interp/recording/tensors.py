"""Which calls are tensor operations, and what is known of tensors without looking at their values."""
from __future__ import annotations

import functools
import operator
import os
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import overrides

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.program_frames import warned
from capture.interp.recording import kernel_settings, leaf_functions, scripts
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.writes import versions_of
from capture.operators import transform_levels
from capture.operators.facts import facts_of
from capture.operators.properties import PROPERTIES, Property, has
from capture.refgraph.effects import CallEffect, Effect
from capture.refgraph.identical import INTEGERS, Classes
from capture.refgraph.lookup import UNBOUND_IN_C, lookup_class
from capture.refgraph.memory import HANDLES, gradient_of, is_overriding, storage_of
from capture.refgraph.node import ABSENT, Build, Const, Expr, External, RefNode, Shadow, TensorState, source_of
from capture.refgraph.shapes import ask
from capture.refgraph.sizes import Sizes, product
from capture.refgraph.source import Computed, Literal
from capture.torch_versions import existing

OWNERS = Classes({base for cls in (torch.Tensor, *HANDLES) for base in cls.__mro__} - {object})
MEMBERS = Classes((*UNBOUND_IN_C, types.GetSetDescriptorType))
# Subclasses of tensors may override these, which are no operations on tensors but are told of elsewhere.
NO_OPERATIONS = frozenset({torch.Tensor.backward, torch.Tensor.register_hook})
SIZES = frozenset(("shape", "size", "numel", "nelement", "len", "__len__"))      # what tells sizes, and nothing of strides

# The argument by which functions of torch.nn.functional are told which of their callers to warn, and what it is for the first.
STACK_LEVEL, OWN_LEVEL = "_stacklevel", 3
# Functions that set or read a mode of torch: setters are recorded, getters are constants, since the modes at entry are guarded.
MODE_SETTERS: frozenset[Any] = frozenset({
    torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting, torch.autocast_decrement_nesting, torch.clear_autocast_cache, *transform_levels.LEVELS,
    *kernel_settings.GETTERS, *leaf_functions.DEVICES})
# Whether a CUDA graph is being captured, which builds of torch with CUDA can tell. Without a driver it raises.
CAPTURING = existing(torch._C, "_cuda_isCurrentStreamCapturing")
# Getters of what the modes at entry do not hold: a guard calls each again.
ASKED_AGAIN: frozenset[Any] = frozenset({
    *({*kernel_settings.GETTERS.values()} - kernel_settings.IN_MODES.keys()), *CAPTURING, *transform_levels.HOOK_GETTERS,
    torch.get_num_threads, os.getpid, torch._C._get_mkldnn_enabled, torch.is_anomaly_check_nan_enabled, *existing(
        torch._C, "_get_cublas_allow_tf32 _get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation "
                  "_get_cublas_allow_bf16_reduced_precision_reduction _get_cpu_allow_fp16_reduced_precision_reduction "
                  "_get_float32_matmul_precision _get_mkldnn_deterministic _get_onednn_allow_tf32 _get_nnpack_enabled "
                  "_get_math_sdp_allow_fp16_bf16_reduction _get_warnAlways _check_sparse_tensor_invariants")})
MODE_GETTERS: frozenset[Any] = frozenset({
    torch._C._is_tracing, torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.is_autocast_enabled,
    torch.get_autocast_dtype, torch.is_autocast_cache_enabled, torch.get_default_dtype, torch.is_autocast_cpu_enabled,
    torch.get_autocast_gpu_dtype, torch.get_autocast_cpu_dtype, torch._C._get_tracing_state, torch._C._get_deterministic_algorithms,
    torch._C._get_deterministic_algorithms_warn_only, torch._C._is_torch_function_enabled, torch._C._is_fwd_grad_enabled,
    torch._C._functorch.peek_interpreter_stack, torch._C._are_functorch_transforms_active,
    torch._C._functorch.get_inplace_requires_grad_allowed, torch._C._functorch.maybe_current_level,
    torch._C._functorch.get_dynamic_layer_stack_depth, torch._C._functorch.current_level,
    torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack, torch._C._get_cudnn_enabled,
    torch._C._is_torch_function_mode_enabled, torch._C._is_view_replay_enabled, torch._C._is_multithreading_enabled,
    torch._C._get_cudnn_benchmark, torch._C._get_cudnn_deterministic, torch._C._get_deterministic_fill_uninitialized_memory,
    torch.is_anomaly_enabled, torch._C._log_api_usage_once, torch._C._is_autocast_available, torch._C._accelerator_getAccelerator,
    torch._C._get_privateuse1_backend_name, torch._C._get_dispatch_mode, torch._C._autograd._top_saved_tensors_default_hooks,
    torch.get_default_device, *ASKED_AGAIN})
# Functions in Python whose result follows from their arguments and the current GPU …
GPU_FACTS: frozenset[Any] = frozenset({torch.cuda.current_device, torch.cuda.is_bf16_supported, torch.cuda.get_device_capability,
                                       torch.cuda.get_device_name})
# … or from their arguments, or is the same for the life of the process.
PROCESS_FACTS: frozenset[Any] = frozenset({torch.broadcast_shapes, torch.cuda.device_count, torch.cuda.is_available,
                                           torch.get_num_interop_threads, *GPU_FACTS})


@functools.cache
def overridable() -> frozenset[Any]:
    """The Python functions that torch calls tensor operations: those which a `__torch_function__` may override, and those of
    torch.nn.functional which only forward to them."""
    functions = {f for group in overrides.get_overridable_functions().values() for f in group}
    functions |= {f for f in overrides.get_ignored_functions() if getattr(f, "__module__", None) == "torch.nn.functional"}
    return frozenset(f for f in functions if type(f) is types.FunctionType) - NO_OPERATIONS | leaf_functions.LEAVES


def is_operation(function: Any) -> bool:
    """Whether a callable is a torch function or tensor method, which is recorded as it is."""
    cls = type(function)
    if cls is types.FunctionType:
        return function in overridable()
    if cls is types.BuiltinFunctionType and function in leaf_functions.LEAVES:
        return True
    if cls is types.BuiltinFunctionType:
        owner = function.__self__
        if owner is None:
            return function in VARIABLE_FUNCTIONS
        return type(owner) is types.ModuleType and getattr(owner, "__name__", None) in OPERATION_MODULES
    if cls in MEMBERS:
        return function.__objclass__ in OWNERS
    return (function is torch.Generator or issubclass(cls, (torch._ops.OpOverloadPacket, torch._ops.OpOverload))
            or scripts.is_operation(function))


# The functions of the namespace `torch` that are C: they have no module for an owner.
VARIABLE_FUNCTIONS = frozenset(f for f in (getattr(torch._C._VariableFunctions, name) for name in dir(torch._C._VariableFunctions))
                               if is_a(f, types.BuiltinFunctionType))
OPERATION_MODULES = frozenset(f"torch._C.{name}" for name in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested"))


def has_tensor(args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether tensors are among the arguments, also inside plain containers."""
    return any(True for _ in tensors_in(args, kwargs))


def target_of(function: Any, args: list[Value]) -> tuple[str, Any]:
    """The fx op and target that stand for a call of `function`."""
    if type(function) in UNBOUND_IN_C:
        present = getattr(torch.Tensor, function.__name__, function)
        if present is function or getattr(present, "__globals__", None) is vars(torch._tensor):
            return "call_method", function.__name__
        return "call_function", _replaced(function)
    if type(function) is types.FunctionType and function.__globals__.get(function.__name__, function) is not function:
        return "call_function", _replaced(function)
    of_tensor = bool(args) and is_a(args[0].real, torch.Tensor)
    if (of_tensor and type(function) is types.FunctionType and function.__qualname__.startswith("Tensor.")
            and getattr(torch.Tensor, function.__name__, function) is function):
        return "call_method", function.__name__
    return "call_function", scripts.named(function) if is_a(function, scripts.SCRIPT) else function


@functools.cache
def _replaced(original: Any) -> Callable[..., Any]:
    """A method of C or function of torch in whose place the program has put another one, which calls it perhaps, as a function.
    The modes under which backends trace a graph look it up by its name, and would call what is in its place."""
    def function(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return original(*args, **kwargs)
    function.__name__ = f"original_{original.__name__}"
    function.facts = facts_of(original)  # type: ignore[attr-defined]
    return function


def is_dynamic_shape(shadow: Shadow | None) -> bool:
    """Whether a tensor's shape depends on values."""
    return isinstance(shadow, RefNode) and isinstance(shadow.state, TensorState) and shadow.state.dynamic


def metadata(interp: Any, name: str, args: list[Value], result: Any) -> Shadow:
    """The shadow of what is known of tensors without their values. Where it depends on values, each hit asks again."""
    if has(name, Property.UNGUARDED) and not is_dynamic_shape(args[0].shadow):
        told = unguarded_answer(interp, name, args, result)
        if told is not None:
            return told
    dynamic = not has(name, Property.FIXED) and any(is_dynamic_shape(arg.shadow) for arg in args)
    if not dynamic and not has(name, Property.FIXED) and (told := answer_from_sizes(interp, name, args, result)) is not None:
        return told
    for arg in args:
        shadow = arg.shadow
        if isinstance(shadow, RefNode) and (isinstance(shadow.state, TensorState) or has(name, Property.ANY)):
            interp.graph.touch(shadow)
        elif not dynamic:
            interp.graph.depend(shadow, arg.real)
    return ask_again(name, args, result) if dynamic else Const(result)


def answer_from_sizes(interp: Any, name: str, args: list[Value], result: Any) -> Shadow | None:
    """The shadow of the answer of a tensor whose sizes change, to a question about these; None for other questions, for which the
    sizes are fixed."""
    sizes: Sizes = interp.graph.sizes
    tensor, *others = args
    recorder_sizes = interp.recorder.sizes
    free = recorder_sizes.of_open_layout(tensor.real) if is_a(tensor.real, torch.Tensor) else None
    if free is None and name in SIZES and is_a(tensor.real, torch.Tensor):
        return None
    if free is None or any(is_a(other.real, torch.Tensor) for other in others):
        recorder_sizes.fix_seen_layout(tensors_in(args))
        return None
    interp.graph.touch(tensor.shadow)
    if name in ("shape", "size") and not others:
        return Build(type(result), tuple(map(sizes.shadow, free)))
    if name == "size" and len(others) == 1 and type(result) is int:
        interp.graph.depend(others[0].shadow, others[0].real)
        return sizes.shadow(free[others[0].real])
    if name in ("numel", "nelement"):
        return sizes.shadow(product(free))
    if name in ("len", "__len__"):
        return sizes.shadow(free[0])
    if name == "stride" and (strides := recorder_sizes.strides_of(
            tensor.real, [others[0].real] if type(result) is int else range(tensor.real.dim()))) is not None:
        for other in others:
            interp.graph.depend(other.shadow, other.real)
        shadows = tuple(map(sizes.shadow, strides))
        return shadows[0] if type(result) is int else Build(type(result), shadows)
    if name == "is_contiguous" and not others:
        recorder_sizes.guard_contiguity(tensor)
    else:
        recorder_sizes.fix_seen_layout([tensor.real])
    return None


def unguarded_answer(interp: Any, name: str, args: list[Value], result: Any) -> Shadow | None:
    """The shadow of an answer that no guard on a tensor covers. From outside it is a path; for views from outside an offset is
    calculated; None for what the trace itself has made. Raises Break if the trace may have changed it."""
    node, *others = (arg.shadow for arg in args)
    if not isinstance(node, RefNode):
        return None
    if node.source is None:
        return offset_of_view(interp, args, result) if name == "storage_offset" else None
    interp.graph.touch(node)
    placeholder = node.state.node
    if placeholder is not None and any(facts_of(user.target).relays for user in placeholder.users):
        raise Break("data-dependent", f"{name} of a tensor after it was changed")
    sources = tuple(map(source_of, others))
    if None in sources:
        raise Break("opaque-call", f"{name} of a tensor, for a device")
    return External(Computed(ask, (node.source, Literal(name), *sources)), result)  # type: ignore[arg-type]


def offset_of_view(interp: Any, args: list[Value], offset: int) -> Shadow | None:
    """The shadow of where a tensor that the trace has made lies in its storage, if that is from outside."""
    tensor = args[0].real
    storage, _ = storage_of(tensor) or (None, 0)
    bases = [node for node in interp.graph.nodes if node.source is not None and type(node.state) is TensorState
             and node.state.storage is not None and node.state.storage[0] == storage]
    if len(bases) > 1 or interp.recorder.has_dynamic_offset or interp.graph.sizes or any(
            base.state.properties.dtype.itemsize != tensor.itemsize for base in bases):
        return ask_again("storage_offset", args, offset)
    for base in bases:
        start = base.state.storage[1] // tensor.itemsize
        return Expr(operator.add, (External(Computed(ask, (base.source, Literal("storage_offset"))), start), Const(offset - start)))
    return None


def ask_again(name: str, args: list[Value], result: Any) -> Shadow:
    """The shadow of the answer of a tensor whose shape depends on values: each hit asks again."""
    operands = args[0].shadow, Const(name), *(arg.shadow for arg in args[1:])
    if name in ("size", "shape", "stride") and len(args) == 1:
        part = Const("stride" if name == "stride" else "size")
        return Build(type(result), tuple(Expr(ask, (args[0].shadow, part, Const(i))) for i in range(len(result))))
    if type(result) in INTEGERS and is_a(args[0].real, torch.Tensor):
        return Expr(ask, operands)
    raise Break("data-dependent-shape", f"{name} of a tensor whose shape depends on values")


def caller_warned(kwargs: dict[str, Value]) -> int:
    """How many frames above its caller an operation warns. The graph, which is as one frame, is not given the argument."""
    level = kwargs.pop(STACK_LEVEL, None)
    return 0 if level is None else level.real - OWN_LEVEL


def operation_name(function: Any) -> str:
    """The name under which a tensor operation is known in the tables here."""
    if type(function) is types.FunctionType or hasattr(function, "__name__"):
        return function.__name__
    return ""


# -- attributes -------------------------------------------------------------------------------------------------------

def attribute(interp: Any, obj: Value, name: str, result: Any) -> Shadow:
    """An attribute of a tensor that C code computes."""
    node: RefNode = obj.shadow  # type: ignore[assignment]
    if is_a(result, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return Build(type(result), (Const(lookup_class(type(obj.real), name)), node))
    if name in PROPERTIES:
        return metadata(interp, name, [obj], result)
    if name == "__class__":
        interp.graph.touch(node)
        return interp.graph.constant(result)
    if name == "__dict__":
        return interp.graph.attributes(node)
    if name in ("grad", "_grad"):
        if name in node.slots:
            return node.slots[name]
        if node.source is not None:                         # what changes it in the trace notes so
            if result is None and not obj.real.is_leaf and not obj.real.retains_grad:
                raise Break("opaque-call", "torch warns of asking for the gradient of a tensor that is no leaf")
            if is_overriding(node.cls):                     # whose class a path by that name would ask
                interp.graph.touch(node)
                path = Computed(gradient_of, (node.source,))
                interp.graph.require(path, "TYPE", type(result))
                node.slots["grad"] = interp.graph.external(result, path)
            return interp.graph.slot(node, "grad", result)
    if is_a(result, torch.Tensor) or name == "grad_fn" and result is not None:
        return interp.recorder.record("call_function", getattr, [obj, Value(name, Const(name))], {}, result,
                                      versions_of([obj.real]), warned(interp))
    if result is None and name in ("grad_fn", "grad"):      # follows from `is_leaf`, which is guarded, and from the graph
        interp.graph.touch(node)
        return Const(None)
    raise Break("data-dependent", f"attribute {name!r} of a tensor")


def put_drops_in_graph(interp: Any) -> None:
    """Has the graph drop the gradients that were to be dropped after it, because it is about to assign others."""
    graph, recorder = interp.graph, interp.recorder
    for effect in [effect for effect in graph.effects if is_drop(effect) and not effect.early]:
        graph.withdraw(effect)
        recorder.effect(setattr, recorder.node(effect.target), "grad", None)


def is_drop(effect: Effect | CallEffect) -> bool:
    """Whether an effect is `tensor.grad = None`."""
    return isinstance(effect, Effect) and effect.operation is setattr and isinstance(effect.target.state, TensorState) and (
        isinstance(effect.args[0], Const) and effect.args[0].value == "grad")


def requires_already(node: Any, tensor: torch.Tensor, value: Value) -> bool:
    """Whether an outside tensor required gradients before, or did not, as is now assigned: it does so on every hit."""
    properties = node.state.properties if node.source is not None and isinstance(value.shadow, Const) else None
    if properties is None or properties.requires_grad is not value.real or not tensor.is_leaf or is_overriding(node.cls):
        return False
    return node.state.node is None or not any(user.target in (setattr, "requires_grad_", torch.Tensor.requires_grad_)
                                              for user in node.state.node.users)


def assign(interp: Any, obj: Value, name: str, value: Value | None) -> Shadow:
    """Assignment to `data`, `grad`, `requires_grad` … is an operation of the graph."""
    if value is None:
        raise Break("untracked-mutation", f"attribute {name!r} of a tensor was deleted")
    recorder = interp.recorder
    node: Any = obj.shadow
    dropped = name == "grad" and value.real is None and isinstance(value.shadow, Const)
    if dropped and node.source is not None and not is_overriding(node.cls):
        interp.graph.drop_gradient(node, early=not recorder.operations)
        return ABSENT
    if name == "requires_grad" and requires_already(node, obj.real, value):
        return ABSENT
    if name == "data" and value.shadow is obj.shadow and value.real is obj.real and not is_overriding(node.cls):
        return ABSENT           # nothing changes, not even a version: `module.to(device)` where it is on that device
    if name != "requires_grad" or not node.created:         # a tensor that the call has made is dropped where the graph raises
        recorder.wrote(())
    if name == "grad":
        put_drops_in_graph(interp)
    else:
        recorder.relay(obj.real)
    if name == "data":
        recorder.sizes.fix_layout([obj.real, value.real])
    recorder.effect(setattr, recorder.argument(obj.shadow, obj.real), name, recorder.argument(value.shadow, value.real))
    if name == "grad":
        obj.shadow.slots["grad"] = value.shadow  # type: ignore[attr-defined]
    return ABSENT
