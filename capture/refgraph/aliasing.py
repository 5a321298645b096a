"""Guards on aliasing: on a hit, what the trace changed must not be the same object, or the same memory, as something else that it
knows."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import Const, DictState, RefNode
from capture.refgraph.requirements import ROWS
from capture.refgraph.source import Source


def require_separateness(graph: RefGraph, tensors: Iterable[RefNode]) -> None:
    """Guards that objects which were mutated are not the same as any other that was read or written. tensors: the inputs of a graph
    that writes to tensors; their storages are compared. Other objects are compared by identity: dicts only with those that know a
    key which was set."""
    inputs = [node for node in dict.fromkeys([*tensors, *graph.sharing, *graph.placed]) if node.state.storage is not None]
    if inputs:
        layout = tuple(layout_of(inputs, graph.placed))
        graph.require(layout[0][0], "STORAGE", layout)
    looked_at = {source for source, kind, _ in graph.requirements.values() if ROWS[kind].of_content}
    keys: dict[RefNode, set[Any]] = {}              # of each object that was mutated: those that were set
    for effect in graph.effects:
        if isinstance(effect, Effect) and effect.target.source is not None:
            own = keys.setdefault(effect.target, set())
            if effect.args and isinstance(effect.args[0], Const) and isinstance(effect.target.state, DictState):
                own.add(effect.args[0].value)
    outside: dict[int, list[RefNode]] = {id(target.cls): [] for target in keys}     # a class may have a `__hash__` of its own
    for node in graph.nodes:
        if node.source is not None and id(node.cls) in outside:
            outside[id(node.cls)].append(node)
    for nodes in outside.values():
        changed: dict[frozenset[Any] | None, list[RefNode]] = {}
        for target in filter(keys.__contains__, nodes):
            changed.setdefault(frozenset(keys[target]) if isinstance(target.state, DictState) else None, []).append(target)
        for set_keys, targets in changed.items():
            concerned = dict.fromkeys(node for node in nodes if node.source in looked_at or concerns(node, set_keys))
            _keep_apart(graph, [target for target in targets if target in concerned], concerned)
            for target in targets:
                if target not in concerned:
                    _keep_apart(graph, [target], concerned)


def _keep_apart(graph: RefGraph, first: Sequence[RefNode], others: Iterable[RefNode]) -> None:
    """Guards that each of the first is none of the others, and none of the other first ones."""
    chosen = set(first)
    rest = [node for node in others if node not in chosen]
    if first and len(first) + len(rest) > 1:
        sides = (*((node.source, True) for node in first), *((node.source, False) for node in rest))
        graph.require(first[0].source, "SEPARATE", sides)


def layout_of(tensors: list[RefNode], placed: set[RefNode]) -> Iterator[tuple[Source, int, int | None]]:
    """Path, storage (counted from 0) and offset there in bytes, None where it does not matter: in a storage of its own (batches
    are slices of the data), and where its shape depends on values, and with that its place. placed: whose addresses matter."""
    groups: dict[int, int] = {}
    tenants = Counter(node.state.storage[0] for node in tensors)
    for node in tensors:
        storage, offset = node.state.storage
        matters = node in placed or tenants[storage] > 1 and not node.state.dynamic
        yield node.source, groups.setdefault(storage, len(groups)), offset if matters else None


def concerns(node: RefNode, keys: Iterable[Any] | None) -> bool:
    """Whether the trace would be wrong if `node` turned out to be an object of its type that was mutated. keys: those that were
    set, if that is a dict."""
    if keys is not None and isinstance(node.state, DictState):
        return node.state.complete or node.state.anywhere or any(key in node.state.items for key in keys)
    return node.state is not None or bool(node.slots)
