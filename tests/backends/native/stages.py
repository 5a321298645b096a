"""Graphs taken through the stages of the compiler, and compared with eager mode after each: used by OpInfo's and by random ones."""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from capture import _C
from capture.backends.aot import Traced, trace
from capture.backends.aot.symbols import Symbols
from capture.backends.native.disk_cache import open_library
from capture.backends.native.evaluate import evaluate
from capture.backends.native.fusion import fuse
from capture.backends.native.ir import Batch, Kernel, Program, forget_interned
from capture.backends.native.job import TensorSpec
from capture.backends.native.lowering import lower
from capture.backends.native.memory import lasting, plan_layout, reuse_in_place
from capture.backends.native.plan import make_plan
from capture.backends.native.render import render
from capture.backends.native.runtime import make_callable
from capture.backends.native.targets import BY_NAME, PROCESSOR
from capture.backends.native.toolchain import find_compiler
from capture.backends.native.verify import verify
from capture.config import TARGET
from tests.helpers import seed

Plan = Callable[..., Sequence[Any]]
SEED = 42           # that of the OpInfos of random operators, which they set when they are called


def recorded(call: Callable[..., Any], args: Sequence[Any],
             kwargs: dict[str, Any] | None = None) -> tuple[fx.GraphModule, list[Tensor]]:
    """A torch-level graph that calls `call`, and the tensors among the arguments, which are its inputs. The tensors among the
    results are its results."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs or {}))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def run(*inputs: Tensor) -> list[Tensor]:
        given = iter(inputs)
        some_args, some_kwargs = pytree.tree_unflatten([next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        return [leaf for leaf in pytree.tree_leaves(call(*some_args, **some_kwargs)) if isinstance(leaf, Tensor)]

    with torch.no_grad():
        count = len(run(*map(copied, tensors)))
    graph = fx.Graph()
    results = graph.call_function(run, tuple(graph.placeholder(f"x{number}") for number in range(len(tensors))))
    graph.output(tuple(graph.call_function(operator.getitem, (results, number)) for number in range(count)))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


class Stages:
    """A graph as the stages make it: traced, lowered, fused. Raises Unsupported where the compiler leaves a graph to eager mode."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Tensor | TensorSpec], symbols: Symbols | None = None) -> None:
        self.gm = gm
        self.traced: Traced = trace(gm, inputs, symbols=symbols)
        self.graphs = self.traced.graphs
        self.lowered = [lower(graph) for graph in self.graphs]
        for program in self.lowered:
            verify(program)

    def fused(self) -> list[Program]:
        """The programs with kernels in place of nests."""
        programs = [fuse(program).program for program in self.lowered]
        for program in programs:
            verify(program)
        return programs

    def callable(self, plans: Sequence[Plan]) -> Callable[..., tuple[Tensor, ...]]:
        """What stands for the graph, run by a plan for each program."""
        return behind_runtime(self.gm, self.traced, plans)


def behind_runtime(gm: fx.GraphModule, traced: Traced, plans: Sequence[Plan]) -> Callable[..., tuple[Tensor, ...]]:
    """What stands for a traced graph, run by a plan for each of `traced.graphs`."""
    backwards = [lambda arguments, certain, plan=plan: plan(*arguments) for plan in plans[1:]]
    backward = backwards if traced.segments else backwards[0] if backwards else None
    return make_callable(gm, traced.signature, plans[0], backward, tail=traced.tail, core=traced.core)


def evaluated(program: Program) -> Plan:
    """A plan that is run by the reference interpreter."""
    return lambda *arguments: tuple(evaluate(program, arguments))


def compare(gm: fx.GraphModule, compiled: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor],
            tolerances: dict[str, float] | None = None) -> None:
    """Asserts that results, inputs after the call and gradients are eager mode's: values, dtypes, and strides, but of gradients."""
    seen = []
    for function in (gm, compiled):
        own = [copied(tensor) for tensor in inputs]
        seed(SEED)
        results = list(function(*own))
        gradients = gradients_of(results, own)
        seen.append(([*results, *own], gradients))
    (theirs, their_gradients), (ours, our_gradients) = seen
    for a, b in zip(ours, theirs, strict=True):
        assert strides_that_matter(a) == strides_that_matter(b), f"strides {a.stride()} instead of {b.stride()}"
    assert [gradient is None for gradient in our_gradients] == [gradient is None for gradient in their_gradients]
    for a, b in zip([*ours, *our_gradients], [*theirs, *their_gradients], strict=True):
        if a is not None:
            torch.testing.assert_close(a.detach(), b.detach(), equal_nan=True, **(tolerances or {}))


def gradients_of(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of inputs, for gradients of the results that are the same in every run."""
    chosen = [tensor for tensor in results if tensor.requires_grad and tensor.grad_fn is not None]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not chosen or not wanted:
        return []
    generator = torch.Generator().manual_seed(19)
    tangents = [torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype) for tensor in chosen]
    return list(torch.autograd.grad(chosen, wanted, tangents, allow_unused=True))


def copied(tensor: Tensor) -> Tensor:
    """A tensor of its own memory, with the same strides (also those of an expanded tensor)."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    memory = tensor.detach().as_strided((span,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride()).requires_grad_(tensor.requires_grad)


def strides_that_matter(tensor: Tensor) -> list[int]:
    """Strides of dimensions with more than one element; of no dimension when there are no elements."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1] if tensor.numel() else []


def finished() -> None:
    """Lets go of the expressions of all programs so far."""
    forget_interned()


def compiled(programs: Sequence[Program]) -> list[Plan]:
    """Executors for fused programs, all of whose kernels, for the machine that CAPTURE_TARGET names, are in one library."""
    target = BY_NAME[TARGET.value] if TARGET.value else PROCESSOR
    renamed, functions = [], []
    for number, program in enumerate(programs):
        body = [replace(s, name=f"{s.name}_{number}") if isinstance(s, Kernel) else s for s in program.body]
        prepared = reuse_in_place(target.prepare(replace(program, body=body)))
        scheduled, own = target.schedule(prepared, lasting(prepared))
        renamed.append(scheduled)
        functions += own
    rendered = render(functions, target.dialect)
    library = open_library(find_compiler().compile(rendered.sources)) if rendered.sources else None
    plans = []
    for program in renamed:
        own = library if any(isinstance(s, (Batch, Kernel)) for s in program.body) else None
        plans.append(_C.Executor(make_plan(program, rendered, plan_layout(program)), own, list(program.constants.values())))
    return plans
