"""Progress bars of tqdm, around loops and updated by hand.

A bar takes locks, reads clocks, asks the terminal, and decides by the answers: nothing for a graph. So a bar is made by one call
effect, and each call of its methods is one. `for x in bar` iterates over the bar's iterable in captured code, where the items are
known. The bar's own generator runs as in CPython, over an iterator of ours, and one call effect for each round moves it on.

What such a call may change cannot be found out by asking a library, so it is written down here by name: it changes the bar, except
for the attributes in `KEPT`.
"""
from __future__ import annotations

import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from capture.errors import Break
from capture.interp.core.frame import NONE_VALUE, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import DEATHS, NAMED_EFFECTS, SIDE_EFFECTS, model, polyfill
from capture.interp.core.special import VIEWS, is_native_iterator
from capture.interp.function_models import effect_callbacks
from capture.interp.function_models.effects import effect, note_change
from capture.interp.function_models.library_effects import STREAMS, WRITING
from capture.interp.function_models.replays import snapshot
from capture.interp.function_models.shadows import ViewState, depend_type
from capture.interp.polyfills.stand_ins import can_become
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.effects import Replayed, is_foreign
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import instance_attributes, instance_dict, lookup_class
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.node import (
    ABSENT,
    SCALARS,
    Build,
    Const,
    DictState,
    External,
    IteratorState,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
)
from capture.refgraph.publishing import shown_for_the_first_time
from capture.refgraph.source import Computed, Literal

# Methods that others of a bar call.
CALLED = ("__new__", "__init__", "__iter__", "update", "refresh", "display", "clear", "close")
OF_C = Classes(STREAMS)
KEPT = frozenset({"iterable", "disable", "fp", *CALLED})
ENDED = KEPT - {"disable"}


def is_shown_by_own_code(bar: Any) -> bool:
    """Whether code of the program's takes part when a bar is shown: its class or its stream is the program's, or a method was
    replaced."""
    held = instance_attributes(bar)
    return is_own_bar(type(bar)) or any(map(effect_callbacks.is_own_code, held.values())) or effect_callbacks.is_own_stream(
        stream_behind(held.get("fp")))


def is_own_bar(cls: type) -> bool:
    """Whether a class of bars is the program's, or has methods of the program's now."""
    return effect_callbacks.has_methods_of_program(cls) or any(
        effect_callbacks.is_own_code(lookup_class(cls, name)) for name in CALLED)


def stream_behind(stream: Any) -> Any:
    """The stream that a bar's wrappers pass the text on to."""
    while (inner := instance_attributes(stream).get("_wrapped")) is not None:
        stream = inner
    return stream


def require_shown(interp: Interpreter, bar: Value, *args: Value, **kwargs: Value) -> None:
    """Guards that no code of the program's takes part when a bar from outside is shown."""
    graph, node = interp.graph, bar.shadow
    if not isinstance(node, RefNode) or node.created:       # of others that was guarded as they were made
        return
    pin_special(graph, node.cls, *CALLED)
    attributes: Any = graph.attributes(node)
    for name in CALLED:
        graph.dict_get(attributes, name)
    stream: Any = graph.dict_get(attributes, "fp")
    while stream is not ABSENT and "_wrapped" in instance_attributes(stream.real):
        stream = graph.dict_get(graph.attributes(stream), "_wrapped")  # type: ignore[arg-type]
    if stream is not ABSENT:
        require_stream(interp, stream)


def require_stream(interp: Interpreter, stream: Shadow) -> None:
    """Guards that a stream is none of the program's."""
    if isinstance(stream, RefNode) and not stream.created:
        interp.graph.touch(stream)
        attributes = interp.graph.attributes(stream)
        for name in WRITING if attributes is not None else ():
            interp.graph.dict_get(attributes, name)  # type: ignore[arg-type]
        if type(stream.real) not in OF_C:
            interp.graph.require(Computed(effect_callbacks.is_own_stream, (stream.source,)), "VALUE", False)


# -- rounds ------------------------------------------------------------------------------------------------------------

ENDLESS = itertools.repeat(None)


class Rounds:
    """The bar's own generator, which waits in a round."""

    __slots__ = ("generator", "__weakref__")

    def __init__(self, generator: Iterator[None]) -> None:
        self.generator = generator


def begin(bar: Any) -> Rounds:
    """Begins with a loop, and its first round."""
    held = instance_dict(bar)
    iterable, held["iterable"] = held["iterable"], ENDLESS  # type: ignore[index]
    try:
        generator = vars(sys.modules["tqdm.std"].tqdm)["__iter__"](bar)
        next(generator)
        return Rounds(generator)
    finally:
        held["iterable"] = iterable  # type: ignore[index]


def go_on(bar: Any, rounds: Rounds) -> None:
    """Ends a round, and begins with the next one."""
    next(rounds.generator)


def end(bar: Any, rounds: Rounds) -> None:
    """Ends the loop. The round that was begun does not count: there was no item for it, or it was left."""
    rounds.generator.close()  # type: ignore[attr-defined]


def iterate(self: Any) -> Iterator[Any]:
    """`tqdm.__iter__`."""
    iterable = self.iterable
    if self.disable:
        yield from iterable
        return
    rounds = begin(self)
    try:
        for item in iterable:
            yield item
            go_on(self, rounds)
    finally:
        end(self, rounds)


iterate.__name__, iterate.__qualname__ = "__iter__", "tqdm.__iter__"


def _call(interp: Interpreter, function: Any, *args: Value) -> Replayed:
    """The result of one of these calls, which hits make again."""
    shadows = tuple(arg.shadow for arg in args)
    return Replayed(interp.graph.call_effect(Const(function), shadows, positions=interp.positions()), ())


@model(begin)
def _begun(interp: Interpreter, result: Rounds, bar: Value) -> Shadow:
    require_shown(interp, bar)
    return interp.graph.create(result, origin=_call(interp, begin, bar))


@model(go_on)
def _gone_on(interp: Interpreter, result: None, bar: Value, rounds: Value) -> Shadow:
    _call(interp, go_on, bar, rounds)
    note_change(interp, bar, KEPT)
    return Const(None)


@model(end)
def _ended(interp: Interpreter, result: None, bar: Value, rounds: Value) -> Shadow:
    _call(interp, end, bar, rounds)
    note_change(interp, bar, ENDED)
    attributes = interp.graph.attributes(bar.shadow)  # type: ignore[arg-type]
    interp.graph.dict_state(attributes).items["disable"] = Const(True)  # type: ignore[arg-type]
    return Const(None)


SIDE_EFFECTS.update({begin, go_on, end})


# -- making bars -------------------------------------------------------------------------------------------------------

PARAMETERS = ("iterable", "desc", "total", "leave", "file")      # of the first arguments
CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict, torch.nn.ParameterList)
ITERABLES = Classes((*SCALARS, list, tuple, range, dict, set, frozenset, deque, *VIEWS, *CONTAINERS, *PLAIN_TENSORS))


def bind(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a bar by their names."""
    return {**dict(zip(PARAMETERS, args)), **kwargs}


def refusal(cls: type, interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
    """Why no trace holds the making of a bar, if that is so."""
    given = bind(args, kwargs)
    iterable, file = given.pop("iterable", None), given.pop("file", None)
    if is_own_bar(cls) or effect_callbacks.is_own_stream(default_stream() if file is None or file.real is None else file.real):
        return Break("own-code", "a progress bar with a method or a stream of the program's")
    if "disable" in given and type(given["disable"].real) is not bool:
        return Break("changing-result", "whether a progress bar is shown depends on the terminal")
    if iterable is not None and not can_be_handed(interp, iterable):
        return Break("opaque-call", f"a progress bar around a {type(iterable.real).__name__}")
    return effect_callbacks.refusal(refusal, [], {}, given.values())


def can_be_handed(interp: Interpreter, iterable: Value) -> bool:
    """Whether a hit can make the bar's iterable before the bar, and no code of the program gives its length."""
    def can_be_made(node: RefNode) -> bool:
        if not node.created or isinstance(node.state, (TensorState, ViewState)) or is_container(node) or can_become(node.real):
            return True
        return isinstance(node.state, IteratorState) and node.state.recipe() is not None
    real = iterable.real
    known = type(real) in ITERABLES or is_native_iterator(real) or can_become(real)
    return known and all(map(can_be_made, behind(interp, iterable.shadow)))


def is_container(node: RefNode) -> bool:
    """Whether an object of the trace is a list, dict or set of which a copy can be kept."""
    return type(node.state) is ListState or isinstance(node.state, (DictState, SetState)) and type(node.state.items) is dict


def behind(interp: Interpreter, shadow: Shadow) -> list[RefNode]:
    """The objects that an iterator, a view or a container goes over, and these themselves."""
    found: dict[RefNode, None] = {}
    todo = [shadow]
    while todo:
        shadow = todo.pop()
        if isinstance(shadow, Build):
            todo += shadow.items
        elif isinstance(shadow, RefNode) and shadow not in found:
            found[shadow] = None
            todo += walked_parts_of(interp, shadow) if shadow.created else ()
    return list(found)


def walked_parts_of(interp: Interpreter, node: RefNode) -> Iterable[Shadow]:
    """What an object of the trace goes over."""
    state = node.state
    if can_become(node.real):
        return [interp.graph.slot(node, name, getattr(node.real, name)) for name in node.real.kept]
    if isinstance(state, ViewState):
        return [state.mapping]
    if isinstance(state, IteratorState):
        return (state.recipe() or (None, ()))[1]
    return (state.items if isinstance(state, ListState) else state.items.values()) if is_container(node) else ()


def made(cls: type) -> Callable[..., Shadow]:
    """What it means to make a bar of a class."""
    def make(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
        graph, given = interp.graph, bind(args, kwargs)
        iterable, file = given.pop("iterable", NONE_VALUE), given.pop("file", None)
        pass_iterable(interp, iterable)
        pin_special(graph, cls, *CALLED)
        if file is None or file.real is None:
            graph.require(Computed(effect_callbacks.is_own_stream, (Computed(default_stream, ()),)), "VALUE", False)
        else:
            require_stream(interp, file.shadow)
        effect_callbacks.require(interp, cls, [], {}, given.values())
        shown = {name: snapshot(interp, value) for name, value in given.items()}
        shadows = {"iterable": iterable.shadow, **({} if file is None else {"file": file.shadow}), **shown}
        call = graph.call_effect(Const(cls), tuple(shadows.values()), tuple(shadows), tuple(shown.values()),
                                 positions=interp.positions())
        disable = given["disable"].shadow if "disable" in given else Const(result.disable)
        node = graph.create(result, origin=Replayed(call, ()))
        known = DictState({"iterable": iterable.shadow, "disable": disable}, complete=False)
        node.attrs = graph.create(instance_dict(result), known, origin=node)
        graph.note_volatile(node.attrs, KEPT)
        return node
    return make


def pass_iterable(interp: Interpreter, iterable: Value) -> None:
    """Has hits make what a bar goes around before the bar, which asks for its length alone."""
    depend_type(interp, iterable)
    graph, nodes = interp.graph, behind(interp, iterable.shadow)
    graph.publish(shown_for_the_first_time(graph, [node for node in nodes if node.created and is_container(node)]))
    graph.keep_alive(node.real for node in nodes if isinstance(node.state, IteratorState) or can_become(node.real))


def default_stream() -> Any:
    """The stream on which bars are shown if no other is given."""
    return sys.stderr


def bar_died(interp: Interpreter, node: RefNode) -> bool:
    """Called when a bar has died, which closes it. Whether the trace goes on: it does if the bar was disabled, so that nothing
    happened, and if hits make the bar themselves: they close theirs here."""
    state = None if node.attrs is None else node.attrs.state
    disable = state.items.get("disable") if isinstance(state, DictState) else None
    if isinstance(disable, Const) and disable.value is True or is_required(interp, disable):
        return True
    if is_foreign(node):
        interp.graph.call_effect(Const(close), (node,))
    return is_foreign(node)


def close(bar: Any) -> None:
    """What a bar does when it dies."""
    bar.close()


def is_required(interp: Interpreter, disable: Shadow | None) -> bool:
    """Whether a bar from outside is guarded to be disabled."""
    return isinstance(disable, External) and disable.value is True and any(
        (disable.source, kind) in interp.graph.requirements for kind in ("TRUTH", "VALUE"))


# -- text beside bars --------------------------------------------------------------------------------------------------

def writes_by_own_code(file: Any) -> bool:
    """Whether code of the program's takes part when `tqdm.write` clears all bars, writes to a stream, and shows them again."""
    bars = list(sys.modules["tqdm.std"].tqdm._instances)
    return effect_callbacks.writes_by_own_code(file=file) or any(map(is_shown_by_own_code, bars))


def require_written(interp: Interpreter, cls: Value, text: Value, file: Value | None = None, *args: Value, **kwargs: Value) -> None:
    """Guards that no code of the program's does."""
    path = Literal(None) if file is None or file.real is None else getattr(file.shadow, "source", None)
    if path is not None:
        interp.graph.require(Computed(writes_by_own_code, (path,)), "VALUE", False)


# -- registration ------------------------------------------------------------------------------------------------------

def register_method(function: types.FunctionType) -> None:
    """A method of a bar, which shows and changes that."""
    keeps = ENDED if function.__name__ == "close" else KEPT
    effect(function, owner=True, changes=True, keeps=keeps, require=require_shown,
           applies=lambda bar, *args, **kwargs: not is_shown_by_own_code(bar))


def register_loop(function: types.FunctionType) -> None:
    """The generator function by which one iterates over a bar."""
    polyfill(function, applies=lambda bar: not is_shown_by_own_code(bar))(iterate)


def register_write(function: types.FunctionType) -> None:
    """`tqdm.write`."""
    effect(function, owner=True, returns=type(None), require=require_written,
           applies=lambda cls, text, file=None, *args, **kwargs: not writes_by_own_code(file))


def register_class(cls: type) -> None:
    """The class of a bar."""
    model(cls, applies=lambda *args, **kwargs: len(args) <= len(PARAMETERS), refuses=functools.partial(refusal, cls))(made(cls))
    SIDE_EFFECTS.add(cls)
    DEATHS[id(cls)] = bar_died


NAMED_EFFECTS["tqdm.std", "tqdm"] = NAMED_EFFECTS["tqdm.asyncio", "tqdm_asyncio"] = register_class
NAMED_EFFECTS["tqdm.std", "tqdm.__iter__"] = register_loop
NAMED_EFFECTS["tqdm.std", "tqdm.write"] = register_write
for _name in ("update refresh set_postfix set_postfix_str set_description set_description_str clear close reset unpause "
              "display").split():
    NAMED_EFFECTS["tqdm.std", f"tqdm.{_name}"] = register_method
