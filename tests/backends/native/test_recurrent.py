"""Recurrent networks, traced and compiled: dropout between layers, states, gradients."""
from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn

import capture
from tests.backends.native.traced import check

SIZE, HIDDEN, LAYERS = 4, 5, 3


def network(kind: str, **options) -> nn.RNNBase:
    torch.manual_seed(3)
    name, _, nonlinearity = kind.partition("-")
    if nonlinearity:
        options["nonlinearity"] = nonlinearity
    return getattr(nn, name)(SIZE, HIDDEN, LAYERS, dropout=0.4, **options)


def recorded(net: nn.RNNBase, states: int) -> fx.GraphModule:
    """The graph of a call with an input, the initial states, and the weights."""
    graph = fx.Graph()
    x, *rest = (graph.placeholder(f"given_{i}") for i in range(1 + states + len(net._flat_weights)))
    given, weights = rest[:states], rest[states:]
    state = tuple(given) if states > 1 else given[0]
    result = graph.call_function(getattr(torch, net.mode.lower()), (
        x, state, weights, net.bias, LAYERS, net.dropout, True, net.bidirectional, net.batch_first))
    graph.output(tuple(graph.call_function(operator.getitem, (result, i)) for i in range(1 + states)))
    return fx.GraphModule({}, graph)


def compare(net: nn.RNNBase, needs: bool) -> None:
    width = net.proj_size or HIDDEN
    sizes = (width, HIDDEN) if net.mode == "LSTM" else (HIDDEN,)

    def make():
        torch.manual_seed(5)
        directions = 1 + net.bidirectional
        return [torch.randn(3, 3, SIZE).requires_grad_(needs), *(torch.randn(LAYERS * directions, 3, size) for size in sizes),
                *(value.detach().clone().requires_grad_() for value in net._flat_weights)]
    check(recorded(net, len(sizes)), make, 1e-5)


@pytest.mark.parametrize(("needs", "options"), [(False, {}), (True, {"bidirectional": True, "batch_first": True, "bias": False})],
                         ids=["plain", "both"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN-tanh", "RNN-relu"])
def test_dropout_between_layers(kind, options, needs):
    """Torch's own decompositions leave it out, and draw no random numbers."""
    compare(network(kind, **options), needs)


def test_projections():
    compare(network("LSTM", proj_size=3), False)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_training_draws_the_random_numbers_of_eager_mode(kind):
    """A whole network, compiled: inputs need no gradient, so that torch would call oneDNN's layer without one."""
    net = network(kind)
    compiled = capture.compile(net, backend="native", options={"background": False})
    for seed in range(4):
        found = []
        for module in (net, compiled):
            torch.manual_seed(seed)
            net.zero_grad()
            result = module(torch.randn(6, 2, SIZE))[0]
            result.square().sum().backward()
            found.append((result, torch.get_rng_state(), *(parameter.grad for parameter in net.parameters())))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert capture.stats(compiled).compiled == 1
