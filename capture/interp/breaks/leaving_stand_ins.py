"""Stand-ins that leave captured code (see design.md, "Iterators that call Python"): each becomes the C object in whose place it is.

It remains a stand-in if only captured code uses it (in a variable that crosses a break, or of a generator), and while a method of
its class runs or is bound to it.
"""
from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from capture.interp.breaks.positions import Suspended
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.polyfills.grouping import Group, GroupBy
from capture.interp.polyfills.stand_ins import can_become, is_code_of_stand_in
from capture.refgraph.effects import CallEffect, operands_of
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import is_one_of
from capture.refgraph.native_iterators import turn_into
from capture.refgraph.node import (
    Build,
    ClassState,
    Const,
    DictState,
    Expr,
    FunctionState,
    IteratorState,
    ListState,
    RefNode,
    SetState,
    Shadow,
    WrittenDict,
)
from capture.refgraph.recipes import operands


def let_out(interp: Interpreter, leaving: Iterable[Value], frames: Iterable[Suspended] = (), function: Any = None) -> None:
    """Turns stand-ins that others will see into C objects, now and on hits. leaving: what the trace returns, or passes to
    `function`; frames: what continuations are given."""
    graph = interp.graph
    if not any(can_become(node.real) for node in graph.nodes):
        return
    leaving = list(leaving)
    shown = [shadow for effect in graph.effects for shadow in (
        operands_of(effect) if isinstance(effect, CallEffect) else () if can_become(effect.target.real) else effect.args)]
    met = walk(graph, [*(value.shadow for value in leaving), *shown])
    staying = walk(graph, [value.shadow for frame in frames for value in (*frame.values, *frame.cells)])
    used = [value for frame in frames if is_code_of_stand_in(frame.code) for value in frame.values]
    if type(function) is types.FunctionType and is_code_of_stand_in(function.__code__):
        used += leaving
    kept = {id(real) for real in (*held_by_methods([*met, *staying]), *(value.real for value in used))}
    nodes = [shadow for shadow in met if isinstance(shadow, RefNode) and can_leave(graph, shadow) and id(shadow.real) not in kept]
    nodes += groups_of(graph, nodes)
    recipes = [(node, *node.real.made_anew()) for node in sorted(nodes, key=lambda node: not node.real.comes_first)]
    for node, made_by, names in recipes:            # what those hold that follow is asked of all before one has become another
        shadows = [graph.slot(node, name, getattr(node.real, name)) for name in names]
        turn(graph, node, made_by, names, shadows)


def turn(graph: RefGraph, node: RefNode, made_by: tuple[Any, ...], names: tuple[str, ...], shadows: list[Shadow]) -> None:
    """Turns a stand-in into the real object. The program has not seen it before, or it has come from outside."""
    real = node.real
    make, *first = made_by
    arguments = (*map(Const, first), *shadows)
    if node.source is not None:
        graph.effect(turn_into, node, Const(make), *arguments)
    turn_into(real, make, *first, *(getattr(real, name) for name in names))
    node.recast(real)
    if node.source is None:
        node.origin = Expr(make, arguments)


def groups_of(graph: RefGraph, nodes: list[RefNode]) -> list[RefNode]:
    """The groups of those of `nodes` that are groupbys, without those among `nodes`: a group needs its groupby."""
    parents = {id(node.real) for node in nodes if type(node.real) is GroupBy}
    groups = [node for node in graph.nodes if type(node.real) is Group and id(node.real._parent) in parents] if parents else []
    return [node for node in groups if node not in nodes]


def can_leave(graph: RefGraph, node: RefNode) -> bool:
    """Whether a hit can make a stand-in again. It cannot make a groupby from outside: there may be groups that the trace does not
    know."""
    return can_become(node.real) and node not in graph.published and not (
        node.source is not None and is_one_of(type(node.real), Group, GroupBy))


def held_by_methods(shadows: Iterable[Shadow]) -> Iterator[Any]:
    """The stand-ins to which methods are bound."""
    for shadow in shadows:
        if isinstance(shadow, Build) and shadow.cls is types.MethodType and isinstance(shadow.items[1], RefNode):
            yield shadow.items[1].real


def walk(graph: RefGraph, roots: Iterable[Shadow]) -> list[Shadow]:
    """All shadows that can be reached from `roots` now, except through generators, whose variables nobody else sees."""
    found: dict[int, Shadow] = {}
    stack = list(roots)
    while stack:
        shadow = stack.pop()
        if id(shadow) in found:
            continue
        found[id(shadow)] = shadow
        if not isinstance(shadow, RefNode):
            stack += operands(shadow)
        elif can_become(shadow.real):
            stack += (graph.slot(shadow, name, getattr(shadow.real, name)) for name in shadow.real.kept)
        elif shadow.created:
            stack += contents(shadow)
    return list(found.values())


def contents(node: RefNode) -> Iterator[Shadow]:
    """What an object of the trace holds."""
    state = node.state.before if isinstance(node.state, WrittenDict) else node.state
    if isinstance(state, ListState):
        yield from state.distinct
    elif isinstance(state, (DictState, SetState)):
        yield from state.items.values()
    elif isinstance(state, FunctionState):
        yield from (*state.closure, state.defaults, state.kwdefaults)
    elif isinstance(state, ClassState):
        yield state.bases
    elif isinstance(state, IteratorState) and (recipe := state.recipe()) is not None:
        yield from recipe[1]
    if isinstance(node.state, WrittenDict):
        yield from (value for _, _, value in node.state.writes)
    if isinstance(node.origin, Shadow):
        yield from operands(node.origin)
    if node.attrs is not None:
        yield node.attrs
    yield from node.slots.values()
