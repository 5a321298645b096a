"""Learning rates that a schedule changes: this is known before any call has shown it, since torch's schedulers leave a mark."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from capture.refgraph.node import RefNode
from capture.refgraph.source import Computed, Item, Source

RATE, MARK = "lr", "initial_lr"         # in the dict of a group of parameters; the latter is there once it has a scheduler


def scheduled(source: Source, nodes: Iterable[RefNode]) -> Iterator[Source]:
    """The learning rates with a schedule that a number at a path is, or is computed from. nodes: of the trace."""
    if isinstance(source, Computed):
        for arg in source.args:
            yield from scheduled(arg, nodes)
    elif isinstance(source, Item) and type(source.key) is str and source.key == RATE:
        group = next((node.real for node in nodes if node.source == source.base), None)
        if type(group) is dict and MARK in group:
            yield source
