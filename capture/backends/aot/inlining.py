"""Prepares the torch-level graph for AOTAutograd: regions are inlined, each output occurs once, and operations that it cannot trace
are replaced."""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import checkpoint

from capture.backends.native.signature import Unsupported
from capture.backends.traceable import mode_switch, obstacle, program_code


@dataclass(frozen=True, slots=True)
class Region:
    """An activation checkpoint that is in no other one. own: the tensors that it was given, which it saves."""

    number: int
    own: tuple[fx.Node, ...]


def prepared(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """A copy of `gm` with checkpointed regions inlined, every output once; and for each output of `gm` which of them it is."""
    graph = fx.Graph()
    returned = inline(graph, gm, [graph.placeholder(n.name) for n in gm.graph.nodes if n.op == "placeholder"])
    distinct = list(dict.fromkeys(returned))
    graph.output(tuple(distinct))
    return _LazyGraphModule({}, graph), [distinct.index(node) for node in returned]


def inline(graph: fx.Graph, gm: fx.GraphModule, arguments: Sequence[fx.Node], region: Region | None = None,
           place: int | None = None) -> Sequence[fx.Node]:
    """Copies the nodes of `gm` to `graph` and returns its outputs there. region: the checkpoint that they are part of. place: of
    the node which they stand for."""
    copies: dict[fx.Node, Any] = {}
    placeholders = iter(arguments)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(placeholders)
        elif node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        elif node.op == "get_attr" and isinstance(getattr(gm, node.target), fx.GraphModule):
            copies[node] = getattr(gm, node.target)
        elif node.target is functools.partial:
            copies[node] = fx.map_arg(node.args, copies.__getitem__)
        elif node.target is checkpoint.checkpoint:
            function, *own = fx.map_arg(node.args, copies.__getitem__)
            body, *bound = function if isinstance(function, tuple) else (function,)
            if node.kwargs.get("use_reentrant") is not False or node.kwargs.get("preserve_rng_state", True) is not True:
                raise Unsupported("a checkpoint that is reentrant or does not preserve the random state")
            inner = Region(len(graph.nodes), tuple(arg for arg in own if isinstance(arg, fx.Node))) if region is None else region
            copies[node] = inline(graph, body, (*bound, *own), inner, node.meta.get("place", place))
        elif is_repetition(node):
            copies[node] = fx.map_arg(node.args, copies.__getitem__)
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], tuple):
            copies[node] = copies[node.args[0]][node.args[1]]
        else:
            _check_portable(node)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            _call(copies[node], MEANT.get(node.target, node.target))
            if node.args and is_repetition(node.args[0]):
                copies[node].target = JOINED[node.target]
            copies[node].meta = {name: node.meta.get(name, ()) for name in ("writes", "orders", "dtypes")}
            copies[node].meta["place"] = node.meta.get("place", place)
            if region is not None:
                copies[node].meta |= {"recompute": checkpoint.CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": region.number,
                                      "region": region}
    raise AssertionError("a graph without output")


def _one_hot(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`one_hot`, which compares and so accepts every index where it is traced."""
    zeros = torch.zeros((*index.shape, num_classes), dtype=torch.int64, device=index.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1)


def _fill_diagonal(tensor: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """`fill_diagonal_`, which names places in memory where it is traced. Only a diagonal that wraps around has to."""
    height, *others = tensor.shape
    if not others or len(others) > 1 and any(size != height for size in others) or wrap and height > others[0] + 1:
        return tensor.fill_diagonal_(fill_value, wrap)
    diagonal = tensor
    for last in range(len(others), 0, -1):
        diagonal = diagonal.diagonal(0, 0, last)
    diagonal.fill_(fill_value)
    return tensor


def _rrelu(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`rrelu`, whose result is contiguous whatever its input is."""
    def rrelu(input: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        result = function(input, *args, **options)
        return result if result is input else result.contiguous()
    return rrelu


def _max_pool1d(function: Callable[..., Any]) -> Callable[..., Any]:
    """`max_pool1d`, which on the processor returns a view of what two-dimensional pooling makes only where it finds the places of
    the maxima, too."""
    def max_pool1d(input: torch.Tensor, *args: Any, **options: Any) -> Any:
        result = function(input, *args, **options)
        finds_places = torch.is_grad_enabled() and input.requires_grad or input.device.type != "cpu" or isinstance(result, tuple)
        return result if finds_places else torch.ops.aten._unsafe_view.default(result, result.shape)
    return max_pool1d


def is_repetition(node: Any) -> bool:
    """Whether a node makes a list that repeats items: `[x] * n`."""
    return isinstance(node, fx.Node) and node.target is operator.mul and isinstance(node.args[0], list)


def _joined(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`stack`, `cat` or `tensor` of items that are repeated, of which a symbol says how often."""
    def joined(repeated: tuple[list[Any], int], *dim: int, **options: Any) -> torch.Tensor:
        items, times = repeated
        once, twice = function(items, *dim, **options), function(items * 2, *dim, **options)
        counts: list[int] = [1] * once.dim()
        counts[dim[0] if dim else options.get("dim", 0)] = times
        return once.repeat(counts).contiguous(memory_format=suggest_memory_format(twice))
    return joined


JOINED = {function: _joined(function) for function in (
    torch.stack, torch.cat, torch.concat, torch.concatenate, torch.tensor, torch.as_tensor)}
# Functions and methods that mean something else where they are traced (they forget to check their arguments, say), and what stands
# for them.
MEANT: dict[Any, Callable[..., Any]] = {
    torch.Tensor.fill_diagonal_: _fill_diagonal, "fill_diagonal_": _fill_diagonal,
    torch.nn.functional.one_hot: _one_hot,
    **{function: _max_pool1d(function) for function in (torch.nn.functional.max_pool1d, torch.max_pool1d)},
    torch.nn.functional.rrelu: _rrelu(torch.nn.functional.rrelu), torch.rrelu: _rrelu(torch.rrelu)}
STANDS_FOR = {ours: theirs for table in (MEANT, JOINED) for theirs, ours in table.items()}


def _call(node: fx.Node, target: Any) -> None:
    """Has a node that calls a function or a method call this one: methods have names."""
    if target != node.target:
        node.op, node.target = "call_method" if isinstance(target, str) else "call_function", target


def call_original(node: fx.Node) -> None:
    """Has a node call what the program called, in place of what stands for it."""
    repeated = node.target in JOINED.values()
    _call(node, STANDS_FOR.get(node.target, node.target))
    if repeated:
        with node.graph.inserting_before(node):
            node.update_arg(0, node.graph.call_function(operator.mul, node.args[0]))


def _check_portable(node: fx.Node) -> None:
    if node.op not in ("call_function", "call_method"):
        raise Unsupported(f"the graph has a node {node.op} {node.target}")
    found = obstacle(node) or program_code(node) or mode_switch(node)
    if found is not None:
        raise Unsupported(f"the graph {found}")
