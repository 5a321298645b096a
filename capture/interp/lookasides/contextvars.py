"""Context variables: outside state that is read, set, and set back."""
from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from capture.errors import Break
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from capture.interp.models import model
from capture.refgraph.effects import Effect
from capture.refgraph.facts import has_no_value
from capture.refgraph.lookup import MISSING
from capture.refgraph.node import ABSENT, Const, RefNode, Shadow
from capture.refgraph.source import Attr, Computed

VALUE = "get()"                 # the slot, and the path, of a variable's value


def look(interp: Interpreter, variable: Value, *rest: Value) -> None:
    """Before a variable is changed: what it holds at entry."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if VALUE not in node.slots:
        if node.source is None:
            node.slots[VALUE] = ABSENT
        else:
            real = variable.real.get(MISSING)
            interp.graph.touch(node)
            node.slots[VALUE] = ABSENT if real is MISSING else interp.graph.external(real, Attr(node.source, VALUE))


def look_for_value(interp: Interpreter, variable: Value, *default: Value) -> None:
    """Before a variable is read: whether it has a value at entry."""
    look(interp, variable)
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if node.slots[VALUE] is ABSENT and node.source is not None:
        interp.graph.require(Computed(has_no_value, (node.source,)), "VALUE", True)


@model(ContextVar.get, prepare=look_for_value)
def get(interp: Interpreter, result: Any, variable: Value, *default: Value) -> Shadow:
    """`variable.get()`."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    if node.slots[VALUE] is not ABSENT:
        return node.slots[VALUE]
    if default:
        return default[0].shadow
    if node.source is None:
        raise Break("opaque-call", f"context variable {variable.real.name!r}, which was made in the call, is read without a value")
    return interp.graph.external(result, Attr(node.source, VALUE))      # what it was made with


@model(ContextVar.set, prepare=look)
def set_(interp: Interpreter, result: Any, variable: Value, value: Value) -> Shadow:
    """`variable.set(value)`: the token remembers what was there."""
    node: RefNode = variable.shadow  # type: ignore[assignment]
    token = interp.graph.create(result)
    token.slots["old"] = node.slots[VALUE]
    node.slots[VALUE] = value.shadow
    interp.graph.effect(ContextVar.set, node, value.shadow)
    return token


@model(ContextVar.reset)
def reset(interp: Interpreter, result: Any, variable: Value, token: Value) -> Shadow:
    """`variable.reset(token)` of the latest `set`: as if that had not been."""
    node, mark = variable.shadow, token.shadow
    effects = interp.graph.effects
    own = [effect for effect in effects
           if isinstance(effect, Effect) and effect.target is node and effect.operation is ContextVar.set]
    if not isinstance(mark, RefNode) or "old" not in mark.slots or (node.source is not None and not own):  # type: ignore[attr-defined]
        raise Break("changing-global-state", f"context variable {variable.real.name!r} is reset to a token from outside")
    node.slots[VALUE] = mark.slots["old"]  # type: ignore[attr-defined]
    if own:
        effects.remove(own[-1])
    return Const(None)


