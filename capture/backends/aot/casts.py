"""Casts that autocast keeps beyond a graph. In an autocast block torch casts a leaf that requires gradients once, and all
operations in the block use that cast, even if the leaf changes later. So a graph that is called inside of a block takes these casts
as further inputs, from torch's cache (`_C.cached_casts`)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capture import _C
from capture.backends.aot.aten import aten
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported


def cached(specs: Sequence[TensorSpec], modes: Modes) -> dict[int, torch.dtype]:
    """For each input whose cast autocast keeps when the graph is called, the dtype of that."""
    dtypes = dict(modes.autocast) if modes.autocast_cache else {}
    return {place: dtypes[specs[place].device.type] for place in _weights(specs) if specs[place].device.type in dtypes}


def has_blocks(graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> bool:
    """Whether the graph enters autocast itself, and casts of its inputs may be kept."""
    graphs = [module.graph for module in graph.modules() if isinstance(module, fx.GraphModule)]
    return not cached(specs, modes) and bool(_weights(specs)) and any(
        node.target is torch.set_autocast_enabled for one in graphs for node in one.nodes)


def _weights(specs: Sequence[TensorSpec]) -> list[int]:
    return [place for place, spec in enumerate(specs) if spec.dtype == torch.float32 and spec.requires_grad and spec.leaf]


@contextmanager
def observed(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], modes: Modes) -> Iterator[None]:
    """While the graph runs on tensors without data: raises Unsupported where what is made of it would not tell casts apart."""
    kept = cached(specs, modes)
    if not kept and not has_blocks(graph, specs, modes):
        yield
        return
    casts = _C.cached_casts(tuple(inputs), tuple(kept)) or ()       # which torch has cached from now on
    with _Casts([inputs[place] for place in _weights(specs)], {id(inputs[place]): dtype for place, dtype in kept.items()},
                [(cast, id(inputs[place])) for place, cast in zip(kept, casts, strict=False)]):
        yield


class _Casts(TorchDispatchMode):
    """Looks for casts by the program itself of `weights` whose casts in these dtypes are kept: in a graph one looks like the other.
    And for casts that are used after the graph has written to the weight: there it would cast anew. kept: casts that torch has
    already, and of which weights."""

    def __init__(self, weights: Sequence[torch.Tensor], dtypes: dict[int, torch.dtype],
                 kept: Sequence[tuple[torch.Tensor, int]]) -> None:
        super().__init__()
        self.weights, self.dtypes = {id(weight) for weight in weights}, dtypes
        self.casts = {id(cast): (cast, source) for cast, source in kept}
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        taken = {id(arg) for arg in tree_leaves((args, kwargs)) if isinstance(arg, torch.Tensor)}
        if any(source in self.written for cast, (_, source) in self.casts.items() if cast in taken):
            raise Unsupported("a cast that autocast keeps is used after its weight was written to")
        if func._schema.is_mutable:
            self.written |= taken & self.weights
        source = args[1] if func is aten.copy_.default else args[0] if func is aten._to_copy.default else None
        if id(source) in self.weights:
            if self.dtypes.get(id(source)) == result.dtype:
                raise Unsupported("a weight is cast inside of an autocast block, which keeps casts of its own")
            self.casts[id(result)] = result, id(source)
        return result


def keep_casts(joint: fx.GraphModule, places: dict[int, torch.dtype]) -> None:
    """Has the backward graph take the casts of the forward pass. Activation checkpoints cast anew."""
    inputs = [node for node in joint.graph.nodes if node.op == "placeholder"]
    for place, dtype in places.items():
        for user in inputs[place].users:
            if _casts_to(user, dtype) and "recompute" not in user.meta:
                user.meta["recompute"] = checkpoint.CheckpointPolicy.MUST_SAVE


def cut(forward: fx.GraphModule, saved: list[fx.Node], values: Sequence[fx.Node | None], written: Sequence[fx.Node],
        places: dict[int, torch.dtype]) -> tuple[int, ...]:
    """Puts inputs in the places of casts, also among `saved`; returns of which inputs they are the casts."""
    graph = forward.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    found: list[int] = []
    last = inputs[-1] if inputs else None
    for place, dtype in places.items():
        casts = [node for node in graph.nodes if _casts_to(node, dtype) and _uncopied(node.args[0]) is inputs[place]]
        if not casts:
            continue
        if inputs[place] in written or any(cast in values for cast in casts):
            raise Unsupported("a weight is written to, or its cast returned, inside of an autocast block, which keeps casts")
        with graph.inserting_after(last):
            last = graph.placeholder(f"cast_{place}")
        last.meta["val"] = casts[0].meta["val"]
        for cast in casts:
            cast.replace_all_uses_with(last)
            saved[:] = [last if node is cast else node for node in saved]
            graph.erase_node(cast)
        found.append(place)
    return tuple(found)


def _uncopied(node: fx.Node) -> fx.Node:
    return node.args[0] if "copy" in node.meta else node


def _casts_to(node: fx.Node, dtype: torch.dtype) -> bool:
    return node.target is aten._to_copy.default and dict(node.kwargs) == {"dtype": dtype}
