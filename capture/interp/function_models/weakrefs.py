"""Weak references and proxies: outside state that leads from one object to another, or to nothing."""
from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import in_python
from capture.interp.function_models.shadows import depend_type, node_of
from capture.refgraph.identical import PROXIES
from capture.refgraph.node import Const, Expr, RefNode, Shadow
from capture.refgraph.source import Attr, Computed
from capture.refgraph.state_queries import stood_for

REFERENT = "()"                 # the slot, and the path, of what a reference refers to
# What C does with what a weak proxy stands for, by the proxy; and what of these looks at its first operand alone.
UNARY = frozenset({
    iter, len, bool, next, str, reversed, isinstance, int, float, abs, *(getattr(operator, name) for name in (
        "truth not_ neg pos invert index contains getitem setitem delitem").split())})
FORWARDED = UNARY | frozenset(getattr(operator, name) for name in (
    "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul itruediv ifloordiv imod ipow imatmul "
    "iand ior ixor ilshift irshift lt le eq ne gt ge").split())


@model(weakref.ref.__call__)
def referent(interp: Interpreter, result: Any, reference: Value) -> Shadow:
    """`reference()`."""
    node, graph = node_of(reference), interp.graph
    if REFERENT not in node.slots:
        graph.touch(node)
        node.slots[REFERENT] = graph.external(result, Attr(node.source, REFERENT))
    return node.slots[REFERENT]


def is_record_keeping(callback: Any) -> bool:
    """Whether what is called when an object dies only takes it out of a weak container."""
    if type(callback) is not types.FunctionType or callback.__module__ not in ("weakref", "_weakrefset"):
        return callback is None
    cells = dict(zip(callback.__code__.co_freevars, callback.__closure__ or ()))
    return "callback" not in cells or cells["callback"].cell_contents is None


def is_unseen(interp: Interpreter, target: Value, callback: Value | None = None) -> Break | None:
    """Why the death of an object would run code of the program that the trace does not see; None if it would not."""
    if callback is None or is_record_keeping(callback.real):
        return None
    if isinstance(target.shadow, RefNode) and not target.shadow.created:    # who holds it does so beyond the trace
        return None
    return Break("opaque-call", "a weak reference with a callback to an object that the call makes")


@model(weakref.ref, refuses=is_unseen)
def make_reference(interp: Interpreter, result: Any, target: Value, *callback: Value) -> Shadow:
    """`weakref.ref(target, callback)`, which may be a reference that exists already."""
    return reference(interp, result, target, weakref.ref, (target, *callback))


@model(weakref.ref.__new__, refuses=lambda interp, cls, target, callback=None: is_unseen(interp, target, callback))
def make_derived(interp: Interpreter, result: Any, cls: Value, target: Value, *callback: Value) -> Shadow:
    """`weakref.ref.__new__(cls, target, callback)` of a subclass."""
    return reference(interp, result, target, weakref.ref.__new__, (cls, target, *callback))


def reference(interp: Interpreter, result: Any, target: Value, make: Any, args: tuple[Value, ...]) -> RefNode:
    """The node of a weak reference, perhaps a new one. There are none to objects of some types."""
    depend_type(interp, target)
    known = interp.graph.find(result)
    if known is None:
        known = interp.graph.create(result, origin=Expr(make, tuple(value.shadow for value in args)))
        known.slots[REFERENT] = target.shadow
    return known


@model(weakref.ref.__init__)
def initialise(interp: Interpreter, result: None, *args: Value) -> Shadow:
    """Does nothing: `__new__` did it all."""
    return Const(None)


# -- proxies -----------------------------------------------------------------------------------------------------------

@model(weakref.proxy, refuses=is_unseen)
def make_proxy(interp: Interpreter, result: Any, target: Value, *callback: Value) -> Shadow:
    """`weakref.proxy(target, callback)`, which may be a proxy that exists already."""
    return reference(interp, result, target, weakref.proxy, (target, *callback))


def is_proxy(real: Any) -> bool:
    """Whether an object is a weak proxy. (`isinstance` would ask the object behind it.)"""
    return type(real) in PROXIES


def behind(interp: Interpreter, proxy: Value, on_raise: Callable[[BaseException], bool] | None = None) -> Value | None:
    """The object behind a weak proxy. If it is dead: None if `on_raise` takes the exception, else UserError. If it cannot be told,
    gives up the trace and returns the proxy."""
    try:
        real = stood_for(proxy.real)
    except LookupError as error:
        interp.give_up(Break("opaque-call", f"a weak proxy was used, and {error}"))
        return proxy
    shadow = interp.track(shadow_behind, interp, proxy, real)
    if real is not None:
        return Value(real, shadow)
    exception = ReferenceError("weakly-referenced object no longer exists")
    if on_raise is None or not on_raise(exception):
        unwind.throw(exception)
    return None


def shadow_behind(interp: Interpreter, proxy: Value, real: Any) -> Shadow:
    if in_python(real, "__getattribute__"):
        raise Break("opaque-call", f"a weak proxy of a {type(real).__name__} was used, whose attributes code of its own finds")
    node, graph = node_of(proxy), interp.graph
    if REFERENT not in node.slots:
        path = Computed(stood_for, (graph.touch(node).source,))
        node.slots[REFERENT] = graph.external(real, path)
        if real is None:
            graph.depend(node.slots[REFERENT], None)
    return node.slots[REFERENT]


def through_proxies(interp: Interpreter, function: Any, args: list[Value]) -> list[Value]:
    """The arguments of a C function, with what a proxy stands for in its place where that is what the function works on."""
    if function not in FORWARDED:
        return args
    count = 1 if function in UNARY else 2
    return [behind(interp, arg) or arg if is_proxy(arg.real) else arg for arg in args[:count]] + args[count:]
