"""Joint graphs as torch's AOTAutograd traces them. The closures that would run them are not used."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from capture.backends.aot.effects import HasEffects
from capture.backends.aot.graphs_alone import graphs_alone
from capture.backends.aot.inlined_backward import noting_seeds
from capture.backends.aot.recorder import JointGraph, check_dtypes
from capture.backends.native.signature import Unsupported

# Outputs that share their memory with nothing that the program can reach.
OWN_TENSORS = frozenset({OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view})


def trace_by_torch(gm: fx.GraphModule, inputs: Sequence[FakeTensor],
                   decompositions: Mapping[Any, Callable[..., Any]]) -> JointGraph:
    """As `recorder.record`. Raises Unsupported, and whatever an operator raises on fake tensors."""
    context = TracingContext(inputs[0].fake_mode if inputs else FakeTensorMode())
    made: list[fx.GraphModule] = []

    def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        graph = fx.Graph()
        graph.output(graph.graph_copy(joint.graph, {}))
        made.append(_LazyGraphModule(joint, graph))
        return default_partition(joint, inputs, **options)

    def compile(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made.append(graph)
        return _never_called
    with tracing(context), graphs_alone(), noting_seeds(_graph) as seeds:
        aot_module_simplified(_checking(gm), inputs, compile, partition_fn=partition, decompositions=decompositions,
                              keep_inference_input_mutations=True)
    metadata = context.fw_metadata
    if any(info.mutation_type == MutationType.MUTATED_OUT_GRAPH for info in metadata.input_info):
        raise Unsupported("an input that requires gradients is written to, or its shape, strides or storage changed")
    if metadata.tokens:
        raise HasEffects("the graph calls an operator with side effects")
    if any(info.output_type not in OWN_TENSORS for info in metadata.output_info):
        raise Unsupported("results share memory in a way that cannot be told")
    return JointGraph(made[0], tuple(info.mutates_data for info in metadata.input_info),
                      tuple(map(_is_differentiable, metadata.output_info)), seeds)


def _checking(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph, made to check the dtypes of its results where these are decomposed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    for node, copy in copies.items():
        if node.meta.get("dtypes"):
            with graph.inserting_after(copy):
                operation = str(getattr(node.target, "__name__", node.target))
                graph.call_function(_check, (copy, node.meta["dtypes"], operation, node.meta.get("place")))
    return fx.GraphModule(gm, graph)


def _check(made: Any, dtypes: tuple[tuple[int, str], ...], operation: str, place: int | None) -> None:
    if get_proxy_mode() is not None:        # before, AOTAutograd runs the graph as it is
        check_dtypes(made, dtypes, operation, place)


def _never_called(*args: Any) -> Any:
    raise AssertionError("what AOTAutograd returns is not used")


def _graph() -> fx.Graph | None:
    """What AOTAutograd is writing down."""
    mode = get_proxy_mode()
    return mode and mode.tracer.graph


def _is_differentiable(info: Any) -> bool:
    """Whether AOTAutograd made a tangent for an output. Versions of torch differ in how they tell."""
    return info.output_type in OWN_TENSORS and getattr(info, "requires_grad_for_backward", info.requires_grad)
