"""Weak references: outside state that leads from one object to another, or to nothing."""
from __future__ import annotations

import types
import weakref
from typing import Any

from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides.shadows import node_of
from capture.interp.models import model
from capture.refgraph.node import Const, Expr, RefNode, Shadow
from capture.refgraph.source import Attr

REFERENT = "()"                 # the slot, and the path, of what a reference refers to


@model(weakref.ref.__call__)
def referent(interp: Interpreter, result: Any, reference: Value) -> Shadow:
    """`reference()`."""
    node, graph = node_of(reference), interp.graph
    if REFERENT not in node.slots:
        graph.touch(node)
        node.slots[REFERENT] = graph.external(result, Attr(node.source, REFERENT))  # type: ignore[arg-type]
    return node.slots[REFERENT]


def is_record_keeping(callback: Any) -> bool:
    """Whether what is called when an object dies only takes it out of a weak container."""
    if not isinstance(callback, types.FunctionType) or callback.__module__ not in ("weakref", "_weakrefset"):
        return callback is None
    cells = dict(zip(callback.__code__.co_freevars, callback.__closure__ or ()))
    return "callback" not in cells or cells["callback"].cell_contents is None


@model(weakref.ref, applies=lambda target, callback=None: is_record_keeping(callback))
def make_reference(interp: Interpreter, result: Any, target: Value, *callback: Value) -> Shadow:
    """`weakref.ref(target, callback)`, which may be a reference that exists already."""
    return reference(interp, result, target, weakref.ref, (target, *callback))


@model(weakref.ref.__new__, applies=lambda cls, target, callback=None: is_record_keeping(callback))
def make_derived(interp: Interpreter, result: Any, cls: Value, target: Value, *callback: Value) -> Shadow:
    """`weakref.ref.__new__(cls, target, callback)` of a subclass."""
    return reference(interp, result, target, weakref.ref.__new__, (cls, target, *callback))


def reference(interp: Interpreter, result: Any, target: Value, make: Any, args: tuple[Value, ...]) -> RefNode:
    """The node of a weak reference, perhaps a new one."""
    known = interp.graph.find(result)
    if known is None:
        known = interp.graph.create(result, origin=Expr(make, tuple(value.shadow for value in args)))  # type: ignore[misc]
        known.slots[REFERENT] = target.shadow  # type: ignore[assignment]
    return known


@model(weakref.ref.__init__)
def initialise(interp: Interpreter, result: None, *args: Value) -> Shadow:
    """Does nothing: `__new__` did it all."""
    return Const(None)
