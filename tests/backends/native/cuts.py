"""Has graphs run in pieces that could be compiled whole: as if some operations, drawn by lot, could not."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest import mock

from torch import fx

from capture.backends.native import piecewise, tiers


@contextmanager
def by_lot(seed: int, share: float = 0.25) -> Iterator[None]:
    """In a `with` block, so many of a graph's operations count as such that cannot be compiled."""
    random = Random(seed)

    def some(gm: fx.GraphModule) -> dict[fx.Node, str]:
        found = piecewise.apart(gm)
        return found | drawn(gm, random, share) if "modes" in gm.meta else found        # a graph, and no piece of one
    with mock.patch.object(tiers, "apart", some):
        yield


def drawn(gm: fx.GraphModule, random: Random, share: float = 0.25) -> dict[fx.Node, str]:
    """So many of its operations."""
    return {node: "is drawn by lot" for node in gm.graph.nodes
            if node.op in ("call_function", "call_method") and random.random() < share}
