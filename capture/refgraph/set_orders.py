"""The order in which sets are iterated.

It depends on how a set was made: which members were added and removed in which order, and how large its table was then. So a hit
puts the members of a set that it makes into the slots that they had in the capture. If the members come from outside sets and the
order matters, these sets are guarded.
"""
from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from capture import _C
from capture._C import is_a
from capture.refgraph.identical import contents_in_c
from capture.refgraph.keys import is_python_key, note_keys, require_keys, table
from capture.refgraph.node import SCALARS, Build, Const, Display, Expr, Order, RefNode, SetState, Shadow
from capture.refgraph.source import Computed

if TYPE_CHECKING:
    from capture.refgraph.graph import RefGraph


def state_at_entry(graph: RefGraph, node: RefNode) -> SetState:
    """The members of a set from outside, guarded as a whole: scalars in any order as long as none matters, objects in theirs."""
    order, place = tuple(builtin_of(node.real).__iter__(node.real)), (_C.set_layout(node.real), _C.set_finger(node.real))
    if all(type(member) in SCALARS for member in order):
        graph.hold(node.source, "CONTENT", frozenset(order))
        return SetState({member: Const(member) for member in order}, (Order(node.source, order, *place),), at_entry=True)
    require_keys(graph, node.source, order)
    note_keys(graph, node.source, order)
    items = table(order, ((member, graph.find(member) or graph.noted_composite(member) or graph.constant(member))
                          for member in order))
    return SetState(items, (Order(node.source, None, *place),), at_entry=True)


def builtin_of(real: Any) -> Any:
    return frozenset if is_a(real, frozenset) else set


def require_order(graph: RefGraph, state: SetState) -> None:
    """Guards all that the order of a set follows from."""
    for order in state.follows:
        if order.members is not None and len(order.members) > 1:
            graph.require(order.source, "KEYS", order.members)
        if not state.at_entry:
            graph.require(Computed(_C.set_layout, (order.source,)), "VALUE", order.layout)


def require_finger(graph: RefGraph, node: RefNode) -> None:
    """Guards at which slot `pop` begins to look for a member of a set from outside: the place where the last `pop` ended."""
    for order in node.state.follows:
        if order.source == node.source:
            graph.require(Computed(_C.set_finger, (order.source,)), "VALUE", order.finger)


def require_orders(graph: RefGraph) -> None:
    """Guards the orders of those sets of the trace that outlive it, or were shown to a call."""
    for node in graph.nodes:
        if isinstance(node.state, SetState) and node.created and node.real is not None:
            require_order(graph, node.state)
    for past in graph.published.values():
        if isinstance(past.state, SetState):
            require_order(graph, past.state)


def by_insertion(real: Any, operands: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """The members of a set, those of `operands` first."""
    held = contents_in_c(real)
    own = table(held, ((member, member) for member in held))
    for operand in operands:
        for member in contents_in_c(operand) if is_a(operand, (set, frozenset)) else operand:
            if member in own:
                yield own.pop(member)
    yield from own.values()


class Filling(NamedTuple):
    """What an empty set takes in to become what a set of the capture was: its members, as `set.update` adds them one by one, or as
    `_C.lay_set` lays each into its slot."""

    members: Build
    laid: tuple[Const, ...] = ()        # the slots, the layout, the finger, and the hashes that no Python code is to compute again

    @property
    def items(self) -> tuple[Shadow, ...]:
        return self.members.items


def filling(real: Any, members: dict[Any, Shadow]) -> Filling:
    """How a hit makes a set like `real`. `members`: in the order in which they were added, as far as that is known.

    Adding them one by one gives another layout where some were taken out, where many came at once, and where these did lie in an
    order of their own. Where a hit finds other hashes, as those of objects that it makes, it adds them one by one in any case.
    Members that Python code hashes have the hashes that it gave in the capture.
    """
    items = Build(tuple, tuple(members.values()))
    kept, layout, finger = _C.hashed_keys(real), _C.set_layout(real), _C.set_finger(real)
    known = {id(member): number for member, number in kept if is_python_key(member)}
    if not known and finger == 0:
        again = set(iter(members))      # one by one, as no dict is taken in
        if _C.set_layout(again) == layout and all(map(operator.is_, again, (member for member, _ in kept))):
            return Filling(items)
    taken = (slot for slot, held in enumerate(layout) if held == _C.SET_MEMBER)
    slots = table((member for member, _ in kept), zip((member for member, _ in kept), taken, strict=True))
    hashes = tuple(known.get(id(member)) for member in members) if known else ()
    return Filling(items, (Const(tuple(slots[member] for member in members)), Const(layout), Const(finger), Const(hashes)))


def filled(base: Any, filling: Filling) -> Shadow:
    """The shadow of a new set or frozenset that has taken in what `filling` has returned."""
    if filling.laid:
        return Expr(laid, (Const(base), filling.members, *filling.laid))
    if base is frozenset:
        return Build(frozenset, filling.items)
    if not all(isinstance(item, Const) for item in filling.items):
        return Display(set, filling.items)      # of constants, the compiler would make one that it adds at once, in another order
    return Expr(base, (filling.members,))


def laid(base: Any, members: tuple[Any, ...], *layout: Any) -> Any:
    """A new set or frozenset with a layout: the other arguments of `_C.lay_set`."""
    made = base()
    _C.lay_set(made, members, *layout)
    return made


def is_lasting(shadow: Shadow) -> bool:
    """Whether a member has the same hash on each hit."""
    if isinstance(shadow, Build):
        return all(map(is_lasting, shadow.items))
    return isinstance(shadow, Const) or isinstance(shadow, RefNode) and shadow.source is not None
