"""What AOTAutograd does besides making graphs is left out while we trace, and then only."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import fx, nn
from torch._decomp.decompositions_for_rng import PhiloxState

from capture.backends.aot import joint, trace
from capture.backends.aot.graphs_alone import INSTEAD
from capture.backends.aot.recorder import NotRecorded
from capture.backends.native.signature import Unsupported


def graph(function) -> fx.GraphModule:
    made = fx.Graph()
    made.output((made.call_function(function, (made.placeholder("x"),)),))
    return fx.GraphModule(torch.nn.Module(), made)


@pytest.fixture(autouse=True)
def nothing_is_recorded(monkeypatch):
    def record(*args):
        raise NotRecorded
    monkeypatch.setattr(joint, "record", record)


def replaced() -> list[object]:
    return [getattr(module, name) for module, name, _ in INSTEAD]


@pytest.mark.parametrize("gradients", [False, True])
def test_no_generator_is_made_and_no_graph_is_written(gradients, monkeypatch):
    def unneeded(*args, **kwargs):
        raise AssertionError("this is not needed")
    gm = graph(torch.sigmoid)
    before = replaced()
    monkeypatch.setattr(PhiloxState, "reset", unneeded)
    monkeypatch.setattr(fx.GraphModule, "print_readable", unneeded)
    traced = trace(gm, [torch.ones(3, requires_grad=gradients)])
    assert [node.target for node in traced.forward.graph.nodes if node.op == "call_function"] == [torch.ops.aten.sigmoid.default]
    assert len(traced.graphs) == 1 + gradients
    assert replaced() == before


def test_others_have_all_of_it_after_an_error():
    before = replaced()
    with pytest.raises(Unsupported):
        trace(graph(torch.nonzero), [torch.ones(3)])
    assert replaced() == before


def test_modules_are_called_as_ever():
    """Also where another thread traces one with torch.fx meanwhile."""
    call, seen = nn.Module.__call__, []

    def looks(x):
        with ThreadPoolExecutor(1) as pool:
            seen.append((nn.Module.__call__, pool.submit(fx.symbolic_trace, nn.Sequential(nn.ReLU())).result(60)))
        return torch.sigmoid(x)
    trace(graph(looks), [torch.ones(3, requires_grad=True)])
    assert seen and all(found is call for found, _ in seen)
    assert all([node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"] for _, traced in seen)
