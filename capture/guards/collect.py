"""From what a trace requires of the entry state to guards."""
from __future__ import annotations

from capture.guards.guard import Guard, Kind
from capture.refgraph.graph import RefGraph


def collect(graph: RefGraph) -> list[Guard]:
    """The guards of a sealed graph: modes first, then in the order in which the trace met its dependencies.

    Raises KeyError for a requirement whose kind is not the name of a `Kind`.
    """
    guards = [Guard(source, Kind[kind], expected) for source, kind, expected in graph.requirements.values()]
    return sorted(guards, key=lambda guard: guard.kind is not Kind.MODES)
