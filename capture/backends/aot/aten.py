"""What nodes of ATen graphs do: draw random numbers, write, take views; and operations that are done twice."""
from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

aten = torch.ops.aten


@functools.cache
def random_packets() -> frozenset[Any]:
    """The operators that draw random numbers, in their functional forms."""
    names = ("bernoulli", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "multinomial",
             "normal", "normal_functional", "uniform", "exponential", "cauchy", "geometric", "log_normal", "random", "poisson",
             "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_functional",
             "native_dropout", "_fused_dropout")
    return frozenset(getattr(aten, name) for name in names if hasattr(aten, name))


def is_random(node: fx.Node) -> bool:
    """Whether a node of an ATen graph draws random numbers. Attention does only where it drops out."""
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return (node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)) != 0.0


def is_write(node: fx.Node) -> bool:
    """Whether an operator writes to its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_view(node: fx.Node) -> bool:
    """Whether a node is a view of its first argument, and of that alone."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and len(node.all_input_nodes) == 1


def storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    """The identity of the storage of a tensor, with data or without."""
    return StorageWeakRef(tensor.untyped_storage())


def outputs_of(graph: fx.Graph) -> Sequence[fx.Node | None]:
    """What a graph returns."""
    return graph.output_node().args[0]


def cloned(forward: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A copy of an input as it is at the beginning."""
    with forward.graph.inserting_after(forward.graph.find_nodes(op="placeholder")[-1]):
        copy = forward.graph.call_function(aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def clean(gm: fx.GraphModule) -> None:
    """Drops what is not needed for the output."""
    gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_random(node) or is_write(node))
    gm.recompile()


def merge_duplicates(graph: fx.Graph) -> None:
    """Replaces operations by earlier ones on the same arguments. Tensors that are returned stay separate ones."""
    returned = {storage_of(node.meta["val"]) for node in graph.output_node().all_input_nodes}
    known: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or is_random(node) or is_write(node):
            continue
        if isinstance(value, torch.Tensor) and storage_of(value) in returned:
            continue
        first = known.setdefault((node.target, _key(node.args), _key(node.kwargs), node.meta.get("ac_graph_id")), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(argument: Any) -> Any:
    """An argument as a key, by which 1, 1.0 and True differ."""
    if isinstance(argument, (tuple, list)):
        return tuple(map(_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in argument.items())
    return type(argument), argument
