"""What the effects of a trace replace or remove. Where that dies, code of the program's may run (finalizers, callbacks of weak
references, generators that are closed) and change what the call has read: `_C.GuardTree` looks at it before each hit.
"""
from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from capture.refgraph.effects import ADDING, changed_by, walk
from capture.refgraph.graph import RefGraph
from capture.refgraph.lookup import maxlen_of
from capture.refgraph.mock import bases, class_at
from capture.refgraph.node import SCALARS, Const, DictState, ListStart, ListState, RefNode, Shadow, source_of
from capture.refgraph.source import Attr, Item, Source


class Drop(enum.Enum):
    """Which references an object drops: as in csrc/guards/deaths.h."""

    ITEM = "item"               # the one at a key
    CHANGING_ITEM = "changing item"     # … which is found at a path
    ATTRIBUTE = "attribute"     # the one of a name
    CONTENTS = "contents"       # all of them
    NOTHING = "nothing"         # none: should it die itself, that runs no code


@dataclass(frozen=True, slots=True)
class Loss:
    """References that an object drops, which is found at a path."""

    owner: Source
    drop: Drop
    key: Any


BY_KEY = frozenset(getattr(cls, name) for cls in (dict, OrderedDict, list, deque) for name in ("__setitem__", "__delitem__", "pop")
                   if (cls, name) != (deque, "pop"))
BY_NAME = frozenset({setattr, delattr, *(getattr(cls, name) for cls in (object, type) for name in ("__setattr__", "__delattr__"))})
OF_VARIABLES = frozenset({ContextVar.set, ContextVar.reset})
AT_ENDS = {deque.pop: -1, deque.popleft: 0}
# Methods that drop an item of a deque which is full. What is named neither here nor in ADDING may drop all.
PUSHING = {deque.append: 0, deque.appendleft: -1}


def losses(graph: RefGraph, result: Shadow) -> list[Loss]:
    """What the effects of a trace may drop of the state at entry, each once. What is guarded to be a number or the like is left
    out: it dies unnoticed. So is what the call puts elsewhere or returns, as `result`, and what the last effects drop, after which
    nothing is read. A generator with which the trace has gone on, itself or within what is dropped, runs nothing as it dies: the
    trace has run that."""
    found: dict[Loss, None] = {}
    moved: set[Source] = set()                      # sequences whose items are no longer where they were
    for target, operation, args in filter(None, map(changed_by, graph.effects[:graph.followed])):
        loss = _loss_of(graph, target, operation, args, target.source in moved)
        if loss is not None:
            found[loss] = None
        if not _keeps_places(operation, args):
            moved.add(target.source)
    whole = {loss.owner for loss in found if loss.drop is Drop.CONTENTS}
    items = {Item(loss.owner, loss.key) for loss in found if loss.drop is Drop.ITEM}
    quiet = {item for item in items if class_at(graph, item) in SCALARS} | _kept(graph, result, items) | graph.resumed
    left = [loss for loss in found if not (
        loss.drop is Drop.ITEM and (loss.owner in whole or Item(loss.owner, loss.key) in quiet)
        or loss.drop is Drop.ATTRIBUTE and Attr(loss.owner, loss.key) in quiet)]
    return left and [*left, *(Loss(generator, Drop.NOTHING, None) for generator in graph.resumed)]


def _kept(graph: RefGraph, result: Shadow, items: Collection[Source]) -> set[Source]:
    """Which of these dropped items the call has put elsewhere, where they are still, or returns."""
    found = {part.source for part in walk(result) if isinstance(part, RefNode) and part.source in items}
    for target, _, args in filter(None, map(changed_by, graph.effects if items else ())):
        parts = {part for arg in args for part in walk(arg) if isinstance(part, RefNode) and part.source in items}
        if parts and not _is_below(target.source, items):
            found.update(part.source for part in parts & _held_by(target))
    return found


def _is_below(source: Source, items: Collection[Source]) -> bool:
    """Whether an object is found by way of one of these items."""
    return source in items or any(_is_below(base, items) for base in bases(source))


def _held_by(node: RefNode) -> set[RefNode]:
    """What an object is known to hold by now, and what that is made of."""
    state, held = node.state, list(node.slots.values())
    if isinstance(state, ListState):
        held += state.distinct
    elif isinstance(state, ListStart):
        held += [*state.added, *state.writes.values()]
    elif isinstance(state, DictState):
        held += state.items.values()
    return {part for shadow in held for part in walk(shadow) if isinstance(part, RefNode)}


def _loss_of(graph: RefGraph, target: RefNode, operation: Callable[..., Any], args: tuple[Shadow, ...], moved: bool) -> Loss | None:
    """What an effect drops; None: nothing. moved: items of its target are no longer where they were at entry."""
    owner = target.source
    if operation in ADDING:
        return None
    if operation in OF_VARIABLES:
        return Loss(owner, Drop.ATTRIBUTE, "get()")
    first = args[0] if args else Const(-1)
    key = first.value if isinstance(first, Const) else None
    if operation in BY_NAME and type(key) is str:
        return Loss(owner, Drop.ATTRIBUTE, key)
    if operation in PUSHING:
        queue = target.real
        if queue is not None and maxlen_of(queue) is None:
            return None
        key = PUSHING[operation]
    elif operation in AT_ENDS:
        key = AT_ENDS[operation]
    elif operation not in BY_KEY:
        return Loss(owner, Drop.CONTENTS, None)
    elif not isinstance(first, Const) and not moved and (place := source_of(first)) is not None:
        return Loss(owner, Drop.CHANGING_ITEM, place)
    if issubclass(target.cls, dict):
        return Loss(owner, Drop.ITEM, key) if _is_plain(key) else Loss(owner, Drop.CONTENTS, None)
    length = graph.requirements.get((owner, "LENGTH"))
    if type(key) is int and key < 0 and length is not None and not moved:
        key += length[2]
    return Loss(owner, Drop.ITEM, key) if type(key) is int and not moved else Loss(owner, Drop.CONTENTS, None)


def _keeps_places(operation: Callable[..., Any], args: tuple[Shadow, ...]) -> bool:
    """Whether the items that a list or deque had are where they were, counted from its beginning, after an effect."""
    if operation in (list.append, list.extend):
        return True
    return operation in (list.__setitem__, deque.__setitem__) and isinstance(args[0], Const) and type(args[0].value) is int


def _is_plain(key: Any) -> bool:
    """Whether a key is found without running code."""
    return type(key) in SCALARS or type(key) is tuple and all(map(_is_plain, key))
