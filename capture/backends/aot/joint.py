"""Runs AOTAutograd to get its graphs. The closures that would run them are discarded."""
from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import fx
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils import checkpoint

from capture.backends.aot.aten import aten, cloned, draws, is_random, merge_duplicates, outputs_of, random_operators
from capture.backends.aot.casts import keep_casts
from capture.backends.aot.formulas import eager_formulas
from capture.backends.aot.graphs_alone import graphs_alone, unwritten
from capture.backends.aot.inlined_backward import noting_seeds
from capture.backends.aot.inner import put_in
from capture.backends.aot.rematerialization import rematerialized
from capture.backends.aot.saving import keep_apart, origin
from capture.backends.aot.size_nodes import inline_sizes
from capture.backends.decompositions import decompositions
from capture.backends.native.signature import Input, Result, Unsupported

# Operators whose functional forms draw in another order than what they are the functional forms of, or with another method.
LAYOUT_MATTERS = frozenset({aten.bernoulli.p, aten.normal_functional.default})
# Outputs that share their memory with nothing that the program can reach.
OWN_TENSORS = frozenset({OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view})


class HasEffects(Unsupported):
    """Some operation has side effects; which one is not known."""


class Joint:
    """What AOTAutograd made of one graph: `forward`, which returns `values` and `saved`; `backward`; `metadata`. tangents: the
    values that have gradients, in the order in which `backward` takes these. drawn: the random operators that were run. kept: what
    eager mode saves of inputs and results, these numbered as the graph returns them. casts: inputs whose casts autocast keeps, with
    their dtypes. inner: how many of the last inputs stand for values that the graph returns at its end (`aot.inner`); in `forward`
    these inputs are the values."""

    forward: fx.GraphModule
    backward: fx.GraphModule | None = None
    metadata: Any
    values: list[fx.Node]
    saved: list[fx.Node]
    tangents: list[fx.Node]

    def __init__(self, kept: Collection[Input | Result] = (), casts: dict[int, Any] | None = None, inner: int = 0) -> None:
        self.kept = kept
        self.casts = casts or {}
        self.inner = inner
        self.drawn: Counter[Any] = Counter()
        self.tangents = []

    def trace(self, gm: fx.GraphModule, fakes: list[FakeTensor]) -> None:
        """Traces a graph on these inputs. Raises Unsupported, and whatever an operator raises on fake tensors."""
        context = TracingContext(fakes[0].fake_mode if fakes else FakeTensorMode())
        with (tracing(context), eager_formulas(), graphs_alone(), _use_lazy_graph_module(True),
              noting_seeds() as self.seeds):
            aot_module_simplified(gm, fakes, self._compile, partition_fn=self._partition, inference_compiler=self._compile_alone,
                                  decompositions=self._counting(decompositions()), keep_inference_input_mutations=True)
        self.metadata = context.fw_metadata
        if any(info.mutation_type == MutationType.MUTATED_OUT_GRAPH for info in self.metadata.input_info):
            raise Unsupported("an input that requires gradients is written to, or its shape, strides or storage changed")
        if self.metadata.tokens:
            raise HasEffects("the graph calls an operator with side effects")
        if any(info.output_type not in OWN_TENSORS for info in self.metadata.output_info):
            raise Unsupported("results share memory in a way that cannot be told")
        if self.inner and len(self.forward.graph.find_nodes(op="placeholder")) != len(fakes):
            raise Unsupported("tracing adds inputs, and results are computed from others")
        self._split()

    def _split(self) -> None:
        """Tells apart what the forward graph returns."""
        infos = self.metadata.output_info[:len(self.metadata.output_info) - self.inner]
        if self.inner:
            put_in(self.forward, len(infos), self.inner)
        returned = list(outputs_of(self.forward.graph))
        self.values, self.saved = list(map(origin, returned[:len(infos)])), returned[len(infos):]
        for i, value in enumerate(self.values):
            if value.op == "placeholder":      # a copy that was optimised away
                self.values[i] = cloned(self.forward, value)
        if self.backward:
            self.tangents = [v for v, info in zip(self.values, infos, strict=True) if is_differentiable(info)]

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        inline_sizes(gm)
        self.forward = gm
        return _never_called

    def _compile_alone(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Takes a graph without a backward graph."""
        inline_sizes(gm)
        merge_duplicates(gm.graph)
        self.forward = rematerialized(gm, self.seeds, self._least_traffic)
        return _never_called

    def _partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        inline_sizes(joint)
        keep_casts(joint, self.casts)
        keep_apart(joint, outputs_of(joint.graph)[:options["num_fwd_outputs"]], self.kept)
        merge_duplicates(joint.graph)
        forward, self.backward = self._least_traffic(joint, inputs, **options)
        return forward, self.backward

    def _least_traffic(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The partition of least memory traffic. What is random is saved."""
        for node in joint.graph.nodes:
            if is_random(node):
                node.meta["recompute"] = checkpoint.CheckpointPolicy.MUST_SAVE
        forward, backward = map(unwritten, min_cut_rematerialization_partition(joint, inputs, **options))
        return forward, backward

    def _counting(self, table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """The table, made to count the random operators that are run: tracing drops those of which nothing is used."""
        return {**table, **{op: functools.partial(self._count, op, table.get(op, _kept)) for op in random_operators()}}

    def _count(self, op: Any, decompose: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if draws(op, args, kwargs):
            self.drawn[op] += 1
        if op in LAYOUT_MATTERS and not args[0].is_contiguous():
            raise Unsupported("random numbers are drawn into a tensor that is not contiguous")
        return NotImplemented


def _kept(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _never_called(*args: Any) -> Any:
    raise AssertionError("what AOTAutograd returns is not used")


def is_differentiable(info: Any) -> bool:
    """Whether AOTAutograd made a tangent for an output. Versions of torch differ in how they tell."""
    return info.output_type in OWN_TENSORS and getattr(info, "requires_grad_for_backward", info.requires_grad)
