"""Bodies of torch's control flow (`torch.cond`, `map` …): each is recorded like other code, and then taken out of the graph.

It becomes a graph of its own, an argument of the operator, whose further operands are the outer tensors that the body uses. A body
runs on copies of the operator's operands while it is recorded, and its results are dropped: only the operator itself changes
tensors that existed before.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, random

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.recording.fx_recorder import FxRecorder, tensors_in
from capture.interp.recording.leaf_functions import DEVICES, RANDOM_STATE
from capture.interp.recording.regions import graph_module
from capture.interp.recording.writes import Watching, uncounted, written_by
from capture.operators.facts import OpFacts
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import RefNode, TensorState


class Body:
    """A body that is being recorded, or was. `samples`: what it is called with. `random`, `differentiates`: the state of
    random numbers, and the grad mode, before it."""

    def __init__(self, sliced: Sequence[bool], operands: Iterable[torch.Tensor]) -> None:
        self.random = _C.get_random_state()
        self.differentiates = torch.is_grad_enabled()
        self.samples = tuple(map(sample, sliced, operands))
        self.made: set[int | None] = set()              # the storages that it may write to: not those of operands
        self.depth = 0                                  # of the frame that calls it
        self.recorded: Recorded | None = None           # its graph, when it is over
        self.plan: Plan | None = None                   # … and those of all bodies of the operator, which the first of them keeps

    def undo(self) -> None:
        """What it drew at random was never drawn, and the grad mode is what it was."""
        _C.set_random_state(self.random)
        torch._C._set_grad_enabled(self.differentiates)


@dataclass
class Start:
    """Where the graph was, and what else had been recorded, when a body began."""

    marker: fx.Node
    samples: list[fx.Node]
    mark: int
    counts: tuple[int, ...]


@dataclass
class Recorded:
    """The graph of a body, whose placeholders are its parameters, if it has any, then what it takes from around it."""

    graph: fx.Graph
    parameters: list[fx.Node]
    lifted: dict[fx.Node, fx.Node]                      # node around the body -> placeholder
    outputs: list[torch.Tensor]
    spec: Any


@dataclass
class Plan:
    """The arguments of an operator: graph modules and their nodes, and the tensors that they take from around them."""

    modules: list[fx.GraphModule] = field(default_factory=list)
    nodes: list[fx.Node] = field(default_factory=list)
    lifted: list[RefNode] = field(default_factory=list)


def sample(sliced: bool, operand: torch.Tensor) -> torch.Tensor:
    """A copy of an operand, or of its first slice, which lies in memory as that."""
    given = operand.select(0, 0) if sliced else operand
    copy = given.clone()
    if copy.stride() != given.stride():
        span = 1 + sum((size - 1) * stride for size, stride in zip(given.shape, given.stride())) if given.numel() else 0
        whole = given.as_strided((span,), (1,)).clone()
        copy = whole.as_strided(given.shape, given.stride())
    return copy if copy.requires_grad == given.requires_grad else copy.detach().requires_grad_(given.requires_grad)


# -- recording ---------------------------------------------------------------------------------------------------------

def begin(recorder: FxRecorder, body: Body, sliced: Sequence[bool], operands: Sequence[RefNode]) -> list[RefNode]:
    """What is recorded from now on belongs to a body. Returns its samples."""
    recorder.sizes.fix_all()
    start = Start(recorder.effect(begin), [], 0, _counts(recorder))
    nodes = []
    for tensor, slices, operand in zip(body.samples, sliced, operands):
        start.samples.append(recorder.effect(sample, slices, recorder.node(operand)))
        nodes.append(recorder.refs.create(tensor, TensorState(start.samples[-1], None, operand.state.dynamic)))
    start.mark = recorder.refs.mark         # the samples are operands, which a body may not change
    recorder.begin_body(body, start)
    return nodes


def _counts(recorder: FxRecorder) -> tuple[int, ...]:
    """How much besides operations the trace has noted: none of it can be part of a body."""
    return (len(recorder.refs.effects), len(recorder.expectations.checks), len(recorder.snapshots), len(recorder.counted),
            len(recorder.regions), len(recorder.arrays.tensors))


def end(recorder: FxRecorder, body: Body, spec: Any, outputs: Sequence[torch.Tensor], has_parameters: bool) -> None:
    """The body has returned tensors, in a structure. has_parameters: else it takes the operands themselves. Raises Break for a body
    that does or returns what cannot be part of a graph."""
    start = recorder.end_body()
    nodes = _nodes_after(start.marker)
    inside = {*nodes, *start.samples}
    known = [recorder.refs.find(output) for output in outputs]
    places = [storage_id(output) for output in outputs]
    aliased = len(set(places)) < len(places) or not body.made.issuperset(places)
    if any(node is None or node.state.node not in inside for node in known) or aliased:
        raise Break("opaque-call", "a body of torch's control flow returns what it has not made")
    sized = any(node.state.dynamic for node in known) and not any(  # type: ignore[union-attr]
        recorder.is_dynamic(tensor) for tensor in body.samples)
    if torch.is_grad_enabled() != body.differentiates:
        raise Break("changing-global-state", "a body of torch's control flow changes the grad mode")
    if sized:           # else the shapes of the operands say so
        raise Break("data-dependent-shape", "a body of torch's control flow returns a tensor whose shape depends on values")
    if _counts(recorder) != start.counts or any(
            serial > start.mark and place not in body.made for place, serial in recorder.refs.written.items()):
        raise Break("opaque-call", "a body of torch's control flow does more than to compute")
    body.recorded = _taken_out(recorder.fx, nodes, start, [node.state.node for node in known], has_parameters)  # type: ignore[union-attr]
    body.recorded.outputs, body.recorded.spec = list(outputs), spec


def _nodes_after(marker: fx.Node) -> list[fx.Node]:
    nodes, node = [], marker.next
    while node.op != "root":
        if node.op != "placeholder":
            nodes.append(node)
        node = node.next
    return nodes


def _taken_out(graph: fx.Graph, nodes: list[fx.Node], start: Start, outputs: list[fx.Node], has_parameters: bool) -> Recorded:
    """Moves the nodes of a body into a graph of their own."""
    inner, inside = fx.Graph(), set(nodes)
    copies: dict[fx.Node, fx.Node] = {}
    parameters = [inner.placeholder(node.name) for node in start.samples] if has_parameters else []
    copies.update(zip(start.samples, parameters))
    lifted: dict[fx.Node, fx.Node] = {}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            origin: Any = node.args[1] if node in start.samples else node
            if origin not in lifted:
                lifted[origin] = inner.placeholder(origin.name)
            copies[node] = lifted[origin]
        return copies[node]
    own = [node for node in nodes if node not in start.samples]
    for source in dict.fromkeys(source for node in own for source in node.all_input_nodes if source not in inside):
        copy_of(source)
    for node in own:
        copies[node] = inner.node_copy(node, copy_of)
    inner.output(tuple(map(copy_of, outputs)))
    _erase(graph, nodes, start)
    return Recorded(inner, parameters, lifted, [], None)


def _erase(graph: fx.Graph, nodes: list[fx.Node], start: Start) -> None:
    """Removes the nodes of a body."""
    for node in reversed(nodes):
        graph.erase_node(node)
    graph.erase_node(start.marker)


def abandon(recorder: FxRecorder) -> None:
    """The body has raised. Raises Break if it has done more than to compute, which cannot be forgotten."""
    start = recorder.end_body()
    _erase(recorder.fx, _nodes_after(start.marker), start)
    if _counts(recorder) != start.counts:
        raise Break("opaque-call", "a body of torch's control flow does more than to compute")


# -- the operator ------------------------------------------------------------------------------------------------------

def plan(recorder: FxRecorder, bodies: Sequence[Body], bare: Sequence[bool], apart: Sequence[torch.Tensor] | None) -> Plan:
    """The arguments that stand for the bodies of one operator: graph modules of the same parameters. bare: which of them return a
    tensor, and not a tuple. apart: operands that may not share memory with what a body takes from around it, nor may these among
    each other; None if all may. Raises Break where they do, bodies do not fit each other, or what they take is no tensor."""
    made = [body.recorded for body in bodies]
    nodes = list(dict.fromkeys(node for recorded in made for node in recorded.lifted))  # type: ignore[union-attr]
    tensors = {node.state.node: node for node in recorder.refs.nodes if isinstance(node.state, TensorState)}
    result = Plan(lifted=[tensors[node] for node in nodes if node in tensors])
    if len(result.lifted) < len(nodes) or any(node.cls not in PLAIN_TENSORS or node.real is None for node in result.lifted):
        raise Break("opaque-call", "a body of torch's control flow takes what is no tensor from around it")
    for recorded in made if apart is not None else ():
        taken = [*apart, *(tensors[node].real for node in recorded.lifted)]  # type: ignore[misc, union-attr]
        if len(set(map(storage_id, taken))) < len(taken):
            raise Break("opaque-call", "a body of torch's control flow takes tensors that share memory")
    for recorded, single in zip(made, bare):
        module = _module(recorder, recorded, nodes, single)  # type: ignore[arg-type]
        result.modules.append(module)
        result.nodes.append(recorder.add_module(module))
    return result


def _module(recorder: FxRecorder, recorded: Recorded, lifted: list[fx.Node], single: bool) -> fx.GraphModule:
    """The graph of a body as a module which takes all that the bodies of its operator take from around them."""
    graph, holder = fx.Graph(), torch.nn.Module()
    copies = {node: graph.placeholder(node.name) for node in recorded.parameters}
    for node in lifted:
        placeholder = graph.placeholder(node.name)
        if node in recorded.lifted:
            copies[recorded.lifted[node]] = placeholder
    outputs = graph.graph_copy(recorded.graph, copies)
    graph.output(outputs[0] if single else outputs)  # type: ignore[index]
    for node in graph.nodes:
        if node.op == "get_attr":
            setattr(holder, node.target, recorder.modules[node.target])
    return graph_module(holder, graph, "BodyGraph")


def agree(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are alike but for what they hold."""
    return len(first) == len(second) and all(
        (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device) for a, b in zip(first, second))


# What Dynamo refuses in a body, besides writes; also operations with a generator.
REFUSED = frozenset({*RANDOM_STATE, random.get_rng_state, *DEVICES})


def refusal(recorder: FxRecorder, function: Any, values: Iterable[Value]) -> Break | None:
    """Why the body that is being recorded, if any is, cannot have this operation. None if it can."""
    if recorder.bodies and (function in REFUSED or any(is_a(value.real, torch.Generator) for value in values)):
        return Break("opaque-call", "a body of torch's control flow changes the default device or the state of random numbers")
    return None


# -- writes ------------------------------------------------------------------------------------------------------------

class _Guarded(Watching):
    """Raises RuntimeError before an operation that writes to a tensor which a body has not made."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        require_own(self.body, written_by(func, args, kwargs))
        result = self.perform(func, args, kwargs)
        before = set(map(storage_id, tensors_in([Value(args, None), Value(kwargs, None)])))
        self.body.made.update(set(map(storage_id, tensors_in([Value(result, None)]))) - before)
        return result


def made(recorder: FxRecorder, results: list[Any]) -> None:
    """An operator has returned new tensors, in a body perhaps."""
    for body, _ in recorder.bodies[-1:]:
        body.made.update(storage_id(result) for result in results if is_a(result, torch.Tensor))


def require_own(body: Body, written: Iterable[torch.Tensor]) -> None:
    if any(storage_id(tensor) not in body.made for tensor in written):
        raise RuntimeError("a body of torch's control flow writes to a tensor that was there before it")


def guarded(body: Body, facts: OpFacts, args: list[Value], kwargs: dict[str, Value], perform: Callable[..., Any],
            function: Callable[..., Any], /, *reals: Any, **named: Any) -> Any:
    """Calls an operation in a body."""
    def call() -> Any:
        require_own(body, uncounted(facts, args, kwargs))
        with _Guarded(body):
            return function(*reals, **named)
    return perform(call)


def guarding(recorder: FxRecorder) -> AbstractContextManager[Any]:
    """A context in which code of the program's runs that the trace does not see: in a body, it may write to nothing that was there
    before."""
    return _Guarded(recorder.bodies[-1][0]) if recorder.bodies else nullcontext()
