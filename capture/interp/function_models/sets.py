"""Models of sets and frozensets. A member is a key: its shadow follows from what it is."""
from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import are_keys, is_key, is_native_iterable
from capture.interp.function_models.shadows import NONE, elements_unordered, is_constant, key_of, members, node_of, shadow_of
from capture.interp.polyfills.iteration import frozen
from capture.refgraph.identical import is_one_of
from capture.refgraph.keys import KeyTable, require_reference
from capture.refgraph.lookup import name_of
from capture.refgraph.node import Build, Const, Expr, RefNode, SetState, Shadow
from capture.refgraph.set_orders import builtin_of, by_insertion, filled, filling, is_lasting, require_finger, require_order

SETS = (set, frozenset)


# -- predicates --------------------------------------------------------------------------------------------------------

def holds_keys(x: Any) -> bool:
    """Whether a container's items can be members of a set."""
    return is_native_iterable(x) and are_keys(x)


def is_algebra(*operands: Any) -> bool:
    """Whether the operands are containers of keys, the first one a set."""
    return bool(operands) and is_a(operands[0], SETS) and all(map(holds_keys, operands))


def is_operation(a: Any, b: Any) -> bool:
    """Whether `a` and `b` are sets, or a set and the view of a dict's keys."""
    return (is_a(a, SETS) or is_a(b, SETS) or name_of(type(a)).endswith("_keys")) and all(
        (is_a(x, SETS) or name_of(type(x)) in ("dict_keys", "odict_keys")) and holds_keys(x) for x in (a, b))


def is_membership(container: Any, member: Any) -> bool:
    return is_a(container, SETS) and is_key(member) and are_keys(container)


# -- states ------------------------------------------------------------------------------------------------------------

def look(interp: Interpreter, *operands: Value) -> None:
    """Before an operation: all members of all operands."""
    found = [part for operand in operands for part in elements_unordered(interp, operand)]
    reals = [member for _, member in found]
    outside = any(isinstance(x.shadow, RefNode) and x.shadow.source is not None
                  and is_a(x.real, SETS) for x in operands)
    for shadow, member in found:
        key_of(interp, Value(member, shadow), reals, outside)


def look_at_members(interp: Interpreter, container: Value) -> None:
    """Before an operation that asks no member."""
    members(interp, container)


def look_member(interp: Interpreter, container: Value, member: Value) -> None:
    node = container.shadow
    if isinstance(node, RefNode) and node.source is not None and node.state is None:
        interp.graph.touch(node)                # an outside set as it was at entry: only this member matters
        if is_a(member.real, weakref.ref):
            require_reference(interp.graph, node, member.real)
            return
        key_of(interp, member, outside=True)
        if not interp.graph.is_new_number(member.real):
            found = builtin_of(container.real).__contains__(container.real, member.real)
            interp.graph.require(node.source, "MEMBER" if found else "NOT_MEMBER", member.real)
    else:
        look_all(interp, container, member)


def look_all(interp: Interpreter, container: Value, member: Value) -> None:
    """Before one member is changed: all of them at entry."""
    members(interp, container)
    node = container.shadow
    key_of(interp, member, container.real, outside=isinstance(node, RefNode) and node.source is not None)


def new_set(interp: Interpreter, real: Any, *operands: Value) -> Shadow:
    """The shadow of a set which an operation on `operands` has just returned."""
    if real is NotImplemented:           # by a method of sets: an operator takes a view of keys, it does not
        return Const(real)
    for operand in operands:
        if operand.real is real:
            return operand.shadow
    state = state_of(interp, real, *operands)
    return new_frozenset(interp, real, state) if is_a(real, frozenset) else interp.graph.create(real, state)


def new_frozenset(interp: Interpreter, real: Any, state: SetState) -> Shadow:
    """The shadow of a new frozenset."""
    if is_constant(real) and all(isinstance(item, Const) for item in state.items.values()) and not state.follows:
        return Const(real)
    items = filled(frozenset, filling(real, state.items))
    if isinstance(items, Build) and not state.follows and all(map(operator.is_, state.items, real)):
        return items
    items = Expr(frozenset, (Build(tuple, items.items),)) if isinstance(items, Build) else items
    return interp.graph.create(real, state, origin=items)


def state_of(interp: Interpreter, real: Any, *operands: Value) -> SetState:
    """The state of a set that is made of these members, or to which they were added."""
    states = [x.shadow.state if isinstance(x.shadow, RefNode) and isinstance(x.shadow.state, SetState) else None for x in operands]
    first: Any = states[0].items if operands and states[0] is not None else operands[0].real if operands else ()
    items = {member: shadow_of(interp, member) for member in by_insertion(real, [first, *(x.real for x in operands[1:])])}
    follows = dict.fromkeys(order for state in states if state is not None for order in state.follows)
    return SetState(items, tuple(follows))


# -- reading -----------------------------------------------------------------------------------------------------------

@model(operator.contains, set.__contains__, frozenset.__contains__, prepare=look_member, applies=is_membership)
def contains(interp: Interpreter, result: bool, container: Value, member: Value) -> Shadow:
    """`member in container`."""
    return Const(result)


NAMES = "union intersection difference symmetric_difference copy".split()
TESTS = "issubset issuperset isdisjoint".split()


@model(*(getattr(cls, name) for cls in SETS for name in NAMES), prepare=look, applies=is_algebra)
def algebra(interp: Interpreter, result: Any, *operands: Value) -> Shadow:
    """`a.union(b, …)` and its like."""
    return new_set(interp, result, *operands)


@model(*(getattr(cls, name) for cls in SETS for name in TESTS), prepare=look, applies=is_algebra)
def relation(interp: Interpreter, result: Any, *operands: Value) -> Shadow:
    """`a.issubset(b)` and its like."""
    return Const(result)


@model(frozen, prepare=look_at_members)
def freeze(interp: Interpreter, result: Any, operand: Value) -> Shadow:
    """A frozenset of the same members."""
    return new_frozenset(interp, result, SetState(KeyTable(members(interp, operand)), node_of(operand).state.follows))


def methods(*operators: str) -> Iterable[Any]:
    """The methods of sets behind these operators."""
    return (getattr(cls, f"__{name}__") for cls in SETS for name in operators)


@model(operator.or_, operator.and_, operator.sub, operator.xor, *methods("or", "and", "sub", "xor", "ror", "rand", "rsub", "rxor"),
       prepare=look, applies=is_operation)
def combine(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a | b`, `a & b`, `a - b`, `a ^ b`."""
    return new_set(interp, result, a, b)


@model(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, *methods("eq", "ne", "lt", "le", "gt", "ge"),
       prepare=look, applies=is_operation)
def compare(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a <= b` and its like."""
    return Const(result)


@model(set, frozenset, prepare=look, applies=lambda *args: not args or holds_keys(*args))
def make_set(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    """`set(x)`, `frozenset(x)`."""
    return new_set(interp, result, *args)


def is_copied(*args: Any) -> bool:
    """Whether a set is made of another one, whose members Python code hashes: C takes these over, and asks them nothing."""
    return len(args) == 1 and is_a(args[0], SETS) and not are_keys(args[0])


def look_over(interp: Interpreter, x: Value) -> None:
    """Before a set is copied: its members, which are not asked."""
    members(interp, x)


@model(set.copy, frozenset.copy, prepare=look_over, applies=lambda x: is_one_of(type(x), *SETS) and is_copied(x))
@model(set, frozenset, prepare=look_over, applies=is_copied)
def copy_set(interp: Interpreter, result: Any, x: Value) -> Shadow:
    """`set(x)`, `frozenset(x)`, `x.copy()`."""
    if result is x.real:
        return x.shadow
    known = x.shadow.state.follows if isinstance(x.shadow, RefNode) and isinstance(x.shadow.state, SetState) else ()
    state = SetState(KeyTable(members(interp, x)), known)
    frozen = filled(frozenset, filling(result, state.items)) if is_a(result, frozenset) else None
    return interp.graph.create(result, state, origin=frozen)


# -- changes -----------------------------------------------------------------------------------------------------------

def mutate(interp: Interpreter, method: Callable[..., Any], container: Value, *operands: Value) -> None:
    """A set was changed by `method(container, *operands)`."""
    node = node_of(container)
    before, node.state = node.state, state_of(interp, container.real, container, *operands)
    interp.graph.effect(method, node, *(operand_of(interp, node, operand, before) for operand in operands))


def operand_of(interp: Interpreter, node: RefNode, operand: Value, before: SetState) -> Shadow:
    """What a hit is given for an operand of a change to a set: how a set takes in another one depends on what that is."""
    if operand.shadow is node:
        return Build(tuple, tuple(before.items.values()))
    shadow, real = operand.shadow, operand.real
    state = shadow.state if isinstance(shadow, RefNode) else None
    if isinstance(shadow, RefNode) and isinstance(state, SetState) and not shadow.created:
        return shadow
    known = state.items if isinstance(state, SetState) else {member: shadow_of(interp, member) for member in real}
    members = Build(tuple, tuple(known.values()))
    if not is_a(real, SETS):
        return Expr(dict.fromkeys, (members,)) if type(real) is dict else members
    if isinstance(state, SetState):
        require_order(interp.graph, state)
    return filled(set, filling(real, known))


def changer(method: Callable[..., Any]) -> None:
    """Registers a method that takes iterables of members."""
    def apply(interp: Interpreter, result: Any, container: Value, *operands: Value) -> Shadow:
        mutate(interp, method, container, *operands)
        return NONE
    model(method, prepare=look, applies=is_algebra)(apply)


for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    changer(getattr(set, _name))

IN_PLACE = {operator.ior: set.update, operator.iand: set.intersection_update, operator.isub: set.difference_update,
            operator.ixor: set.symmetric_difference_update}


def in_place(op: Callable[..., Any], method: Callable[..., Any]) -> None:
    """Registers an operator such as `|=`."""
    def apply(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
        if result is not a.real or not is_a(a.real, set):
            return new_set(interp, result, a, b)
        mutate(interp, method, a, b)
        return node_of(a)
    model(op, getattr(set, f"__{op.__name__}__"), prepare=look, applies=is_operation)(apply)


for _op, _method in IN_PLACE.items():
    in_place(_op, _method)


def change_member(method: Callable[..., Any]) -> None:
    """Registers `add`, `discard` or `remove`."""
    def apply(interp: Interpreter, result: None, container: Value, member: Value) -> Shadow:
        node = node_of(container)
        known, shadow = node.state.items, shadow_of(interp, member.real)
        added = by_insertion(container.real, (known,))
        node.state = SetState({item: known.get(item, shadow) for item in added}, node.state.follows)
        interp.graph.effect(method, node, shadow)
        return NONE
    model(method, prepare=look_all, applies=is_membership)(apply)


for _method in (set.add, set.discard, set.remove):  # type: ignore[assignment]
    change_member(_method)


@model(set.clear, prepare=look)
def clear(interp: Interpreter, result: None, container: Value) -> Shadow:
    """`container.clear()`."""
    node_of(container).state = SetState({}, node_of(container).state.follows)
    interp.graph.effect(set.clear, node_of(container))
    return NONE


@model(set.pop, prepare=look, applies=lambda container: are_keys(container))
def pop(interp: Interpreter, result: Any, container: Value) -> Shadow:
    """`container.pop()`."""
    node = node_of(container)
    known, follows = node.state.items, node.state.follows
    node.state = SetState({item: known[item] for item in by_insertion(container.real, (known,))}, follows)
    require_order(interp.graph, node.state)
    require_finger(interp.graph, node)
    if all(map(is_lasting, known.values())):
        interp.graph.effect(set.pop, node)      # the next one begins where this one ended
    else:
        interp.graph.effect(set.discard, node, known[result])
    return known[result]


@model(set.__init__, prepare=look, applies=lambda container, *args: not args or holds_keys(*args))
def init_set(interp: Interpreter, result: None, container: Value, *args: Value) -> Shadow:
    """`set.__init__` of a subclass, or of a set once more, which begins anew."""
    node = node_of(container)
    node.state = state_of(interp, container.real, *args)
    interp.graph.effect(set.clear, node)
    interp.graph.effect(set.update, node, *(Build(tuple, tuple(shadow_of(interp, member) for member in arg.real)) for arg in args))
    return NONE
