"""What a backward pass takes from its forward pass. Of the tensors that the program can reach: those that eager mode has saved, as
they are by then. All other values: as they were in the forward pass.

A program may write to inputs and results before the backward pass. If eager mode has saved such a tensor, it raises, or takes the
new value if no version counts the write; if it has saved another tensor, the write changes nothing. So what is recomputed must be
computed from copies, not from such tensors: `keep_apart` puts a copy of each before the operations of the forward pass, and the
partition decides whether to save the copy or results computed from it. Copies that are not saved are removed.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, fx
from torch._ops import OpOverload
from torch.autograd.graph import increment_version
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint

from capture.backends.aot.aten import ALIASES, aten, is_view, is_write, storage_of
from capture.backends.aot.observed import Eager, Saved, below, saved_by
from capture.backends.aot.symbols import unguarded
from capture.backends.aot.tail import Split
from capture.backends.aot.two_passes import is_tangent
from capture.backends.native.job import TensorSpec
from capture.backends.native.nodes import expected
from capture.backends.native.saved_tensors import as_told, sample_of_error, version
from capture.backends.native.signature import Check, Input, Result, Unsupported

Look = tuple[Input | Result | None, str, bool]      # the first fields of a Check; whether it is that input or result itself
MAKER = re.compile(r"(?<=, which is output )(\d+ of )[\w:]+(?=,$)")        # of a tensor, in autograd's messages
# Views of whole tensors: those that are undone by doing them again; and those that change nothing but sizes.
OWN_INVERSES = ALIASES | {aten.transpose.int, aten.t.default}
RESHAPES = frozenset({aten.view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims})
BACKWARD = frozenset({"is_backward", "must_be_in_backward"})


class Saving:
    """The tensors that eager mode saves among the inputs and results of the core. checks: in the order in which a backward pass
    checks them. counts: how often each had been written to."""

    def __init__(self, eager: Eager, parts: Split, specs: Sequence[TensorSpec]) -> None:
        reached = [below(root) for root in parts.differentiable]
        nodes = sorted(set().union(*reached), key=lambda node: -node._sequence_nr())        # as autograd calls them
        saved = [item for node in nodes for item in saved_by(node, eager)]
        handles: list[tuple[Input | Result, Tensor]] = [
            *((Input(i), fake) for i, fake in enumerate(eager.inputs)), *((Result(k), t) for k, t in enumerate(parts.results))]
        self.counts = tuple((name, version(tensor)) for name, tensor in handles)
        self.storages = {storage_of(item.tensor) for item in saved} | eager.recomputed
        self.names = frozenset(name for name, tensor in handles if storage_of(tensor) in self.storages)
        counted = _counted(saved, [(name, tensor) for name, tensor in handles if name in self.names])
        made = {Input(i) for i, spec in enumerate(specs) if not spec.leaf} | {
            Result(k) for k, tensor in enumerate(parts.results) if not tensor.is_leaf}
        looks: dict[Any, list[Look]] = {}
        for item, found in zip(saved, counted, strict=True):
            looks.setdefault(item.node, []).extend(filter(None, [found]))
        makers = {root.grad_fn for root in parts.differentiable}
        self.checks = tuple(dict.fromkeys(
            Check(place, text, itself and isinstance(place, Input), itself and place in made,
                  tuple(i for i, nodes in enumerate(reached) if node in nodes), number, node in makers)
            for number, node in enumerate(nodes) if eager.holds(node)
            for place, text, itself in looks.get(node) or [(None, "", False)]))

    def with_inner(self, tensors: Sequence[Tensor], first: int) -> frozenset[Input | Result]:
        """The names with those of results or views that are inputs from `first` on, as far as eager mode saves them."""
        own = (Input(first + place) for place, tensor in enumerate(tensors) if storage_of(tensor) in self.storages)
        return self.names.union(own)


def _counted(saved: Sequence[Saved], handles: Sequence[tuple[Input | Result, Tensor]]) -> list[Look | None]:
    """For each saved tensor the input or result whose version counter it shares, what autograd calls it when that was written to,
    and whether it is that very tensor."""
    found: list[Look | None] = [None] * len(saved)
    places: dict[StorageWeakRef, list[int]] = {}
    for place, item in enumerate(saved):
        places.setdefault(storage_of(item.tensor), []).append(place)
    for name, handle in handles:
        if handle.is_inference():
            continue
        own = places.get(storage_of(handle), ())
        before = [version(saved[place].tensor) for place in own]
        increment_version(handle)
        for place, number in zip(own, before, strict=True):
            if version(saved[place].tensor) != number:
                found[place] = name, _called(saved[place]), saved[place].tensor is handle
    return found


def _called(saved: Saved) -> str:
    """What autograd calls a saved tensor that was written to: `[type and shape], where it comes from,`; or the whole of what it
    says, of views that may not be written to."""
    try:
        with unguarded(saved.tensor):
            _ = saved.name and getattr(saved.keeper, saved.name)
    except RuntimeError as error:
        _, found, text = str(error).partition("inplace operation: ")
        return _with_maker(text.partition(" is at version")[0], saved) if found else str(error)
    tensor = saved.tensor           # what a checkpoint was given
    text, node = f"[{tensor.type()} {list(map(expected, tensor.shape))}]", tensor.grad_fn
    return text if node is None else _with_maker(
        f"{text}, which is output {tensor.output_nr} of {as_told(node.name(), sample_of_error())},", saved)


def _with_maker(text: str, saved: Saved) -> str:
    """`text` with the node that autograd tells of outside of fake tensors: it has made the history of a view anew, by strides alone
    (where its elements are read as the base's); what an operation has written to a view comes from that operation."""
    tensor, base = saved.tensor, saved.tensor._base
    if saved.keeper is not saved.node and saved.name.startswith("_saved_result"):
        name = saved.keeper.name()
    elif base is not None and base.requires_grad and _read_as(tensor) == _read_as(base):
        name = "AsStridedBackward0"
    else:
        return text
    return MAKER.sub(rf"\g<1>{as_told(name, text)}", text)


def _read_as(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


# --- the joint graph

def keep_apart(joint: fx.GraphModule, results: Sequence[fx.Node], names: Collection[Input | Result]) -> None:
    """Puts copies between the tensors that the program can reach and what the forward pass computes of them. results: what the
    graph returns. names: what eager mode saves."""
    graph = joint.graph
    leave_regions(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and not is_tangent(node)]
    written = {node.args[0]: node.args[1] for node in graph.nodes if node.target is aten.copy_.default}
    for place, node in enumerate(inputs):
        if node in written and Input(place) in names:
            _take_from_whole(graph, written[node])
    visible = {written.get(node, node): Input(place) in names for place, node in enumerate(inputs)}
    visible |= {origin(node): Result(place) in names for place, node in enumerate(results)}
    end = graph.output_node()
    end.args = fx.map_arg(end.args, lambda node: origin(node) if origin(node) in visible else node)
    _Separation(graph, {node: saved for node, saved in visible.items() if isinstance(node.meta.get("val"), Tensor)}).run()
    joint.recompile()


def _take_from_whole(graph: fx.Graph, written: fx.Node) -> None:
    """Has other users of a value that an input was assigned a view of take it from the input's final value, by undoing the view.
    Else a change of the input by `.data` would not reach them."""
    chain = [written]
    while _views_one(chain[0]):
        chain.insert(0, chain[0].args[0])
    others = [[user for user in node.users if user not in chain and user.op != "output"] for node in chain[:-1]]
    if not any(others):
        return
    for before, view in itertools.pairwise(chain):
        before.append(view)             # so that it stands before the others
    whole = written
    for node, view, users in reversed(list(zip(chain, chain[1:], others, strict=False))):
        with graph.inserting_after(whole):
            back = _viewed_back(graph, view, whole)
        back.meta = {**view.meta, "val": node.meta["val"]}
        node.replace_all_uses_with(back, delete_user_cb=users.__contains__)
        whole = back


def _views_one(node: fx.Node) -> bool:
    """Whether a node is a view, whatever its sizes are."""
    return isinstance(node.target, OpOverload) and node.target.is_view and isinstance(node.args[0], fx.Node)


def _viewed_back(graph: fx.Graph, view: fx.Node, whole: fx.Node) -> fx.Node:
    """`whole`, which is like `view`, in the shape of what that is a view of."""
    target, shape = view.target, tuple(view.args[0].meta["val"].shape)
    if target in OWN_INVERSES:
        return graph.call_function(target, (whole, *view.args[1:]))
    if target is aten.permute.default:
        dims = [dim % len(shape) for dim in view.args[1]]
        return graph.call_function(target, (whole, [dims.index(dim) for dim in range(len(dims))]))
    if target in RESHAPES and all(type(size) is int for size in shape):
        return graph.call_function(aten.view.default, (whole, list(shape)))
    raise Unsupported(f"an input was written to through a view made by {target}, which cannot be undone")


def leave_regions(graph: fx.Graph) -> None:
    """Has activation checkpoints recomputed only for the gradients of their own operations. All other operations take the values of
    the forward pass, which differ from recomputed ones if a tensor was written to since."""
    forward = [node for node in graph.nodes if "seq_nr" in node.meta and not is_backward(node)]
    outside = {node.meta["seq_nr"] for node in forward if "ac_graph_id" not in node.meta}
    regions = {node.meta["seq_nr"]: node.meta["ac_graph_id"] for node in forward if node.meta["seq_nr"] not in outside}

    def region(node: fx.Node) -> int | None:
        return regions.get(node.meta.get("seq_nr")) if is_backward(node) else node.meta.get("ac_graph_id")

    for node in list(graph.nodes):
        if is_recomputed(node) and (inside := {user for user in node.users if region(user) == region(node)}) != node.users.keys():
            if inside:
                with graph.inserting_after(node):
                    again = graph.node_copy(node)
                again.meta = dict(node.meta)
                node.replace_all_uses_with(again, delete_user_cb=inside.__contains__)
            node.meta["recompute"] = checkpoint.CheckpointPolicy.MUST_SAVE
            del node.meta["ac_graph_id"]


class _Separation:
    def __init__(self, graph: fx.Graph, visible: dict[fx.Node, bool]) -> None:
        self.graph, self.visible = graph, visible
        self.first = next(node for node in graph.nodes if node.op != "placeholder")
        self.copies: dict[fx.Node, fx.Node] = {}    # of visible nodes
        self.actual: dict[fx.Node, fx.Node] = {}    # of views of copies: as the backward pass takes them
        self.views: set[fx.Node] = set()            # views of visible nodes, made in the forward pass
        self.later_views: set[fx.Node] = set()      # and those that the backward pass makes of what it takes

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or is_write(node):
                continue
            seen = [arg for arg in node.all_input_nodes if arg in self.visible or arg in self.views or arg in self.later_views]
            if not seen:
                continue
            if is_backward(node) or is_recomputed(node):
                self._take_actual(node)
                if is_view(node):
                    self.later_views.add(node)
            else:
                node.args, node.kwargs = (fx.map_arg(value, lambda arg: self.copy(arg) if arg in self.visible else arg)
                                          for value in (node.args, node.kwargs))
                if is_view(node):
                    self.views.add(node)

    def _take_actual(self, node: fx.Node) -> None:
        found = {arg: self.now(arg) for arg in node.all_input_nodes}
        node.args, node.kwargs = (fx.map_arg(value, found.__getitem__) for value in (node.args, node.kwargs))
        if is_backward(node) and not is_view(node) and any(map(self._is_actual, found.values())):
            node.meta["partitioner_tag"] = "must_be_in_backward"

    def _is_actual(self, node: fx.Node) -> bool:
        while node not in self.visible and is_view(node):
            node = node.args[0]
        return node in self.visible

    def copy(self, node: fx.Node) -> fx.Node:
        """A visible tensor as it was in the forward pass."""
        if node not in self.copies:
            before = self.first if node.op == "placeholder" else node.next
            with self.graph.inserting_before(before):
                copy = self.copies[node] = self.graph.call_function(aten.clone.default, (node,))
            copy.meta = {"val": node.meta["val"].clone(), "recompute": checkpoint.CheckpointPolicy.MUST_SAVE, "copy": True,
                         "partitioner_tag": "must_be_in_forward"}
        return self.copies[node]

    def now(self, node: fx.Node) -> fx.Node:
        """What the backward pass takes for a node."""
        if node in self.visible:
            return node if self.visible[node] else self.copy(node)
        if node not in self.views:
            return node
        if node not in self.actual:
            below = self.now(node.args[0] if node.args[0] in self.views else self._uncopied(node.args[0]))
            with self.graph.inserting_after(node):
                self.actual[node] = self.graph.node_copy(node, lambda _: below)
            self.actual[node].meta = {**node.meta, "partitioner_tag": "is_backward"}
        return self.actual[node]

    def _uncopied(self, node: fx.Node) -> fx.Node:
        return next((seen for seen, copy in self.copies.items() if copy is node), node)


def is_backward(node: fx.Node) -> bool:
    """Whether a node of the joint graph is part of a formula for a gradient."""
    return node.meta.get("partitioner_tag") in BACKWARD


def is_recomputed(node: fx.Node) -> bool:
    """Whether a node is part of an activation checkpoint."""
    return node.meta.get("recompute") == checkpoint.CheckpointPolicy.MUST_RECOMPUTE


def origin(node: fx.Node) -> fx.Node:
    """What a node is another tensor for, on the same memory as a whole."""
    while node.target in ALIASES:
        node = node.args[0]
    return node


def drop_copies(forward: fx.GraphModule, saved: Collection[fx.Node]) -> None:
    """Drops the copies that are not saved."""
    for node in list(forward.graph.nodes):
        if "copy" in node.meta and node not in saved:
            node.replace_all_uses_with(node.args[0])
            forward.graph.erase_node(node)


