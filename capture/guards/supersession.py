"""Which entries another one supersedes: it fits all calls that they fit, as far as sizes allow."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from capture.guards.guard import Guard, Kind
from capture.refgraph.identical import same
from capture.refgraph.requirements import Form
from capture.refgraph.sizes import reads_sizes

COMPARED = Form.MODES, Form.PATH, Form.OTHER, Form.SIDES, Form.PLACES       # expectations of our own classes


def supersedes(guards: Iterable[Guard], others: Iterable[Guard]) -> bool:
    """Whether these guards hold wherever the others do, not counting guards on sizes, for which this is not known."""
    known: defaultdict[Any, list[Any]] = defaultdict(list)
    for guard in others:
        known[guard.source, guard.kind].append(guard.expected)
    return all(guard.source is not None and reads_sizes(guard.source) or any(
        is_as_wide(guard.kind, guard.expected, expected) for expected in known[guard.source, guard.kind]) for guard in guards)


def is_as_wide(kind: Kind, expected: Any, other: Any) -> bool:
    """Whether what meets the expectation `other` of a kind meets `expected`."""
    if kind is Kind.TENSOR:
        return bool(other.like(expected) == expected)
    return bool(expected == other) if kind.row.form in COMPARED else same(expected, other)
