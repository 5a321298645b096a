"""What is noted of the heap, and when no more is."""
from __future__ import annotations

import pytest

from capture.refgraph.node import Build, Const, Display, Expr
from capture.refgraph.source import Local
from tests.refgraph.world import World


def test_a_sealed_graph_takes_nothing_more() -> None:
    world = World(items=[1, 2])
    world.graph.seal()
    with pytest.raises(AssertionError, match="sealed"):
        world.graph.require(Local("items", 0), "LENGTH", 2)
    with pytest.raises(AssertionError, match="sealed"):
        world.graph.create([])


def test_the_parts_of_a_shadow() -> None:
    one, two = Const(1), Const(2)
    for shadow in (Expr(max, (one, two)), Build(tuple, (one, two)), Display(list, (one, two))):
        assert shadow.parts == (one, two)
    assert one.parts == World(items=[]).items.parts == ()
