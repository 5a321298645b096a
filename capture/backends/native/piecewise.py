"""Graphs with operations that cannot be compiled: these run as they are, and each piece between two of them is compiled by itself.

One call of the program runs operation by operation, to learn how the graph can be divided. Inputs of a piece that come from
elsewhere in the graph have no guard: they are compared on each call, and sizes that have changed are open from then on.
"""
from __future__ import annotations

import functools
import operator
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import checkpoint

from capture import _C
from capture.backends.native.messages import Failure
from capture.backends.traceable import (
    asks_for_gradients,
    assigns_data,
    autograd_function,
    cuts_cleanly,
    makes_leaf,
    mode_switch,
    nodes_to_write_out,
    obstacle,
    program_code,
    reads_number,
    runs_backward,
    unfit,
)
from capture.operators import beyond_schemas
from capture.operators.facts import facts_of
from capture.operators.recorded_graph import RecordedGraph, with_graph
from capture.operators.schemas import name_of
from capture.operators.transform_levels import within_levels

LEAST_OPERATIONS = 2        # that make tensors, in a piece that is compiled
CALLING = frozenset({checkpoint.checkpoint, functools.partial})     # these do what the graphs do that they are given
MOST_COMPILED = 8           # times that a piece is, as more and more of its sizes change

Compile = Callable[[fx.GraphModule, Sequence[Any]], _C.Switch]


def apart(gm: fx.GraphModule) -> dict[fx.Node, str]:
    """The operations of a graph that are known from the start not to be compilable, each with the reason."""
    found: dict[fx.Node, str] = {}
    as_a_whole = nodes_to_write_out(gm.graph)
    for node in gm.graph.nodes:
        if runs_backward(node) or node in as_a_whole:         # can be compiled, as a part of the whole
            continue
        reason = next(filter(None, map(_reason, (node, *_within(gm, node)))), None)
        if reason is not None:
            found[node] = reason
    return found


def divisible(gm: fx.GraphModule, nodes: Collection[fx.Node]) -> bool:
    """Whether these operations may run by themselves without changing the rest of the graph: none changes how torch treats others,
    or looks at how they were made, and nothing gives a tensor itself another shape, memory or history."""
    if not all(_is_contained(gm, node) for node in nodes) or not frozenset(within_levels(gm.graph)).isdisjoint(nodes):
        return False
    nodes = (node for outer in gm.graph.nodes for node in (*_within(gm, outer), outer))
    on_tensors = [node for node in nodes if node.op in ("call_function", "call_method") and node.all_input_nodes
                  and node.target not in CALLING]
    return not any(asks_for_gradients(node) and not makes_leaf(node) or facts_of(node.target).relays and not (
        autograd_function(node) or cuts_cleanly(node) or reads_number(node)) for node in on_tensors)


def _is_contained(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an operation, with those of graphs that it calls, does nothing but compute, draw, read and write."""
    if node.op == "placeholder":
        return "any_shape" in node.meta
    called = (inner for inner in _within(gm, node) if inner.op not in ("placeholder", "output"))
    return not any(obstacle(each) is not None and not (
        each.meta.get("contained") or reads_number(each) or cuts_cleanly(each)) for each in (node, *called))


def _within(gm: fx.GraphModule, node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of graphs that a node is given to call."""
    for given in node.all_input_nodes:
        if given.op == "get_attr" and isinstance(body := getattr(gm, str(given.target)), fx.GraphModule):
            for inner in body.graph.nodes:
                yield inner
                yield from _within(body, inner)


def _reason(node: fx.Node) -> str | None:
    """Why an operation cannot be compiled, if the graph says so."""
    if node.meta.get("dynamic"):
        return f"has a result whose shape depends on values ({getattr(node.target, '__name__', node.target)})"
    return program_code(node) or obstacle(node) or mode_switch(node) or _check(node) or next(
        filter(None, map(_unfit, node.all_input_nodes)), None)


def _check(node: fx.Node) -> str | None:
    """Which check of values an operation makes that no code compiled from a trace would make, or None."""
    name = name_of(node.target)
    given = sum(isinstance(value, fx.Node) for value in (*node.args, *node.kwargs.values()))
    if name in beyond_schemas.CHECKING and given > 1:
        return f"checks values ({name})"
    if node.target is operator.getitem and len(node.all_input_nodes) == 1:      # by constants: the sizes tell whether it raises
        return None
    return "may raise, and nothing reads its result" if node.meta.get("fails") and not _is_read(node) else None


def _is_read(node: fx.Node) -> bool:
    """Whether the elements of a result have a part in what the graph returns or changes."""
    found = {node: None}
    queue = [node]
    for one in queue:
        runs_apart = one is not node and obstacle(one) is not None
        if one.op not in ("call_function", "call_method") or _changes_operands(one) or runs_apart:
            return True
        queue += (user for user in one.users if user not in found and _reads(user, one))
        found.update(dict.fromkeys(queue))
    return False


def _reads(user: fx.Node, source: fx.Node) -> bool:
    """Whether an operation looks at more of a tensor than its shape and type."""
    name = name_of(user.target)
    if name == "size" or facts_of(user.target).takes_form_alone:
        return source in user.args[1:]
    return name not in beyond_schemas.SHAPED_AS_OTHER or source in user.args[:1]


def _changes_operands(node: fx.Node) -> bool:
    """Whether an operation does something to what it is given."""
    counted, name = any(place >= 0 for place, _ in node.meta.get("writes", ())), name_of(node.target)
    in_place = name.endswith("_") and not name.endswith("__") or node.target in (setattr, operator.setitem)
    return counted or in_place or "out" in node.kwargs or bool(facts_of(node.target).writes)


def _unfit(source: fx.Node) -> str | None:
    """What an operation on an input of the graph does that no compiled code does, or None."""
    properties = source.meta.get("properties") if source.op == "placeholder" else None
    if properties is None:
        return None
    found = unfit(torch._C.DispatchKeySet.from_raw_repr(properties.keys), len(properties.stride) == len(properties.shape))
    return None if found is None else f"takes a tensor that {found}"


class Piecewise:
    """The callable of such a graph. compile: makes the callable of a piece from its inputs. `pieces`: in order, once the graph has
    been called. `give_up`: called if there are none, or with the failure."""

    __slots__ = ("gm", "names", "compile", "pieces", "give_up", "_divided", "__weakref__")

    def __init__(self, gm: fx.GraphModule, nodes: Collection[fx.Node], compile: Compile,
                 give_up: Callable[[Failure | None], None] = lambda failure: None) -> None:
        self.gm, self.names, self.compile, self.give_up = gm, frozenset(node.name for node in nodes), compile, give_up
        self.pieces: list[Piece] = []
        self._divided: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._divided is not None:
            return self._divided(*inputs)
        run = _Observed(self.gm)
        outputs = run.run(*inputs)
        try:
            divided, self.pieces = _Division(self.gm, self.names | run.apart, run.kinds).result(self.compile)
        except Exception as error:
            self.give_up(Failure("internal", f"the graph cannot be divided: {type(error).__name__}: {error}",
                                 "".join(traceback.format_exception(error))))
        else:
            self._divided = divided.forward
            if not self.pieces:
                self.give_up(None)
        return outputs


class _Observed:
    """A run of a graph, from code like the graph's own, so that torch warns as it does there. kinds: the type of each node's value,
    by its name; apart: the nodes that change torch's modes, or that give or take tensors which no compiled code takes."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.kinds: dict[str, type] = {}
        self.apart: set[str] = set()
        self.nodes = {node.name: node for node in gm.graph.nodes}
        self.levels = frozenset(node.name for node in within_levels(gm.graph))      # whose tensors and modes end with them
        self.modes = _C.modes()

    def run(self, *inputs: Any) -> Any:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.gm.graph.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op not in ("placeholder", "get_attr", "output"):
                graph.call_function(self.note, (node.name, copies[node]))
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        self.kinds |= {node.name: type(value) for node, value in zip(placeholders, inputs, strict=True)}
        return with_graph(self.gm, graph).forward(*inputs)

    def note(self, name: str, value: Any) -> None:
        """Called after each node."""
        self.kinds[name] = type(value)
        if name in self.levels:
            return
        if (modes := _C.modes()) != self.modes:
            self.apart.add(name)
            self.modes = modes
        if isinstance(value, Tensor) and unfit(torch._C._dispatch_keys(value), value.layout == torch.strided) is not None:
            node = self.nodes[name]
            made_by = node.all_input_nodes if node.target is operator.getitem else []
            self.apart.update(near.name for near in (node, *node.users, *made_by))


class _Division:
    """A graph in pieces. apart: the names of nodes that are in none. kinds: as of `_Observed`."""

    def __init__(self, gm: fx.GraphModule, apart: Collection[str], kinds: dict[str, type]) -> None:
        self.gm, self.kinds = gm, kinds
        # Inputs of the graph may be other than guarded. What code of the program's does to them is not noted.
        self.writes = any(node.meta.get("writes") or program_code(node) or assigns_data(node) for node in gm.graph.nodes)
        self.of: dict[fx.Node, int] = {}        # the piece that a node is in
        self.sizes: set[fx.Node] = set()        # nodes of these that are computed outside of their piece as well
        self._assign(apart)
        self._find_sizes()
        for members in self._pieces():
            if sum(map(self._is_tensor, members)) < LEAST_OPERATIONS or not self._is_whole(members):
                for node in members:
                    del self.of[node]
        self.sizes &= self.of.keys()

    def _assign(self, apart: Collection[str]) -> None:
        number, ended = 0, False
        for node in self.gm.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            if node.target is operator.getitem and not self._is_tensor(node.args[0]):
                if node.args[0] in self.of:         # items of a result are beside it, wherever they are picked
                    self.of[node] = self.of[node.args[0]]
            elif node.name in apart or self._is_calculated(node):
                ended = True
            else:
                number, ended = number + ended, False
                self.of[node] = number

    def _is_calculated(self, node: fx.Node) -> bool:
        """Whether a node calculates a number from others that no tensor's size tells: a piece takes the number itself."""
        return self.kinds[node.name] is float and any(self.kinds[source.name] is float for source in node.all_input_nodes)

    def _find_sizes(self) -> None:
        """A piece gives tensors alone: what is asked of their sizes is asked again where it is wanted elsewhere."""
        for node in reversed(self.gm.graph.nodes):
            if node in self.of and self.kinds[node.name] is int and any(
                    self.of.get(user) != self.of[node] or user in self.sizes for user in node.users):
                self.sizes.add(node)

    def _pieces(self) -> list[list[fx.Node]]:
        """The nodes of each piece, in the graph's order."""
        pieces: dict[int, list[fx.Node]] = {}
        for node in self.gm.graph.nodes:
            if node in self.of:
                pieces.setdefault(self.of[node], []).append(node)
        return list(pieces.values())

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and issubclass(self.kinds[value.name], Tensor)

    def _taken(self, members: Sequence[fx.Node]) -> list[fx.Node]:
        """What the nodes of a piece take from elsewhere."""
        own = set(members)
        return list(dict.fromkeys(source for node in members for source in node.all_input_nodes
                                  if source not in own and source.op != "get_attr"))

    def _given(self, members: Sequence[fx.Node]) -> list[fx.Node]:
        """Which of the nodes of a piece are taken elsewhere."""
        own = set(members)
        return [node for node in members if node not in self.sizes and any(
            user not in own or user in self.sizes for user in node.users)]

    def _is_whole(self, members: Sequence[fx.Node]) -> bool:
        """Whether a piece takes tensors and numbers, and gives tensors."""
        taken = all(self._is_tensor(node) or self.kinds[node.name] in (int, float) for node in self._taken(members))
        return taken and all(map(self._is_tensor, self._given(members)))

    def result(self, compile: Compile) -> tuple[fx.GraphModule, list[Piece]]:
        """The graph that calls the pieces, and these."""
        graph = fx.Graph()
        copies = {node: graph.node_copy(node) for node in self.gm.graph.find_nodes(op="placeholder")}
        first = {members[0]: members for members in self._pieces()}
        pieces: list[Piece] = []
        for node in self.gm.graph.nodes:
            if node in copies:
                continue
            if node in first:
                members = first[node]
                taken, given = self._taken(members), self._given(members)
                pieces.append(Piece(self._graph(members, taken, given), len(pieces), self._unguarded(taken), compile))
                call = graph.call_function(pieces[-1], tuple(copies[source] for source in taken))
                copies |= {each: graph.call_function(operator.getitem, (call, place)) for place, each in enumerate(given)}
            if node not in self.of or node in self.sizes:
                self._copy_with_items(node, graph, copies)
        return with_graph(self.gm, graph), pieces

    def _copy_with_items(self, node: fx.Node, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        """Copies a node that is in no piece, and the items that are picked from it: pieces around it may take these."""
        copies[node] = graph.node_copy(node, copies.__getitem__)
        for user in node.users:
            if user.target is operator.getitem and user not in self.of and user.all_input_nodes == [node] and not (
                    self._is_tensor(node)):
                self._copy_with_items(user, graph, copies)

    def _unguarded(self, taken: Sequence[fx.Node]) -> list[int]:
        """Which of the tensors that a piece takes no guard tells of: those that the graph makes, or may have written to."""
        return [place for place, node in enumerate(taken) if self._is_tensor(node) and (
            self.writes or node.op != "placeholder" or "any_shape" in node.meta)]

    def _graph(self, members: Sequence[fx.Node], taken: Sequence[fx.Node], given: Sequence[fx.Node]) -> fx.GraphModule:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for source in taken:
            copies[source] = graph.placeholder(source.name)
            if source.op == "placeholder":
                kept = source.meta.keys() - {"obstacle", "any_shape", "storage"}
                copies[source].meta = {key: source.meta[key] for key in kept}
            elif self.kinds[source.name] is int:
                copies[source].meta = {"size": True, "number": int}
            elif self.kinds[source.name] is float:
                copies[source].meta = {"number": float}
        for node in members:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = graph.node_copy(source)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in given))
        gm = RecordedGraph(self.gm, graph)
        gm.meta = {key: self.gm.meta[key] for key in ("repeatable", "devices") if key in self.gm.meta}
        return gm


class Piece:
    """The callable of a piece. unguarded: the places of inputs that are compared on each call. It is compiled at its second call,
    when it is known which of their sizes change."""

    __slots__ = ("__name__", "gm", "unguarded", "compile", "_code", "_numbers", "_samples", "_free", "_writes", "_compiled",
                 "_learning")

    def __init__(self, gm: fx.GraphModule, number: int, unguarded: Sequence[int], compile: Compile) -> None:
        self.__name__ = f"piece_{number}"
        self.gm, self.unguarded, self.compile = gm, tuple(unguarded), compile
        placeholders = gm.graph.find_nodes(op="placeholder")
        self._numbers = [(place, node.meta["number"]) for place, node in enumerate(placeholders) if "number" in node.meta]
        self._writes = any(node.meta.get("writes") for node in gm.graph.nodes)
        self._code: _Code | None = None
        self._samples: Sequence[_C.TensorProperties] | None = None
        self._free: list[set[int]] = [set() for _ in unguarded]
        self._compiled = 0
        self._learning = threading.Lock()

    @property
    def switch(self) -> _C.Switch | None:
        return None if self._code is None else self._code.switch

    def __call__(self, *inputs: Any) -> Any:
        code = self._code               # of one moment: another thread may exchange it
        if self._numbers and not self._are_numbers(inputs):
            return self.gm.forward(*inputs)
        if code is None or not code.is_for(self.unguarded, inputs):
            code = self._learned(inputs)
        return (self.gm.forward if code is None else code.switch)(*inputs)

    def _are_numbers(self, inputs: Sequence[Any]) -> bool:
        return all(type(inputs[place]) is cls for place, cls in self._numbers)

    def _learned(self, inputs: Sequence[Any]) -> _Code | None:
        """Notes what the inputs are. The code for them, if there is some now."""
        if self._compiled == MOST_COMPILED or not self._learning.acquire(blocking=False):
            return None
        try:
            return self._learn(inputs)
        finally:
            self._learning.release()

    def _learn(self, inputs: Sequence[Any]) -> _Code | None:
        try:
            found = [_C.tensor_properties(inputs[place]) for place in self.unguarded]
        except TypeError:           # of a tensor that is not plain
            return None
        free = None if self._samples is None else self._free_with(self._samples, found)
        if free is None:            # other tensors, not other sizes of the same
            if self._code is None:
                self._samples = found
            return None
        if self._code is not None and free == self._free:
            return None             # other tensors share their memory
        self._free, self._code = free, self._made(inputs, found, free)
        self._compiled += 1
        return self._code

    def _free_with(self, samples: Sequence[_C.TensorProperties], found: Sequence[_C.TensorProperties]) -> list[set[int]] | None:
        """For each of the inputs the dimensions whose sizes change, these among them; None if more than sizes changes."""
        free = []
        for known, sample, now in zip(self._free, samples, found, strict=True):
            if len(sample.shape) != len(now.shape) or sample.keys != now.keys:       # not all have strides
                return None
            dims = known | {dim for dim, size in enumerate(now.shape) if size != sample.shape[dim]}
            if sample.with_free(dims) != now.with_free(dims):
                return None
            free.append(dims)
        return free

    def _made(self, inputs: Sequence[Any], found: Sequence[_C.TensorProperties], free: Sequence[set[int]]) -> _Code:
        """The code for inputs like these, of any size in the free dimensions."""
        expected = [one.with_free(dims) if dims else one for one, dims in zip(found, free, strict=True)]
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        for place, properties in zip(self.unguarded, expected, strict=True):
            placeholders[place].meta["properties"] = properties
        shared = storages(inputs) if self._writes else None
        for node, storage in zip(placeholders, shared or (), strict=shared is not None):
            if storage is not None:
                node.meta["storage"] = storage
        return _Code(self.compile(self.gm, inputs), expected, shared)


class _Code:
    """The code of a piece. expected, storages: what its inputs are, and how they share memory, if that matters."""

    __slots__ = ("switch", "expected", "storages")

    def __init__(self, switch: _C.Switch, expected: Sequence[_C.TensorProperties], storages: Sequence[Any] | None) -> None:
        self.switch, self.expected, self.storages = switch, expected, storages

    def is_for(self, unguarded: Sequence[int], inputs: Sequence[Any]) -> bool:
        for place, expected in zip(unguarded, self.expected, strict=True):
            if not expected.matches(inputs[place]):
                return False
        return self.storages is None or self.storages == storages(inputs)


def storages(inputs: Sequence[Any]) -> Sequence[Any]:
    """Which tensors share their memory: the number of the storage of each, and its offset there in bytes."""
    numbers: dict[int, int] = {}
    return [(numbers.setdefault(x.untyped_storage()._cdata, len(numbers)), x.storage_offset() * x.element_size())
            if isinstance(x, Tensor) else None for x in inputs]
