"""Graphs whose inputs have other sizes from call to call: compiled once for all sizes, and once more for each pattern of those that
are 1; or, where that cannot be or does not hold, for each combination of sizes that comes again."""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from capture import _C
from capture.backends.native.index import LEAST_SIZE, MOST_SIZE
from capture.backends.native.numbers import put_in
from capture.backends.native.places import may_select, select_rows
from capture.operators.recorded_graph import with_graph

MOST_COMPILED = 8       # combinations of sizes for which there is code of their own, and patterns
MOST_KNOWN = 1024       # … that are remembered
Key = tuple[Any, ...]
Pattern = tuple[bool, ...]      # of the sizes that may change, which are 1


class BySize:
    """The callable of a graph.

    places: of the inputs whose sizes change; numbers: of those that are sizes. general: makes the callable of
    `graph_with_carriers` for all inputs with sizes of 1 where these inputs have such, and others of LEAST_SIZE at least; its tier
    is a `GeneralTier`, which calls the other argument of `general` when it changes. single: makes the callable for inputs of these
    sizes alone. first: the inputs of the capturing call, None in the places of those that have died. Where code for all sizes was
    measured to be slower than the graph, and nothing but numbers changes, there is no other: numbers seldom come again.
    """

    __slots__ = ("gm", "places", "numbers", "general", "single", "_dims", "_moved", "_generals", "_known", "_met", "_met_patterns",
                 "_singles", "_is_slower", "__weakref__")

    def __init__(self, gm: fx.GraphModule, places: Sequence[int], numbers: Sequence[int],
                 general: Callable[[Sequence[Any], Callable[[], None]], _C.Switch], single: Callable[[Sequence[Any]], _C.Switch],
                 first: Sequence[Any]) -> None:
        self.gm, self.places, self.numbers, self.general, self.single = gm, tuple(places), tuple(numbers), general, single
        placeholders = gm.graph.find_nodes(op="placeholder")
        self._dims = [(place, dim) for place in places
                      for dim, size in enumerate(placeholders[place].meta["properties"].shape) if size < 0]
        self._moved = [(place, dim) for place in places
                       for dim, stride in enumerate(placeholders[place].meta["properties"].stride) if stride <= _C.AROUND]
        self._generals: dict[Pattern, tuple[_C.Switch, list[int]]] = {}     # and the strides of those that it is for
        self._singles: dict[Key, _C.Switch] = {}
        self._known: dict[Key, Callable[..., Any]] = {}
        self._met: set[Key] = set()
        self._met_patterns: set[Pattern] = set()
        self._is_slower = False
        if all(first[place] is not None for place in places):
            self._met.add(self._key(first))
            self._is_covered(self._pattern(first), first, [])

    def _key(self, inputs: Sequence[Any]) -> Key:
        return (*[inputs[place].shape for place in self.places], *[inputs[place] for place in self.numbers],
                *[inputs[place].stride(dim) for place, dim in self._moved])

    def __call__(self, *inputs: Any) -> Any:
        if self._is_slower:
            return self.gm.forward(*inputs)
        key = self._key(inputs)
        target = self._known.get(key)
        return self._call_anew(key, inputs) if target is None else target(*inputs)

    def _call_anew(self, key: Key, inputs: Sequence[Any]) -> Any:
        """Calls what there is for sizes for which nothing is known yet."""
        if max(len(self._known), len(self._met)) >= MOST_KNOWN:
            self._known.clear()
            self._met.clear()
        pattern = self._pattern(inputs)
        given: list[Any] = []
        covered = self._is_covered(pattern, inputs, given, wait=True)
        if covered is None:     # called all the same, to be compiled when it is time
            return self._general_for(pattern)(*inputs) if pattern in self._generals else self.gm.forward(*inputs)
        if covered:
            self._known[key] = self._general_for(pattern)
            return self._generals[pattern][0](*given)
        if pattern in self._generals and not self.places and self._generals[pattern][0].tier.is_slower:
            self._is_slower = True
            return self.gm.forward(*inputs)
        if key not in self._singles and (key not in self._met or len(self._singles) >= MOST_COMPILED):
            self._met.add(key)
            return self.gm.forward(*inputs)
        target = self._known[key] = self._singles.get(key) or self._singles.setdefault(key, self.single(inputs))
        return target(*inputs)

    def _pattern(self, inputs: Sequence[Any]) -> Pattern | None:
        """That of a call's sizes. None where there can be no code for more than these: all are 1, or one is 0 or no size."""
        sizes = [*(inputs[place].shape[dim] for place, dim in self._dims), *(inputs[place] for place in self.numbers)]
        pattern = tuple(size < LEAST_SIZE for size in sizes)
        return pattern if all(0 < size <= MOST_SIZE for size in sizes) and not (pattern and all(pattern)) else None

    def _is_covered(self, pattern: Pattern | None, inputs: Sequence[Any], given: list[Any], wait: bool = False) -> bool | None:
        """Whether there is code for all sizes of this pattern, and that covers these; None while it is being compiled, or where the
        pattern has to come again for that. given: gets what that code takes, if it is asked. wait: where it is compiled at the
        first hit, this is one."""
        if pattern is None:
            return False

        def with_carriers() -> Sequence[Any]:
            given[:] = inputs_with_carriers(inputs, self.numbers)
            return given
        strides = [inputs[place].stride(dim) for place, dim in self._moved]
        if pattern not in self._generals:
            if any(pattern) and pattern not in self._met_patterns:
                self._met_patterns.add(pattern)
                return None
            if len(self._generals) > MOST_COMPILED:
                return False
            self._generals[pattern] = self.general(with_carriers(), self._known.clear), strides
        switch, expected = self._generals[pattern]
        return strides == expected and switch.tier.covers(with_carriers, wait)

    def _general_for(self, pattern: Pattern | None) -> Callable[..., Any]:
        """What runs a call that is covered."""
        switch, _ = self._generals[pattern]
        return functools.partial(_call_with_carriers, switch, self.numbers) if self.numbers else switch

    def switches(self) -> list[tuple[str, _C.Switch]]:
        """For which sizes there is a callable, in words, and that."""
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        names = [*(f"{placeholders[place].name}[{dim}]" for place, dim in self._dims),
                 *(placeholders[place].name for place in self.numbers)]
        found = []
        for pattern, (switch, _) in list(self._generals.items()):
            ones = " and ".join(name for name, is_one in zip(names, pattern, strict=True) if is_one)
            found.append((f"all sizes where 1 is {ones}" if ones else "all sizes", switch))
        return found + [(", ".join(str(tuple(size)) if isinstance(size, torch.Size) else str(size) for size in key), switch)
                        for key, switch in list(self._singles.items())]


def _call_with_carriers(switch: _C.Switch, numbers: Sequence[int], *inputs: Any) -> Any:
    return switch(*inputs_with_carriers(inputs, numbers))


def free_places(gm: fx.GraphModule) -> list[int]:
    """Which inputs of a graph have sizes that change from call to call."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return [place for place, node in enumerate(placeholders)
            if (properties := node.meta.get("properties")) is not None and properties.open_sizes]


def number_places(gm: fx.GraphModule) -> list[int]:
    """Which inputs of a graph are numbers that are sizes."""
    return [place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node.meta.get("size")]


def graph_with_constants(gm: fx.GraphModule, places: Sequence[int], inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph with these numbers as constants. It takes them still."""
    if not places:
        return gm
    graph, placeholders = _copy(gm)
    put_in(graph, {placeholders[place]: inputs[place] for place in places})
    return with_graph(gm, graph)


def graph_with_carriers(gm: fx.GraphModule, places: Sequence[int]) -> fx.GraphModule:
    """The graph that takes, for each number that is a size, its *carrier*: a tensor without memory of its own, whose size is that
    number. So all sizes come in one way, as those of tensors. Nor does it subscript with any."""
    if not places and not may_select(gm.graph):
        return gm
    graph, placeholders = _copy(gm)
    with graph.inserting_after(placeholders[-1]):
        sizes = {placeholders[place]: graph.call_method("size", (placeholders[place], 0)) for place in places}
    for node, size in sizes.items():
        node.replace_all_uses_with(size, delete_user_cb=lambda user, size=size: user is not size)
    for place in places:
        placeholders[place].meta = {"properties": OF_A_CARRIER}
    select_rows(graph)
    return with_graph(gm, graph)


with torch.inference_mode(False):       # whatever the modes are when this module is imported
    ELEMENT = torch.zeros((), dtype=torch.float32, device="cpu")
OF_A_CARRIER = _C.tensor_properties(ELEMENT.expand(LEAST_SIZE)).with_free([0])


def inputs_with_carriers(inputs: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """What the graph of `graph_with_carriers` takes in the places of `inputs`."""
    if not places:
        return inputs
    values = list(inputs)
    for place in places:
        values[place] = ELEMENT.expand(values[place])
    return values


def _copy(gm: fx.GraphModule) -> tuple[fx.Graph, list[fx.Node]]:
    """A copy of the graph, to be changed, and its placeholders."""
    graph = copy.deepcopy(gm.graph)
    return graph, graph.find_nodes(op="placeholder")
