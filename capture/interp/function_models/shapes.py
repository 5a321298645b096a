"""Sizes that change from call to call, in tuples and lists, and in `torch.Size`."""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models import replays
from capture.interp.function_models.shadows import compose, depend_plain, depend_type, elements
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Build, Shadow, source_of
from capture.refgraph.sizes import product

EQUALITIES = frozenset((operator.eq, operator.ne, *(getattr(cls, name) for cls in (tuple, list) for name in ("__eq__", "__ne__"))))
NO_NUMBERS = (type(None), str, bytes, tuple, list, dict)


def compared_by_sizes(interp: Interpreter, a: Value, b: Value) -> bool:
    """Whether two tuples or two lists hold sizes that change. If so, guards how their items compare, up to the first two that
    differ."""
    kind = next((cls for cls in (tuple, list) if is_a(a.real, cls) and is_a(b.real, cls)), None)
    if kind is None or not interp.graph.sizes:
        return False
    left, right = ([Value(item, shadow) for item, shadow in zip(side.real, elements(interp, side), strict=True)] for side in (a, b))
    sizes = interp.graph.sizes
    if not any(sizes.is_free(item.shadow) for item in (*left, *right)):
        return False
    for pair in zip(left, right) if len(left) == len(right) else ():
        if not are_equal(interp, *pair):
            break
    return True


def are_equal(interp: Interpreter, *pair: Value) -> bool:
    """Whether two plain values are equal; guards that. Of sizes it guards no more."""
    if all(type(item.real) is int and item.shadow is not None and source_of(item.shadow) is not None for item in pair):
        for item in pair:
            depend_type(interp, item)
        sizes = interp.graph.sizes
        return sizes.decide(operator.eq, *(sizes.of(item.shadow, item.real) for item in pair))
    numbers = [type(item.real) is int for item in pair]
    if any(numbers) and any(is_one_of(type(item.real), *NO_NUMBERS) for item in pair):
        for item, number in zip(pair, numbers):
            depend_type(interp, item) if number else depend_plain(interp, item.shadow, item.real)
        return False
    for item in pair:
        depend_plain(interp, item.shadow, item.real)
    return pair[0].real == pair[1].real


def searched_by_sizes(interp: Interpreter, sequence: Value, x: Value, every: bool) -> bool:
    """Whether a size that changes is looked for among plain values, or is among them. If so, guards how they compare, up to the
    first that is equal (every: all of them)."""
    sizes = interp.graph.sizes
    if not sizes or not is_one_of(type(sequence.real), list, tuple, torch.Size):
        return False
    items = [Value(item, shadow) for item, shadow in zip(sequence.real, elements(interp, sequence), strict=True)]
    if not any(sizes.is_free(item.shadow) for item in (*items, x)):
        return False
    for item in items:
        if are_equal(interp, item, x) and not every:
            break
    return True


def are_sizes(items: Any = (), *rest: Any) -> bool:
    return not rest and is_one_of(type(items), list, tuple, torch.Size) and all(type(item) is int for item in items)


@model(torch.Size, applies=are_sizes)
def make(interp: Interpreter, result: torch.Size, items: Value | None = None) -> Shadow:
    """`torch.Size(sizes)`."""
    return compose(interp, result, [] if items is None else elements(interp, items))


@model(torch.Size.numel, applies=lambda shape: is_a(shape, torch.Size))
def numel(interp: Interpreter, result: int, shape: Value) -> Shadow:
    """`x.shape.numel()`."""
    sizes = interp.graph.sizes
    if isinstance(shape.shadow, Build) and all(source_of(item) is not None for item in shape.shadow.items):
        return sizes.shadow(product(sizes.of(item, size) for item, size in zip(shape.shadow.items, shape.real, strict=True)))
    computed = replays.lazily(interp, torch.Size.numel, (shape,), {}, result)
    if computed is not None:
        return computed
    depend_plain(interp, shape.shadow, shape.real)
    return interp.graph.constant(result)
