"""Models of contexts of decimal numbers. A context that the trace makes and sets for a while need not be set on a hit: what is
computed in it is constant."""
from __future__ import annotations

import decimal
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import is_plain
from capture.interp.function_models.shadows import NONE, depend_plain, node_of, shadow_of
from capture.refgraph.node import ABSENT, Const, RefNode, Shadow
from capture.refgraph.source import Computed
from capture.refgraph.value_types import current_context, require_decimal_rules, rules_of

MANAGER = type(decimal.localcontext())


def is_of_the_trace(interp: Interpreter, owner: Value, *args: Value, **kwargs: Value) -> Break | None:
    return None if node_of(owner).created else Break("opaque-call", f"a {type(owner.real).__name__} from outside was used")


@model(decimal.getcontext)
def current(interp: Interpreter, result: Any) -> Shadow:
    """The context in force: one of the trace's, or the thread's at entry."""
    known = interp.graph.find(result)
    return known if known is not None and known.created else interp.graph.external(result, Computed(current_context, ()))


@model(decimal.localcontext, applies=lambda ctx=None, **settings: all(map(is_plain, settings.values())))
def local(interp: Interpreter, result: Any, ctx: Value | None = None, **settings: Value) -> Shadow:
    """`decimal.localcontext(ctx, prec=…)`: a copy of a context, which will be in force."""
    for value in settings.values():
        depend_plain(interp, value.shadow, value.real)
    template = None if ctx is None or ctx.real is None else node_of(ctx)
    if template is None:
        require_decimal_rules(interp.graph)
    elif template.source is not None:
        source = interp.graph.touch(template).source
        interp.graph.require(Computed(rules_of, (source,)), "VALUE", rules_of(ctx.real))  # type: ignore[union-attr]
    return interp.graph.create(result)


@model(MANAGER.__enter__, refuses=is_of_the_trace)
def enter(interp: Interpreter, result: Any, manager: Value) -> Shadow:
    """The context is in force until the same trace leaves it."""
    interp.opened(node_of(manager))
    return interp.graph.find(result) or interp.graph.create(result)


@model(MANAGER.__exit__, refuses=is_of_the_trace)
def leave(interp: Interpreter, result: Any, manager: Value, *exception: Value) -> Shadow:
    """The context at entry is in force again."""
    interp.blocks.end(node_of(manager))
    return Const(result)


@model(decimal.Context, applies=lambda *args, **settings: all(map(is_plain, (*args, *settings.values()))))
def make(interp: Interpreter, result: Any, *args: Value, **settings: Value) -> Shadow:
    """`decimal.Context(prec=…)`."""
    for value in (*args, *settings.values()):
        depend_plain(interp, value.shadow, value.real)
    return interp.graph.create(result)


def assign(interp: Interpreter, context: Any, value: Value | None) -> Shadow:
    """`context.prec = value`, after the real one. context: its shadow."""
    if not isinstance(context, RefNode) or not context.created or value is None:
        raise Break("changing-global-state", "an attribute of a decimal context from outside was assigned")
    depend_plain(interp, value.shadow, value.real)
    return ABSENT


def operation(method: Any) -> None:
    """Registers a method of contexts, which computes by a context of the trace's or changes that."""
    @model(method, applies=lambda context, *args: all(map(is_plain, args)), refuses=is_of_the_trace)
    def operate(interp: Interpreter, result: Any, context: Value, *args: Value) -> Shadow:
        for value in args:
            depend_plain(interp, value.shadow, value.real)
        if result is None:
            return NONE
        return interp.graph.create(result) if is_a(result, decimal.Context) else shadow_of(interp, result)


for _name, _method in vars(decimal.Context).items():
    if is_a(_method, types.MethodDescriptorType) and not _name.startswith("_"):
        operation(_method)
