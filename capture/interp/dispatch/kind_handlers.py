"""What is done about calls of C functions, kind by kind: recorded, modelled, pure, lazy, or not known."""
from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.program_frames import warned
from capture.interp.core.registry import BREAKING, OPERATION_RULES, SIDE_EFFECTS, exclusion, hashable
from capture.interp.core.special import VIEWS, is_index_in_python, is_plain, is_walked_by_python
from capture.interp.dispatch import speculation
from capture.interp.dispatch.call_kinds import Call, Kind, is_foldable, name_of
from capture.interp.function_models import computed_arrays, dicts, lru_caches, replays
from capture.interp.function_models.shadows import depend_plain, elements, is_constant, note_constant, pin_protocols_of, shadow_of
from capture.interp.recording import (
    arrays,
    control_flow_bodies,
    kernel_settings,
    leaf_functions,
    may_raise,
    scalar_tensors,
    tensors,
)
from capture.interp.recording.writes import counting_writes, versions_of
from capture.operators import transform_levels
from capture.operators.facts import facts_of
from capture.operators.properties import Property, has
from capture.refgraph.effects import decision
from capture.refgraph.identical import contents_in_c, lists_in
from capture.refgraph.keys import held_by
from capture.refgraph.lookup import parts
from capture.refgraph.node import SCALARS, Build, Const, HandleState, ListStart, RefNode, Shadow, TensorState, WrittenDict
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import current_gpu

# Functions that store an argument, and look at no dict's items.
STORES = frozenset({operator.setitem, dict.__setitem__, list.append, list.insert, setattr, object.__setattr__, isinstance, type, id,
                    operator.is_, operator.is_not})
MEASURES = (len, list.__len__, bool, operator.truth, operator.not_)     # which look at the length of a list alone
BRANCH = "a branch"
Perform = Callable[..., Any]


def refuse_decision(interp: Interpreter, call: Call) -> Break | None:
    """Why a call cannot be constant-folded (it depends on a value that only a hit knows); None if it can."""
    if replays.decides(interp, call.real, call.values):
        what = BRANCH if call.real is operator.truth else f"what {name_of(call.real)}() does"
        return decision(what, [value.shadow for value in call.values])
    return refuse_unreadable(interp, call)


def refuse_unreadable(interp: Interpreter, call: Call) -> Break | None:
    """Why a call cannot read its arguments; None if it can."""
    real = call.real
    if any(is_unreadable(value, real) for value in call.values) and not (hashable(real) and (
            real in STORES or dicts.stored_last(interp, real, call.args) is not None)):
        return Break("opaque-call", f"{name_of(real)}() of a container in which something was stored at a place that changes "
                                    f"from call to call")
    return None


def is_unreadable(value: Value, function: Any) -> bool:
    """Whether the trace knows only stores into a dict or list, so that `function` cannot read it."""
    state = value.shadow.state if isinstance(value.shadow, RefNode) else None
    return isinstance(state, WrittenDict) or isinstance(state, ListStart) and bool(state.writes) and not any(
        function is measure for measure in MEASURES)


def hold_all(interp: Interpreter, /, *args: Value, **kwargs: Value) -> None:
    """Guards all that the arguments hold, before a call whose result follows from that."""
    for value in (*args, *kwargs.values()):
        depend_deep(interp, value.shadow, value.real)


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
        note_constant(graph, shadow, real)
        for s, r in zip(shadow.items, parts(real)):
            depend_deep(interp, s, r)
    elif shadow is not None:
        graph.depend(shadow, real)


def effect_of(real: Any) -> str:
    """The reason for which an unknown function breaks the graph."""
    if not hashable(real):
        return "opaque-call"
    return BREAKING.get(real) or ("side-effect-call" if real in SIDE_EFFECTS else "opaque-call")


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done about calls of one kind.

    `refuse`: why no trace can hold one, as far as that is known before it is made; None if one may. `shadow`: that of the result,
    after it is made. `performing`: how it is made. `prepare`: done before, unless the registry says what is. `plain`: it is made as
    it is; others may warn or take long, and are made from a frame like the program's (`program_frames.in_place`).
    """

    shadow: Callable[[Interpreter, Call, Any], Shadow]
    refuse: Callable[[Interpreter, Call], Break | None] = refuse_decision
    performing: Callable[[Interpreter, Call, Perform], Perform] = lambda interp, call, perform: perform
    prepare: Callable[..., None] | None = None
    plain: bool = False


# -- by kind -----------------------------------------------------------------------------------------------------------

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
    return refuses(interp, call.real, call.args, call.kwargs) or refuse_unreadable(interp, call)


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
    fails = may_raise.note(interp, real, args, kwargs)
    told = warned(interp, tensors.caller_warned(kwargs))        # the graph is as one frame, which torch has warned
    number = scalar_tensors.count(interp, real, args)
    recorded = interp.recorder.record(op, target, args, kwargs, result, call.versions, told, fails)
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
    if call.real in transform_levels.EXITS and not interp.blocks.began:
        return Break("changing-global-state", f"{name_of(call.real)}() ends what began before")
    if (reason := control_flow_bodies.refusal(interp.recorder, call.real, call.values)) is not None:
        return reason
    return kernel_settings.refusal(call.real, [value.real for value in call.args]) or refuse_decision(interp, call)


def mode_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """The graph sets it too."""
    real, args = call.real, call.args
    if real in leaf_functions.DEVICES:
        interp.recorder.switch(leaf_functions.DEVICES[real], args[:1], {})
        return args[0].shadow if result is args[0].real else Const(result)
    interp.recorder.switch(real, args, call.kwargs)
    if real in transform_levels.ENTRIES:
        interp.opened(interp.graph.create(object()), level=True)
    elif real in transform_levels.EXITS:
        interp.blocks.end()
    return Const(result)


def refuse_model(interp: Interpreter, call: Call) -> Break | None:
    """As the registry says."""
    refuses = call.meaning.refuses  # type: ignore[union-attr]
    return refuse_decision(interp, call) or (None if refuses is None else refuses(interp, *call.args, **call.kwargs))


def performing_model(interp: Interpreter, call: Call, perform: Perform) -> Perform:
    """As the registry says."""
    performing = call.meaning.performing  # type: ignore[union-attr]
    return perform if performing is None else performing(interp, perform)


def model_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """As the registry's model says."""
    return call.meaning.model(interp, result, *call.args, **call.kwargs)  # type: ignore[union-attr]


def refuse_numpy(interp: Interpreter, call: Call) -> Break | None:
    """What is known of the arrays."""
    return refuse_decision(interp, call) or interp.recorder.arrays.refusal(interp.graph, call.real, call.args, call.kwargs)


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
    return refuse_decision(interp, call) or computed_arrays.refusal(interp, call.real, call.args, call.kwargs)


def repeated_shadow(interp: Interpreter, call: Call, result: Any) -> Shadow:
    """What a hit computes again."""
    return computed_arrays.repeat(interp, call.real, call.args, call.kwargs, result)


def refuse_unknown(interp: Interpreter, call: Call) -> Break | None:
    """Always."""
    return refuse_decision(interp, call) or Break(exclusion(call.real) or effect_of(call.real), f"{name_of(call.real)}()")


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
    return refuse_decision(interp, call)


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
    given = [value.real for value in call.args]
    is_set = kernel_settings.ask(graph, interp.recorder.switched, real, given)
    if real in tensors.ASKED_AGAIN and not is_set:
        if not is_plain(result) or any(type(item) not in SCALARS for item in given) or call.kwargs:
            raise Break("opaque-call", f"{name_of(real)}()")
        graph.require(Computed(real, tuple(map(Literal, given))), "VALUE", result)      # as it was at entry
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
