"""The cut of a network, beside networkx's."""
from __future__ import annotations

import math
from random import Random

import networkx
import pytest

from capture.backends.aot.min_cut import SINK, SOURCE, Network


def drawn(random: Random) -> list[tuple[int, int, float]]:
    """The edges of a network of up to ten vertices: some twice, some in circles, some that are never cut."""
    vertices = random.randint(2, 10)
    ends = [(random.randrange(vertices), random.randrange(vertices)) for _ in range(random.randint(1, 30))]
    return [(tail, head, math.inf if random.random() < 0.2 else random.choice((0, 1, 2, 5, 0.5))) for tail, head in ends]


def sides(edges: list[tuple[int, int, float]]) -> tuple[set[int] | None, set[int] | None]:
    """The sink's side by our cut and by networkx', which is that with the fewest vertices too; None if there is no cut."""
    network, graph = Network(), networkx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    for _ in range(8):
        graph.add_node(network.vertex())
    for tail, head, capacity in edges:
        network.edge(tail, head, capacity)
        if tail != head:
            known = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
            graph.add_edge(tail, head, capacity=known + capacity)
    try:
        theirs = networkx.minimum_cut(graph, SOURCE, SINK)[1][1]
    except networkx.NetworkXUnbounded:
        with pytest.raises(ValueError, match="cannot be cut"):
            network.sink_side()
        return None, None
    return network.sink_side(), theirs


def test_cuts() -> None:
    none = 0
    for number in range(400):
        ours, theirs = sides(drawn(Random(number)))
        assert ours == theirs, number
        none += ours is None
    assert 20 < none < 300


def test_a_long_chain() -> None:
    network = Network()
    last = SOURCE
    for _ in range(20_000):
        last, before = network.vertex(), last
        network.edge(before, last, 3)
    network.edge(last, SINK, 2)
    assert network.sink_side() == {SINK}
