"""Guards on aliasing: on a hit, what the trace changed must not be the same object, or the same memory, as something else that it
knows."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import Const, DictState, RefNode, WrittenDict
from capture.refgraph.requirements import ROWS
from capture.refgraph.source import Source


def require_separateness(graph: RefGraph, tensors: Iterable[RefNode]) -> None:
    """Guards that objects which were mutated are not the same as any other that was read or written. tensors: the inputs of a graph
    that writes to tensors; their storages are compared. Other objects are compared by identity, and only if both know the key that
    was set."""
    inputs = [node for node in dict.fromkeys([*tensors, *graph.placed]) if node.state.storage is not None]
    if inputs:
        layout = tuple(layout_of(inputs, graph.placed))
        graph.require(layout[0][0], "STORAGE", layout)
    looked_at = {source for source, kind, _ in graph.requirements.values() if ROWS[kind].of_content}
    outside = [node for node in graph.nodes if node.source is not None]
    effects = [effect for effect in graph.effects if isinstance(effect, Effect)]
    for target in dict.fromkeys(effect.target for effect in effects if effect.target.source is not None):
        keys = {e.args[0].value for e in effects if e.target is target and e.args and isinstance(e.args[0], Const)
                and isinstance(target.state, (DictState, WrittenDict))}
        rivals = [n.source for n in outside if n is not target and n.cls is target.cls and (
            n.source in looked_at or concerns(n, target, keys))]
        if rivals:
            graph.require(target.source, "DISTINCT", tuple(rivals))


def layout_of(tensors: list[RefNode], placed: set[RefNode]) -> Iterator[tuple[Source, int, int | None]]:
    """Path, storage (counted from 0) and offset there in bytes, None where it does not matter: in a storage of its own (batches
    are slices of the data), and where its shape depends on values, and with that its place. placed: whose addresses matter."""
    groups: dict[int, int] = {}
    tenants = Counter(node.state.storage[0] for node in tensors)
    for node in tensors:
        storage, offset = node.state.storage
        matters = node in placed or tenants[storage] > 1 and not node.state.dynamic
        yield node.source, groups.setdefault(storage, len(groups)), offset if matters else None


def concerns(node: RefNode, target: RefNode, keys: Iterable[Any]) -> bool:
    """Whether the trace would be wrong if `node` turned out to be the mutated `target`."""
    if isinstance(target.state, DictState) and isinstance(node.state, DictState):
        return node.state.complete or node.state.anywhere or any(key in node.state.items for key in keys)
    return node.state is not None or bool(node.slots)

