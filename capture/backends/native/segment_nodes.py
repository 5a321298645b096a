"""A compiled graph with inner results (results from which others are computed): an autograd node for each segment of the backward
graph."""
from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.native.autograd_nodes import NodeSaving, function, tell
from capture.backends.native.eager_gradients import Memory, Replay
from capture.backends.native.extents import values_of
from capture.backends.native.recomputation import Recomputation
from capture.backends.native.saved_tensors import (
    EXCHANGED,
    Backward,
    SavedTensors,
    as_expected,
    is_again,
    picker,
    position,
    with_history,
)
from capture.backends.native.signature import Part, Result, Signature, Tangent

Make = Callable[..., tuple[Tensor, ...]]


def with_segment_nodes(
        signature: Signature, forward: Callable[..., tuple[Tensor, ...]], backward: Sequence[Backward], loose: bool,
        tail: fx.GraphModule, core: fx.GraphModule, again: Recomputation) -> Callable[..., tuple[Tensor, ...]]:
    """A callable that takes inputs and returns the graph's outputs. backward: a callable for each part. tail: has `Call` make the
    nodes. core: the graph in torch's operations, up to the tail; it takes `signature.inner` behind its inputs, and returns their
    values behind its results. again: runs the whole graph."""
    whole = Replay(core, _without_saved(signature, signature.inputs), again)
    of_core = _without_saved(signature, signature.inputs + len(signature.inner))
    makers = [_node(signature, part, call, loose, Replay(_core_of_part(core, signature, part), _of_part(of_core, part), again))
              for part, call in zip(signature.parts, backward, strict=True)]
    pick = picker([position(signature, output) for output in signature.outputs])

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        memory = whole.remember(inputs)
        tensors = inputs + forward(*inputs)
        return tail.forward(Call(makers, tensors, memory), *pick(tensors))
    return run


class Call:
    """One call, as its tail sees it. tensors: inputs and results. memory: for a replay, without what results are computed from."""

    __slots__ = ("makers", "tensors", "memory")

    def __init__(self, makers: Sequence[Make], tensors: tuple[Tensor, ...], memory: Memory) -> None:
        self.makers, self.tensors, self.memory = makers, tensors, memory

    def node(self, number: int, *edges: Tensor) -> tuple[Tensor, ...]:
        """The results of a part, and tensors without memory of their own that stand for what it joins."""
        return self.makers[number](self, *edges)


def _is_as_saved(of_program: Callable[[], Tensor | None], saved: Tensor) -> bool:
    """Whether a result, if it is still there, has the memory that it had when it was saved: else eager mode would take what is in
    the new one, but not through views of the result."""
    tensor = of_program()
    return tensor is None or tensor.is_set_to(saved)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version


def _without_saved(signature: Signature, inputs: int) -> Signature:
    return replace(signature, inputs=inputs, saved=())


def _of_part(signature: Signature, part: Part) -> Signature:
    """How a replay finds the gradients that a part hands to inputs."""
    gradients = tuple((place, Result(0)) for place, other in part.edges if other < 0)
    return replace(signature, gradients=gradients, roots=tuple((result, False) for result in part.results))


def _core_of_part(core: fx.GraphModule, signature: Signature, part: Part) -> fx.GraphModule:
    """The core for replays of a part. Values that the part takes of results to which it passes no gradients (views of these that
    were made under `no_grad`) are computed again."""
    outputs = core.graph.output_node().args[0]
    joined = {place for place, other in part.edges if other < 0}
    stand_ins = core.graph.find_nodes(op="placeholder")[signature.inputs:]
    values = dict(zip(stand_ins, outputs[len(outputs) - len(stand_ins):], strict=True))
    reached, stack = set[fx.Node](), [outputs[result] for result in part.results]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack += node.all_input_nodes
    apart = [node for place, node in enumerate(stand_ins, signature.inputs) if place not in joined and node in reached]
    if not apart:
        return core
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(core.graph, copies))
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in apart:
        with graph.inserting_before(min(copies[node].users, key=order.__getitem__)):
            detached = graph.node_copy(values[node].args[0], copies.__getitem__)
        copies[node].replace_all_uses_with(detached)
    return fx.GraphModule(core, graph)


def _node(signature: Signature, part: Part, backward: Backward, loose: bool, replay: Replay) -> Make:
    """Makes a part's results of a call, and what they are computed from."""
    own = signature.of(part)
    saving = NodeSaving(own, frees=bool(part.checks), joined=part.joined)
    results = picker([position(signature, Result(result)) for result in part.results])
    count, saves, known = len(part.results), len(part.saved), signature.inputs
    inner = {place - known: edge for edge, (place, other) in enumerate(part.edges) if other < 0 and place >= known}
    # The results of other parts that it saves: the number of each among what is saved, where it is, and its edge.
    of_others = [(part.saved.index(result), position(signature, result), edge) for place, edge in inner.items()
                 if (result := Result(signature.inner[place].index)) in part.saved]
    # Those that eager mode saves as they are. (No history can be taken from views: they are not meant.)
    owners = [(result, edge) for place, edge in inner.items()
              if (result := Result(signature.inner[place].index)) in with_history(own)]
    direct = [edge for edge, (_, other) in enumerate(part.edges) if other < 0]
    places = [None if place is None else place.index + (0 if isinstance(place, Tangent) else own.differentiable)
              for place in part.gradients]
    handed_on = any(isinstance(place, Tangent) for place in part.gradients)
    nothing = (None,) * len(part.edges)

    def run_forward(ctx: Any, frame: list[Any], *edges: Tensor) -> tuple[Tensor, ...]:
        call = frame[0]
        tensors, versions, random = call.memory
        used = [edges[inner[place]] if place in inner else None for place in range(len(signature.inner))]
        versions = None if versions is None else [*versions, *map(_version, used)]
        saving.hold(ctx, frame, call.tensors, ((*tensors, *used), versions, random),
                    {result: edges[edge] for result, edge in owners if not edges[edge]._is_view()})
        ctx.of_others = [(weakref.ref(edges[edge]), number) for number, place, edge in of_others
                         if edges[edge].is_set_to(call.tensors[place])]
        joined = (torch.empty_strided(values_of(like.sizes, ctx.sizes), (0,) * len(like.sizes), dtype=like.dtype,
                                      device=like.device)
                  for like in part.joined)
        return (*results(call.tensors), *joined)

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = saving.take(ctx, grads)
        if all(grad is None for grad in grads):
            return None, *nothing
        arguments = saving.values(ctx, (0,))
        if type(ctx.kept) is SavedTensors and not all(
                _is_as_saved(of_program, arguments[number]) for of_program, number in ctx.of_others):
            raise RuntimeError(EXCHANGED)
        if is_again(grads):
            found = replayed(ctx, arguments, grads[:count])
            saving.let_go(ctx, (0,))
            return None, *found
        saving.let_go(ctx, (0,))
        del arguments[saves:]
        arguments += [as_expected(grads[tangent.index], tangent, loose, ctx.sizes) for tangent in part.tangents]
        if not handed_on:
            grads = (None,) * len(grads)        # so that all of these die early
        values = (*grads, *backward(arguments, True))
        return None, *(None if place is None else values[place] for place in places)

    def replayed(ctx: Any, saved: Sequence[Tensor], grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """The gradients by eager mode, from each of the results to all that is not computed from another result."""
        tensors, versions, random = ctx.memory
        found: list[Tensor | None] = list(nothing)
        if any(grad is not None for grad in grads):
            given = list(saved[saves:] if tensors is None else tensors)
            inner = zip(signature.inner, given[known:], strict=True)
            kept = [*zip(part.saved, saved, strict=False), *(
                (Result(like.index), tensor) for like, tensor in inner if tensor is not None and like.index >= 0)]
            for place, like in enumerate(signature.inner, known):
                if given[place] is None:        # nothing of this part is computed from that
                    given[place] = torch.zeros(values_of(like.sizes, ctx.sizes), dtype=like.dtype, device=like.device)
            gradients = replay.gradients((tuple(given), versions, random), (), grads, ctx.kept.edges, kept)
            for edge, gradient in zip(direct, gradients, strict=True):
                found[edge] = gradient
        return found

    apply = function(run_forward, run_backward)
    # a pass that comes to what the part joins alone calls no hooks of results
    own_node = _C.give_shared_node if part.joined else None

    def make(call: Call, *edges: Tensor) -> tuple[Tensor, ...]:
        frame: list[Any] = [call, None]
        made = apply(frame, *edges)
        tell(frame, made, count, own_node)
        frame.clear()
        return made
    return make
