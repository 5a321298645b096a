"""From AOTAutograd's convention to that of the signature: what the two graphs take and return."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from capture.backends.aot.aten import ALIASES, aten, clean, cloned, is_view, outputs_of, steps, storage_of
from capture.backends.aot.attaching_tail import attaching_tail
from capture.backends.aot.casts import cut
from capture.backends.aot.inner import Inner, replayable
from capture.backends.aot.joint import Joint
from capture.backends.aot.observed import Eager
from capture.backends.aot.partial_passes import flow, partial_passes
from capture.backends.aot.saving import Saving, drop_copies
from capture.backends.aot.segments import divide
from capture.backends.aot.strides import laid_out
from capture.backends.aot.symbols import sizes_of
from capture.backends.aot.tail import Split
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.nodes import same
from capture.backends.native.signature import Input, PartialPasses, Result, Signature, Tangent, Unsupported
from capture.backends.native.transport import NotPortable, encode_graph


@dataclass(frozen=True, slots=True)
class Traced:
    """The graphs of one trace. `backward` is None when no gradient is asked for.

    forward: placeholders are the inputs of the torch-level graph, all of them and in order, then `signature.casts`; backward:
    `signature.saved`, then `signature.tangents`. Every node's `meta["val"]` is a FakeTensor. Inputs are written to by `aten.copy_`
    in `forward`. tail: as of `Split`. segments: backward graphs in place of `backward`, one for each of `signature.parts`, and
    core: the torch-level graph that takes `signature.inner` as further inputs, where results are computed from other results.
    eager: a run of the torch-level graph.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    signature: Signature
    eager: Eager
    tail: fx.GraphModule | None = None
    segments: tuple[fx.GraphModule, ...] = ()
    core: fx.GraphModule | None = None

    @property
    def graphs(self) -> list[fx.GraphModule]:
        """The graphs that are compiled, the forward one first."""
        return [self.forward, *([self.backward] if self.backward is not None else self.segments)]


def finished(joint: Joint, eager: Eager, parts: Split, saving: Saving, specs: Sequence[TensorSpec], modes: Modes,
             inner: Inner | None = None) -> Traced:
    """The graphs with the results, saved values and gradients that the signature names."""
    forward, backward = joint.forward, joint.backward
    inputs = [node for node in forward.graph.nodes if node.op == "placeholder"]
    written = {node.args[0]: node.args[1] for node in forward.graph.nodes if node.target is aten.copy_.default}
    tangents, values = joint.tangents, joint.values
    _check_results(values, parts)
    saved = _sink_views(joint.saved, backward, set(written.values())) if backward else []
    moved = {value: laid_out(forward.graph.output_node(), value, tensor)
             for value, tensor in zip(values, parts.results, strict=True)
             if not same(value.meta["val"].stride(), tensor.stride())
             and (storage_of(tensor) in eager.noted or steps(value.meta["val"]) == steps(tensor))}
    if backward:
        _take_moved(backward, saved, moved)
    tangents, values, saved = ([moved.get(node, node) for node in nodes] for nodes in (tangents, values, saved))
    drop_copies(forward, saved)
    copies = {node: cloned(forward, node) for node in written.keys() & set(saved)}
    saved = [copies.get(node, node) for node in saved]
    casts = cut(forward, saved, values, tuple(written), joint.casts, eager.casts)
    if casts:
        inputs = [node for node in forward.graph.nodes if node.op == "placeholder"]
        if len(inputs) != len(specs) + len(casts):
            raise Unsupported("tracing adds inputs, and casts are kept")
    names: dict[fx.Node, Input | Result] = {node: Input(i) for i, node in enumerate(inputs)}
    names |= {new: names[node] for node, new in written.items() if new in saved and new not in names and new not in values}
    results: list[fx.Node] = []
    for node in (*tangents, *values, None, *saved):
        if node is None:
            visible = len(results)
        elif node not in names:
            names[node] = Result(len(results))
            results.append(node)
    forward.graph.output_node().args = (tuple(results),)
    clean(forward)
    gradients, used, joined = _finish_backward(backward, len(saved)) if backward else ((), (), ())
    roots = [root for tensor, root in zip(parts.results, parts.roots, strict=True) if root and tensor.requires_grad]
    if backward and len(roots) != len(tangents):
        raise Unsupported("it cannot be told which results are differentiable")

    def named(name: Input | Result) -> Input | Result:
        return names[values[name.index]] if isinstance(name, Result) else name
    # Where tracing has added inputs (`linalg.eig`), eager mode's graph does not know them.
    known = inner is None and all(place < len(specs) for place, _ in gradients)
    signature = Signature(
        inputs=len(specs),
        casts=casts,
        outputs=tuple(map(named, parts.arguments)),
        roots=tuple(roots) if backward else (),
        differentiable=len(tangents),
        visible=visible,
        saved=tuple(names[node] for node in saved),
        tangents=used,
        gradients=gradients,
        written=tuple(i for i, node in enumerate(inputs) if node in written),
        advanced=tuple(named(name) for name, count in saving.counts for _ in range(count)),
        checks=tuple(replace(check, place=check.place and named(check.place)) for check in saving.checks) if backward else (),
        snapshots=tuple(i for i, node in enumerate(inputs) if node in written and _matters(node, results)) if backward else (),
        random=bool(joint.drawn),
        numbers=tuple(i for i, spec in enumerate(specs) if spec.number), domains=(),
        modes=modes,
        partial_passes=_passes(parts, joined, backward, eager) if backward is not None and known else None)
    if inner is None or backward is None:
        return Traced(forward, backward, signature, eager, parts.tail)
    return _divided(Traced(forward, backward, signature, eager), parts, inner, named)


def _check_results(values: Sequence[fx.Node], parts: Split) -> None:
    """Raises Unsupported if the traced results differ from eager mode's in other ways than the tail can mend."""
    for value, tensor, after_writes in zip(values, parts.results, parts.after_writes, strict=True):
        if after_writes and steps(value.meta["val"]) != steps(tensor):
            raise Unsupported("a result has other strides where writes are traced as new tensors")
        if (value.meta["val"].is_neg(), value.meta["val"].is_conj()) != (tensor.is_neg(), tensor.is_conj()):
            raise Unsupported("a result is negated or conjugated where writes are traced as new tensors")
    if len(set(values)) < len(values):
        raise Unsupported("two results are one tensor")


def _take_moved(backward: fx.GraphModule, saved: Sequence[fx.Node], moved: Mapping[fx.Node, fx.Node]) -> None:
    """Has a backward graph put what it takes of results that are laid out otherwise than in the trace back in the trace's order."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    first = next(node for node in backward.graph.nodes if node.op != "placeholder")
    for node, placeholder in zip(saved, placeholders, strict=False):
        if node in moved and steps(moved[node].meta["val"]) != steps(traced := placeholder.meta["val"]):
            placeholder.meta["val"] = moved[node].meta["val"]
            users = list(placeholder.users)
            back = laid_out(first, placeholder, traced)
            for user in users:
                user.replace_input_with(placeholder, back)


def _passes(parts: Split, joined: Any, backward: fx.GraphModule, eager: Eager) -> PartialPasses:
    """How passes from some of the results behave; with the backward graph for them, if other processes can have it."""
    passes = partial_passes(parts.differentiable, joined, eager)
    if len(passes.order) > 1:
        with contextlib.suppress(NotPortable):
            return replace(passes, graph=encode_graph(backward))
    return passes


def _divided(traced: Traced, split: Split, inner: Inner, named: Callable[[Input | Result], Input | Result]) -> Traced:
    """What was traced with a node of autograd for each segment of the backward graph."""
    signature = traced.signature
    assert traced.backward is not None
    segments, parts = divide(traced.backward, signature, inner, split.differentiable)
    tail, taken = attaching_tail(split, inner, parts, signature.inputs)
    holders = {storage_of(tensor): named(Result(place)).index for place, tensor in enumerate(split.results)}
    like = tuple(replace(_like(tensor), index=holders.get(storage_of(tensor), -1)) for tensor in inner.tensors)
    signature = replace(signature, parts=parts, inner=like, outputs=tuple(map(named, taken)))
    return Traced(traced.forward, None, signature, traced.eager, tail, tuple(segments), replayable(split.core, split.results))


def _matters(node: fx.Node, results: Sequence[fx.Node]) -> bool:
    """Whether some result is computed from the value of an input before the graph writes to it."""
    reached, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            if user not in reached and user.target is not aten.copy_.default:
                reached.add(user)
                stack.append(user)
    return not reached.isdisjoint(results)


def _sink_views(saved: Sequence[fx.Node], backward: fx.GraphModule, written: Collection[fx.Node]) -> list[fx.Node]:
    """Computes saved views in the backward graph, from the tensors that they view; returns what is saved then, each tensor once. So
    tensors that the program can reach are saved themselves, and not as views that autograd does not know: a change of them before
    the backward pass is noticed. written: what inputs hold in the end, which are tensors themselves though traced as views."""
    graph = backward.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = {}
    roots: list[fx.Node] = []
    first = next(node for node in graph.nodes if node.op != "placeholder")

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            if is_view(node) and node not in written:
                source = copy(node.args[0])
                with graph.inserting_before(first):
                    copies[node] = graph.node_copy(node, lambda _: source)
            else:
                with graph.inserting_before(placeholders[0]):
                    copies[node] = graph.placeholder(node.name)
                copies[node].target = copies[node].name         # as fx made it unique
                copies[node].meta = dict(node.meta)
                roots.append(node)
        return copies[node]

    for node, placeholder in zip(saved, placeholders, strict=False):
        placeholder.replace_all_uses_with(copy(node))
    for placeholder in placeholders[:len(saved)]:
        graph.erase_node(placeholder)
    return roots


def _finish_backward(backward: fx.GraphModule, saved: int) -> tuple[Any, Any, Any]:
    """Makes the backward graph take the tangents that it uses and return each gradient once.

    Returns `Signature.gradients`, `Signature.tangents`, and what `flow` says.
    """
    graph = backward.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    order = placeholders[saved:]
    for node in graph.nodes:
        if node.target in ALIASES:
            node.replace_all_uses_with(node.args[0])
    results: dict[fx.Node, Result] = {}
    gradients: list[tuple[int, Result | Tangent]] = []
    for i, node in enumerate(outputs_of(graph)):
        if node is None:
            continue
        if node in order:
            gradients.append((i, _tangent(order.index(node), node)))
            continue
        if node.op == "placeholder":
            with graph.inserting_before(graph.output_node()):
                copy = graph.call_function(aten.clone.default, (node,))
            copy.meta["val"] = node.meta["val"].clone()
            node = copy
        gradients.append((i, results.setdefault(node, Result(len(results)))))
    graph.output_node().args = (tuple(results),)
    clean(backward)
    joined = flow(backward, order)
    used = tuple(_tangent(i, node) for i, node in enumerate(order) if node.users)
    for node in order:
        if not node.users:
            graph.erase_node(node)
    backward.recompile()
    return tuple(gradients), used, joined


def _tangent(index: int, node: fx.Node) -> Tangent:
    return replace(_like(node.meta["val"]), index=index)


def _like(value: Tensor) -> Tangent:
    return Tangent(0, sizes_of(value.shape), sizes_of(value.stride()), value.dtype, value.device)
