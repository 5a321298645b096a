"""Lists and deques that are changed: their shadow state goes through the same operations as the real container."""
from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import adds_first, is_index_in_python, is_native_iterable, is_native_iterator, is_plain
from capture.interp.function_models.iterators import drain, prepare_drain
from capture.interp.function_models.replays import varies
from capture.interp.function_models.sequences import (
    add,
    compares_plainly,
    depend_bound,
    extends_natively,
    is_indexing,
    is_repetition,
    is_slice_of_native,
    look,
    look_plain,
    mul,
)
from capture.interp.function_models.shadows import NONE, elements, items_of, node_of, shadow_of
from capture.refgraph.identical import contents_in_c
from capture.refgraph.lookup import maxlen_of
from capture.refgraph.node import Build, Const, ListStart, RefNode, Shadow, source_of
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import has_index


def structural(method: Callable[..., Any], kinds: str, takes: Callable[..., bool] = lambda *args: True) -> None:
    """Registers a method that only moves items: it is applied to the shadow state as well. `kinds`: what its arguments are: `x` an
    item, `i` an index or count, which no Python code tells, `*` an iterable of items. takes: which arguments, besides."""
    def applies(sequence: Any, *args: Any) -> bool:
        told = any(kind == "i" and is_index_in_python(arg) for arg, kind in zip(args, kinds))
        return not told and takes(sequence, *args)

    def prepare(interp: Interpreter, sequence: Value, *args: Value) -> None:
        look(interp, sequence, *(arg for arg, kind in zip(args, kinds) if kind == "i"))
        depend_bound(interp, sequence)
        for arg, kind in zip(args, kinds):
            if kind == "*":
                prepare_drain(interp, arg)

    def apply(interp: Interpreter, result: Any, sequence: Value, *args: Value) -> Shadow:
        node = node_of(sequence)
        shadows, operands = [], []
        shadow: Shadow
        for arg, kind in zip(args, kinds):
            if kind == "i":
                shadow, operand = Const(arg.real), arg.real
            elif kind == "*":
                operand = added(interp, sequence, arg)
                shadow = Build(tuple, tuple(operand))
            else:
                shadow = operand = arg.shadow
            shadows.append(shadow)
            operands.append(operand)
        moved = through(interp, sequence, method, *operands)
        interp.graph.effect(method, node, *shadows)
        return moved if isinstance(moved, Shadow) else NONE

    model(method, prepare=prepare, applies=applies)(apply)


def added(interp: Interpreter, sequence: Value, items: Value) -> list[Shadow]:
    """The shadows of what `extend` has just added."""
    if is_native_iterator(items.real):
        n = len(items_of(interp, sequence))
        return drain(interp, items, contents_in_c(sequence.real)[n:])
    return elements(interp, items)


def through(interp: Interpreter, sequence: Value, method: Callable[..., Any], *operands: Any) -> Any:
    """Applies a method to the shadow state of a list or deque."""
    state = items_of(interp, sequence)
    if is_a(sequence.real, list):
        return method(state, *operands)
    shadow = deque(state, maxlen_of(sequence.real))
    result = method(shadow, *operands)
    state[:] = shadow
    return result


def prepare_append(interp: Interpreter, sequence: Value, item: Value) -> None:
    """Before an item is appended to a list or deque. What falls out of a deque that is full must be known."""
    depend_bound(interp, sequence)
    if is_a(sequence.real, deque) and deque.__len__(sequence.real) == maxlen_of(sequence.real):
        items_of(interp, sequence)
    else:
        interp.graph.list_start(node_of(sequence))


def appending(method: Callable[..., None]) -> None:
    """Registers `list.append` or `deque.append`."""
    @model(method, prepare=prepare_append)
    def append(interp: Interpreter, result: None, sequence: Value, item: Value) -> Shadow:
        """`sequence.append(item)`, whatever the length of a container from outside."""
        node = node_of(sequence)
        start = interp.graph.list_start(node)
        if start is None:
            through(interp, sequence, method, item.shadow)
        else:
            start.added.append(item.shadow)
        interp.graph.effect(method, node, item.shadow)
        return NONE


appending(list.append)
appending(deque.append)


structural(list.insert, "ix")
structural(list.pop, "i")
structural(list.clear, "")
structural(list.reverse, "")
structural(list.extend, "*", takes=extends_natively)
structural(deque.appendleft, "x")
structural(deque.insert, "ix")
structural(deque.pop, "")
structural(deque.popleft, "")
structural(deque.clear, "")
structural(deque.reverse, "")
structural(deque.rotate, "i")


def extends_deque(sequence: Any, items: Any) -> bool:
    return extends_natively(sequence, items) and is_native_iterable(items)


structural(deque.extend, "*", takes=extends_deque)
structural(deque.extendleft, "*", takes=extends_deque)


def look_both(interp: Interpreter, a: Value, b: Value) -> None:
    look(interp, a)
    depend_bound(interp, a)
    prepare_drain(interp, b)


@model(operator.iadd, applies=lambda a, b: is_a(a, list) and extends_natively(a, b) and not adds_first(a, b), prepare=look_both)
@model(operator.iconcat, list.__iadd__, prepare=look_both, applies=lambda a, b: is_a(a, list) and extends_natively(a, b))
def iadd(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a += b` of a list."""
    items = added(interp, a, b)
    items_of(interp, a).extend(items)
    interp.graph.effect(list.extend, node_of(a), Build(tuple, tuple(items)))
    return node_of(a)


@model(operator.iadd, deque.__iadd__, prepare=look_both,
       applies=lambda a, b: is_a(a, deque) and extends_deque(a, b))
def iadd_deque(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a += b` of a deque."""
    items = elements(interp, b)
    through(interp, a, deque.extend, items)
    interp.graph.effect(deque.extend, node_of(a), Build(tuple, tuple(items)))
    return node_of(a)


@model(operator.iadd, applies=lambda a, b: is_a(a, tuple) and is_a(b, tuple))
def iadd_tuple(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a += b` of a tuple makes a new one."""
    return add(interp, result, a, b)


@model(operator.imul, list.__imul__, prepare=look, applies=lambda a, b: is_repetition(a, b) and is_a(a, (list, tuple)))
def imul(interp: Interpreter, result: Any, a: Value, n: Value) -> Shadow:
    """`a *= n`."""
    if result is not a.real or not is_a(a.real, list):
        return mul(interp, result, a, n)
    replace(interp, a, items_of(interp, a) * n.real)
    return node_of(a)


def stored_at(interp: Interpreter, sequence: Value, index: Value) -> ListStart | None:
    """The state of an outside list, one of whose items is about to be replaced at an index that differed in an earlier capture, or
    that was only written to since such a store; guards that there is an item. None for other lists."""
    node, graph = sequence.shadow, interp.graph
    start = graph.list_start(node) if isinstance(node, RefNode) and is_a(sequence.real, list) else None
    if start is None or type(index.real) is not int:
        return None
    changing = varies(interp, index.shadow, index.real) or bool(start.writes)
    source = source_of(index.shadow) if changing else None
    length = start.length + len(start.added)
    if source is None or not -length <= index.real < length:
        return None
    graph.require(Computed(has_index, (node.source, source, Literal(len(start.added)))), "VALUE", True)  # type: ignore[attr-defined]
    return start


def look_assigned(interp: Interpreter, sequence: Value, index: Value, value: Value) -> None:
    if stored_at(interp, sequence, index) is None:
        look(interp, sequence, index)
    if type(index.real) is slice:
        elements(interp, value)


@model(operator.setitem, list.__setitem__, deque.__setitem__, prepare=look_assigned, applies=is_slice_of_native)
def setitem(interp: Interpreter, result: Any, sequence: Value, index: Value, value: Value) -> Shadow:
    """`sequence[index] = value`."""
    shadow: Any = value.shadow
    operand: Any = value.shadow
    start = stored_at(interp, sequence, index)
    if start is not None:
        start.writes[index.real % (start.length + len(start.added))] = shadow
        interp.graph.effect(list.__setitem__, node_of(sequence), index.shadow, shadow)
        return NONE
    if type(index.real) is slice:
        operand = elements(interp, value)
        shadow = Build(tuple, tuple(operand))
    items_of(interp, sequence)[index.real] = operand
    interp.graph.effect(type_of(sequence).__setitem__, node_of(sequence), Const(index.real), shadow)
    return NONE


@model(operator.delitem, list.__delitem__, deque.__delitem__, prepare=look, applies=is_indexing)
def delitem(interp: Interpreter, result: Any, sequence: Value, index: Value) -> Shadow:
    """`del sequence[index]`."""
    del items_of(interp, sequence)[index.real]
    interp.graph.effect(type_of(sequence).__delitem__, node_of(sequence), Const(index.real))
    return NONE


def type_of(sequence: Value) -> Any:
    """The builtin type whose methods change a sequence."""
    return list if is_a(sequence.real, list) else deque


def replace(interp: Interpreter, sequence: Value, items: list[Shadow]) -> None:
    """All items of a list were replaced."""
    items_of(interp, sequence)[:] = items
    interp.graph.effect(list.__setitem__, node_of(sequence), Const(slice(None)), Build(tuple, tuple(items)))


@model(list.remove, deque.remove, prepare=look_plain, applies=compares_plainly)
def remove(interp: Interpreter, result: None, sequence: Value, x: Value) -> Shadow:
    """`sequence.remove(x)`; all items are constants then."""
    items_of(interp, sequence)[:] = [shadow_of(interp, item) for item in sequence.real]
    interp.graph.effect(type_of(sequence).remove, node_of(sequence), x.shadow)
    return NONE


@model(list.sort, prepare=look_plain, applies=lambda sequence, *, key=None, reverse=False: key is None
       and is_plain(sequence))
def sort(interp: Interpreter, result: None, sequence: Value, **options: Value) -> Shadow:
    """`sequence.sort()` of plain data."""
    replace(interp, sequence, [shadow_of(interp, item) for item in sequence.real])
    return NONE
