"""The operations of a graph that take numbers which change from call to call, as small graphs of their own: what tracing makes of
the numbers shows there, at little cost."""
from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_aggregate

from capture.backends.aot.observed import Eager
from capture.backends.native.job import TensorSpec
from capture.backends.native.nodes import expected
from capture.backends.native.numbers import spec_of
from capture.backends.native.signature import Unsupported

Operation = tuple[fx.Node, Any, Any]        # and its arguments, positional and by name: tensors, and nodes where numbers are


def operations_alone(gm: fx.GraphModule, numbers: Mapping[fx.Node, type],
                     eager: Eager) -> Iterator[tuple[fx.GraphModule, list[TensorSpec], bool]]:
    """Graphs with a copy of each operation that takes `numbers`, of these types, on operands of its own; the specs of their inputs;
    whether gradients are enabled. Operations that differ only in which numbers they take are there once. eager: a run of `gm`, in
    which nodes have the same places. Raises Unsupported where an operation was taken apart."""
    ran = {node.meta["place"]: node for node in eager.values if "place" in node.meta}
    inputs = dict(zip(gm.graph.find_nodes(op="placeholder"), eager.inputs, strict=True))

    def same(node: fx.Node) -> fx.Node:
        if node.meta["place"] not in ran:
            raise Unsupported("a number is taken by an operation that was taken apart")
        return ran[node.meta["place"]]

    def operand(node: fx.Node) -> Any:
        return node if node in numbers else inputs[node] if node in inputs else eager.values[same(node)]

    def described(leaf: Any) -> Any:
        return _spec(leaf, False) if isinstance(leaf, Tensor) else numbers[leaf] if isinstance(leaf, fx.Node) else leaf
    found: dict[bool, dict[str, Operation]] = {False: {}, True: {}}
    for node in gm.graph.nodes:
        if not numbers.keys().isdisjoint(node.all_input_nodes):
            arguments = fx.map_arg((node.args, dict(node.kwargs)), operand)
            tensors = _tensors((arguments, eager.values[same(node)]))
            grad = eager.grad[same(node)] and any(tensor.requires_grad for tensor in tensors)
            key = f"{node.op} {node.target} {map_aggregate(arguments, described)}"
            found[grad].setdefault(key, (same(node), *arguments))
    for grad, operations in found.items():
        if operations:
            yield *_graph_of(list(operations.values()), numbers, eager, grad), grad


def _graph_of(operations: Sequence[Operation], numbers: Mapping[fx.Node, type], eager: Eager,
              grad: bool) -> tuple[fx.GraphModule, list[TensorSpec]]:
    graph = fx.Graph()
    specs: list[TensorSpec] = []

    def placeholder(leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, fx.Node)):
            specs.append(_spec(leaf, grad) if isinstance(leaf, Tensor) else spec_of(numbers[leaf]))
            return graph.placeholder(f"input_{len(specs)}")
        return expected(leaf) if isinstance(leaf, torch.SymInt) else leaf
    given = [map_aggregate(arguments, placeholder) for _, *arguments in operations]
    inputs = zip(list(graph.nodes), specs, strict=True)
    operands = {node: graph.call_method("clone", (node,)) for node, spec in inputs if not spec.number}
    results: list[fx.Node] = []
    for (node, *_), arguments in zip(operations, given, strict=True):
        args, kwargs = fx.map_arg(arguments, lambda arg: operands.get(arg, arg))
        call, value = graph.create_node(node.op, node.target, tuple(args), dict(kwargs)), eager.values[node]
        if isinstance(value, Tensor):
            results.append(call)
        elif isinstance(value, (list, tuple)):
            results += [graph.call_function(operator.getitem, (call, place)) for place in range(len(value))]
        else:                                   # it writes to an operand
            results += [arg for arg in call.all_input_nodes if arg in operands.values()]
    graph.output(tuple(results))
    return _LazyGraphModule({}, graph), specs


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_aggregate(values, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def _spec(tensor: Tensor, grad: bool) -> TensorSpec:
    """What an operation was told of an operand. grad: whether operands require gradients, if they may."""
    return TensorSpec(tuple(map(expected, tensor.shape)), tuple(map(expected, tensor.stride())), tensor.dtype, tensor.device,
                      tensor.layout, grad and (tensor.is_floating_point() or tensor.is_complex()), leaf=False, state=False,
                      keys=torch._C._dispatch_keys(tensor).raw_repr(), storage=None)
