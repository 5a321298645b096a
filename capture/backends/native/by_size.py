"""Graphs whose inputs have other sizes from call to call: compiled for each combination of sizes that comes again."""
from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from capture import _C
from capture.backends.native.numbers import put_in

MOST_COMPILED = 8       # combinations of sizes for which there is compiled code
MOST_MET = 1024         # … that are remembered as met


class BySize:
    """The callable of a graph. Sizes that occur a second time are compiled; for all others the graph runs uncompiled.

    places: of the inputs whose sizes change; numbers: of those that are sizes. compile: makes the callable for inputs like those
    that it is given. first: the inputs of the capturing call.
    """

    __slots__ = ("gm", "places", "numbers", "compile", "compiled", "_met", "__weakref__")

    def __init__(self, gm: fx.GraphModule, places: Sequence[int], numbers: Sequence[int],
                 compile: Callable[[Sequence[Any]], _C.Switch], first: Sequence[Any]) -> None:
        self.gm, self.places, self.numbers, self.compile = gm, tuple(places), tuple(numbers), compile
        self.compiled: dict[tuple[Any, ...], _C.Switch] = {}
        self._met = {self._key(first)} if all(first[place] is not None for place in places) else set()

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (*[inputs[place].shape for place in self.places], *[inputs[place] for place in self.numbers])

    def __call__(self, *inputs: Any) -> Any:
        key = self._key(inputs)
        target = self.compiled.get(key)
        if target is None:
            target = self._callable(key, inputs)
        return target(*inputs)

    def _callable(self, key: tuple[Any, ...], inputs: Sequence[Any]) -> Callable[..., Any]:
        """What runs a call with sizes for which there is no compiled code yet."""
        if key not in self._met or len(self.compiled) >= MOST_COMPILED:
            if len(self._met) >= MOST_MET:
                self._met.clear()
            self._met.add(key)
            return self.gm.forward
        return self.compiled.setdefault(key, self.compile(inputs))


def free_places(gm: fx.GraphModule) -> list[int]:
    """Which inputs of a graph have sizes that change from call to call."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return [place for place, node in enumerate(placeholders)
            if (properties := node.meta.get("properties")) is not None and properties.free_sizes]


def number_places(gm: fx.GraphModule) -> list[int]:
    """Which inputs of a graph are numbers that are sizes."""
    return [place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node.meta.get("size")]


def with_numbers(gm: fx.GraphModule, places: Sequence[int], inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph with these numbers as constants. It takes them still."""
    if not places:
        return gm
    made = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta.update(gm.meta)
    placeholders = made.graph.find_nodes(op="placeholder")
    put_in(made.graph, {placeholders[place]: inputs[place] for place in places})
    made.recompile()
    return made
