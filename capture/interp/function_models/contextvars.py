"""Context variables: outside state that is read, set, and set back."""
from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.refgraph.effects import CallEffect, Effect, Replayed
from capture.refgraph.lookup import MISSING
from capture.refgraph.node import ABSENT, Const, RefNode, Shadow
from capture.refgraph.source import Attr, Computed
from capture.refgraph.state_queries import has_no_value, resets

VALUE = "get()"                 # the slot, and the path, of a variable's value
UNSET = "unset"                 # the slot that tells that there was none at entry


def look(interp: Interpreter, variable: Value, *rest: Value) -> None:
    """Before a variable is changed: reads its value at entry."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if VALUE not in node.slots:
        if node.source is None:
            node.slots[VALUE] = ABSENT
        else:
            real = variable.real.get(MISSING)
            interp.graph.touch(node)
            node.slots[VALUE] = ABSENT if real is MISSING else interp.graph.external(real, Attr(node.source, VALUE))
            if real is MISSING:
                node.slots[UNSET] = Const(True)


def look_for_value(interp: Interpreter, variable: Value, *default: Value) -> None:
    """Before a variable is read: whether it has a value at entry."""
    look(interp, variable)
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if node.slots[VALUE] is ABSENT and UNSET in node.slots:
        interp.graph.require(Computed(has_no_value, (node.source,)), "VALUE", True)
    elif node.slots[VALUE] is ABSENT and not default:
        raise Break("opaque-call", f"context variable {variable.real.name!r} is read without a value, and was made or reset before")


@model(ContextVar.get, prepare=look_for_value)
def get(interp: Interpreter, result: Any, variable: Value, *default: Value) -> Shadow:
    """`variable.get()`."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if node.slots[VALUE] is not ABSENT:
        return node.slots[VALUE]
    if default:
        return default[0].shadow
    return interp.graph.external(result, Attr(node.source, VALUE))      # what it was made with


@model(ContextVar.set, prepare=look)
def set_(interp: Interpreter, result: Any, variable: Value, value: Value) -> Shadow:
    """`variable.set(value)`: the token remembers what was there. Each hit has its own."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if node.source is None:
        interp.graph.effect(ContextVar.set, node, value.shadow)
        token = interp.graph.create(result)
    else:
        call = interp.graph.call_effect(Const(ContextVar.set), (node, value.shadow), positions=interp.positions())
        token = interp.graph.create(result, origin=Replayed(call, ()))
    token.slots["old"] = node.slots[VALUE]
    node.slots[VALUE] = value.shadow
    return token


def look_at_token(interp: Interpreter, variable: Value, token: Value) -> None:
    """Before a variable is reset: what it holds at entry, and what a token from outside remembers."""
    look(interp, variable)
    node, mark, graph = variable.shadow, token.shadow, interp.graph
    if not (isinstance(node, RefNode) and node.source is not None and isinstance(mark, RefNode) and mark.source is not None):
        return
    if "old" in mark.slots or not resets(token.real, variable.real):
        return
    path = Attr(mark.source, "old_value")
    graph.require(Computed(resets, (mark.source, node.source)), "VALUE", True)
    if token.real.old_value is Token.MISSING:
        graph.require(path, "ID", Token.MISSING)
        mark.slots["old"] = ABSENT
    else:
        mark.slots["old"] = graph.external(token.real.old_value, path)


@model(ContextVar.reset, prepare=look_at_token)
def reset(interp: Interpreter, result: Any, variable: Value, token: Value) -> Shadow:
    """`variable.reset(token)`. Of the latest `set` of this trace: as if that had not been."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    mark, effects = token.shadow, interp.graph.effects
    if not isinstance(mark, RefNode) or "old" not in mark.slots:
        raise Break("changing-global-state", f"context variable {variable.real.name!r} is reset to a token from outside")
    sets = [effect for effect in effects if sets_variable(effect, node)]
    if sets and isinstance(mark.origin, Replayed) and mark.origin.op is sets[-1]:
        interp.graph.withdraw(sets[-1])
        mark.origin = None              # nothing makes it any more
    elif node.source is not None:
        interp.graph.effect(ContextVar.reset, node, mark)
    node.slots[VALUE] = mark.slots["old"]
    return Const(None)


def sets_variable(effect: Effect | CallEffect, node: RefNode) -> bool:
    """Whether an effect sets this variable."""
    return isinstance(effect, CallEffect) and effect.function == Const(ContextVar.set) and effect.args[0] is node
