"""Tensors that a call makes longer: what it joins to what one place held before, and stores in that same place, as a cache does."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from capture.operators.facts import facts_of
from capture.refgraph.effects import CallEffect, Effect
from capture.refgraph.node import Const, RefNode, TensorState
from capture.refgraph.source import Attr, Item

PLACES = {"__setattr__": Attr, "__setitem__": Item}


def grown(effects: Iterable[Effect | CallEffect]) -> Iterator[tuple[str, int]]:
    """The places in which these effects store a tensor that was joined to the one which was there, as text, and the dimensions. In
    later calls it has other sizes there: this is known before any call was found to."""
    held: dict[str, fx.Node] = {}
    for effect in effects:
        if not isinstance(effect, Effect) or effect.target.source is None or len(effect.args) != 2:
            continue
        place, (key, value) = PLACES.get(getattr(effect.operation, "__name__", "")), effect.args
        if place is None or not isinstance(key, Const) or not isinstance(value, RefNode) or (
                type(value.state) is not TensorState or value.state.node is None):
            continue
        path, node = str(place(effect.target.source, key.value)), value.state.node
        if value.real is not None:              # else another one was stored later
            yield from ((path, dim % value.real.dim()) for dim in joined_along(node, path, held.get(path)))
        held[path] = node


def joined_along(node: fx.Node, path: str, before: fx.Node | None) -> Iterator[int]:
    """The dimension, perhaps counted from the last, along which a node joins something to what was in a place: `before`, or the
    graph's input from there."""
    if node.op == "placeholder" or not facts_of(node.target).concatenates or not node.args:
        return
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    parts = node.args[0] if isinstance(node.args[0], (list, tuple)) else ()
    if type(dim) is int and any(part is before or part.op == "placeholder" and part.meta.get("source") == path
                                for part in parts if isinstance(part, fx.Node)):
        yield dim
