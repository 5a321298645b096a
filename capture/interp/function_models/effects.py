"""Calls that act on the world or ask it: printing, logging, warnings, clocks, random numbers, files. What is done about each.

Such a call is made for real while the trace is recorded, and by the mock function on every hit, in the program's order. So it needs
no model of what it does, only of what it may look at (`snapshot`) and of the frames that it is called from. It must not change
objects that the program reads elsewhere.
"""
from __future__ import annotations

import io
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import program_frames, scope
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import SEES_CALLERS, SIDE_EFFECTS, model
from capture.interp.function_models import effect_callbacks, seeded
from capture.interp.function_models.random_streams import drawn_items, is_of_scalars, stream_of, type_drawn
from capture.interp.function_models.replays import snapshot
from capture.interp.recording import may_raise
from capture.refgraph.effects import Replayed, is_foreign
from capture.refgraph.lookup import instance_dict
from capture.refgraph.node import SCALARS, Build, Const, DictState, Expr, ListState, RefNode, Shadow
from capture.refgraph.runtime import CallFrom

SHOWS = frozenset({"exc_info", "stack_info"})
TELL_OF_HANDLED = frozenset({logging.Logger.exception, logging.exception})
STREAM: Any = io.IOBase.__base__        # C's class of all streams; `io.IOBase` itself asks a class for its hash


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of functions whose calls every hit repeats."""

    returns: type | None = None         # the type of every result, if it is always the same
    fresh: bool = False                 # each result is a new object, which nobody else knows
    clock: bool = False                 # they tell the time, and do nothing else
    waits: bool = False                 # they only take time
    ahead: bool = False                 # they come before the graph, wherever they stand, and again if the call runs again
    callers: bool = False               # they look at the frames of their callers
    owner: bool = False                 # they act through their first argument (a stream, a logger), and do not show it
    changes: bool = False               # they change attributes of the owner …
    keeps: frozenset[str] = frozenset()         # … except these
    require: Callable[..., None] | None = None  # guards, given their arguments, that they run no code of the program
    fails: bool = False                 # whether they raise depends on the world: a file, the user's filters of warnings
    draws: bool = False                 # they draw random numbers from the owner; the type of a number follows from the arguments'
    makes: bool = False                 # they make a stream of random numbers, from a seed if one is given

    @property
    def shows(self) -> bool:
        """Whether they may print their arguments."""
        return not (self.draws or self.makes or self.clock or self.ahead)


def shown_to(traits: Traits, args: Iterable[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments that such a call may look into."""
    return [value for value in [*args, *kwargs.values()][traits.owner:] if not is_a(value.real, STREAM)]


def effect(*functions: Any, applies: Callable[..., bool] | None = None, **traits: Any) -> None:
    """Registers functions whose calls are repeated on every hit, and their `Traits`; `applies`: see `Meaning`."""
    known = Traits(**traits)
    for function in functions:
        prepare = seeded.hold_arguments if known.draws else None
        model(function, prepare=prepare, applies=applies, refuses=_refusal(function, known))(_model(function, known))
        if known.callers:
            SEES_CALLERS.add(function)
    SIDE_EFFECTS.update(functions)


def _refusal(function: Any, traits: Traits) -> Callable[..., Break | None]:
    """What tells why a call cannot be repeated where it is in the trace."""
    def no_clock(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        worked = interp.recorder.operations or interp.graph.waited
        return Break("clock", f"{function.__qualname__}()") if worked else None

    def no_stack(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        stack = "stack_info" in kwargs and kwargs["stack_info"].real
        asked = stack or tells_of_handled(function, kwargs) and interp.graph.find(sys.exception()) is None
        if function is warnings.warn and is_recorded(interp):
            return Break("side-effect-call", "warnings are recorded by the program")
        return Break("side-effect-call", f"{function.__qualname__}() is to show the stack") if asked else None

    def no_handler(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        watched = may_raise.is_watched(interp.frame)
        return Break("failing-operation", f"{function.__qualname__}() where a handler is in force") if watched else None

    def no_arguments(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        changing = any(not isinstance(value.shadow, Const) for value in (*args[1:], *kwargs.values()))      # it may refuse others
        return no_handler(interp) if changing else None

    def no_objects(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        containers = [value.real for value in args if is_a(value.real, (list, tuple, dict, deque))]
        apart = any(type(item) not in SCALARS for container in containers for item in container)    # a hit would draw from copies
        return Break("side-effect-call", f"{function.__qualname__}() among objects") if apart else None

    def not_too_early(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        late = interp.early_breaks is not None and interp.early_breaks.is_too_early(interp)
        return Break("late-change", f"{function.__qualname__}() was shown an object which changed after it") if late else None
    def no_own_code(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        return effect_callbacks.refusal(function, list(args), kwargs, shown_to(traits, args, kwargs))
    known = (no_clock, traits.clock), (no_stack, traits.callers), (no_handler, traits.fails), (no_arguments, traits.draws), (
        no_objects, traits.draws), (no_own_code, traits.shows)
    rules = [rule for rule, holds in known if holds]

    def refuse(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        return next((reason for rule in (*rules, not_too_early) if (reason := rule(interp, *args, **kwargs)) is not None), None)
    return refuse


def _model(function: Any, traits: Traits) -> Callable[..., Shadow]:
    def replay(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
        graph = interp.graph
        if traits.draws and seeded.is_seeded(args):
            return seeded.drawn(interp, function, result, args[0])
        if traits.makes and (stream := seeded.make(interp, result, [*args, *kwargs.values()])) is not None:
            return stream
        for name in SHOWS.intersection(kwargs):
            if type(kwargs[name].real) in SCALARS:
                graph.depend(kwargs[name].shadow, kwargs[name].real)
        if tells_of_handled(function, kwargs):      # on a hit no exception is being handled
            kwargs["exc_info"] = Value(sys.exception(), graph.find(sys.exception()))
        if traits.require is not None:
            traits.require(interp, *args, **kwargs)
        if traits.shows:
            effect_callbacks.require(interp, function, list(args), kwargs, shown_to(traits, args, kwargs))
        values = [*args, *kwargs.values()]
        if traits.waits:
            graph.note_wait()
        own = args[0] if args and result is args[0].real else None
        if own is None and type(result) not in SCALARS and (not traits.fresh or graph.find(result) is not None):
            raise Break("side-effect-call", f"{function.__qualname__}() returned a {type(result).__name__}")
        given: tuple[Shadow, ...] = tuple(snapshot(interp, value) for value in values)
        shown = tuple(item for item, value in list(zip(given, values))[traits.owner:] if not is_a(value.real, STREAM))
        target: Shadow = Const(function)
        if traits.callers:
            target, given = called_from(interp, target, given)
        stream = stream_of(interp, function, args) if traits.draws else None
        call = graph.call_effect(target, given, tuple(kwargs), shown, traits.clock or traits.ahead, interp.positions(), stream)
        if traits.changes:
            note_change(interp, args[0], traits.keeps)
        if own is not None or traits.returns is type(None):
            return own.shadow if own is not None else Const(None)
        returns = traits.returns or (type_drawn(interp, values[1:], result) if stream is not None else None)
        if type(result) in SCALARS:
            return Replayed(call, (), returns, result)
        whole = Replayed(call, (), None if type(result) is list else returns)
        if stream is not None and type(result) is list and is_of_scalars(result):
            for value in values[1:]:                # the length follows from one of them
                if type(value.real) in SCALARS:
                    graph.depend(value.shadow, value.real)
            return graph.create(result, ListState(drawn_items(whole, result, returns)))
        return new_object(interp, result, whole)
    return replay


def tells_of_handled(function: Any, kwargs: dict[str, Value]) -> bool:
    """Whether a call of logging is to tell of the exception that is being handled."""
    told = kwargs["exc_info"].real if "exc_info" in kwargs else function in TELL_OF_HANDLED
    return bool(told) and not is_a(told, (BaseException, tuple))


def is_recorded(interp: Interpreter) -> bool:
    """Whether warnings are put into a list whose items the trace knows: one that `catch_warnings` of the program has made."""
    node = interp.graph.find(getattr(warnings._showwarnmsg_impl, "__self__", None))  # type: ignore[attr-defined]
    return node is not None and node.state is not None


def note_change(interp: Interpreter, value: Value, kept: frozenset[str] = frozenset()) -> None:
    """A repeated call may change attributes of an object: what is known of them, except for those `kept`, is no longer valid."""
    attributes = interp.graph.attributes(value.shadow) if isinstance(value.shadow, RefNode) else None
    if attributes is not None:
        interp.graph.note_volatile(attributes, kept)
        if isinstance(attributes.state, DictState) and (attributes.source is not None or is_foreign(attributes)):
            known = {name: attributes.state.items[name] for name in kept if name in attributes.state.items}
            attributes.state = DictState(known, complete=False)


def new_object(interp: Interpreter, real: Any, value: Replayed) -> RefNode:
    """The node of an object that a call effect returned. Its attributes are what they are on each hit."""
    node = interp.graph.create(real, origin=value)
    namespace = instance_dict(real)
    if namespace is not None:
        own = Expr(instance_dict, (node,))
        items: dict[Any, Shadow] = {name: Expr(dict.__getitem__, (own, Const(name))) for name in namespace}
        node.attrs = interp.graph.create(namespace, DictState(items, complete=True), origin=node)
    return node


def called_from(interp: Interpreter, function: Shadow, args: tuple[Shadow, ...]) -> tuple[Shadow, tuple[Shadow, ...]]:
    """The same call from frames that are like the user's present ones."""
    frames = program_frames.program_frames(interp)
    scopes = tuple(scope.globals_node(interp, frame) for frame in frames)
    return Const(CallFrom(tuple(map(program_frames.stand_in_of, frames)))), (Build(tuple, scopes), function, *args)  # type: ignore[arg-type]


def methods(cls: type, *names: str) -> list[Any]:
    """Methods of a class, as its instances find them."""
    return [next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__) for name in names]
