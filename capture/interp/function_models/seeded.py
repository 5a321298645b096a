"""Streams of random numbers that the trace makes from a guarded seed: all numbers follow from the seed, and are constants."""
from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import is_plain
from capture.interp.function_models.replays import is_replayed, varies
from capture.interp.function_models.shadows import depend_plain, shadow_of
from capture.refgraph.ndarrays import is_value
from capture.refgraph.node import SCALARS, Const, IteratorState, RefNode, Shadow


class Seeded(IteratorState):
    """The state of a random stream whose seed is guarded: the mock function makes it again, in the state in which the trace leaves
    it."""

    __slots__ = ("stream",)
    is_whole = True

    def __init__(self, stream: RefNode) -> None:
        self.stream = stream

    def recipe(self) -> tuple[Callable[..., Any], tuple[Shadow, ...]]:
        return pickle.loads, (Const(pickle.dumps(self.stream.real)),)


def make(interp: Interpreter, result: Any, seeds: list[Value]) -> RefNode | None:
    """The node of a new stream; None where it has no seed, or one that differs on each call."""
    if len(seeds) != 1 or seeds[0].real is None or type(seeds[0].real) not in SCALARS:
        return None
    if is_replayed(seeds[0].shadow) or interp.early_breaks is not None and varies(interp, seeds[0].shadow, seeds[0].real):
        return None             # under `fullgraph` each seed is a capture, since such numbers can only be passed on
    interp.graph.depend(seeds[0].shadow, seeds[0].real)
    node = interp.graph.create(result)
    node.state = Seeded(node)
    return node


def is_seeded(args: tuple[Value, ...]) -> bool:
    """Whether the first argument of a call is such a stream."""
    return bool(args) and isinstance(args[0].shadow, RefNode) and isinstance(args[0].shadow.state, Seeded)


def hold_arguments(interp: Interpreter, *args: Value, **kwargs: Value) -> None:
    """Before a draw from such a stream: guards the arguments, from which its result and its next state follow too."""
    for value in (*args[1:], *kwargs.values()) if is_seeded(args) else ():
        if is_value(value.real):
            interp.recorder.arrays.hold(interp.graph, value.real)
        elif is_plain(value.real):
            depend_plain(interp, value.shadow, value.real)
        else:
            raise Break("side-effect-call", f"a {type(value.real).__name__} was given to a stream of random numbers")


def drawn(interp: Interpreter, function: Any, result: Any, stream: Value) -> Shadow:
    """The shadow of a value drawn from such a stream."""
    interp.graph.effect(function, stream.shadow)  # type: ignore[arg-type]
    return interp.recorder.arrays.fold(interp.graph, result, lambda item: shadow_of(interp, item))
