"""Casts that autocast keeps beyond a graph. In an autocast block torch casts a leaf that requires gradients once, and all
operations in the block use that cast, even if the leaf changes later. So a graph that is called inside of a block takes these casts
as further inputs, from torch's cache (`_C.cached_casts`)."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from capture import _C
from capture.backends.aot.aten import aten, storage_of, tensors_in
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported
from capture.backends.traceable import nodes_of


def cached(specs: Sequence[TensorSpec], modes: Modes) -> dict[int, torch.dtype]:
    """For each input whose cast autocast keeps when the graph is called, the dtype of that."""
    dtypes = dict(modes.autocast) if modes.autocast_cache else {}
    return {place: dtypes[specs[place].device.type] for place in weights_among(specs) if specs[place].device.type in dtypes}


def has_blocks(graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> bool:
    """Whether the graph enters autocast itself, and casts of its inputs may be kept."""
    return not cached(specs, modes) and bool(weights_among(specs)) and any(
        node.target is torch.set_autocast_enabled and node.args[-1] for node in nodes_of(graph))


def check(graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> None:
    """Raises Unsupported if the graph drops the casts that a block around it keeps, or adds to them others than that block makes:
    compiled code does neither."""
    if not modes.autocast and not modes.autocast_nesting:
        return
    dtypes = dict(modes.autocast) if cached(specs, modes) else {}
    for node in nodes_of(graph):
        if node.target is torch.clear_autocast_cache:
            raise Unsupported("the graph drops the casts that autocast keeps", node.meta.get("place"))
        if node.target is torch.set_autocast_dtype and dtypes.get(node.args[0], node.args[1]) != node.args[1]:
            raise Unsupported("the graph has an autocast block of another dtype than the one around it, which keeps its casts",
                              node.meta.get("place"))
    if modes.autocast_nesting and has_blocks(graph, specs, modes):
        raise Unsupported("the graph enters autocast in a block that is off, and keeps the casts of what lies in it")


def weights_among(specs: Sequence[TensorSpec]) -> list[int]:
    """Whose casts autocast keeps: leaves that are no views."""
    return [place for place, spec in enumerate(specs) if spec.dtype == torch.float32 and spec.requires_grad and spec.leaf
            and not spec.is_view_leaf]


@contextmanager
def observed(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec],
             modes: Modes) -> Iterator[set[int]]:
    """A context for running the graph on fake tensors: raises Unsupported if casts in the traced graph could not be told apart.
    Gives the inputs of which autocast keeps casts that were used, once the graph has run."""
    kept, used = cached(specs, modes), set[int]()
    if not kept and not has_blocks(graph, specs, modes):
        yield used
        return
    casts = _C.cached_casts(tuple(inputs), tuple(kept)) or ()       # which torch has cached from now on
    weights = [inputs[place] for place in (*kept, *(place for place in weights_among(specs) if place not in kept))]
    with Casts(weights, {storage_of(inputs[place]): dtype for place, dtype in kept.items()}, casts) as seen:
        yield used
    used |= {place for place, cast in zip(kept, casts, strict=False) if storage_of(cast) in seen.used}


class Casts(TorchDispatchMode):
    """Watches the casts that autocast keeps of some of a graph's inputs. Raises Unsupported if a cast is used after the graph has
    written to its weight, since compiled code would cast again there; and if the program itself casts a weight to the dtype in
    `dtypes`, since in a graph the two casts look alike. kept: casts that torch has already, for the first of the weights."""

    def __init__(self, weights: Sequence[torch.Tensor], dtypes: dict[StorageWeakRef, torch.dtype],
                 kept: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.weights, self.dtypes = {storage_of(weight): weight for weight in weights}, dtypes
        self.sources = {storage_of(cast): storage_of(weight) for cast, weight in zip(kept, weights, strict=False)}
        self.stale: set[StorageWeakRef] = set()         # casts of which the weight was written to
        self.used: set[StorageWeakRef] = set()          # what operators were given
        self.alive: list[torch.Tensor] = list(kept)     # of what has died another may have the storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = set(map(storage_of, tensors_in((args, kwargs))))
        self.used |= given & self.sources.keys()
        if given & self.stale:
            raise Unsupported("a cast that autocast keeps is used after its weight was written to")
        if func._schema.is_mutable:
            written = set(map(storage_of, _written(func, args, kwargs or {})))
            self.stale |= {cast for cast, weight in self.sources.items() if weight in written}
        source = args[1] if func is aten.copy_.default else args[0] if func is aten._to_copy.default else None
        if isinstance(source, torch.Tensor) and self.weights.get(storage_of(source)) is source:
            if "memory_format" in (kwargs or {}):           # one that was told apart (`written_casts.mark_others`)
                return result
            if self.dtypes.get(storage_of(source)) == result.dtype:
                raise Unsupported("a weight is cast inside of an autocast block, which keeps casts of its own")
            self.sources[storage_of(result)] = storage_of(source)
            self.alive.append(result)
        return result


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    arguments = func._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    return tensors_in([given.get(argument.name) for argument in arguments
                       if argument.alias_info is not None and argument.alias_info.is_write])


def keep_casts(joint: fx.GraphModule, places: dict[int, torch.dtype]) -> None:
    """Has the backward graph take the casts of the forward pass. Activation checkpoints cast again."""
    inputs = [node for node in joint.graph.nodes if node.op == "placeholder"]
    for place, dtype in places.items():
        for user in inputs[place].users:
            if _casts_to(user, dtype) and "recompute" not in user.meta:
                user.meta["recompute"] = checkpoint.CheckpointPolicy.MUST_SAVE


def cut(forward: fx.GraphModule, saved: list[fx.Node], values: Sequence[fx.Node | None], written: Sequence[fx.Node],
        places: dict[int, torch.dtype], used: Collection[int]) -> tuple[int, ...]:
    """Puts further inputs in the places of casts, also among `saved`; returns the inputs of which they are the casts. used: inputs
    whose casts eager mode uses, if only for what nobody reads: torch keeps them all the same."""
    graph = forward.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    found: list[int] = []
    last = inputs[-1] if inputs else None
    for place, dtype in places.items():
        casts = [node for node in graph.nodes if _casts_to(node, dtype) and _uncopied(node.args[0]) is inputs[place]]
        if not casts and place not in used:
            continue
        if inputs[place] in written or any(cast in values for cast in casts):
            raise Unsupported("a weight is written to, or its cast returned, inside of an autocast block, which keeps casts")
        with graph.inserting_after(last):
            last = graph.placeholder(f"cast_{place}")
        last.meta["val"] = inputs[place].meta["val"].to(dtype)
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
