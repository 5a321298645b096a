"""What a trace wrote to must not come to be one with something else that it knows."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import Const, DictState, RefNode, WrittenDict
from capture.refgraph.source import Source

# Guards on what a container holds, beyond single keys of a dict.
CONTENT_KINDS = frozenset({"LENGTH", "TRUTH", "KEYS", "CONTENT", "MEMBER", "NOT_MEMBER"})


def require_separateness(graph: RefGraph, tensors: Iterable[RefNode]) -> None:
    """What was mutated must not come to be one with something else that was read or written.

    tensors: the inputs of a graph that writes to tensors; these are told apart by storage. Other objects: two of them matter to
    each other only if both know of the key that was set.
    """
    inputs = dict.fromkeys([*tensors, *graph.placed])
    if inputs:
        groups: dict[int, int] = {}
        layout: list[tuple[Source, int, int]] = []
        for node in inputs:
            if node.state.storage is not None:
                storage, offset = node.state.storage
                layout.append((node.source, groups.setdefault(storage, len(groups)), offset))  # type: ignore[arg-type]
        if layout:
            graph.require(layout[0][0], "STORAGE", tuple(layout))
    looked_at = {source for source, kind, _ in graph.requirements.values() if kind in CONTENT_KINDS}
    outside = [node for node in graph.nodes if node.source is not None]
    effects = [effect for effect in graph.effects if isinstance(effect, Effect)]
    for target in dict.fromkeys(effect.target for effect in effects if effect.target.source is not None):
        keys = {e.args[0].value for e in effects if e.target is target and e.args and isinstance(e.args[0], Const)
                and isinstance(target.state, (DictState, WrittenDict))}
        rivals = [n.source for n in outside if n is not target and n.cls is target.cls and (
            n.source in looked_at or concerns(n, target, keys))]
        if rivals:
            graph.require(target.source, "DISTINCT", tuple(rivals))


def concerns(node: RefNode, target: RefNode, keys: Iterable[Any]) -> bool:
    """Whether the trace would be wrong if `node` were the mutated `target`."""
    if isinstance(target.state, DictState) and isinstance(node.state, DictState):
        return node.state.complete or any(key in node.state.items for key in keys)
    return node.state is not None or bool(node.slots)

