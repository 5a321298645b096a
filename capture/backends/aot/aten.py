"""What nodes of ATen graphs do: draw random numbers, write, take views; and operations that are done twice."""
from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from capture.operators.schemas import Overload, tags_of

aten = torch.ops.aten
ALIASES = frozenset({aten.alias.default, aten.detach.default})      # another tensor on the same memory as a whole


@functools.cache
def random_operators() -> frozenset[OpOverload]:
    """ATen's operators that draw random numbers into new tensors, but for those that ATen composes of others."""
    names = (full.partition(".") for full in torch._C._dispatch_get_all_op_names() if full.startswith("aten::"))
    tagged = ((name, overload) for name, _, overload in names if not overload.endswith("out")
              and torch.Tag.nondeterministic_seeded in tags_of(name, overload))
    found = (getattr(getattr(aten, name.removeprefix("aten::")), overload or "default") for name, overload in tagged)
    return frozenset(op for op in found if not Overload(op._schema).is_in_place and not is_composed(op) and any(
        "Tensor" in str(value.type) for value in op._schema.returns))


def is_composed(op: OpOverload) -> bool:
    """Whether ATen composes an operator of others, also where gradients are computed."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def is_random(node: fx.Node) -> bool:
    """Whether a node of an ATen graph draws random numbers."""
    return isinstance(node.target, OpOverload) and draws(node.target, node.args, node.kwargs)


def draws(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers. Attention does only where it drops out."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = [argument.name for argument in op._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)) != 0.0


def is_write(node: fx.Node) -> bool:
    """Whether an operator writes to its arguments."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def is_view(node: fx.Node) -> bool:
    """Whether a node is a view of its first argument, and of that alone."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return isinstance(node.target, OpOverload) and node.target.is_view and len(node.all_input_nodes) == 1


def storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    """The identity of the storage of a tensor, with data or without."""
    return StorageWeakRef(tensor.untyped_storage())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def outputs_of(graph: fx.Graph) -> Sequence[fx.Node | None]:
    """What a graph returns."""
    return graph.output_node().args[0]


def cloned(forward: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A copy of an input as it is at the beginning."""
    with forward.graph.inserting_after(forward.graph.find_nodes(op="placeholder")[-1]):
        copy = forward.graph.call_function(aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Sizes and strides of the dimensions that are more than one element."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


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
    return type(argument), argument.node.expr if isinstance(argument, (torch.SymInt, torch.SymFloat)) else argument
