"""Tensors that the graph computes from constants, sizes, and what outside tensors held at entry that guards may read: counters
(`self.count += 1; if self.count == 0: …`), masks, indices. A guard can compute them again."""
from __future__ import annotations

import math
import operator
import types
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx import Node

from capture._C import is_a
from capture.interp.recording import constant_tensors, recorder
from capture.interp.recording.arrays import Arrays
from capture.interp.recording.fx_sizes import SizeNodes
from capture.interp.recording.regions import graph_module
from capture.operators.properties import SCALAR_READERS
from capture.refgraph.node import Expr, RefNode, Shadow, TensorState, source_of
from capture.refgraph.source import Computed, Source

# What reads a scalar out of tensors.
READERS = frozenset({int, float, bool, operator.truth, operator.not_, operator.index, *(
    getattr(owner, name) for owner in (torch, torch.Tensor) for name in SCALAR_READERS - {"__complex__"} if hasattr(owner, name))})


class RecomputableNodes:
    """The nodes of results that a guard can compute again. `constant`: nodes that follow from constants alone. `recomputed`: also
    from what guards may read. `storages`: where the results lie. `writers`: operations in place on these results,
    and the storages that they wrote to. `ended`: a mode of torch was switched, so that later operations compute something else than
    a guard would."""

    __slots__ = ("constant", "recomputed", "storages", "writers", "ended")

    def __init__(self) -> None:
        self.constant: set[Node] = set()
        self.recomputed: set[Node] = set()
        self.storages: dict[Node, int] = {}
        self.writers: dict[Node, frozenset[int]] = {}
        self.ended = False

    def note(self, node: Node, real: Any, known: bool, recomputable: bool) -> None:
        """Notes a result. known: it follows from constants alone; recomputable: from constants and from numbers held at entry."""
        if known:
            self.constant.add(node)
        if recomputable:
            self.recomputed.add(node)
        if not (known or recomputable) or not is_a(real, torch.Tensor):
            return
        if (storage := constant_tensors.storage_of(real)) is not None:
            self.storages[node] = storage[0]

    def note_write(self, node: Node, storages: frozenset[int]) -> None:
        """Notes an operation in place on such results. storages: that it wrote to."""
        self.recomputed.add(node)
        self.writers[node] = storages

    def end(self) -> None:
        """Notes that a mode was switched: later operations compute something else than a guard would."""
        self.ended = True

    def covers(self, nodes: list[Node]) -> bool:
        """Whether the operands of an operation are such results, or come from outside."""
        return not self.ended and all(
            node in self.constant or node in self.recomputed or node.op == "placeholder" for node in nodes)


class Recorder(recorder.Recorder, Protocol):
    """What is asked besides. `snapshots`: the nodes of values that are kept as they were then."""

    recomputable: RecomputableNodes
    arrays: Arrays
    sizes: SizeNodes

    @property
    def snapshots(self) -> set[Node]: ...


def path_to(recorder: Recorder, shadow: Shadow) -> Source | None:
    """The path of a scalar for a guard, also if it was read from such tensors; else None."""
    if type(shadow) is not Expr:
        return source_of(shadow)
    if recorder.refs.is_long(shadow):
        return None
    if (path := source_of(shadow)) is not None:     # no tensor is read
        return path
    reads = shadow.op in READERS and any(isinstance(arg, RefNode) for arg in shadow.args)
    args = tuple((path_of_tensor if reads and isinstance(arg, RefNode) else path_to)(recorder, arg) for arg in shadow.args)
    return None if None in args else Computed(reading(shadow.op) if reads else shadow.op, args)  # type: ignore[arg-type]


def path_of_tensor(recorder: Recorder, shadow: Shadow | None) -> Computed | None:
    """The path to a tensor that holds what the tensor `shadow` holds now; else None."""
    if not isinstance(shadow, RefNode) or type(shadow.state) is not TensorState or shadow.real is None:
        return None
    if not constant_tensors.is_recomputable(recorder.refs, shadow.real):
        return None
    node = recorder.node(shadow)
    nodes, operations, holders = _behind(recorder, node)
    if any(shares_what_is_written(recorder, holder) for holder in holders.values()):
        return None
    numbers, sizes = recorder.inputs.paths_of_numbers(), recorder.sizes.sources
    graph, copies, sources = fx.Graph(), {}, []
    for known in nodes:
        if known not in operations:
            continue
        if known in sizes or known.op == "placeholder":
            source = sizes[known] if known in sizes else holders[known].source if known in holders else numbers[known]
            if not isinstance(source, Source):              # a number that a call returned
                return None
            sources.append(source)
            copies[known] = graph.placeholder(f"held{len(sources)}")
        elif known in recorder.recomputable.constant or known in recorder.recomputable.recomputed:
            copies[known] = graph.node_copy(known, copies.__getitem__)
        else:
            return None
    graph.output(copies[node])
    recorder.refs.note_sharing(*holders.values())        # what the trace writes to must not come to be their memory
    return Computed(function_of(graph), tuple(sources))


def reads_many(recorder: Recorder, tensor: RefNode) -> bool:
    """Whether a guard that computes a tensor again has to read more than single numbers."""
    _, _, holders = _behind(recorder, recorder.node(tensor))
    return any(math.prod(holder.state.found.shape) != 1 for holder in holders.values())


def require_truth(recorder: Recorder, path: Computed, held: bool) -> None:
    """Guards the truth of a tensor of one element, which `path_of_tensor` has found."""
    if path.args:
        recorder.refs.require(Computed(constant_tensors.number_in, (path,)), "TRUTH", held)


def _behind(recorder: Recorder, node: Node) -> tuple[list[Node], set[Node], dict[Node, RefNode]]:
    """The nodes of the graph up to now, those of them that have a part in a result, and the tensors from outside among these."""
    nodes = list(recorder.fx.nodes)
    if node in recorder.snapshots:
        del nodes[nodes.index(node) + 1:]
    operations = needed(recorder, node, nodes)
    return nodes, operations, {holder.state.node: holder for holder in recorder.inputs.tensors if holder.state.node in operations}


def shares_what_is_written(recorder: Recorder, holder: RefNode) -> bool:
    """Whether the memory of a tensor from outside, which was written to, is another one's as well: copies would not share it."""
    storage = holder.state.storage
    if recorder.arrays.has_tensor(holder) or storage is None:
        return True
    return storage[0] in recorder.refs.written and len(constant_tensors.tenants(recorder.refs, storage[0])) > 1


def needed(recorder: Recorder, node: Node, nodes: list[Node]) -> set[Node]:
    """Those of `nodes` that have a part in what the result of one of them holds at the end, inputs included."""
    among, found, todo = set(nodes), set(), [node]
    storages = recorder.recomputable.storages | {holder.state.node: holder.state.storage[0] for holder in recorder.inputs.tensors
                                                 if holder.state.storage is not None}
    while todo:
        known = todo.pop()
        if known not in found:
            found.add(known)
            todo += () if known in recorder.sizes.sources else known.all_input_nodes
            storage = storages.get(known)
            todo += (writer for writer, written in recorder.recomputable.writers.items() if storage in written and writer in among)
    return found


_functions: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()     # by their code


def function_of(graph: fx.Graph) -> Callable[..., Any]:
    """What a graph computes of copies of its inputs, as a function; the same for equal graphs."""
    code = graph.python_code("self").src
    known = _functions.get(code)
    if known is None:
        forward = graph_module(torch.nn.Module(), graph, "Recomputed").forward

        def recomputed(*held: Any) -> torch.Tensor:
            with torch.no_grad():
                return forward(*(part.clone() if is_a(part, torch.Tensor) else part for part in held))
        names = [str(getattr(node.target, "__name__", node.target)).strip("_") for node in graph.nodes]
        recomputed.__name__ = "_".join(name for node, name in zip(graph.nodes, names) if node.op.startswith("call")) or "copy"
        known = _functions[code] = recomputed
    return known


@cache
def reading(reader: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that reads tensors: guards pass none to C functions."""
    def read(*args: Any) -> Any:
        return reader(*args)
    return types.FunctionType(read.__code__, read.__globals__, reader.__name__, None, read.__closure__)
