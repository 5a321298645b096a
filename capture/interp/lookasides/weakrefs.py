"""Weak references: outside state that leads from one object to another, or to nothing."""
from __future__ import annotations

import weakref
from typing import Any

from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides.shadows import node_of
from capture.interp.models import model
from capture.refgraph.node import Expr, Shadow
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


@model(weakref.ref, applies=lambda *args: len(args) == 1)
def make_reference(interp: Interpreter, result: Any, target: Value) -> Shadow:
    """`weakref.ref(target)`, which may be a reference that exists already."""
    known = interp.graph.find(result)
    if known is None:
        known = interp.graph.create(result, origin=Expr(weakref.ref, (target.shadow,)))  # type: ignore[arg-type]
        known.slots[REFERENT] = target.shadow  # type: ignore[assignment]
    return known
