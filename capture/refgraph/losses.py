"""What changes of outside objects drop: where that dies, code of the program's may run (finalizers, callbacks of weak references,
generators that are closed), and change what the trace reads.

A capture ends its trace behind such a change (`loss_of`). An entry holds for calls in which what it drops dies quietly
(`require_quiet`). `_C.loud_death` follows the references.
"""
from __future__ import annotations

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.keys import put, take_out
from capture.refgraph.mock import class_at
from capture.refgraph.node import SCALARS, Const
from capture.refgraph.source import Item, Source

ITEM, ATTRIBUTE, ALL = "item", "attribute", "all"       # which references of an object are dropped: as in csrc/guards/deaths.h
Loss = tuple[str, Any]                                  # one of these, and a key

BY_KEY = frozenset({operator.setitem, operator.delitem, *(getattr(cls, name) for cls in (dict, OrderedDict, list, deque)
                    for name in ("__setitem__", "__delitem__")), dict.pop, OrderedDict.pop, list.pop})
BY_NAME = frozenset({setattr, delattr, *(getattr(cls, name) for cls in (object, type) for name in ("__setattr__", "__delattr__"))})
AT_ENDS = {deque.pop: -1, deque.popleft: 0}
# Methods that drop an item of a deque which is full.
PUSHING = {deque.append: 0, deque.appendleft: -1, deque.extend: None, deque.extendleft: None}
# Methods that drop any number of items.
REMOVING = frozenset({
    put, take_out, operator.ior, operator.iand, operator.isub, operator.ixor, operator.imul, list.__imul__, list.remove,
    deque.remove,
    *(cls.clear for cls in (list, dict, OrderedDict, set, deque)), *(cls.update for cls in (dict, OrderedDict)),
    *(cls.popitem for cls in (dict, OrderedDict)), *(cls.__ior__ for cls in (dict, OrderedDict)), set.remove, set.discard, set.pop,
    set.difference_update, set.intersection_update, set.symmetric_difference_update, set.__iand__, set.__isub__, set.__ixor__})
RETURNING = frozenset({cls.pop for cls in (dict, OrderedDict, list, deque, set)} | {cls.popitem for cls in (dict, OrderedDict)}
                      | {deque.popleft})
LOSING = BY_KEY | BY_NAME | frozenset(AT_ENDS) | frozenset(PUSHING) | REMOVING


def loss_of(function: Callable[..., Any], owner: Any, key: Any = -1) -> Loss | None:
    """Which references of its first argument, `owner`, a call of `function` drops; None: none. key: the second argument, if there
    is one."""
    if function not in LOSING:
        return None
    if function in BY_NAME:
        return ATTRIBUTE, sys.intern(key)
    if function in BY_KEY:
        return (ITEM, key) if is_plain_key(key) else (ALL, None)
    if function in PUSHING:
        if owner.maxlen is None:
            return None
        return (ALL, None) if PUSHING[function] is None else (ITEM, PUSHING[function])
    return (ITEM, AT_ENDS[function]) if function in AT_ENDS else (ALL, None)


def is_plain_key(key: Any) -> bool:
    """Whether a key is found without running code."""
    return type(key) in SCALARS or type(key) is tuple and all(map(is_plain_key, key))


def require_quiet(graph: RefGraph) -> None:
    """Guards that no code of the program's runs as what the effects drop dies. Of what the last ones drop it may: nothing is behind
    that."""
    effects = [effect for effect in graph.effects if isinstance(effect, Effect) and effect.target.source is not None]
    losses = {loss: None for place, effect in enumerate(effects) if effect not in graph.fatal
              for loss in losses_of(graph, effect, effects[:place])}
    last = {effect.target: effect for effect in effects}
    moved = {getattr(part, "source", None) for effect in last.values() for part in effect.args}     # stored for good: it lives on
    wholly = {source for source, which, _ in losses if which is ALL}
    found = tuple((source, which, key) for source, which, key in losses
                  if which is not ITEM or source not in wholly and Item(source, key) not in moved)
    if found:
        graph.require(found[0][0], "QUIET", found)


def losses_of(graph: RefGraph, effect: Effect, earlier: list[Effect]) -> Iterator[tuple[Source, str, Any]]:
    """What an effect may drop of the state at entry."""
    target, args = effect.target, effect.args
    loss = loss_of(effect.operation, target.real, *(arg.value if isinstance(arg, Const) else arg for arg in args[:1]))
    if loss is None:
        return
    source: Any = target.source
    which, key = loss
    if which is ITEM:
        if isinstance(target.real, (list, deque)) and any(other.target is target for other in earlier):
            which, key = ALL, None                      # positions have moved
        elif type(key) is int and key < 0 and (length := graph.requirements.get((source, "LENGTH"))) is not None:
            key += length[2]
        if which is ITEM and class_at(graph, Item(source, key)) in SCALARS:
            return
    yield source, which, key
