"""Helpers of ours that polyfills call, and that no trace looks into: what they ask of classes, and what is left to C."""
from __future__ import annotations

import operator
from typing import Any

from capture._C import Classes
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import declines, in_python, is_plain
from capture.interp.function_models.shadows import NONE, depend_plain, depend_type, shadow_of
from capture.interp.polyfills.operators import left_to_torch
from capture.interp.polyfills.sorting import order_of
from capture.refgraph.class_attributes import type_attr
from capture.refgraph.lookup import has, lookup_class
from capture.refgraph.node import Const, Shadow


@model(in_python)
def runs_python(interp: Interpreter, result: bool, x: Value, name: Value) -> Shadow:
    """Whether a special method is a Python function: a matter of the type."""
    depend_type(interp, x)
    type_attr(interp.graph, type(x.real), name.real)
    return Const(result)


@model(operator.contains, applies=lambda classes, x: type(classes) is Classes)
def is_among(interp: Interpreter, result: bool, classes: Value, x: Value) -> Shadow:
    """Whether a class is one of some classes."""
    interp.graph.depend(x.shadow, x.real)
    return Const(result)


@model(lookup_class)
def looks_up(interp: Interpreter, result: Any, cls: Value, name: Value, default: Value | None = None) -> Shadow:
    """What a class has under a name, or a default."""
    interp.graph.depend(cls.shadow, cls.real)
    found, _, shadow = type_attr(interp.graph, cls.real, name.real)
    return shadow if found else NONE if default is None else default.shadow


@model(has)
def tells_whether_found(interp: Interpreter, result: bool, cls: Value, name: Value) -> Shadow:
    """Whether a class has anything under a name."""
    looks_up(interp, result, cls, name)
    return Const(result)


@model(declines)
def leaves_to_other(interp: Interpreter, result: bool, x: Value, other: Value, name: Value) -> Shadow:
    """Whether the other operand's method comes next: a matter of the types."""
    depend_type(interp, other)
    return runs_python(interp, result, x, name)


@model(order_of, applies=lambda *args: all(map(is_plain, args)))
def compute(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    """A function of plain data that polyfills leave to C."""
    for value in args:
        depend_plain(interp, value.shadow, value.real)
    return shadow_of(interp, result)


@model(left_to_torch, refuses=lambda interp, *args: Break("opaque-call", "an operation that torch refuses"))
def refused(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    """Torch has raised."""
    raise Break("opaque-call", "an operation that torch refuses")
