"""Arrays of numpy in the graph: those that become tensors or are written to, and those that they are computed from.

At first, what numpy computes from a tensor's memory is a call after the graph (`function_models/computed_arrays.py`), so that the
graph can be compiled. Once a tensor is made of such an array, something is written to one, or a tensor operation calculates with
such a number, all these calls become operations of the graph, in their order: numpy itself computes, on the same memory as in eager
mode. The layout of such an array, and the type of such a number, are assumed: a call in which they differ runs natively.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.recording.arrays import is_kind
from capture.interp.recording.expectations import Expectation
from capture.interp.recording.fx_recorder import FxRecorder
from capture.refgraph import ndarrays
from capture.refgraph.effects import CallEffect, Replayed
from capture.refgraph.identical import LISTS, is_one_of
from capture.refgraph.ndarrays import is_array, is_ndarray, is_value, layout
from capture.refgraph.node import ArrayState, Build, Const, Display, Expr, External, ListState, RefNode, Shadow, TensorState
from capture.refgraph.runtime import expect_kind, expect_layout

OBSTACLE = "calls numpy"


class Hole:
    """Stands for a node of the graph among the arguments of a call."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"<{self.index}>"


def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *operands: Any) -> Any:
    """Calls a function, with operands in the place of holes."""
    def filled(item: Any) -> Any:
        if type(item) is Hole:
            return operands[item.index]
        if type(item) is slice:
            return slice(filled(item.start), filled(item.stop), filled(item.step))
        return type(item)(map(filled, item)) if type(item) in LISTS else item
    return function(*map(filled, args), **{name: filled(item) for name, item in kwargs.items()})


def is_in_graph(shadow: Shadow | None) -> bool:
    """Whether an array is made by the graph."""
    return isinstance(shadow, RefNode) and type(shadow.state) is ArrayState


# -- what is computed --------------------------------------------------------------------------------------------------

class _Call:
    """The arguments of a call as those of a node of the graph. Raises Break for what only a hit knows."""

    def __init__(self, recorder: FxRecorder) -> None:
        self.recorder, self.operands = recorder, list[fx.Node]()

    def node(self, function: Callable[..., Any], args: Iterable[Shadow], kwargs: dict[str, Shadow]) -> fx.Node:
        layouts = tuple(map(self.argument, args)), {name: self.argument(shadow) for name, shadow in kwargs.items()}
        target: Any = functools.partial(called, function, *layouts)
        target.__name__, target.__module__ = getattr(function, "__name__", "call").strip("_"), "numpy"
        node = self.recorder.effect(target, *self.operands)
        node.meta["obstacle"] = OBSTACLE
        return node

    def argument(self, shadow: Shadow) -> Any:
        if isinstance(shadow, Const):
            return shadow.value
        if isinstance(shadow, External):
            self.recorder.refs.depend(shadow, shadow.value)
            return shadow.value
        if isinstance(shadow, (Build, Display)) and is_one_of(shadow.cls, tuple, list, slice):
            items = list(map(self.argument, shadow.items))
            return slice(*items) if shadow.cls is slice else shadow.cls(items)
        if isinstance(shadow, RefNode) and type(shadow.state) is ListState:
            return list(map(self.argument, shadow.state.items))
        if isinstance(shadow, RefNode) and is_kind(shadow.real):
            self.recorder.refs.depend(shadow, shadow.real)
            return shadow.real
        if isinstance(shadow, RefNode) and (node := self.array(shadow)) is not None:
            self.operands.append(node)
            return Hole(len(self.operands) - 1)
        raise Break("data-dependent", "what numpy computes in the graph depends on what is computed after it")

    def array(self, shadow: RefNode) -> fx.Node | None:
        """The node of an array, tensor or number of numpy."""
        recorder, real = self.recorder, shadow.real
        if isinstance(shadow.state, TensorState):
            return recorder.node(shadow)
        if isinstance(shadow.origin, Replayed) and shadow.origin.op in recorder.arrays.repeated:        # a number: once more
            call = shadow.origin.op
            return _Call(recorder).node(*_parts(call))
        if shadow.source is not None and is_ndarray(real) and real.flags.writeable:
            try:
                tensor = ndarrays.from_numpy(real)
            except (TypeError, ValueError) as error:
                raise Break("opaque-call", f"numpy is given an array from outside, which torch does not take: {error}") from None
            outside = recorder.arrays.share(recorder.refs, shadow, tensor)
            return recorder.effect(torch.Tensor.numpy, recorder.node(outside))  # type: ignore[arg-type]
        if is_value(real) and recorder.arrays.is_computed(real):
            constant = recorder.arrays.maker(real) if is_array(real) else functools.partial(real.copy)
            constant.__name__, constant.__module__ = "constant", "numpy"
            return recorder.effect(constant)
        return None


def _parts(call: CallEffect) -> tuple[Any, list[Shadow], dict[str, Shadow]]:
    """The function of a call, and its arguments."""
    split = len(call.args) - len(call.names)
    return call.function.value, list(call.args[:split]), dict(zip(call.names, call.args[split:]))  # type: ignore[attr-defined]


def enter(recorder: FxRecorder) -> None:
    """Makes all arrays that numpy has computed so far operations of the graph."""
    graph, arrays = recorder.refs, recorder.arrays
    for storage, serial in arrays.exposed.items():
        if graph.written_since(serial, storage):
            raise Break("late-change", "numpy was given a tensor that was written to after it")
    for call, node in list(arrays.repeated.items()):
        if node is None:
            continue
        if node.slots:
            raise Break("untracked-mutation", "an array was given another shape or type, and becomes a tensor")
        made = _Call(recorder).node(*_parts(call))
        made.meta["stack"] = call.positions
        node.state, node.origin = ArrayState(made, None), None
        recorder.expectations.withdrawn(graph.effects.index(call))
        graph.withdraw(call)
        arrays.note_in_graph(call)
    if not arrays.repeated:
        graph.allow_changes(arrays.exposed)
        arrays.note_hidden()


def compute(recorder: FxRecorder, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], result: Any) -> Shadow:
    """The shadow of what numpy has computed, as an operation of the graph."""
    node = _Call(recorder).node(function, [value.shadow for value in args],
                                {name: value.shadow for name, value in kwargs.items()})
    return _result(recorder, node, result, function)


def _result(recorder: FxRecorder, node: fx.Node, real: Any, function: Callable[..., Any]) -> Shadow:
    if is_value(real) and is_array(real):
        return recorder.refs.find(real) or recorder.refs.create(real, ArrayState(node, None))
    if is_a(real, (tuple, list)) and real and all(is_value(item) and is_array(item) for item in real):
        items = [_result(recorder, recorder.effect(item_of, node, place), item, function) for place, item in enumerate(real)]
        return recorder.refs.create(real, ListState(items)) if type(real) is list else Build(type(real), tuple(items))
    if real is None:
        return Const(None)
    raise Break("opaque-call", f"{getattr(function, '__name__', 'a function')}() of numpy returned a {type(real).__name__}")


def item_of(whole: Any, place: int) -> Any:
    """One of several arrays that a function has returned."""
    return whole[place]


# -- tensors on their memory, and writes -------------------------------------------------------------------------------

def owner_of(array: Any) -> Any:
    """The tensor or array that owns the memory of an array."""
    while not is_a(array, torch.Tensor) and is_a(getattr(array, "base", None), torch.Tensor) or (
            is_value(getattr(array, "base", None))):
        array = array.base
    return array


def share(recorder: FxRecorder, array: Value, tensor: torch.Tensor) -> Shadow:
    """The shadow of `torch.from_numpy(array)`."""
    enter(recorder)
    arrays, owner = recorder.arrays, owner_of(array.real)
    node = recorder.node(array.shadow)  # type: ignore[arg-type]
    shadow = recorder.record("call_function", ndarrays.from_numpy, [Value(array.real, Const(node))], {}, tensor, {})
    arrays.note_shared(owner, tensor, *([owner] if is_a(owner, torch.Tensor) else []))
    expect_as_it_is(recorder, array)
    return shadow


def expect_as_it_is(recorder: FxRecorder, array: Value) -> None:
    """Adds the assumption that an array of the graph has the layout, or a number the type, that it has now."""
    if not recorder.expectations.includes(array.shadow):
        whole = is_array(array.real)
        held, operation = (layout(array.real), expect_layout) if whole else (array.real.dtype.str, expect_kind)
        recorder.expectations.add(Expectation(array.shadow, held, operation, at_once=not whole, changed=recorder.mutations.changes))


def is_operand(recorder: FxRecorder, value: Value) -> bool:
    """Whether a value is a number that numpy has computed, or what `float` or `int` made of one."""
    shadow = value.shadow
    if isinstance(shadow, RefNode):
        returned = isinstance(shadow.origin, Replayed) and shadow.origin.op in recorder.arrays.repeated
        return is_value(value.real) and not is_array(value.real) and (returned or is_in_graph(shadow))
    return _call_behind(recorder, shadow) is not None


def _call_behind(recorder: FxRecorder, shadow: Shadow | None) -> CallEffect | None:
    """The call of numpy that returned what `float` or `int` was called on."""
    number = shadow.args[0] if isinstance(shadow, Expr) and shadow.op in (float, int) and len(shadow.args) == 1 else None
    return number.op if isinstance(number, Replayed) and number.op in recorder.arrays.repeated else None


def as_operand(recorder: FxRecorder, value: Value) -> Value:
    """A value for which `is_operand` holds as an operand of the graph; as it is if only a call after the graph returns it."""
    enter(recorder)
    call, shadow = _call_behind(recorder, value.shadow), value.shadow
    if call is not None:
        once_more = _Call(recorder).node(*_parts(call))
        return Value(value.real, Const(recorder.effect(type(value.real), once_more)))
    if not is_in_graph(shadow):
        return value
    expect_as_it_is(recorder, value)
    return Value(value.real, Const(recorder.node(shadow)))  # type: ignore[arg-type]


def is_of_tensor(shadow: Shadow | None) -> bool:
    """Whether an array is on the whole memory of a tensor, from which its layout follows."""
    if not isinstance(shadow, RefNode) or not isinstance(shadow.origin, Replayed) or shadow.slots:
        return False
    call = shadow.origin.op
    is_exposure = isinstance(call.function, Const) and call.function.value is torch.Tensor.numpy
    return is_exposure and not call.args[0].state.dynamic  # type: ignore[attr-defined]


def why_not_written(recorder: FxRecorder) -> Break | None:
    """Why an array must not be written to now; None if it may be."""
    try:
        recorder.arrays.require_unseen(recorder.refs)
    except Break as reason:
        return reason.with_traceback(None)
    return None


def wrote(recorder: FxRecorder, array: Any) -> None:
    """Notes that an array was written to: so were the tensors on its memory."""
    owner = owner_of(array)
    tensors = [owner] if is_a(owner, torch.Tensor) else [tensor for known, tensor in recorder.arrays.shared if known is owner]
    if tensors:                     # … and from there to the others
        recorder.wrote(tensors)


def can_become_tensor(recorder: FxRecorder, array: Value) -> bool:
    """Whether an array is made by the graph, or can be."""
    if not is_ndarray(array.real) or not isinstance(array.shadow, RefNode):
        return False
    return is_in_graph(array.shadow) or isinstance(array.shadow.origin, Replayed) and (
        recorder.arrays.repeated.get(array.shadow.origin.op) is not None)
