"""Groups of exceptions: made, looked into, and taken apart."""
from __future__ import annotations

from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models.objects import new_exception
from capture.interp.function_models.shadows import items_of, node_of
from capture.refgraph.identical import LISTS, Classes
from capture.refgraph.node import Build, Const, RefNode, Shadow

GROUPS = Classes((BaseExceptionGroup, ExceptionGroup))


def is_plain_group(group: Any) -> bool:
    """Whether a group is taken apart in C alone."""
    return type(group) in GROUPS and all(
        not is_a(item, BaseExceptionGroup) or is_plain_group(item) for item in group.exceptions)


@model(BaseExceptionGroup.__new__)
def new_group(interp: Interpreter, result: Any, cls: Value, message: Value, exceptions: Value) -> Shadow:
    """`ExceptionGroup(message, exceptions)`."""
    node: RefNode = new_exception(interp, result, cls, message, exceptions)  # type: ignore[assignment]
    node.slots.update(message=message.shadow, exceptions=Build(tuple, tuple(items_of(interp, exceptions))))
    return node


@model(*GROUPS, applies=lambda message, exceptions: True)
def make_group(interp: Interpreter, result: Any, message: Value, exceptions: Value) -> Shadow:
    """The same of these very classes."""
    return new_group(interp, result, Value(type(result), Const(type(result))), message, exceptions)


def group_shadow(interp: Interpreter, real: BaseException | None) -> Shadow:
    """The shadow of a part of a group: an exception that was in it, or another group of such, which C has made."""
    graph = interp.graph
    known = Const(None) if real is None else graph.find(real)
    if known is not None:
        return known
    if type(real) not in GROUPS:
        raise Break("opaque-call", f"a {type(real).__name__} of unknown origin was in a group of exceptions")
    parts = Build(tuple, tuple(group_shadow(interp, item) for item in real.exceptions))  # type: ignore[union-attr]
    message = Const(real.message)  # type: ignore[union-attr]
    node = graph.create(real, origin=Build(type(real), (message, parts)))
    node.slots.update(message=message, exceptions=parts)
    return node


def depend_members(interp: Interpreter, real: Any) -> None:
    """Guards of what classes an exception, and those in it, are."""
    node = interp.graph.find(real)
    if node is not None:
        interp.graph.touch(node)
    for item in real.exceptions if is_a(real, BaseExceptionGroup) else ():
        depend_members(interp, item)


def is_chosen_by_class(group: Any, condition: Any) -> bool:
    classes = condition if is_a(condition, tuple) else (condition,)
    return is_plain_group(group) and all(is_a(cls, type) for cls in classes)


@model(BaseExceptionGroup.split, applies=is_chosen_by_class)
def split(interp: Interpreter, result: tuple[Any, Any], group: Value, condition: Value) -> Shadow:
    """`group.split(classes)`."""
    look_into(interp, group, condition)
    return Build(tuple, tuple(group_shadow(interp, part) for part in result))


@model(BaseExceptionGroup.subgroup, applies=is_chosen_by_class)
def subgroup(interp: Interpreter, result: Any, group: Value, condition: Value) -> Shadow:
    """`group.subgroup(classes)`."""
    look_into(interp, group, condition)
    return group_shadow(interp, result)


@model(BaseExceptionGroup.derive, applies=lambda group, exceptions: is_plain_group(group) and type(exceptions) in LISTS)
def derive(interp: Interpreter, result: Any, group: Value, exceptions: Value) -> Shadow:
    """`group.derive(exceptions)`."""
    message = Value(result.message, interp.graph.field(node_of(group), "message", result.message))
    return new_group(interp, result, Value(type(result), Const(type(result))), message, exceptions)


def look_into(interp: Interpreter, group: Value, condition: Value) -> None:
    interp.graph.depend(condition.shadow, condition.real)
    depend_members(interp, group.real)
