"""Streams of random numbers, of Python and numpy: what is drawn from them, and lists that they shuffle."""
from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterable
from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import SIDE_EFFECTS, model
from capture.interp.function_models import seeded
from capture.interp.function_models.replays import MOST_ITEMS
from capture.interp.function_models.shadows import items_of
from capture.refgraph.effects import Replayed
from capture.refgraph.identical import Classes
from capture.refgraph.node import SCALARS, Build, Const, Expr, ListState, RefNode, Shadow
from capture.refgraph.runtime import shuffled
from capture.refgraph.source import Computed


def streams() -> Iterable[type]:
    """The classes of streams of random numbers, whose methods do nothing but draw from them."""
    numpy = sys.modules.get("numpy")
    return random.Random, random.SystemRandom, *((numpy.random.RandomState, numpy.random.Generator) if numpy is not None else ())


GENERATORS = Classes(streams())
# Functions that act on one stream, which is not among their arguments.
OWN_STREAM = {module.seed: module.mtrand._rand for module in [sys.modules.get("numpy.random")] if module is not None}
SHUFFLES = [vars(cls)["shuffle"] for cls in GENERATORS if "shuffle" in vars(cls)]
SIDE_EFFECTS.update(SHUFFLES)


def stream_of(interp: Interpreter, function: Any, args: tuple[Value, ...]) -> RefNode | None:
    """The stream of random numbers that a call draws from; None where the program may have written its own."""
    if function in OWN_STREAM:
        return interp.graph.constant(OWN_STREAM[function])  # type: ignore[return-value]
    node = args[0].shadow if args else None
    return node if isinstance(node, RefNode) and node.cls in GENERATORS else None


def is_of_scalars(items: Any) -> bool:
    """Whether a container holds scalars alone, and not too many of them to be known one by one."""
    return len(items) <= MOST_ITEMS and all(type(item) in SCALARS for item in items)


def type_drawn(interp: Interpreter, args: list[Value], result: Any) -> type | None:
    """The type of a scalar that was drawn, or of each scalar in a list, if it follows from the types of the arguments: of scalars,
    or of what a container holds."""
    for arg in args:
        shadows, real = [arg.shadow], arg.real
        if is_a(real, (tuple, list)):
            if not is_of_scalars(real) or has_unknown_items(interp, arg):
                return None
            shadows = items_of(interp, arg)
        kinds = {interp.graph.type_of(shadow) for shadow in shadows}
        if None in kinds or len(kinds) != 1:
            return None
    found = set(map(type, result)) if type(result) is list else {type(result)}
    return found.pop() if len(found) == 1 else None


def has_unknown_items(interp: Interpreter, value: Value) -> bool:
    """Whether a list's items cannot be known, or should not be guarded: one from outside that has grown since the first capture."""
    node = value.shadow
    if not isinstance(node, RefNode) or isinstance(node.state, ListState):
        return False
    return node.source is None or interp.recorder.seen.varies(Computed(len, (node.source,)), len(value.real))


def drawn_items(whole: Replayed, result: list[Any], kind: type | None) -> list[Shadow]:
    """The items of a list that a draw returned; `kind`: the type of all of them, if that is known."""
    items = [Expr(operator.getitem, (whole, Const(index))) for index in range(len(result))]
    return [Expr(kind, (item,)) for item in items] if kind in (int, float, str) else items  # type: ignore[return-value]


def prepare_shuffle(interp: Interpreter, stream: Value, items: Value) -> None:
    """Before items are moved about: which there are; and all about them, if where they go is constant."""
    items_of(interp, items)
    seeded.hold_arguments(interp, stream, items)


@model(*SHUFFLES, applies=lambda stream, items: type(stream) in GENERATORS and type(items) is list and is_of_scalars(items),
       prepare=prepare_shuffle)
def shuffle(interp: Interpreter, result: None, stream: Value, items: Value) -> Shadow:
    """`stream.shuffle(items)` of a list of scalars."""
    graph, state = interp.graph, items_of(interp, items)
    if seeded.is_seeded((stream,)):
        state[:] = map(Const, items.real)
        graph.effect(list.__setitem__, items.shadow, Const(slice(None)), Build(tuple, tuple(state)))  # type: ignore[arg-type]
        return seeded.drawn(interp, shuffle, None, stream)
    kinds = {graph.type_of(item) for item in state}
    given = stream.shadow, Build(tuple, tuple(state))
    call = graph.call_effect(Const(shuffled), given, (), (), False, interp.positions(), stream_of(interp, shuffle, (stream,)))
    state[:] = drawn_items(Replayed(call, ()), items.real, kinds.pop() if len(kinds) == 1 else None)
    graph.effect(list.__setitem__, items.shadow, Const(slice(None)), Build(tuple, tuple(state)))  # type: ignore[arg-type]
    return Const(None)
