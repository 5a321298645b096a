"""Autograd functions of the program, as operations of the graph: which may be, what they change, and what form their results have.

The trace takes the form of results (sizes, types, which of them are arguments) as it was. The form follows from guarded values if
the function reads neither values of tensors nor state of the program. Otherwise the operation itself checks on each call that the
form is the same. If it is not, the call runs natively; in later traces the sizes depend on values, or the trace ends before the
function. Where sizes change, a result that is as large as an argument is assumed to be so for all sizes; this is checked too.
"""
from __future__ import annotations

import functools
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture._C import is_a
from capture.errors import Break, RaisedInside, Reformed
from capture.interp.core import unwind
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models import passed_objects
from capture.interp.function_models.autograd_passes import DECIDING, passes_of
from capture.interp.function_models.isolated_code import KnownCode, is_tame
from capture.interp.function_models.pinned_code import pin_attributes_of_class, pin_callables
from capture.interp.recording import control_flow_bodies, may_raise
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.writes import checksums_of, versions_of
from capture.operators.facts import OWN, PROGRAM, SIZING_PROGRAM, OpFacts, named
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.identical import same
from capture.refgraph.node import Expr, Shadow

# Until torch 2.13 a class method of Python's, then one of C's.
APPLY = torch.autograd.Function.__dict__["apply"]


@dataclass
class Before:
    """How all was before a function was called. called: the operators that it has called since."""

    streams: tuple[Any, ...]
    known: KnownCode
    contents: tuple[Any, ...]
    versions: dict[int, int | None]
    checksums: dict[int, int]
    tensors: list[torch.Tensor]
    called: Sequence[str] = ()


def state_of_streams() -> tuple[Any, ...]:
    """The state of Python's own stream of random numbers, and of numpy's."""
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy is None else pickle.dumps(numpy.get_state())


def note_state(interp: Interpreter, cls: Value, *args: Value, **kwargs: Value) -> None:
    """Before code of the program's runs that is one operation of the graph."""
    known = KnownCode(interp.graph)
    known.keep_to_themselves(functions_of(cls.real))
    reached = [*tensors_in(args, kwargs), *known.tensors, *passed_objects.tensors_of([arg.real for arg in args])]
    interp.recorder.note_before_call(Before(state_of_streams(), known, known.contents(), versions_of(reached),
                                             checksums_of(reached), reached))


def functions_of(cls: Any) -> list[Any]:
    """What runs when an autograd function is applied."""
    return [getattr(cls, name, None) for name in ("forward", "setup_context")]


def keeps_to_itself(interp: Interpreter, cls: Any) -> bool:
    """Whether a backward pass may call an autograd function within the trace: it changes no objects of the program's, and reads
    none that the trace may have changed, also not by way of what `forward` has left in its context."""
    known = KnownCode(interp.graph)
    return all(map(known.is_unchanged, interp.recorder.passed_objects)) and known.keep_to_themselves(
        getattr(cls, name, None) for name in DECIDING)


def works_on_objects(interp: Interpreter, cls: Value, *args: Value, **kwargs: Value) -> Break | None:
    """Why no graph can hold an autograd function (it works on objects of the program that the trace reads before or after it, or
    its results are not of one kind); None if one can."""
    if cls.real in interp.recorder.seen.reformed:
        return Break("opaque-call", f"{cls.real.__qualname__}.forward(), which returned tensors of different kinds")
    if not is_same_in_each_call(interp, cls.real):
        return Break("own-code", f"{cls.real.__qualname__}, whose code refers to variables of the call that has made it")
    known = KnownCode(interp.graph)
    if known.keep_to_themselves(functions_of(cls.real)):
        return None
    return Break("own-code", f"{cls.real.__qualname__}.forward(), which works on objects of the program's")


def is_same_in_each_call(interp: Interpreter, cls: type) -> bool:
    """Whether a call of the graph may use the class that the first call has used: the trace has not changed it, nor made a function
    of it that refers to what else the trace has made."""
    found = [interp.graph.find(getattr(cls, name, None)) for name in DECIDING]
    made = [node.real for node in found if node is not None and node.created]
    return KnownCode(interp.graph).is_unchanged_class(cls) and all(
        type(function) is types.FunctionType and not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)
        for function in made)


def listening(interp: Interpreter, perform: Callable[..., Any]) -> Callable[..., Any]:
    """How `apply` is called: the operators that it comes to are noted."""
    def run(*args: Any, **kwargs: Any) -> Any:
        _C.begin_listening()
        try:
            with control_flow_bodies.guarding(interp.recorder):
                return perform(*args, **kwargs)
        finally:
            interp.recorder.note_called(_C.called_operators())
    return run


@model(getattr(APPLY, "__func__", APPLY), prepare=note_state, refuses=works_on_objects, performing=listening)
def apply(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """A user's autograd function is one operation; it may have written to its arguments. One that draws from a stream of which the
    trace's own draws are made before the graph, or after it, would not find it as it was; nor would the trace find objects that one
    has changed."""
    before: Before = interp.recorder.before_call()
    if before.streams != state_of_streams():
        raise Break("side-effect-call", f"{cls.real.__qualname__} draws random numbers of Python's")
    if not same(before.contents, before.known.contents()):
        raise Break("own-code", f"{cls.real.__qualname__}.forward(), which changes objects of the program's")
    if passed_objects.keeps_containers(interp, result, [arg.real for arg in (*args, *kwargs.values())]):
        raise Break("own-code", f"{cls.real.__qualname__}.forward(), which keeps a list or dict that the program may change")
    interp.graph.depend(cls.shadow, cls.real)
    pin_attributes_of_class(interp.graph, cls.real, DECIDING)
    pin_callables(interp.graph, before.known.seen.values())
    call: Callable[..., Any] = cls.real.apply
    passes = None if kwargs else passes_of(interp, cls.real, args, result, before.called)
    leaves, reached = args, [*tensors_in(args, kwargs), *before.known.tensors]
    if not kwargs and any(passed_objects.holds_objects(arg.real) for arg in args):
        given = passed_objects.PassedObjects(interp, cls.real)
        call, leaves = passed_objects.applied(cls.real, given.take_all(args)), tuple(given.leaves)
        before.known.learn(given.known)
        pin_callables(interp.graph, given.known.seen.values())
        reached += given.tensors
    now = versions_of(reached)
    if passes is None:
        checksums = checksums_of(reached)
        changed = [tensor for tensor in reached if before.versions.get(id(tensor)) != now[id(tensor)]
                   or before.checksums.get(id(tensor)) != checksums.get(id(tensor))]
        interp.recorder.wrote(reached, for_good=True, observed=changed)
    elif passes.raises:
        if may_raise.is_watched(interp.frame) and not interp.recorder.mutations.can_take_back():
            raise Break("failing-operation", f"{cls.real.__qualname__}.forward(), which may raise, after a change")
        may_raise.may_raise(interp)
    target = operation(interp, cls.real, call, before, result, [*leaves, *kwargs.values()])
    target.passes = passes
    if passes is not None:
        target.facts = OWN          # they write to nothing
    return interp.recorder.record("call_function", target, leaves, kwargs, result, now)


@model(torch.autograd.Function.__new__)
def new_function(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """An instance of an autograd function, as programs of old make it to call its `apply`, which is the class's."""
    interp.graph.depend(cls.shadow, cls.real)
    pin_special(interp.graph, cls.real, "__del__")
    return interp.graph.create(result, origin=Expr(torch.autograd.Function.__new__, (cls.shadow,)))


# -- of what form results are ------------------------------------------------------------------------------------------

def operation(interp: Interpreter, cls: type, call: Callable[..., Any], before: Before, result: Any, given: list[Value]) -> Any:
    """The operation that calls a function of the class `cls`. Raises Break if it must look at its results, and the call could not
    run again then. given: what the graph passes."""
    mutations = interp.recorder.mutations
    can_stop, resized = mutations.can_stop(), cls in interp.recorder.seen.resized
    alike = sized_like(interp, result, given) if can_stop and not resized else None
    if alike is None and follows_from_arguments(before):
        watched, acted = may_raise.is_watched(interp.frame), may_raise.has_acted(interp)
        if acted and not watched and not can_stop:
            may_raise.may_raise(interp)         # effects come before the graph where they can
        if not can_stop or not watched and not acted:
            return named_apply(cls, call)       # where it raises, nobody would tell
        interp.recorder.expectations.may_stop(mutations.observed.inputs)
        return named_apply(cls, rerunning(cls, call))
    if not can_stop:
        raise Break("failing-operation", f"{cls.__qualname__}.forward(), which may return another shape, after a write to a tensor")
    call = rerunning(cls, call)
    interp.recorder.expectations.may_stop(mutations.observed.inputs)
    resizes = resized or makes_sizes(before, result, given)
    expected = form_of(result, [value.real for value in given])
    layouts = [_C.tensor_properties(tensor.detach()).with_free(range(tensor.dim())) for tensor in parts_of(result)] if alike else []

    def checked(*args: Any, **kwargs: Any) -> Any:
        result, given = call(*args, **kwargs), [*args, *kwargs.values()]
        kinds, sizes = form_of(result, given)
        if kinds != expected[0]:
            raise Reformed(cls, resized=False)
        if alike is not None:
            same_sizes = all(layout.matches(tensor.detach()) and tensor.shape == given[place].shape
                             for tensor, layout, place in zip(parts_of(result), layouts, alike, strict=True))
        else:
            same_sizes = resizes or sizes == expected[1]
        if not same_sizes:
            raise Reformed(cls, resized=True)
        return result
    made = named_apply(cls, checked, SIZING_PROGRAM if resizes and alike is None else PROGRAM)
    made.alike, made.checks_results = alike, True
    return made


def rerunning(cls: type, call: Callable[..., Any]) -> Callable[..., Any]:
    """Such a call, which runs again natively, with all around it, if the function raises: so the program's handlers come to it, and
    what is done before it."""
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if unwind.is_asynchronous(error):
                raise
            raise RaisedInside(cls) from error
    return run


def sized_like(interp: Interpreter, result: Any, given: list[Value]) -> list[int] | None:
    """For each tensor of the results the place of an argument that is as large; None if sizes do not change, or one has no such."""
    if not interp.recorder.sizes.are_free(given) or not is_a(result, (torch.Tensor, tuple)):
        return None
    places = []
    for part in parts_of(result):
        if not is_a(part, torch.Tensor) or part.layout is not torch.strided or part.is_nested:
            return None
        place = next((place for place, value in enumerate(given) if is_a(value.real, torch.Tensor)
                      and value.real.shape == part.shape), None)
        if place is None:
            return None
        places.append(place)
    return places


def parts_of(result: Any) -> Sequence[Any]:
    """The results of a function, of which there may be one."""
    return result if is_a(result, tuple) else (result,)


def named_apply(cls: type[torch.autograd.Function], call: Callable[..., Any] | None = None, facts: OpFacts = PROGRAM) -> Any:
    """`cls.apply` under a name that generated code can refer to. call: in place of it."""
    target: Any = functools.partial(cls.apply if call is None else call)
    target.__name__, target.__module__, target.facts, target.autograd_function = cls.__name__, "autograd", facts, cls
    return target


def follows_from_arguments(before: Before) -> bool:
    """Whether the form of results follows from the form of what the function was given, and from its code."""
    known = before.known
    return not known.reads_state and all(map(is_tame, known.called)) and not any(facts.reads_values for facts in called(before))


def makes_sizes(before: Before, result: Any, given: list[Value]) -> bool:
    """Whether the results seem to have sizes that depend on values: no argument has them, and such an operator was called."""
    shapes = [tensor.shape for tensor in tensors_in(given)]
    return any(facts.always_has_dynamic_shape for facts in called(before)) and not all(
        type(part) is not tuple or part[0] in shapes for part in form_of(result, [])[1])


def called(before: Before) -> Iterator[OpFacts]:
    """The operators that the function has called."""
    for qualified in before.called:
        namespace, _, name = qualified.partition("::")
        yield named(name, namespace)


def form_of(result: Any, given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Of what kind the results are, and which arguments, and what sizes and strides they have."""
    kinds: list[Any] = []
    sizes: list[Any] = []
    stack = [result]
    for part in stack:
        if is_a(part, torch.Tensor):
            kinds.append((type(part), part.dtype, part.layout, part.device, part.requires_grad, part.dim(),
                          [place for place, arg in enumerate(given) if arg is part]))
            if part.layout is torch.strided and not part.is_nested:
                sizes.append((part.shape, part.stride()))
        elif is_a(part, (tuple, list, dict)):
            kinds.append((type(part), len(part)))
            stack += part.values() if is_a(part, dict) else part
        else:
            kinds.append(type(part))
    return kinds, sizes
