"""What AOTAutograd does besides making graphs is left out while we trace, and then only."""
from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._decomp.decompositions_for_rng import PhiloxState
from torch._functorch import aot_autograd

from capture.backends.aot import trace
from capture.backends.aot.graphs_alone import INSTEAD
from capture.backends.native.signature import Unsupported


def graph(function) -> fx.GraphModule:
    made = fx.Graph()
    made.output((made.call_function(function, (made.placeholder("x"),)),))
    return fx.GraphModule(torch.nn.Module(), made)


@pytest.mark.parametrize("gradients", [False, True])
def test_no_generator_is_made_and_no_graph_is_written(gradients, monkeypatch):
    def unneeded(*args, **kwargs):
        raise AssertionError("this is not needed")
    gm = graph(torch.sigmoid)
    before = {name: getattr(aot_autograd, name) for name in INSTEAD}
    monkeypatch.setattr(PhiloxState, "reset", unneeded)
    monkeypatch.setattr(fx.GraphModule, "print_readable", unneeded)
    traced = trace(gm, [torch.ones(3, requires_grad=gradients)])
    assert [node.target for node in traced.forward.graph.nodes if node.op == "call_function"] == [torch.ops.aten.sigmoid.default]
    assert len(traced.graphs) == 1 + gradients
    assert {name: getattr(aot_autograd, name) for name in INSTEAD} == before


def test_others_have_all_of_it_after_an_error():
    before = {name: getattr(aot_autograd, name) for name in INSTEAD}
    with pytest.raises(Unsupported):
        trace(graph(torch.nonzero), [torch.ones(3)])
    assert {name: getattr(aot_autograd, name) for name in INSTEAD} == before
