"""From what a trace requires of the entry state to guards."""
from __future__ import annotations

from capture.guards.guard import Guard, Kind
from capture.refgraph.graph import RefGraph
from capture.refgraph.lookup import can_change_class
from capture.refgraph.source import Item


def collect(graph: RefGraph) -> list[Guard]:
    """The guards of a sealed graph: modes first, then in the order in which the trace met its dependencies. What
    another guard implies is left out.

    Raises KeyError for a requirement whose kind is not the name of a `Kind`.
    """
    guards = [Guard(source, Kind[kind], expected, graph.places.get(key))
              for key, (source, kind, expected) in graph.requirements.items()]
    pinned = {guard.source for guard in guards if guard.kind is Kind.ID and not can_change_class(type(guard.expected))}
    same = {guard.source for guard in guards if guard.kind is Kind.ID}
    reached = {(guard.source.base, guard.source.key) for guard in guards if isinstance(guard.source, Item)}
    guards = [guard for guard in guards
              if not (guard.kind is Kind.TYPE and guard.source in pinned)
              and not (guard.kind is Kind.ALIAS and guard.source in same)
              and not (guard.kind is Kind.PRESENT and (guard.source, guard.expected) in reached)]
    return sorted(guards, key=lambda guard: guard.kind is not Kind.MODES)
