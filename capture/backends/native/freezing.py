"""What of a graph depends on parameters and buffers alone, cut off, so that it runs once and not in each call.

The *prologue* takes frozen inputs and returns *frozen values*; the graph that remains takes these as further inputs. `frozen.py`
runs the prologue again whenever a frozen input is another tensor, or has been written to.

Only inference is frozen: in training the parameters change in every step.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from capture.backends.native.folding import fold_affine
from capture.backends.native.job import TensorSpec
from capture.backends.native.layouts import use_channels_last
from capture.backends.native.nodes import insert_call, takes_sizes
from capture.backends.native.packing import pack_weights
from capture.backends.native.pixelwise import use_products

aten = torch.ops.aten
COUNTED = torch._C.DispatchKey.ADInplaceOrView      # the key of tensors that have a version
LONGEST = 1 << 16       # elements of a vector


@dataclass(frozen=True, slots=True)
class Prologue:
    """`graph` takes the inputs whose numbers are `frozen`. The rest of the graph takes the inputs `kept`, and then the results of
    `graph`."""

    graph: fx.GraphModule
    frozen: tuple[int, ...]
    kept: tuple[int, ...]


def freeze(gm: fx.GraphModule, inputs: Sequence[TensorSpec], written: Collection[int]) -> Prologue | None:
    """Folds, packs and cuts off the part that depends on the state of modules alone. written: the inputs that `gm` writes to. `gm`,
    an ATen graph without gradients, becomes the rest. If there is no such part, returns None and changes nothing but layouts."""
    frozen = {number for number, spec in enumerate(inputs) if is_frozen(spec) and number not in written}
    fixed = Fixed(gm.graph, frozen)
    fold_affine(gm, fixed)
    use_channels_last(gm, lambda node: True)
    use_products(gm)
    pack_weights(gm, fixed)
    return _cut(gm, fixed)


def is_frozen(spec: TensorSpec) -> bool:
    """Whether an input is part of a module's state, and a change of it can be recognised quickly. That takes a version counter,
    which tensors of inference mode do not have. Vectors are compared by value as well, since batch normalisation does not count its
    writes to its statistics: they must be on the CPU and not too long."""
    if not spec.state or spec.layout != torch.strided or not torch._C.DispatchKeySet.from_raw_repr(spec.keys).has(COUNTED):
        return False
    return len(spec.shape) > 1 or spec.device.type == "cpu" and spec.stride in ((), (1,)) and math.prod(spec.shape) <= LONGEST


class Fixed:
    """Which nodes have the same value in every call: `frozen` ones depend on frozen inputs, the other ones on no input at all."""

    def __init__(self, graph: fx.Graph, inputs: Collection[int]) -> None:
        self._known: dict[fx.Node, bool] = {}
        self.frozen: set[fx.Node] = set()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(placeholders):
            self._known[node] = number in inputs
        self.frozen.update(node for node in placeholders if self._known[node])

    def exclude(self, node: fx.Node) -> None:
        """Lets a node be computed in each call."""
        self._known[node] = False

    def __contains__(self, node: object) -> bool:
        """Whether a node is fixed. Nodes made later count as well."""
        if not isinstance(node, fx.Node):
            return False
        stack = [node]
        while stack:
            top = stack[-1]
            missing = []
            if top not in self._known and _repeatable(top):
                missing = [n for n in top.all_input_nodes if n not in self._known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if top not in self._known:
                self._known[top] = _repeatable(top) and all(self._known[n] for n in top.all_input_nodes)
                if self._known[top] and not self.frozen.isdisjoint(top.all_input_nodes):
                    self.frozen.add(top)
        return self._known[node]


def _repeatable(node: fx.Node) -> bool:
    """Whether a node's result follows from its tensors and constants alone, and not from sizes that change, for example."""
    if node.target is operator.getitem:
        return True
    return (node.op == "call_function" and isinstance(node.target, OpOverload) and not node.target._schema.is_mutable
            and torch.Tag.nondeterministic_seeded not in node.target.tags and not takes_sizes(node))


def _cut(gm: fx.GraphModule, fixed: Fixed) -> Prologue | None:
    graph = gm.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    for node in [n for n in output.all_input_nodes if n in fixed and n in fixed.frozen]:    # a result is a new tensor in each call
        copy = insert_call(output, aten.clone.default, node)
        output.replace_input_with(node, copy)
        fixed.exclude(copy)
    edge = [node for node in graph.nodes if _is_edge(node, fixed)]
    if not edge:
        return None
    body = fx.Graph()
    needed = _ancestors(edge)
    copies: dict[fx.Node, fx.Node] = {}
    frozen = tuple(number for number, node in enumerate(placeholders) if node in needed)
    for node in graph.nodes:
        if node in needed:
            copies[node] = body.node_copy(node, copies.__getitem__)
    body.output(tuple(copies[node] for node in edge))
    last = placeholders[-1]
    for node in edge:
        with graph.inserting_after(last):
            last = graph.placeholder(f"frozen_{node.name}")
        last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(last)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or not _repeatable(node))
    kept = []
    for number, node in enumerate(placeholders):
        if number in frozen and not node.users:
            graph.erase_node(node)
        else:
            kept.append(number)
    gm.recompile()
    return Prologue(fx.GraphModule({}, body), frozen, tuple(kept))


def _is_edge(node: fx.Node, fixed: Fixed) -> bool:
    """Whether the rest of the graph reads a value of the prologue here. Views cost nothing where they are read, so that their bases
    are the edge."""
    if node.op == "placeholder" or node not in fixed or node not in fixed.frozen or _stays(node):
        return False
    return any(user not in fixed or _stays(user) and _is_read(user, fixed) for user in node.users)


def _stays(node: fx.Node) -> bool:
    """A view, or the tuple that an operator returns."""
    return isinstance(node.target, OpOverload) and node.target.is_view or isinstance(node.meta.get("val"), (tuple, list))


def _is_read(view: fx.Node, fixed: Fixed) -> bool:
    return any(user not in fixed or _stays(user) and _is_read(user, fixed) for user in view.users)


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found = set(nodes)
    stack = list(nodes)
    while stack:
        new = [node for node in stack.pop().all_input_nodes if node not in found]
        found.update(new)
        stack += new
    return found
