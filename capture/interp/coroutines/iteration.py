"""Iteration: advancing any iterator, and taking sequences apart."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import NONE_VALUE, Continuation, Cut, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import ITERATORS
from capture.interp.coroutines import bodies
from capture.interp.dispatch import callables, calls
from capture.interp.function_models.iterators import OPEN, Outside, cursor_of
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import lookup_class
from capture.refgraph.node import Build, Const, RefNode, Shadow

NEXT = Value(next, Const(next))
END = object()
NATIVE = Classes(ITERATORS)       # whose `__next__` is known to be of C


def advance(interp: Interpreter, iterator: Value, then: Continuation, exhausted: Callable[[], None]) -> None:
    """`next(iterator)`, whose result goes to `then`; or `exhausted()`."""
    real = iterator.real
    body = bodies.find(interp, iterator)
    if body is not None:
        return body.send(interp, NONE_VALUE, then, lambda value: exhausted())
    if not interp.tracking and type(real) in NATIVE:
        item = interp.real(next, real, END)
        return exhausted() if item is END else then(Value(item, None))

    def stopped(exception: BaseException) -> bool:
        if is_a(exception, StopIteration):
            exhausted()
            return True
        return False
    method = lookup_class(type(real), "__next__")
    if interp.inlining and is_a(method, callables.FUNCTIONS):
        shadow = interp.track(callables.class_attribute, interp, type(real), "__next__")
        return calls.call(interp, Value(method, shadow), [iterator], None, then, stopped)
    if interp.can_cut and calls.is_resumable(then):
        unknown = interp.track(refusal, interp, iterator)
        if isinstance(unknown, Break):
            raise Cut(unknown, NEXT, [iterator], {}, then=then, on_raise=stopped)
    interp.track(_synchronise, interp, iterator)
    item = interp.real(next, real, END)
    if item is END:
        interp.track(_ended, interp, iterator)
        return exhausted()
    then(Value(item, interp.track(_next_item, interp, iterator, item)))


def refusal(interp: Interpreter, iterator: Value) -> Any:
    """Why the trace cannot know what an iterator yields; None if it can."""
    try:
        cursor = cursor_of(interp, iterator)
    except Break as reason:
        return reason.with_traceback(None)      # which leads to the frames that will hold it
    return Break("changing-result", OPEN) if isinstance(cursor, Outside) and cursor.is_open() else None


def _synchronise(interp: Interpreter, iterator: Value) -> None:
    cursor_of(interp, iterator).sync()


def _ended(interp: Interpreter, iterator: Value) -> None:
    cursor_of(interp, iterator).ended()


def _next_item(interp: Interpreter, iterator: Value, item: Any) -> Shadow:
    return cursor_of(interp, iterator).advance(item)


def elements(interp: Interpreter, value: Value) -> list[Value]:
    """The items of a real list or tuple (or subclass that does not redefine iteration), with their shadows."""
    real: Sequence[Any] = value.real
    reals = list.__iter__(real) if is_a(real, list) else tuple.__iter__(real)  # type: ignore[arg-type]
    shadows = interp.track(_element_shadows, interp, value)
    if shadows is None:
        return [Value(item, None) for item in reals]
    return [Value(item, shadow) for item, shadow in zip(reals, shadows, strict=True)]


def _element_shadows(interp: Interpreter, value: Value) -> Any:
    shadow = value.shadow
    if isinstance(shadow, Build):
        return shadow.items
    if isinstance(shadow, Const):
        return [interp.graph.constant(item) for item in value.real]
    if isinstance(shadow, RefNode) and is_a(value.real, list):
        items = interp.graph.list_state(shadow).items
        if len(items) != list.__len__(value.real):
            raise Break("untracked-mutation", "a list was changed by native code")
        return items
    raise Break("opaque-call", f"a {type(value.real).__name__} of unknown origin was taken apart")
