"""The order in which sets are iterated. It follows from how a set came to be: which members were added in which order, and how
large its table was then. So what a hit makes anew is made in the same way, and sets from outside that a set is made of are guarded
where its order matters."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from capture.refgraph.keys import KeyTable, require_keys, table
from capture.refgraph.node import SCALARS, Build, Const, Display, Expr, Order, RefNode, SetState, Shadow
from capture.refgraph.source import Computed

if TYPE_CHECKING:
    from capture.refgraph.graph import RefGraph

MOST_TRIED = 64


def state_at_entry(graph: RefGraph, node: RefNode) -> SetState:
    """The members of a set from outside, guarded as a whole: scalars in any order as long as none matters, objects in theirs."""
    order, size = tuple(builtin_of(node.real).__iter__(node.real)), size_of_table(node.real)
    if all(type(member) in SCALARS for member in order):
        graph.hold(node.source, "CONTENT", frozenset(order))
        return SetState({member: Const(member) for member in order}, (Order(node.source, order, size),), at_entry=True)
    require_keys(graph, node.source, order)
    items = table(order, ((member, graph.find(member) or graph.constant(member)) for member in order))
    return SetState(items, (Order(node.source, None, size),), at_entry=True)


def builtin_of(real: Any) -> Any:
    return frozenset if isinstance(real, frozenset) else set


def size_of_table(real: Any) -> int:
    """Bytes that a set uses besides its object."""
    return int(builtin_of(real).__sizeof__(real)) - type(real).__basicsize__


def require_order(graph: RefGraph, state: SetState) -> None:
    """Guards all that the order of a set follows from. The size of another one's table decides what becomes of what is added."""
    for order in state.follows:
        if order.members is not None and len(order.members) > 1:
            graph.require(order.source, "KEYS", order.members)
        if not state.at_entry:
            graph.require(Computed(size_of_table, (order.source,)), "VALUE", order.size)


def require_orders(graph: RefGraph) -> None:
    """Guards the orders of those sets of the trace that outlive it, or were shown to a call."""
    for node in graph.nodes:
        if isinstance(node.state, SetState) and node.created and node.real is not None:
            require_order(graph, node.state)
    for past in graph.published.values():
        if isinstance(past.state, SetState):
            require_order(graph, past.state)


def added_order(real: Any, first: Iterable[Any], lay: Iterable[Any], others: Iterable[Iterable[Any]]) -> Iterable[Any]:
    """The members of a set in the order in which they were added to its table. `first`: those that it or the first operand had, in
    such an order; `lay`: in that of iteration, in which a larger table takes them."""
    others = [list(other) for other in others]
    known = tuple(by_insertion(real, [first, *others]))
    again = tuple(by_insertion(real, [lay, *others]))
    better = known != again and taken_at_once(real, known) is None and taken_at_once(real, again) is not None
    return again if better else known


def by_insertion(real: Any, operands: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """The members of a set, those of `operands` first."""
    own = {member: member for member in real}
    for operand in operands:
        for member in operand:
            if member in own:
                yield own.pop(member)
    yield from own.values()


def filling(real: Any, members: dict[Any, Shadow]) -> tuple[Shadow, ...] | None:
    """What an empty set takes in, part by part, to be iterated in the order in which `real` is; None where nothing is found that
    has that order. `members`: in the order in which they were added.

    Hashes of objects that the trace made are others on each hit: the order of these is told by how they were added alone.
    """
    sequences = () if isinstance(members, KeyTable) else (tuple(members), tuple(builtin_of(real).__iter__(real)))
    for exact, sequence in itertools.product((True, False), sequences):     # of another size at worst: members have been taken out
        at_once = taken_at_once(real, sequence, exact)
        if at_once is not None:
            shadows = tuple(members[member] for member in sequence)
            first, rest = Expr(dict.fromkeys, (Build(tuple, shadows[:at_once]),)), Build(tuple, shadows[at_once:])
            return (rest,) if at_once == 0 else (first, rest) if rest.items else (first,)
    lasts = not isinstance(members, KeyTable) and all(map(is_lasting, members.values()))
    return None if lasts else (Build(tuple, tuple(members.values())),)


def filled(base: Any, filling: tuple[Shadow, ...]) -> Shadow:
    """The shadow of a new set or frozenset that has taken in what `filling` has returned."""
    first = filling[0]
    if len(filling) == 2:
        return Expr(base.union, (Expr(base, (first,)), filling[1]))
    if base is frozenset and isinstance(first, Build):
        return Build(frozenset, first.items)
    if isinstance(first, Build) and not all(isinstance(item, Const) for item in first.items):
        return Display(set, first.items)        # of constants, the compiler would make one that it adds at once, in another order
    return Expr(base, (first,))


def taken_at_once(real: Any, sequence: tuple[Any, ...], exact: bool = True) -> int | None:
    """How many of a sequence of members a new set must take in at once, and the others one by one, to have the order of `real`, and
    a table of the same size if `exact`. At once: as the keys of a dict, for all of which the table is made large enough before.
    None if no number makes it so."""
    base = builtin_of(real)
    order, size = tuple(base.__iter__(real)), size_of_table(real)
    for number in dict.fromkeys((0, len(sequence), *range(min(len(sequence), MOST_TRIED)))):
        found = set(dict.fromkeys(sequence[:number]))
        found.update(sequence[number:])
        if (not exact or size_of_table(found) == size) and all(map(operator.is_, found, order)):
            return number
    return None


def is_lasting(shadow: Shadow) -> bool:
    """Whether a member has the same hash on each hit."""
    if isinstance(shadow, Build):
        return all(map(is_lasting, shadow.items))
    return isinstance(shadow, Const) or isinstance(shadow, RefNode) and shadow.source is not None
