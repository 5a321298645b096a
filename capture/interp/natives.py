"""What the call of a C function means: recorded, modelled, pure, lazy, or not known."""
from __future__ import annotations

import functools
import gc
import inspect
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from capture.errors import Break
from capture.interp import arrays, assumptions, failing, held, leaves, tensors, unwind
from capture.interp.frame import Args, Cut, Kwargs, UserError, Value
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides import autograd, computed_arrays, replays
from capture.interp.lookasides.shadows import settled
from capture.interp.models import (
    LAZY,
    MODELS,
    POLYFILLS,
    PURE,
    REDUCTIONS,
    SIDE_EFFECTS,
    Meaning,
    exclusion,
    find_model,
    hashable,
    recognise,
)
from capture.interp.special import VIEWS, is_a, is_plain
from capture.interp.visible import FRAME_READERS, frame_reader, in_place, in_sight, must_see, warned, with_scope
from capture.interp.writes import noting_writes, versions_of
from capture.refgraph.effects import decision
from capture.refgraph.facts import current_gpu, is_of
from capture.refgraph.graph import PINNED, VALUES
from capture.refgraph.lookup import parts
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    DictState,
    Expr,
    External,
    FunctionState,
    HandleState,
    IteratorState,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
    WrittenDict,
)
from capture.refgraph.records import DERIVED, is_record
from capture.refgraph.source import Attr, Computed, Constant, Item
from capture.refgraph.verify import same

LRU_WRAPPER = type(functools.lru_cache(lambda: None))
# Instances of C classes that are called without Python code of the user's class.
CALLABLES = frozenset({LRU_WRAPPER, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType})
UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)
# Operators that are recorded when an operand is a tensor.
TENSOR_OPERATORS = frozenset({
    abs, divmod, pow, *(getattr(operator, name) for name in (
        "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs eq ne lt le gt ge getitem "
        "setitem delitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift").split())})
# Functions that set what guards and entries take for granted.
GLOBAL_STATE = frozenset({
    torch._C._set_default_dtype, torch._C._set_default_tensor_type, torch._C._set_deterministic_algorithms,
    torch._C._set_cudnn_benchmark, torch._C._set_cudnn_enabled, torch._C._set_cudnn_deterministic, torch._C._set_mkldnn_enabled,
    torch._C._set_float32_matmul_precision, torch._C._set_sdp_use_flash, torch._C._set_sdp_use_math,
    torch._C._set_sdp_use_mem_efficient, torch.set_anomaly_enabled, torch.set_num_threads, torch.set_flush_denormal})
KEYS = VIEWS[0], VIEWS[3]       # of a dict, of an OrderedDict
# Functions that store an argument, and look at no dict's items.
STORES = frozenset({operator.setitem, dict.__setitem__, list.append, list.insert, setattr, object.__setattr__, isinstance, type, id,
                    operator.is_, operator.is_not})
READS_TEXT = (str, re.Pattern)      # whose methods look at the text of a string, whatever its class
WHICH_WAY = "which way the program goes"
VALUE_TAKERS = frozenset({bool, int, float, complex, operator.truth, operator.not_, operator.index, operator.contains, round, range,
                          format, str, repr})


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], resumable: bool = False) -> Value:
    """Calls a callable for real and returns its result with its shadow. Raises UserError; and Cut, if a continuation can take
    its result (`resumable`) and the trace cannot hold it."""
    real = function.real
    if hashable(real) and real in FRAME_READERS:
        special = frame_reader(interp, real, args, kwargs)
        if special is not None:
            return special
    perform, sees = interp.real, must_see(interp, real, len(args))
    if sees:
        perform = functools.partial(in_sight, interp)
        args = with_scope(interp, real, args, kwargs)
    reals = [a.real for a in args]
    kwreals = {k: v.real for k, v in kwargs.items()}
    if not interp.tracking:
        return Value(perform(real, *reals, **kwreals), None)
    meaning = versions = None
    kind = classify(real, args, kwargs)
    if not sees and type(real) is types.FunctionType:       # it may look at its callers, and warn
        perform = functools.partial(in_sight, interp)
    elif not sees and kind in ("operation", "value", "opaque", "other"):
        perform = functools.partial(in_place, interp)
    if kind == "operation":
        operands = list(tensors.tensors_in(args, kwargs))
        versions = versions_of(operands)
        if any(operand.is_inference() for operand in operands):
            perform = functools.partial(noting_writes, versions, operands, perform)
    elif kind == "model":
        given = [*args, *kwargs.values()]
        of_numpy = any(map(arrays.is_value, reals)) and (
            interp.recorder.arrays.is_foldable(real, given) or computed_arrays.repeats(real, given))
        meaning = None if of_numpy else find_model(real, reals, kwreals)
        if meaning is None:
            kind = "opaque"
    reason: Any = refusal(interp, kind, meaning, real, args, kwargs)
    if reason is None and meaning is not None and meaning.prepare is not None:
        reason = interp.track(unprepared, interp, meaning.prepare, args, kwargs)
    elif reason is None and kind in ("opaque", "other") and interp.recorder.arrays.is_foldable(real, [*args, *kwargs.values()]):
        reason = interp.track(unprepared, interp, hold_all, args, kwargs)
    if reason is not None and resumable and interp.can_cut:
        raise Cut(reason, function, args, kwargs)
    try:
        result = perform(real, *reals, **kwreals)
    except UserError as error:
        interp.track(raised, interp, kind, meaning, real, args, kwargs, error.exception)
        if resumable and interp.can_cut and interp.is_doubtful(error.exception) and unwind.is_handled(interp):
            raise Cut(interp.doubtful[1], function, args, kwargs, error.with_traceback(None)) from None  # type: ignore[index]
        raise
    if reason is not None:
        interp.give_up(reason)
    model = functools.partial(shadow, interp, kind, meaning, versions, real, function, args, kwargs, result)
    if resumable and changes_nothing(kind, real, args, kwargs):
        return Value(result, interp.describe(model, function, args, kwargs, result))
    return Value(result, interp.track(model))


def changes_nothing(kind: str, real: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a call changes nothing that the trace describes: it knows of tensors how they are laid out, not what they hold.
    What acts on the world changes nothing else."""
    return kind != "model" or hashable(real) and (real in LAZY or real in PURE or real in SIDE_EFFECTS) or all(
        isinstance(v.real, torch.Tensor) or is_immutable(v.real) for v in (*args, *kwargs.values()))


def refusal(interp: Interpreter, kind: str, meaning: Meaning | None, real: Any, args: list[Value],
            kwargs: dict[str, Value]) -> Break | None:
    """Why no trace can hold the call, as far as that is known before it is made; None if one may."""
    if is_bookkeeping(real):
        return None
    if kind == "mode" and real in leaves.EXITS and not interp.openings:
        return Break("changing-global-state", f"{name_of(real)}() ends what began before")
    if kind == "operation" and real is torch.autograd.grad:
        return autograd.refusal(interp, real, args, kwargs)
    if kind == "operation" and (reason := failing.refusal(interp, real, args)) is not None:
        return reason
    if kind == "value" and (replays.is_known(interp, args) or held.is_held(interp, real, args) or (
            held.is_decided(interp, real, args)) or (
            real is torch.Tensor.numpy and interp.recorder.arrays.lies_in(interp.graph, args[0].real))):
        return None
    if computed_arrays.is_exposed(kind, real, args, kwargs):
        return computed_arrays.refusal(interp, real, args, kwargs)
    if kind == "value" and not replays.is_repeatable(real, tensors.operation_name(real), kwargs):
        return decision(WHICH_WAY, ()) if real is operator.truth else Break("data-dependent", f"{name_of(real)}() of a tensor")
    if kind != "operation" and replays.decides(interp, real, [*args, *kwargs.values()]):
        what = WHICH_WAY if real is operator.truth else f"what {name_of(real)}() does"
        return decision(what, [value.shadow for value in (*args, *kwargs.values())])  # type: ignore[misc]
    if not (hashable(real) and real in STORES) and any(map(is_written, (*args, *kwargs.values()))):
        return Break("opaque-call", f"{name_of(real)}() of a dict in which something was stored under a key that changes "
                                    f"from call to call")
    if meaning is not None and meaning.refuses is not None:
        return meaning.refuses(interp, *args, **kwargs)
    if kind not in ("opaque", "other"):
        return None
    values = [*args, *kwargs.values()]
    if interp.recorder.arrays.is_foldable(real, values):
        return interp.recorder.arrays.refusal(interp.graph, real, args, kwargs)
    if is_lazy(real, values, kwargs) or is_foldable(real, values):
        return None
    if computed_arrays.repeats(real, values):
        return computed_arrays.refusal(interp, real, args, kwargs)
    return Break(exclusion(real) or effect_of(real), f"{name_of(real)}()")


def is_written(value: Value) -> bool:
    """Whether a value is a dict of which no more is known than what was stored in it."""
    return isinstance(value.shadow, RefNode) and isinstance(value.shadow.state, WrittenDict)


def unprepared(interp: Interpreter, prepare: Callable[..., None], args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Why the state that a call is about to change, or to read, cannot be known; None if it can."""
    try:
        prepare(interp, *args, **kwargs)
    except Break as reason:
        return reason.with_traceback(None)      # which leads to the frames that will hold it
    except TypeError:
        if fit(prepare, interp, *args, **kwargs):       # else it is the call that does not fit, and raises
            raise
    return None


def fit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def hold_all(interp: Interpreter, *args: Value, **kwargs: Value) -> None:
    """Before a call whose result follows from what its arguments hold: depends on that."""
    for value in (*args, *kwargs.values()):
        depend_deep(interp, value.shadow, value.real)


def is_lazy(real: Any, values: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether the result of a call may be an expression over its arguments."""
    return hashable(real) and real in LAZY and not kwargs and all(isinstance(v.shadow, (Const, External, Expr)) for v in values)


def is_foldable(real: Any, values: list[Value]) -> bool:
    """Whether the result of a call follows from what its arguments hold."""
    if is_a(real, types.MethodDescriptorType) and real.__objclass__ in READS_TEXT:      # of a subclass too, such as a version
        values = [v for v in values[:2] if not isinstance(v.real, str)] + values[2:]
    return is_pure(real) and (is_a(real, LRU_WRAPPER) or all(is_plain(v.real) or isinstance(v.real, PINNED) for v in values))


def classify(real: Any, args: list[Value], kwargs: dict[str, Value]) -> str:
    """The kind of a C function: operation, mode, value, metadata, model, other."""
    try:
        if real in tensors.MODE_SETTERS:
            return "mode"
        if real in leaves.TENSOR_FACTS:
            return "metadata"
        first = args[0].shadow if args else None
        if isinstance(first, RefNode) and isinstance(first.state, HandleState) and isinstance(real, UNBOUND):
            return kind_of_method(args[0].real, real.__name__)
        # A tensor as a key counts by its identity.
        operands = args[:1] if args and isinstance(args[0].real, (dict, set, frozenset, *KEYS)) else args
        operates = any(isinstance(a.real, torch.Tensor) for a in operands[:2]) and type(operands[0].real) is not str
        if operates and real in TENSOR_OPERATORS:
            return "operation"
        if real in VALUE_TAKERS and any(isinstance(a.real, torch.Tensor) for a in operands):
            return "value"
        if real is len and args and isinstance(args[0].real, torch.Tensor):
            return "metadata"
        modelled = real in MODELS
    except TypeError:       # an unhashable callable object
        return "other"
    if tensors.is_operation(real):
        name = tensors.operation_name(real)
        if real in tensors.MODE_GETTERS:
            return "getter"
        if name in tensors.METADATA and (name != "type" or len(args) + len(kwargs) == 1):
            return "metadata"
        return "value" if name in tensors.VALUE_READERS else "operation"
    if modelled:
        return "model"
    return "getter" if real in tensors.MODE_GETTERS or real in tensors.PROCESS_FACTS else "other"


def kind_of_method(handle: Any, name: str) -> str:
    """The kind of a method of an object of torch's own."""
    if name in leaves.FACTS:
        return "getter"
    return "operation" if type(handle) is torch.Generator else "value" if type(handle) is torch.UntypedStorage else "other"


def shadow(interp: Interpreter, kind: str, meaning: Meaning | None, versions: Any, real: Any, function: Value, args: list[Value],
           kwargs: dict[str, Value], result: Any) -> Shadow:
    """The shadow of a C function's result, after the real call."""
    graph = interp.graph
    if not isinstance(function.shadow, Const):
        graph.depend(function.shadow, real)  # type: ignore[arg-type]
    if is_bookkeeping(real):
        return Const(result)
    if kind == "model":
        return meaning.model(interp, result, *args, **kwargs)  # type: ignore[union-attr]
    if kind == "operation":
        op, target = tensors.target_of(real, args)
        failing.note(interp, real, args)
        return interp.recorder.record(op, target, args, kwargs, result, versions, warned(interp))
    if kind == "metadata":
        return tensors.metadata(interp, tensors.operation_name(real), [*args, *kwargs.values()], result)
    if kind == "value" and held.is_held(interp, real, args):
        return held.read(interp, real, args)
    if kind == "value" and held.is_decided(interp, real, args):
        return Const(result)
    if kind == "value":
        known = replays.is_known(interp, args) and (type(result) is list or is_immutable(result)) and interp.recorder.pin(
            *tensors.tensors_in(args))
        if arrays.is_ndarray(result) and interp.recorder.pin(*tensors.tensors_in(args)) | (
                interp.recorder.arrays.lies_in(graph, args[0].real) is not None):
            return interp.recorder.arrays.of_tensor(graph, result, args[0].real)
        if not known and computed_arrays.is_exposed(kind, real, args, kwargs):
            return computed_arrays.expose(interp, result, args[0])
        if not known and (supposed := assumptions.supposed(interp, real, args, result)) is not None:
            return supposed
        return fresh(interp, result) if known else replays.read(interp, real, args, result)
    if kind == "mode":
        if real in leaves.DEVICES:
            interp.recorder.switch(leaves.DEVICES[real], args[:1], {})
            return args[0].shadow if result is args[0].real else Const(result)  # type: ignore[return-value]
        if real in leaves.KERNELS:
            interp.recorder.switched.add(leaves.protection.KERNELS[real])
        interp.recorder.switch(real, args, kwargs)
        if real in leaves.ENTRIES:
            level = graph.create(object())
            interp.opened(level, level=True)
        elif real in leaves.EXITS:
            del interp.openings[next(reversed(interp.openings))]
        return Const(result)
    if kind == "getter":
        for a in (*args, *kwargs.values()):
            depend_deep(interp, a.shadow, a.real)
        if real in tensors.GPU_FACTS:
            graph.require(Computed(current_gpu, ()), "VALUE", current_gpu())
        if real in tensors.UNGUARDED and real not in interp.recorder.switched:
            if not is_plain(result):
                raise Break("opaque-call", f"{name_of(real)}()")
            graph.require(Computed(real, ()), "VALUE", result)      # as it was at entry
        return fresh(interp, result) if is_plain(result) else graph.constant(result)
    values = [*args, *kwargs.values()]
    if is_lazy(real, values, kwargs) and type(result) in SCALARS:
        if all(isinstance(v.shadow, Const) for v in values):
            return Const(result)
        return graph.computed(real, tuple(v.shadow for v in values), result)  # type: ignore[misc]
    if interp.recorder.arrays.is_foldable(real, values):
        if interp.recorder.arrays.warns(values, result):
            raise Break("side-effect-call", f"{name_of(real)}(), which may warn of its result")
        return interp.recorder.arrays.fold(graph, result, lambda item: fresh(interp, item))
    computed = replays.lazily(interp, real, tuple(args), kwargs, result) if is_foldable(real, values) else None
    if computed is not None:
        return computed
    if is_foldable(real, values):
        for v in values:
            depend_deep(interp, v.shadow, v.real)
        return remembered(interp, real, args, kwargs, result) if is_a(real, LRU_WRAPPER) else fresh(interp, result)
    if computed_arrays.repeats(real, values):
        return computed_arrays.repeat(interp, real, args, kwargs, result)
    raise Break(effect_of(real), f"{name_of(real)}()")


def effect_of(real: Any) -> str:
    """The reason for which a function that is not known breaks the graph."""
    if not hashable(real):
        return "opaque-call"
    if real is next:
        return "outside-iterator"
    if real in GLOBAL_STATE:
        return "changing-global-state"
    return "side-effect-call" if real in SIDE_EFFECTS else "opaque-call"


def remembered(interp: Interpreter, cached: Any, args: list[Value], kwargs: dict[str, Value], result: Any) -> Shadow:
    """The shadow of what a `functools.lru_cache` keeps of this very call, as long as it does: nobody cleared it since. The memory
    is a dict that only the garbage collector shows; calls on objects are remembered under keys that no guard can hold."""
    graph, values = interp.graph, (*args, *kwargs.values())
    if any(isinstance(value.shadow, RefNode) and value.shadow.created for value in values):
        return fresh(interp, result)                # objects that are new on every call: it is computed anew
    positional, named = [value.real for value in args], {name: value.real for name, value in kwargs.items()}
    plain = all(type(value.real) in SCALARS for value in values)
    for memory in gc.get_referents(cached) if plain else ():
        for key in memory if type(memory) is dict and memory is not cached.__dict__ else ():
            if is_key_of(key, positional, named):
                source = Item(Constant(memory), key)
                if memory[key] is result:
                    graph.require(source.base, "PRESENT", key)
                    return graph.external(result, source)
                graph.require(source, "ID", memory[key])    # a link of a bounded memory, which always holds this result
    return Const(result) if is_immutable(result) else graph.constant(result)


def is_key_of(key: Any, args: list[Any], named: dict[str, Any]) -> bool:
    """Whether a memory keeps a call under `key`: the arguments, a mark and the named ones, perhaps the types of all."""
    given = [*args, *(part for pair in named.items() for part in pair)]
    parts = list(tuple.__iter__(key)) if isinstance(key, tuple) else list(key) if isinstance(key, list) else [key]
    if named:
        del parts[len(args):len(args) + 1]
    types_ = [type(value) for value in (*args, *named.values())]
    return len(parts) in (len(given), len(given) + len(types_)) and all(map(same, parts, [*given, *types_]))


def raised(interp: Interpreter, kind: str, meaning: Meaning | None, real: Any, args: list[Value], kwargs: dict[str, Value],
           exception: BaseException) -> Shadow:
    """A C function raised. What it raises must follow from what is guarded, or the trace cannot outlive a handler."""
    known = hashable(real)
    iterator = args[0].shadow if args and isinstance(exception, StopIteration) else None
    if isinstance(iterator, RefNode) and isinstance(iterator.state, IteratorState):
        iterator.state.ended()
    # a getter raises for want of a device or driver, for the life of the process
    follows = kind in ("model", "getter") or known and (real in LAZY or is_pure(real))
    if kind in ("operation", "metadata", "value", "mode") or known and real in SIDE_EFFECTS or not follows:
        interp.doubtful = (exception, Break("tensor-op-raised" if kind != "other" else "opaque-call", f"{name_of(real)}() raised"))
    elif meaning is None or meaning.prepare is None:    # else it has seen to that
        for v in [*args, *kwargs.values()]:
            depend_deep(interp, v.shadow, v.real)
    return interp.graph.find(exception) or new_exception(interp, exception)


def new_exception(interp: Interpreter, exception: BaseException) -> Shadow:
    """The node of an exception which C code made, and whose arguments follow from what is guarded."""
    if type(exception).__module__ != "builtins":
        return interp.graph.create(exception)
    items = tuple(settled(interp, item) for item in exception.args)
    node = interp.graph.create(exception, origin=Build(type(exception), items))
    node.slots["args"] = Build(tuple, items)
    return node


def depend_deep(interp: Interpreter, shadow: Shadow | None, real: Any) -> None:
    """Depends on a value and, for containers, on all that a C function could read of them."""
    graph = interp.graph
    if isinstance(shadow, RefNode) and type(shadow.state) is not TensorState:
        if isinstance(real, list):
            for s, r in zip(graph.list_state(shadow).items, real):
                depend_deep(interp, s, r)
        elif isinstance(real, dict):
            for key in graph.dict_keys(shadow):
                graph.dict_get(shadow, key)
        elif isinstance(real, (set, frozenset)):
            graph.set_state(shadow)
        elif isinstance(shadow.state, HandleState):
            graph.touch(shadow)
        elif arrays.is_value(real):
            interp.recorder.arrays.hold(graph, real)
        elif shadow.source is not None:
            graph.depend(shadow, real)
    elif isinstance(shadow, Build):
        for s, r in zip(shadow.items, parts(real)):
            depend_deep(interp, s, r)
    elif shadow is not None:
        graph.depend(shadow, real)


def is_immutable(real: Any) -> bool:
    """Whether a result may be kept as a constant."""
    if type(real) in SCALARS or isinstance(real, (*VALUES, *DERIVED)) or is_record(real):
        return True
    return isinstance(real, (tuple, frozenset)) and all(is_immutable(item) for item in real)


def fresh(interp: Interpreter, real: Any) -> Shadow:
    """The shadow of a result that a pure function made from constants."""
    graph = interp.graph
    if is_immutable(real):
        return Const(real)
    if type(real) is list:
        return graph.create(real, ListState([fresh(interp, item) for item in real]))
    if type(real) is dict:
        return graph.create(real, DictState({k: fresh(interp, v) for k, v in real.items()}, complete=True))
    if type(real) is set:
        return graph.create(real, SetState({item: fresh(interp, item) for item in real}))
    if type(real) is tuple:
        return Build(tuple, tuple(fresh(interp, item) for item in real))
    if isinstance(real, PINNED):
        return graph.constant(real)
    return graph.find(real) or graph.create(real)


def is_bookkeeping(function: Any) -> bool:
    """Whether a function only keeps Dynamo's own records of modules: the first use of torch.compile patches a call of it into
    `nn.Module.__init__` for the rest of the process."""
    return is_a(function, types.FunctionType) and (function.__module__, function.__qualname__) == (
        "torch._dynamo.mutation_guard", "GenerationTracker.tag")


def is_modelled(function: Any) -> bool:
    """Whether the registry, or what torch keeps for itself, says what a function or class means."""
    try:
        if type(function) is types.FunctionType:
            recognise(function)
        return is_bookkeeping(function) or any(function in known for known in (
            tensors.PROCESS_FACTS, MODELS, REDUCTIONS, PURE, LAZY, SIDE_EFFECTS, FRAME_READERS))
    except TypeError:
        return False


def is_left_to_python(function: types.FunctionType, values: list[Value]) -> bool:
    """Whether a Python function whose calls are folded is inlined this time, because not all it is given is plain data."""
    return function in PURE and not is_foldable(function, values)


def is_pure(real: Any) -> bool:
    """Whether a C function's result follows from its arguments: by the table, or as a method of an immutable builtin type."""
    try:
        if real in PURE or real in LAZY:
            return True
    except TypeError:
        return False
    if is_a(real, LRU_WRAPPER):
        return True     # its author has said that a repeated call may be answered from memory
    if is_a(real, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return real.__objclass__ in SCALARS and real.__name__ not in ("__init__", "__setattr__", "__delattr__")
    return False


def unbind(interp: Interpreter, function: Value) -> tuple[Value, Value] | None:
    """`(descriptor, self)` for a builtin method bound to an instance; None for a plain builtin function."""
    real = function.real
    owner = real.__self__
    if owner is None or is_a(owner, types.ModuleType):
        return None
    descriptor = next((found for base in type(owner).__mro__ if isinstance(found := base.__dict__.get(real.__name__), UNBOUND)
                       and is_of(real, found)), None)
    if descriptor is None and is_a(owner, type):      # a class method of C that is known by its descriptor
        among = (base.__dict__.get(real.__name__) for base in owner.__mro__)
        found = next((method for method in among if isinstance(method, types.ClassMethodDescriptorType)), None)
        if found in POLYFILLS:
            own = interp.track(interp.graph.constant, owner) if isinstance(function.shadow, Const) else None
            return None if own is None and interp.tracking else (Value(found, Const(found)), Value(owner, own))
    if descriptor is None:
        return None
    shadows = function.shadow.items if isinstance(function.shadow, Build) else None
    if shadows is None:
        own = interp.track(owner_shadow, interp, function, owner)
        return Value(descriptor, Const(descriptor)), Value(owner, own)
    return Value(descriptor, shadows[0]), Value(owner, shadows[1])


def owner_shadow(interp: Interpreter, function: Value, owner: Any) -> Shadow:
    """The shadow of the object that a stored builtin method is bound to."""
    if isinstance(function.shadow, RefNode) and function.shadow.source is not None:
        return interp.graph.external(owner, Attr(function.shadow.source, "__self__"))
    raise Break("opaque-call", f"a bound {name_of(function.real)} of unknown origin was called")


def expand_partial(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> tuple[Value, Args, Kwargs]:
    """A call of functools.partial as a call of what it wraps."""
    real, node = function.real, function.shadow

    def piece(name: str, value: Any) -> Shadow:
        if isinstance(node, RefNode):
            return interp.graph.slot(node, name, value)
        raise Break("opaque-call", "a functools.partial of unknown origin was called")
    inner = Value(real.func, interp.track(piece, "func", real.func))
    first = interp.track(piece, "args", real.args)
    keywords = interp.track(piece, "keywords", real.keywords)

    def key_shadow(key: str) -> Shadow:
        return interp.graph.dict_get(keywords, key)  # type: ignore[arg-type]
    if interp.tracking and isinstance(keywords, RefNode):
        interp.track(lambda: Const(interp.graph.dict_keys(keywords)))
    before = [Value(r, first.items[i] if isinstance(first, Build) else None) for i, r in enumerate(real.args)]
    named = {k: Value(v, interp.track(key_shadow, k)) for k, v in real.keywords.items()}
    return inner, before + args, {**named, **kwargs}


def pin_code(interp: Interpreter, function: Value) -> Shadow:
    """Guards that a function still has the code which is about to be inlined."""
    node = function.shadow
    if isinstance(node, RefNode) and not isinstance(node.state, FunctionState):
        return interp.graph.slot(node, "__code__", function.real.__code__)
    if isinstance(node, (RefNode, Const)):
        return node
    raise Break("opaque-call", f"function {function.real.__qualname__} of unknown origin was called")


def name_of(real: Any) -> str:
    """A callable's name for people."""
    owner = getattr(real, "__objclass__", None)
    name = getattr(real, "__qualname__", None) or getattr(real, "__name__", None) or type(real).__name__
    module = getattr(owner or real, "__module__", None)
    return name if module in (None, "builtins") else f"{module.lstrip('_')}.{name}"

