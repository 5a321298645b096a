"""What is kept for the backward pass: the same as torch's partition keeps, whose method and rules these are."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import capture
from capture.backends.aot import joint
from capture.backends.aot.aten import is_random, outputs_of
from capture.backends.aot.partition import partition
from capture.backends.native.signature import Unsupported
from capture.torch_versions import VERSION
from tests.backends.native.random_programs import draw
from tests.backends.native.stages import recorded
from tests.backends.native.traced import worlds

Compared = list[tuple[Any, Any]]


def text_of(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """A graph's nodes, called by their places in the joint graph."""
    def name(node: fx.Node) -> str:
        return f"%{node.meta.get('place')}"
    return [(node.op, name(node), node.op == "call_function" and str(node.target), str(fx.map_arg((node.args, node.kwargs), name)))
            for node in graph.nodes]


def by_torch(graph: fx.Graph, results: int) -> tuple[fx.Graph, fx.Graph]:
    """torch's partition of a copy, in which what is random is kept, as ours does by itself."""
    copy, copies = fx.Graph(), {}
    for node in graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
        copies[node].meta = dict(node.meta)
        if is_random(node):
            copies[node].meta["recompute"] = CheckpointPolicy.MUST_SAVE
    divided = min_cut_rematerialization_partition(_LazyGraphModule({}, copy), (), num_fwd_outputs=results)
    return divided[0].graph, divided[1].graph


def compare(gm: fx.GraphModule, inputs: Sequence[Tensor], monkeypatch: pytest.MonkeyPatch) -> Compared:
    """The texts of both graphs, ours and torch's, for each partition made of a graph."""
    found: Compared = []

    def both(graph: fx.Graph, results: int) -> tuple[fx.Graph, fx.Graph]:
        for place, node in enumerate(graph.nodes):
            node.meta["place"] = place
        theirs = by_torch(graph, results)
        ours = partition(graph, results)
        found.extend(zip(map(text_of, ours), map(text_of, theirs), strict=True))
        return ours
    with monkeypatch.context() as patch:
        patch.setattr(joint, "partition", both)
        worlds(gm, list(inputs))
    return found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        return x + self.out(F.dropout(scores, 0.1) @ v)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return F.max_pool2d(x + F.gelu(self.second(x)), 2).mean((2, 3))


def chain(x: Tensor) -> Tensor:
    """Operations that could all be one kernel, with long ways between some and what reads them."""
    first, y = x.sin(), x
    for _ in range(60):
        y = (y * 1.01).tanh()
    return torch.cat((y, first + y.sum(0), F.softmax(first, -1)))


MODELS: list[tuple[Callable[[], Callable[..., Any]], tuple[int, ...]]] = [
    (lambda: nn.Sequential(Attention(), Attention(), nn.GELU(), nn.Linear(16, 4)), (2, 6, 16)),
    (Convolutions, (2, 3, 12, 12)),
    (lambda: chain, (4, 8))]


@pytest.mark.skipif(VERSION != (2, 13), reason="rules differ in other versions of torch")
@pytest.mark.parametrize("make, shape", MODELS, ids=["attention", "convolutions", "chain"])
def test_models(make, shape, monkeypatch) -> None:
    torch.manual_seed(0)
    model = make()
    parameters = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), x) if parameters else model(x)
    gm, inputs = recorded(call, [torch.randn(shape, requires_grad=True), *parameters.values()])
    found = compare(gm, inputs, monkeypatch)
    assert found
    for ours, theirs in found:
        assert ours == theirs


def first(x: Tensor) -> Tensor:
    return F.dropout(x.tanh() * 2, 0.5).sin()


def second(x: Tensor) -> Tensor:
    return x.topk(3)[0].exp().cumsum(-1) * x[:, :3]


def in_turn(x: Tensor) -> Tensor:
    return checkpoint(second, checkpoint(first, x, use_reentrant=False), use_reentrant=False)


def side_by_side(x: Tensor) -> tuple[Tensor, Tensor]:
    return checkpoint(first, x, use_reentrant=False), checkpoint(second, x, use_reentrant=False) @ x[:3, :2]


@pytest.mark.skipif(VERSION != (2, 13), reason="rules differ in other versions of torch")
@pytest.mark.parametrize("program", [in_turn, side_by_side], ids=lambda program: program.__name__)
def test_checkpoints(program, monkeypatch) -> None:
    graphs: list[tuple[fx.GraphModule, Sequence[Tensor]]] = []

    def note(gm: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        graphs.append((gm, inputs))
        return gm
    capture.compile(program, backend=note)(torch.randn(4, 8, requires_grad=True))
    for gm, inputs in graphs:
        found = compare(gm, inputs, monkeypatch)
        assert any("tanh" in str(ours) for ours, _ in found[1::2])           # the backward pass computes it again
        for ours, theirs in found:
            assert ours == theirs


def test_what_is_drawn_in_a_checkpoint_in_two_parts() -> None:
    """`rrelu` returns its noise beside its result."""
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))

    @capture.compile(backend="native")
    def compiled(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda x: F.rrelu(x @ w, training=True).sin(), x, use_reentrant=False)
    compiled(x, w)
    capture.wait()
    assert "all compiled" in str(capture.explain(compiled, x, w))


@pytest.mark.skipif(VERSION != (2, 13), reason="rules differ in other versions of torch")
def test_random_programs(monkeypatch) -> None:
    found: Compared = []
    for number in range(30):
        program = draw(Random(number), mutations=False)
        gm, inputs = recorded(program.function, program.inputs)
        with contextlib.suppress(Unsupported):
            found += compare(gm, [tensor.requires_grad_(tensor.is_floating_point()) for tensor in inputs], monkeypatch)
    assert len(found) > 30
    for ours, theirs in found:
        assert ours == theirs


def test_what_the_backward_pass_does_not_read_is_not_kept(monkeypatch) -> None:
    made: list[tuple[fx.Graph, fx.Graph]] = []

    def noted(graph: fx.Graph, results: int) -> tuple[fx.Graph, fx.Graph]:
        made.append(partition(graph, results))
        return made[-1]
    monkeypatch.setattr(joint, "partition", noted)
    x = torch.randn(4, 4, requires_grad=True)
    gm, inputs = recorded(lambda x: (x * 2 + 1).sum(), [x])
    worlds(gm, inputs)
    [(forward, backward)] = made
    assert len(outputs_of(forward)) == 1
    assert [node.name for node in backward.find_nodes(op="placeholder")] == ["tangents_1"]
