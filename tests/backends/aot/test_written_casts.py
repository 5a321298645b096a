"""Where autocast is written out with transforms, the graph does what eager mode does, bit for bit, gradients too."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import capture
from capture.backends.aot import transforms
from capture.backends.aot.fakes import tracing_modes
from capture.backends.aot.symbols import Symbols
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.traceable import nodes_to_write_out
from capture.operators import paused_autocast
from tests.backends.native.autocast_programs import PROGRAMS, Program, after_a_cast, gradients_of, penalty, tensors, within

BLOCKS: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext, "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "uncached": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)}


def written_out(program: Program, given: Sequence[Tensor]) -> tuple[fx.GraphModule, fx.GraphModule, list[Tensor]]:
    """The graph of a program, as it is called and written out, and its inputs."""
    made: list[tuple[fx.GraphModule, list[Tensor], Modes]] = []

    def keep(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        made.append((gm, list(example_inputs), Modes.current()))
        return gm.forward
    keep.takes_backward = keep.takes_assignments = True      # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capture.backends.registry._is_autocast", lambda gm: False)       # casts are not to be its inputs
        compiled = capture.compile(program, backend=keep, fullgraph=True)
        compiled(*given)
        compiled(*given)
    (gm, inputs, modes), = made
    specs = Symbols().of(list(map(TensorSpec.of, inputs)))
    with tracing_modes(modes):
        made_of_it, _ = transforms.written_out(gm, specs, modes, {})
    assert not nodes_to_write_out(made_of_it.graph)
    return gm, made_of_it, inputs


def outcome(gm: fx.GraphModule, inputs: Sequence[Tensor], block: Callable[[], Any]) -> list[Any]:
    given = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    with block():
        results = pytree.tree_leaves(gm(*given))
    return [*results, *gradients_of(results, given)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_bits(program: Program, block: str) -> None:
    with BLOCKS[block]():
        gm, made, inputs = written_out(program if block != "none" else within(program), tensors())
    for found, expected in zip(outcome(made, inputs, BLOCKS[block]), outcome(gm, inputs, BLOCKS[block]), strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert (found.dtype, found.stride(), found.requires_grad) == (expected.dtype, expected.stride(), expected.requires_grad)
            assert torch.equal(found, expected)


@pytest.mark.parametrize(("program", "kept"), [(penalty, 3), (after_a_cast, 1)])
def test_casts_that_autocast_keeps(program: Program, kept: int) -> None:
    """Each is asked for once. In a level of torch.func's autocast keeps none."""
    _, made, _ = written_out(within(program), tensors())
    casts = made.graph.find_nodes(op="call_function", target=paused_autocast.kept_cast)
    assert len(casts) == len({node.args for node in casts}) == kept


def test_autocast_is_left_where_a_graph_cannot_be_written_out() -> None:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    graph.call_function(torch.set_autocast_enabled, ("cpu", True))
    graph.call_function(torch.autocast_increment_nesting)
    graph.call_function(torch._C._functorch._vmap_increment_nesting, (5, "error"))
    batch = graph.call_function(torch._C._functorch._add_batch_dim, (x, 0, 1))
    graph.call_function(torch.nonzero, (graph.call_function(torch.matmul, (batch, w)),))
    graph.call_function(torch._C._functorch._vmap_decrement_nesting)
    graph.output(())
    before = capture._C.modes()
    with pytest.raises(RuntimeError, match="nonzero"):
        transforms.written_out(fx.GraphModule({}, graph), list(map(TensorSpec.of, tensors()[:2])), Modes.current(), {})
    assert capture._C.modes() == before
