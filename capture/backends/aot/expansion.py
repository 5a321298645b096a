"""Operations with several results, one computed from another (`lstm_cell`), are replaced by the operations that they consist of:
then the autograd edges between the results are in the graph."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from capture.backends.aot.aten import storage_of
from capture.backends.aot.inlining import inline
from capture.backends.aot.observed import Eager, edge, edges_below
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported


def run_expanded(graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> Eager:
    """Eager mode's run of a graph in which such operations are expanded, if a result from which another one is computed is
    returned. Raises Unsupported for an operation that consists of nothing else."""
    eager = Eager.run(graph, specs, modes)
    while (node := _mixed(graph, eager)) is not None:
        _expand(graph, node, eager)
        eager = Eager.run(graph, specs, modes)
    return eager


def _mixed(graph: fx.GraphModule, eager: Eager) -> fx.Node | None:
    """The first such operation."""
    returned = set(map(storage_of, eager.outputs))
    for node in graph.graph.nodes:
        value = eager.values.get(node)
        if node.op == "output" or not isinstance(value, (tuple, list)):
            continue
        taken = {edge(eager.values[arg]) for arg in node.all_input_nodes if isinstance(eager.values[arg], Tensor)}
        made = [t for t in value if isinstance(t, Tensor) and t.grad_fn is not None and edge(t) not in taken]
        inner = [t for t in made if storage_of(t) in returned and (t._base is None or edge(t._base) not in taken)]
        if any(a is not b and _is_inner(a, b) for a, b in itertools.product(inner, made)):
            return node
    return None


def _is_inner(a: Tensor, b: Tensor) -> bool:
    """Whether `b` is computed from `a`, or from the tensor of which `a` is a view."""
    edges = edges_below(b) - {edge(b)}
    return edge(a) in edges or (a._base is not None and a._base is not b._base and edge(a._base) in edges)


def _expand(graph: fx.GraphModule, node: fx.Node, eager: Eager) -> None:
    if "region" in node.meta or any(user.target is not operator.getitem for user in node.users):
        raise Unsupported("an operation makes a result of another one")
    body = _body(node, eager)
    with graph.graph.inserting_before(node):
        made = inline(graph.graph, body, node.all_input_nodes)
    for user in list(node.users):
        user.replace_all_uses_with(made[user.args[1]])
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)
    graph.recompile()


def _body(node: fx.Node, eager: Eager) -> fx.GraphModule:
    """The operations of which an operation consists, as a graph. An operator that C++ composes is taken apart."""
    values = [eager.values[arg] for arg in node.all_input_nodes]

    def run(*given: Any) -> Any:
        args, kwargs = (fx.map_arg(value, dict(zip(node.all_input_nodes, given, strict=True)).__getitem__)
                        for value in (node.args, node.kwargs))
        return getattr(args[0], node.target)(*args[1:], **kwargs) if node.op == "call_method" else node.target(*args, **kwargs)
    table: dict[Any, Callable[..., Any]] = {}
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    while True:
        given = [value.detach() if isinstance(value, Tensor) else value for value in values]
        with mode:              # in which operators make tensors of numbers
            body = make_fx(run, table, pre_dispatch=True)(*given)
        calls = [one for one in body.graph.nodes if one.op == "call_function" and one.target is not operator.getitem]
        if len(calls) > 1:
            return body
        if not calls or not isinstance(calls[0].target, OpOverload) or calls[0].target in table:
            raise Unsupported("an operation makes a result of another one")
        table[calls[0].target] = calls[0].target.decompose
