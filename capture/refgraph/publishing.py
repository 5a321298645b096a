"""Objects of the trace that a call effect may look at, before the trace goes on changing them.

The mock function makes an object of the trace in its final state. One that a call is shown is *published*: it is made as it was
then, and what is changed of it from then on is an effect, in order with the call.
"""
from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capture._C import is_a
from capture.refgraph.effects import is_foreign, operands_of
from capture.refgraph.node import Build, Const, DictState, Display, Expr, FunctionState, ListState, RefNode, SetState, Shadow
from capture.refgraph.set_orders import filling

if TYPE_CHECKING:
    from capture.refgraph.graph import RefGraph


CHAIN = ("__cause__", "__context__", "__suppress_context__")     # what `raise` notes in an exception


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What was known of an object when it was published: the fields of its node that have these names."""

    state: Any
    attrs: RefNode | None
    slots: dict[str, Shadow]


def shown_for_the_first_time(graph: RefGraph, shown: Iterable[Shadow]) -> dict[RefNode, Past]:
    """The objects of the trace that a call is shown and no earlier call was shown: those reachable from `shown`, and from what
    effects have put into outside objects. Left out are those that cannot be copied: if they change, the call cannot be part of the
    trace (`late-change`)."""
    found: dict[RefNode, Past] = {}
    todo: list[Shadow | None] = list(shown)
    if not any(isinstance(shadow, RefNode) for shadow in todo):
        return found
    for effect in graph.effects:
        todo += operands_of(effect)
    seen: set[int] = set()
    while todo:
        shadow = todo.pop()
        if id(shadow) in seen:
            continue
        seen.add(id(shadow))
        if isinstance(shadow, RefNode):
            if shadow.created and shadow not in graph.published and not is_foreign(shadow):
                past = _past_of(graph, shadow)
                if past is not None:
                    found[shadow] = past
                    todo += past.slots.values()
                todo += [*_contents(shadow.state), shadow.attrs, *shadow.slots.values(), graph.find(shadow.cls)]
        elif isinstance(shadow, (Build, Display, Expr)):
            todo += [*shadow.parts, getattr(shadow, "maker", None)]
    return found


def chain_of(graph: RefGraph, exception: BaseException) -> dict[str, Shadow | None]:
    """The cause and the context of an exception; None for one that the trace does not know."""
    parts = {name: value for name in CHAIN if (value := BaseException.__dict__[name].__get__(exception))}
    return {name: Const(True) if value is True else graph.find(value) for name, value in parts.items()}


def _past_of(graph: RefGraph, node: RefNode) -> Past | None:
    """A copy of what is known of an instance of a class of Python, an exception, a container or a cell; None for others."""
    state, real = node.state, node.real
    if type(state) is ListState:
        copy: Any = ListState(list(state.items))
    elif type(state) is DictState and type(state.items) is dict:
        copy = DictState(dict(state.items), state.complete)
    elif type(state) is SetState and type(state.items) is dict:
        laid = state.filling if real is None else filling(real, state.items)        # nobody sees the order of one that has died
        copy = SetState(dict(state.items), state.follows, filling=laid)
    elif state is None and is_a(real, BaseException):
        chain = chain_of(graph, real)
        return None if None in chain.values() else Past(None, graph.attributes(node), {**node.slots, **chain})  # type: ignore[dict-item]
    elif state is None and node.origin is None and not is_a(real, (types.FunctionType, type, types.NoneType)):
        copy = None
    else:
        return None
    return Past(copy, node.attrs if real is None else graph.attributes(node), dict(node.slots))


def _contents(state: Any) -> Iterable[Shadow]:
    """What a container or a function leads to."""
    if isinstance(state, (DictState, SetState)):
        return state.items.values()
    if isinstance(state, ListState):
        return state.distinct
    return state.closure if isinstance(state, FunctionState) else ()
