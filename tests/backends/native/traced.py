"""A program in two worlds: as eager mode runs it, and traced, its ATen graphs run behind the runtime's callable."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from capture.backends.aot import Traced, trace
from capture.backends.native.job import TensorSpec
from capture.backends.native.partial_backward import WithNumbers
from capture.backends.native.runtime import make_callable

Inputs = Callable[[], Sequence[Tensor]]


@dataclass
class Worlds:
    """The graph of a program, what it was traced to, and the callable made of that."""

    gm: fx.GraphModule
    traced: Traced
    compiled: Callable[..., tuple[Tensor, ...]]


def specs(inputs: Sequence[Tensor]) -> list[TensorSpec]:
    """The specs of inputs, with their storages numbered."""
    storages: dict[int, int] = {}
    return [TensorSpec.of(t, storage=(storages.setdefault(t.untyped_storage()._cdata, len(storages)),
                                      t.storage_offset() * t.element_size())) for t in inputs]


def fx_forward(gm: fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """A traced ATen graph, run by torch, as `make_callable` takes it."""
    graph: Any = gm
    if any(is_symbolic(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")):
        graph = WithSizes(gm)
    elif any("number" in node.meta for node in gm.graph.nodes):
        graph = WithNumbers(gm)

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowADInplaceOrView():
            return graph.run(*arguments) if graph is not gm else gm.forward(*arguments)
    return run


def is_symbolic(value: Any) -> bool:
    """Whether what is known of an argument names a size that changes."""
    sizes = value.shape if isinstance(value, Tensor) else [value]
    return any(isinstance(size, torch.SymInt) for size in sizes)


class WithSizes(WithNumbers):
    """Runs a graph for all sizes, with those that its arguments have."""

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.sizes: dict[Any, int] = {}
        for node, argument in zip(self.module.graph.find_nodes(op="placeholder"), arguments, strict=True):
            value = node.meta["val"]
            known = zip(value.shape, argument.shape, strict=True) if isinstance(value, Tensor) else [(value, argument)]
            self.sizes |= {size.node.expr: number for size, number in known
                           if isinstance(size, torch.SymInt) and size.node.expr.is_symbol}
        return super().run(*arguments, **options)

    def map_nodes_to_values(self, args: Any, n: fx.Node) -> Any:
        def value(one: Any) -> Any:
            if isinstance(one, (torch.SymInt, torch.SymFloat)):
                return (int if isinstance(one, torch.SymInt) else float)(one.node.expr.subs(self.sizes))
            return self.env[one] if isinstance(one, fx.Node) else one
        return fx.node.map_aggregate(args, value)


def fx_backward(gm: fx.GraphModule) -> Callable[[list[Tensor], bool], tuple[Tensor, ...]]:
    """The same for a backward graph."""
    run = fx_forward(gm)
    return lambda arguments, certain: run(*arguments)


def worlds(program: Callable[..., Any] | fx.GraphModule, inputs: Sequence[Tensor]) -> Worlds:
    """Traces a program under the modes in force."""
    gm = program if isinstance(program, fx.GraphModule) else fx.symbolic_trace(program)
    traced = trace(gm, specs(inputs))
    return Worlds(gm, traced, fx_callable(gm, traced))


def fx_callable(gm: fx.GraphModule, traced: Traced) -> Callable[..., tuple[Tensor, ...]]:
    """What was traced, behind the runtime's callable."""
    segments = [fx_backward(segment) for segment in traced.segments]
    backward = fx_backward(traced.backward) if traced.backward else segments or None
    return make_callable(gm, traced.signature, fx_forward(traced.forward), backward, tail=traced.tail, core=traced.core)


def check(program: Callable[..., Any] | fx.GraphModule, inputs: Inputs, tolerance: float = 0.0) -> Worlds:
    """Asserts that both worlds agree on everything that can be observed of a call and its backward pass, twice.

    inputs: makes the same tensors each time that it is called.
    """
    both = worlds(program, inputs())
    for _ in range(2):
        ours, theirs = inputs(), inputs()
        torch.manual_seed(3)
        expected, state = both.gm.forward(*theirs), torch.get_rng_state()
        torch.manual_seed(3)
        actual = both.compiled(*ours)
        assert torch.equal(state, torch.get_rng_state()), "the generators differ"
        assert [t.is_inference() or t._version for t in ours] == [t.is_inference() or t._version for t in theirs]
        agree([*ours, *actual], [*theirs, *expected], tolerance)
        gradients_agree(actual, expected, ours, theirs, tolerance)
    return both


def agree(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float = 0.0) -> None:
    """Asserts that tensors are the same in value, layout, aliasing, identity and what autograd knows of them."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True)
        known = [(t.requires_grad, t.is_leaf, t.grad_fn is None, t.is_inference(), t.is_inference() or t._version, *layout(t),
                  t._base is None or layout(t._base)) for t in (a, b)]
        assert known[0] == known[1], known
    assert relations(ours) == relations(theirs)


def layout(t: Tensor) -> tuple[Any, ...]:
    """Where the elements of a tensor are."""
    return t.shape, t.stride(), t.storage_offset()


def relations(tensors: Sequence[Tensor]) -> list[tuple[bool, bool, bool]]:
    """For each pair: whether they are one object, share memory, and are views of one another for autograd."""
    def base(t: Tensor) -> int:
        return id(t if t._base is None else t._base)
    return [(a is b, a.untyped_storage()._cdata == b.untyped_storage()._cdata, base(a) == base(b))
            for i, a in enumerate(tensors) for b in tensors[:i]]


def gradients_agree(ours: Sequence[Tensor], theirs: Sequence[Tensor], our_inputs: Sequence[Tensor], their_inputs: Sequence[Tensor],
                    tolerance: float = 0.0) -> None:
    """Asserts that the gradients of all inputs are the same, for random gradients of the outputs."""
    gradients = []
    for outputs, inputs in ((ours, our_inputs), (theirs, their_inputs)):
        chosen = [t for t in outputs if t.requires_grad and t.grad_fn is not None]
        generator = torch.Generator().manual_seed(5)
        tangents = [torch.randn(t.shape, dtype=torch.float64, generator=generator).to(t.dtype) for t in chosen]
        wanted = [t for t in inputs if t.requires_grad]
        gradients.append(torch.autograd.grad(chosen, wanted, tangents, allow_unused=True) if chosen else [])
    assert [g is None for g in gradients[0]] == [g is None for g in gradients[1]]
    for a, b in zip(*gradients, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
