"""From what a trace requires of the entry state to guards."""
from __future__ import annotations

from capture.guards.guard import Guard, Kind
from capture.refgraph.graph import RefGraph
from capture.refgraph.requirements import Known
from capture.refgraph.source import Item


def collect(graph: RefGraph) -> list[Guard]:
    """The guards of a sealed graph: modes first, then in the order in which the trace met its dependencies. What
    another guard implies is left out.

    Raises KeyError for a requirement whose kind is not the name of a `Kind`.
    """
    guards = [Guard(source, Kind[kind], expected, graph.places.get(key))
              for key, (source, kind, expected) in graph.requirements.items()]
    known = Known({guard.source: guard.expected for guard in guards if guard.kind is Kind.ID},
                  {(guard.source.base, guard.source.key) for guard in guards if isinstance(guard.source, Item)})
    guards = [guard for guard in guards if not guard.kind.row.implied(guard.source, guard.expected, known)]
    return sorted(guards, key=lambda guard: guard.kind is not Kind.MODES)
