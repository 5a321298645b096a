"""What the call of a C function means: recorded, modelled, pure, lazy, or not known."""
from __future__ import annotations

import functools
import inspect
import operator
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Cut, UserError, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.program_frames import in_full_sight, in_place, in_sight, warned
from capture.interp.core.registry import (
    BREAKING,
    LAZY,
    MODELS,
    OPERATION_RULES,
    POLYFILLS,
    PURE,
    REDUCTIONS,
    SIDE_EFFECTS,
    exclusion,
    hashable,
    recognise,
    recognise_class,
)
from capture.interp.core.special import VIEWS, is_index_in_python, is_plain, is_walked_by_python
from capture.interp.dispatch import speculation
from capture.interp.dispatch.call_kinds import (
    OF_TENSORS,
    Call,
    Kind,
    acts,
    is_bookkeeping,
    is_foldable,
    is_pure,
    name_of,
    understand,
)
from capture.interp.dispatch.caller_frames import FRAME_READERS, frame_reader, must_see, with_scope
from capture.interp.dispatch.debuggers import is_debugger
from capture.interp.function_models import autograd, computed_arrays, dicts, lru_caches, replays
from capture.interp.function_models.shadows import depend_plain, elements, is_constant, pin_protocols_of, shadow_of
from capture.interp.recording import arrays, control_flow_bodies, leaf_functions, may_raise, scalar_tensors, tensors
from capture.interp.recording.writes import counting_writes, versions_of
from capture.operators.facts import facts_of
from capture.operators.properties import Property, has
from capture.refgraph.effects import decision
from capture.refgraph.identical import Classes, contents_in_c, lists_in
from capture.refgraph.keys import held_by
from capture.refgraph.lookup import arguments_of, descriptor_of, parts
from capture.refgraph.memory import is_handle
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    FunctionState,
    HandleState,
    IteratorState,
    ListStart,
    RefNode,
    Shadow,
    TensorState,
    WrittenDict,
)
from capture.refgraph.source import Attr, Computed
from capture.refgraph.state_queries import current_gpu

# Instances of C classes that are called without Python code of the user's class.
CALLABLES = Classes({lru_caches.WRAPPER, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType})
# Functions that store an argument, and look at no dict's items.
STORES = frozenset({operator.setitem, dict.__setitem__, list.append, list.insert, setattr, object.__setattr__, isinstance, type, id,
                    operator.is_, operator.is_not})
MEASURES = (len, list.__len__, bool, operator.truth, operator.not_)     # which look at the length of a list alone
WALKING = frozenset({iter, reversed, zip, enumerate})        # which make iterators, and advance none
MAY_RUN_PYTHON = (types.FunctionType, types.ClassMethodDescriptorType)      # the latter that of a class of the program's
BRANCH = "a branch"


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value], resumable: bool = False) -> Value:
    """Calls a callable for real and returns its result with its shadow. Raises UserError; and Cut if the trace cannot hold the call
    and a continuation can take its result (`resumable`)."""
    real = function.real
    if hashable(real) and real in FRAME_READERS:
        special = frame_reader(interp, real, args, kwargs)
        if special is not None:
            return special
    perform, sees = interp.real, must_see(interp, real, len(args))
    if is_debugger(real):
        perform, sees = functools.partial(in_full_sight, interp), True
    elif sees:
        perform = functools.partial(in_sight, interp)
        args = with_scope(interp, real, args, kwargs)
    reals = [a.real for a in args]
    kwreals = {k: v.real for k, v in kwargs.items()}
    if not interp.tracking:
        return Value(perform(real, *reals, **kwreals), None)
    with interp.unasked():
        known = understand(interp, function, args, kwargs)
        handler = HANDLERS[known.kind]
        reason: Any = refused(handler, interp, known)
    if not sees and is_a(real, MAY_RUN_PYTHON):           # it may look at its callers, and warn
        perform = functools.partial(in_sight, interp)
    elif not sees and not handler.plain:
        perform = functools.partial(in_place, interp)
    perform = handler.performing(interp, known, perform)
    prepare = handler.prepare if known.meaning is None else known.meaning.prepare
    if reason is None and prepare is not None:
        reason = interp.track(unprepared, interp, prepare, args, kwargs)
    if reason is not None and resumable and interp.can_cut:
        raise Cut(reason, function, args, kwargs)
    if reason is not None and interp.tries:
        interp.give_up(reason)                      # which raises, before anything is done
    if interp.recorder.bodies and args and acts(real, args[0].real):
        interp.about_to_change(args[0].real)
    try:
        result = perform(real, *reals, **kwreals)
    except UserError as error:
        interp.track(raised, interp, known, error.exception)
        if resumable and interp.can_cut and interp.is_unrepeatable(error.exception) and unwind.is_handled(interp):
            raise Cut(interp.unrepeatable[1], function, args, kwargs, error.with_traceback(None)) from None  # type: ignore[index]
        raise
    if reason is not None:
        interp.give_up(reason)
    model = functools.partial(shadow, interp, known, result)
    if resumable and changes_nothing(known):
        return Value(result, interp.describe(model, function, args, kwargs, result))
    return Value(result, interp.track(model))


def changes_nothing(call: Call) -> bool:
    """Whether a call changes nothing that the trace describes. Of tensors the trace describes the layout, not the values. Calls
    that act on the world change nothing else."""
    real = call.real
    return call.kind is not Kind.MODEL or hashable(real) and any(
        real in known for known in (LAZY, PURE, SIDE_EFFECTS, WALKING)) or all(
        is_a(v.real, torch.Tensor) or is_constant(v.real) for v in call.values)


def is_unreadable_call(interp: Interpreter, call: Call) -> Break | None:
    """Why a call cannot read its arguments; None if it can."""
    real = call.real
    if any(is_unreadable(value, real) for value in call.values) and not (hashable(real) and (
            real in STORES or dicts.stored_last(interp, real, call.args) is not None)):
        return Break("opaque-call", f"{name_of(real)}() of a container in which something was stored at a place that changes "
                                    f"from call to call")
    return None


def decides(interp: Interpreter, call: Call) -> Break | None:
    """Why a call cannot be constant-folded (it depends on a value that only a hit knows); None if it can."""
    if replays.decides(interp, call.real, call.values):
        what = BRANCH if call.real is operator.truth else f"what {name_of(call.real)}() does"
        return decision(what, [value.shadow for value in call.values])
    return is_unreadable_call(interp, call)


def is_unreadable(value: Value, function: Any) -> bool:
    """Whether the trace knows only stores into a dict or list, so that `function` cannot read it."""
    state = value.shadow.state if isinstance(value.shadow, RefNode) else None
    return isinstance(state, WrittenDict) or isinstance(state, ListStart) and bool(state.writes) and not any(
        function is measure for measure in MEASURES)


def refused(handler: Handler, interp: Interpreter, call: Call) -> Break | None:
    """Why the trace cannot hold a call; also where a value decides that which no trace can hold."""
    try:
        return handler.refuse(interp, call)
    except Break as reason:
        return reason.with_traceback(None)      # as in `unprepared`


def unprepared(interp: Interpreter, prepare: Callable[..., None], args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Why the trace does not know the state that a call is about to change or read; None if it does."""
    try:
        prepare(interp, *args, **kwargs)
    except Break as reason:
        return reason.with_traceback(None)      # which leads to the frames that will hold it
    except TypeError:
        if fit(prepare, interp, *args, **kwargs):       # else it is the call that does not fit, and raises
            raise
    return None


def fit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a function accepts these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def hold_all(interp: Interpreter, /, *args: Value, **kwargs: Value) -> None:
    """Guards all that the arguments hold, before a call whose result follows from that."""
    for value in (*args, *kwargs.values()):
        depend_deep(interp, value.shadow, value.real)


def shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The shadow of a C function's result, after the real call."""
    if not isinstance(call.function.shadow, Const):
        interp.graph.depend(call.function.shadow, call.real)
    return HANDLERS[call.kind].shadow(interp, call, result)


# -- what is done about calls, kind by kind ----------------------------------------------------------------------------

Perform = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done about calls of one kind.

    `refuse`: why no trace can hold one, as far as that is known before it is made; None if one may. `shadow`: that of the result,
    after it is made. `performing`: how it is made. `prepare`: done before, unless the registry says what is. `plain`: it is made as
    it is; others may warn or take long, and are made from a frame like the program's (`program_frames.in_place`).
    """

    shadow: Callable[[Interpreter, Call, Any], Shadow]
    refuse: Callable[[Interpreter, Call], Break | None] = decides
    performing: Callable[[Interpreter, Call, Perform], Perform] = lambda interp, call, perform: perform
    prepare: Callable[..., None] | None = None
    plain: bool = False


def refuse_nothing(interp: Interpreter, call: Call) -> Break | None:
    """Of calls that mean nothing."""
    return None


def bookkeeping_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """A constant: nothing follows from it."""
    return Const(result)


def refuse_operation(interp: Interpreter, call: Call) -> Break | None:
    """Why no graph can hold this operation, or its arguments."""
    lists = lists_in(value.real for value in call.values) if facts_of(call.real).asks_lists else ()
    if (walked := next(filter(is_walked_by_python, lists), None)) is not None:
        return Break("opaque-call", f"{name_of(call.real)}() of a {name_of(type(walked))}, whose items Python code tells")
    for value in call.values:
        if not is_a(value.real, torch.Tensor) and is_index_in_python(value.real):
            return Break("opaque-call", f"{name_of(call.real)}() of a {name_of(type(value.real))}, whose index Python code tells")
    if (reason := control_flow_bodies.refusal(interp.recorder, call.real, call.values)) is not None:
        return reason
    refuses = OPERATION_RULES.get(call.real, may_raise.refusal)
    return refuses(interp, call.real, call.args, call.kwargs) or is_unreadable_call(interp, call)


def performing_operation(interp: Interpreter, call: Call, perform: Perform) -> Perform:
    """Notes which tensors it writes to."""
    operands = list(tensors.tensors_in(call.args, call.kwargs))
    call.versions = versions_of(operands)
    if None in call.versions.values():
        perform = counting_writes(call.versions, operands, perform)
    if interp.recorder.bodies:
        body = interp.recorder.bodies[-1][0]
        perform = functools.partial(control_flow_bodies.guarded, body, facts_of(call.real), call.args, call.kwargs, perform)
    return perform


def operation_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """A node of the graph."""
    real, args, kwargs = call.real, computed_arrays.operands(interp, call.real, call.args), call.kwargs
    op, target = tensors.target_of(real, args)
    may_raise.note(interp, real, args, kwargs)
    told = warned(interp, tensors.caller_warned(kwargs))        # the graph is as one frame, which torch has warned
    number = scalar_tensors.count(interp, real, args)
    recorded = interp.recorder.record(op, target, args, kwargs, result, call.versions, told)
    if number is not None:
        scalar_tensors.keep(interp, args[0], number)
    return recorded


def metadata_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """What follows from the properties of tensors."""
    name = tensors.operation_name(call.real)
    if not has(name, Property.ANY):
        for value in call.values:
            if isinstance(value.shadow, RefNode) and not isinstance(value.shadow.state, TensorState):
                depend_deep(interp, value.shadow, value.real)
    return tensors.metadata(interp, name, call.values, result)


def refuse_mode(interp: Interpreter, call: Call) -> Break | None:
    """One that was set before the trace began cannot be left in it."""
    if call.real in leaf_functions.EXITS and not interp.blocks.began:
        return Break("changing-global-state", f"{name_of(call.real)}() ends what began before")
    if (reason := control_flow_bodies.refusal(interp.recorder, call.real, call.values)) is not None:
        return reason
    return decides(interp, call)


def mode_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The graph sets it too."""
    real, args = call.real, call.args
    if real in leaf_functions.DEVICES:
        interp.recorder.switch(leaf_functions.DEVICES[real], args[:1], {})
        return args[0].shadow if result is args[0].real else Const(result)
    interp.recorder.switch(real, args, call.kwargs)
    if real in leaf_functions.ENTRIES:
        interp.opened(interp.graph.create(object()), level=True)
    elif real in leaf_functions.EXITS:
        interp.blocks.end()
    return Const(result)


def refuse_model(interp: Interpreter, call: Call) -> Break | None:
    """As the registry says."""
    refuses = call.meaning.refuses  # type: ignore[union-attr]
    return decides(interp, call) or (None if refuses is None else refuses(interp, *call.args, **call.kwargs))


def performing_model(interp: Interpreter, call: Call, perform: Perform) -> Perform:
    """As the registry says."""
    performing = call.meaning.performing  # type: ignore[union-attr]
    return perform if performing is None else performing(interp, perform)


def model_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """As the registry's model says."""
    return call.meaning.model(interp, result, *call.args, **call.kwargs)  # type: ignore[union-attr]


def refuse_numpy(interp: Interpreter, call: Call) -> Break | None:
    """What is known of the arrays."""
    return decides(interp, call) or interp.recorder.arrays.refusal(interp.graph, call.real, call.args, call.kwargs)


def numpy_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """A constant, like the arrays that it was computed from."""
    known, graph = interp.recorder.arrays, interp.graph
    if known.warns(call.values, result):
        raise Break("side-effect-call", f"{name_of(call.real)}(), which may warn of its result")
    known.note_writes(graph, call.real, call.args, call.kwargs)
    return known.fold(graph, result, lambda item: shadow_of(interp, item, new=True))


def lazy_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """An expression, where the result is a scalar."""
    if type(result) not in SCALARS:
        return (pure_shadow if is_foldable(call.real, call.args) else unknown_shadow)(interp, call, result)
    if all(isinstance(v.shadow, Const) for v in call.args):
        return Const(result)
    return interp.graph.computed(call.real, tuple(v.shadow for v in call.args), result)


def pure_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """A constant, since the arguments' content is guarded, or an expression over it."""
    real, args, kwargs = call.real, call.args, call.kwargs
    computed = replays.lazily(interp, real, tuple(args), kwargs, result)
    if computed is not None:
        return computed
    hold_all(interp, *args, **kwargs)
    caches = is_a(real, lru_caches.WRAPPER)
    return lru_caches.cached_result(interp, call.function, args, kwargs, result) if caches else shadow_of(interp, result, new=True)


def refuse_repeated(interp: Interpreter, call: Call) -> Break | None:
    """What is known of the arrays."""
    return decides(interp, call) or computed_arrays.refusal(interp, call.real, call.args, call.kwargs)


def repeated_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """What a hit computes again."""
    return computed_arrays.repeat(interp, call.real, call.args, call.kwargs, result)


def refuse_unknown(interp: Interpreter, call: Call) -> Break | None:
    """Always."""
    return decides(interp, call) or Break(exclusion(call.real) or effect_of(call.real), f"{name_of(call.real)}()")


def unknown_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """None: the trace ends."""
    raise Break(effect_of(call.real), f"{name_of(call.real)}()")


def refuse_value(interp: Interpreter, call: Call) -> Break | None:
    """Only a hit knows what tensors hold, unless it is constant, counted or computed again."""
    real, args, kwargs = call.real, call.args, call.kwargs
    known = replays.is_known(interp, args) or scalar_tensors.is_held(interp, real, args)
    if known or speculation.is_decided(interp, real, args) or computed_arrays.is_of_state(interp, real, args):
        return None
    if computed_arrays.is_exposed(real, args, kwargs):
        return computed_arrays.refusal(interp, real, args, kwargs)
    if not replays.is_repeatable(real, tensors.operation_name(real), kwargs):
        return decision(BRANCH, ()) if real is operator.truth else Break("data-dependent", f"{name_of(real)}() of a tensor")
    return decides(interp, call)


def value_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The shadow of a value read out of a tensor."""
    recorder, real, args, kwargs = interp.recorder, call.real, call.args, call.kwargs
    if real not in replays.TEXT:
        fix = recorder.sizes.fix_seen_layout if arrays.is_ndarray(result) else recorder.sizes.fix_layout
        fix(tensors.tensors_in(args))
    if scalar_tensors.is_held(interp, real, args):
        return scalar_tensors.read(interp, real, args)
    if speculation.is_decided(interp, real, args):
        return scalar_tensors.decide(interp, args[0], result)
    known = replays.is_known(interp, args) and (type(result) is list or is_constant(result)) and not (
        type(result) is bool and speculation.may_change_with_sizes(interp, args[0])) and recorder.pin(
        *tensors.tensors_in(args))
    if arrays.is_ndarray(result) and recorder.pin(*tensors.tensors_in(args)) | (
            recorder.arrays.lies_in(interp.graph, args[0].real) is not None):
        return recorder.arrays.of_tensor(interp.graph, result, args[0].real)
    if known:
        if real in replays.TEXT:
            replays.depend_options(interp.graph)
        return shadow_of(interp, result, new=True)
    if computed_arrays.is_exposed(real, args, kwargs):
        return computed_arrays.expose(interp, result, args[0])
    return speculation.supposed(interp, real, args, result) or replays.read(interp, real, args, result)


def fact_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The shadow of a mode of torch, or of another fact of the process."""
    graph, real = interp.graph, call.real
    hold_all(interp, *call.args, **call.kwargs)
    if real in tensors.GPU_FACTS:
        graph.require(Computed(current_gpu, ()), "VALUE", current_gpu())
    if real in tensors.UNGUARDED and real not in interp.recorder.switched:
        if not is_plain(result):
            raise Break("opaque-call", f"{name_of(real)}()")
        graph.require(Computed(real, ()), "VALUE", result)      # as it was at entry
    return shadow_of(interp, result, new=True) if is_plain(result) else graph.constant(result)


HANDLERS = {
    Kind.OPERATION: Handler(operation_shadow, refuse_operation, performing_operation),
    Kind.METADATA: Handler(metadata_shadow, plain=True),
    Kind.VALUE: Handler(value_shadow, refuse_value),
    Kind.MODE: Handler(mode_shadow, refuse_mode, plain=True),
    Kind.GETTER: Handler(fact_shadow, plain=True),
    Kind.MODEL: Handler(model_shadow, refuse_model, performing_model, plain=True),
    Kind.NUMPY: Handler(numpy_shadow, refuse_numpy, prepare=hold_all),
    Kind.LAZY: Handler(lazy_shadow),
    Kind.PURE: Handler(pure_shadow),
    Kind.REPEATED: Handler(repeated_shadow, refuse_repeated),
    Kind.BOOKKEEPING: Handler(bookkeeping_shadow, refuse_nothing),
    Kind.UNKNOWN: Handler(unknown_shadow, refuse_unknown)}


def effect_of(real: Any) -> str:
    """The reason for which an unknown function breaks the graph."""
    if not hashable(real):
        return "opaque-call"
    return BREAKING.get(real) or ("side-effect-call" if real in SIDE_EFFECTS else "opaque-call")


def raised(interp: Interpreter, call: Call, exception: BaseException) -> Shadow:
    """A C function has raised. Its exception must follow from guarded values, or the trace ends where a handler takes it."""
    args = call.args
    iterator = args[0].shadow if args and is_a(exception, StopIteration) else None
    if isinstance(iterator, RefNode) and isinstance(iterator.state, IteratorState):
        iterator.state.ended()
    # a getter raises for want of a device or driver, for the life of the process
    known = hashable(call.real)
    follows = call.kind in (Kind.MODEL, Kind.GETTER) or known and is_pure(call.real)
    if call.kind in OF_TENSORS or known and call.real in SIDE_EFFECTS or not follows:
        reason = "tensor-op-raised" if call.kind in OF_TENSORS else "opaque-call"
        interp.cannot_repeat(exception, Break(reason, f"{name_of(call.real)}() raised"))
    elif call.meaning is None or call.meaning.prepare is None or not fit(call.meaning.prepare, interp, *args, **call.kwargs):
        # Else what prepares the call has seen to that.
        hold_all(interp, *args, **call.kwargs)
    return interp.graph.find(exception) or new_exception(interp, exception)


def new_exception(interp: Interpreter, exception: BaseException) -> Shadow:
    """The node of an exception that C code made, if its arguments follow from guarded values."""
    if type(exception).__module__ != "builtins":
        return interp.graph.create(exception)
    items = tuple(shadow_of(interp, item) for item in arguments_of(exception))
    node = interp.graph.create(exception, origin=Build(type(exception), items))
    node.slots["args"] = Build(tuple, items)
    return node


def depend_deep(interp: Interpreter, shadow: Shadow | None, real: Any) -> None:
    """Depends on a value and, for containers, on all that a C function could read of them."""
    graph = interp.graph
    pin_protocols_of(graph, real)
    if isinstance(shadow, RefNode) and type(shadow.state) is not TensorState:
        if is_a(real, dict):
            held = held_by(real)
            for key in graph.dict_keys(shadow):
                depend_deep(interp, graph.dict_get(shadow, key), held[key])
        elif is_a(real, (list, deque, set, frozenset, *VIEWS)):
            for s, r in zip(elements(interp, Value(real, shadow)), contents_in_c(real), strict=True):
                depend_deep(interp, s, r)
        elif is_a(real, bytearray):
            depend_plain(interp, shadow, real)
        elif isinstance(shadow.state, HandleState):
            graph.touch(shadow)
        elif computed_arrays.is_repeated(shadow, real):
            raise decision("the result of a C function", [shadow])
        elif arrays.is_value(real):
            interp.recorder.arrays.hold(graph, real)
        elif shadow.source is not None:
            graph.depend(shadow, real)
    elif isinstance(shadow, Build):
        for s, r in zip(shadow.items, parts(real)):
            depend_deep(interp, s, r)
    elif shadow is not None:
        graph.depend(shadow, real)


def is_modelled(function: Any) -> bool:
    """Whether the registry, or torch's own tables, say what a function or class means."""
    if type(function) is types.FunctionType:
        recognise(function)
    elif type(function) is type:
        recognise_class(function)
    return hashable(function) and (
        function in MODELS or function in REDUCTIONS or function in PURE or function in LAZY or function in SIDE_EFFECTS
        or function in FRAME_READERS or function in tensors.MODE_GETTERS or function in tensors.PROCESS_FACTS
        or is_bookkeeping(function))


def is_left_to_python(function: types.FunctionType, values: list[Value]) -> bool:
    """Whether a Python function whose calls are usually folded is inlined this time, because an argument is more than plain
    data."""
    return function in PURE and not is_foldable(function, values)


def unbind(interp: Interpreter, function: Value) -> tuple[Value, Value] | None:
    """`(descriptor, self)` for a builtin method bound to an object, or to a class by whose class method it is known; None for a
    plain builtin function."""
    real, owner, descriptor = function.real, function.real.__self__, descriptor_of(function.real)
    if descriptor is None or type(descriptor) is types.ClassMethodDescriptorType and (
            is_modelled(real) or descriptor not in POLYFILLS and descriptor not in MODELS):
        return None
    method: Any = autograd.OF_NODES.get(descriptor.__name__, descriptor) if is_handle(owner) else descriptor
    own = function.shadow.items[1] if isinstance(function.shadow, Build) else interp.track(owner_shadow, interp, function, owner)
    return Value(method, Const(method)), Value(owner, own)


def owner_shadow(interp: Interpreter, function: Value, owner: Any) -> Shadow:
    """The shadow of the object that a stored builtin method is bound to."""
    if isinstance(function.shadow, Const):
        return interp.graph.constant(owner)
    if isinstance(function.shadow, RefNode) and function.shadow.source is not None:
        return interp.graph.external(owner, Attr(function.shadow.source, "__self__"))
    raise Break("opaque-call", f"a bound {name_of(function.real)} of unknown origin was called")


def pin_code(interp: Interpreter, function: Value) -> Shadow:
    """Guards that a function still has the code that is about to be inlined."""
    node = function.shadow
    if isinstance(node, RefNode) and not isinstance(node.state, FunctionState):
        return interp.graph.slot(node, "__code__", function.real.__code__)
    if isinstance(node, (RefNode, Const)):
        return node
    raise Break("opaque-call", f"function {function.real.__qualname__} of unknown origin was called")
