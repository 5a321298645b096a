"""Graphs made of a captured one, to be run in its place."""
from __future__ import annotations

from torch import fx

from capture.operators.recorded_graph import RecordedGraph


def derived(gm: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module that runs `graph` as `gm` runs its own: with all that is done around it (gm.meta["around"]), such as to leave
    inference mode when an operation raises."""
    made = RecordedGraph(gm, graph)
    made.meta.update(gm.meta)
    around = gm.meta.get("around")
    if around is not None:
        made.forward = around(made)
    return made
