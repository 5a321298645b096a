"""The plan of a mock function: what a hit does besides the checks.

A mock function reads the entry state that it needs, runs the graph, makes the objects that the trace created and that outlive it,
in their final state, repeats the effects in order, and returns the result. Objects are made in the order in which the program made
them; then they are filled by the same operations as effects consist of.
"""
from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.refgraph.effects import (
    CallEffect,
    Effect,
    Replayed,
    merge_changes,
    operands_of,
    ready_at_entry,
    user_stack,
    without_restored,
)
from capture.refgraph.graph import RefGraph
from capture.refgraph.lookup import is_mutable
from capture.refgraph.memory import storage_of
from capture.refgraph.mock_order import Make, Step, objects_in, ordered
from capture.refgraph.node import Build, RefNode, Shadow, TensorState
from capture.refgraph.recipes import Perform, Recipe, operands, recipe_of
from capture.refgraph.requirements import Kind
from capture.refgraph.source import Computed, Constant, Source


@dataclass(frozen=True, slots=True, eq=False)
class MockPlan:
    """What a mock function does, in order: `early`, the graph, `steps`, and the result."""

    outputs: tuple[RefNode, ...]                            # tensors that the graph must return, in order
    steps: tuple[Step, ...]                                 # what is done after the graph
    result: Shadow
    # The guarded types at the paths that the mock function reads and on the way there …
    classes: dict[Source, type]
    plain: dict[int, type]                                  # … of which, by id, the `__getattribute__` is guarded, too
    numbers: tuple[Shadow, ...] = ()                        # what the graph takes besides tensors
    risks: tuple[Shadow, ...] = ()                          # expressions that are computed, used or not, because they may raise
    early: tuple[Step, ...] = ()                            # what is done before the graph
    repeatable: frozenset[CallEffect] = frozenset()         # … of this, calls that may be made again
    before: Perform | None = None                           # undoes all changes, if the graph or one of the risks raises


def plan(graph: RefGraph, result: Shadow, inputs: Iterable[RefNode], numbers: tuple[Shadow, ...] = (), effects_before: int = 0,
         before: Perform | None = None) -> MockPlan:
    """Plans the mock function of a sealed graph. `inputs`: the tensors that the compiled graph takes; `numbers`: what it takes
    after them, entry state and arithmetic on it. `effects_before`: how many effects are made before the first operation that may
    raise, of a graph that cannot run again; `before`: see `MockPlan`.

    Raises Break if an object outlives the trace and cannot be made again.
    """
    first = merge_changes(graph.effects[:effects_before])
    effects = without_restored([*first, *merge_changes(graph.effects[effects_before:])])
    _check_shown(graph, effects)
    roots = [result, *numbers, *graph.risks, *filter(None, [before]), *[
        shadow for effect in effects for shadow in operands_of(effect)]]
    recipes, outputs, shadows = _reach(graph, roots)
    hurried = first[:ready_at_entry(first, graph.early)]
    early = [effect for effect in effects if effect in hurried
             or (effect in graph.early if isinstance(effect, CallEffect) else effect.early)]
    repeatable = frozenset(effect for effect in graph.early if effect.stream is None and not effect.once)
    returned = [recipe for recipe in recipes if isinstance(recipe.node.origin, Replayed) and recipe.node.origin.op in early]
    steps = ordered([recipe for recipe in recipes if recipe not in returned],
                    [effect for effect in effects if effect not in early])
    first_steps = [step for effect in early for step in (
        effect, *(Make(recipe.node, recipe.empty) for recipe in returned if recipe.node.origin.op is effect))]  # type: ignore[union-attr,arg-type]
    classes = _classes(graph, [*shadows, *inputs])
    plain = {number: cls for (number, name), cls in graph.pinned_specials.items() if name == "__getattribute__"}
    return MockPlan(tuple(outputs), tuple(steps), result, classes, plain, numbers, tuple(graph.risks), tuple(first_steps),
                    repeatable, before)


def _check_shown(graph: RefGraph, effects: list[Effect | CallEffect]) -> None:
    """Raises Break when a call effect looks at an object that was changed afterwards: it would see the final state.

    What a call is shown of the outside may lead to all that was put there before. A hook, registered after the graph, would be on
    another node of autograd if its tensor was written to in between; an array of numpy, another one's.
    """
    for final in graph.final:
        if graph.changed_since_final(final):
            raise Break("late-change", f"{final.what} that was changed after it", final.stack)
    inputs = [node.state for node in graph.nodes if isinstance(node.state, TensorState)]
    outside: set[int | None] = {None, *(state.storage[0] for state in inputs if state.storage is not None)}
    placed: list[Shadow] = []
    for effect in effects:
        if isinstance(effect, CallEffect):
            objects = [node for node in objects_in(effect.shown)
                       if not isinstance(node.state, TensorState) and not _is_builtin(node.real)]
            reached = [recipe.node for recipe in _reach(graph, [*objects, *placed])[0]] if objects else []
            storages = outside.union(map(_storage, reached)) if objects else set()
            times = [*(graph.changed.get(node, 0) for node in reached), *(graph.written.get(storage, 0) for storage in storages)]
            if max(times, default=0) > effect.serial:
                raise Break("late-change", "an object was shown to a call that prints or logs, and changed after it",
                            user_stack(effect.positions))
        placed += operands_of(effect)


def _is_builtin(real: Any) -> bool:
    """Whether an object is a class of C, such as the category of a warning: it leads to nothing that changes."""
    return is_a(real, type) and not is_mutable(real)


def _storage(node: RefNode) -> int | None:
    """The storage of a tensor of the trace; None for one that is dead, and for other objects."""
    storage = storage_of(node.real) if is_a(node.real, torch.Tensor) else None
    return storage[0] if storage else None


# -- what outlives the trace -----------------------------------------------------------------------------------------


def _reach(graph: RefGraph, roots: list[Shadow]) -> tuple[list[Recipe], list[RefNode], list[Shadow]]:
    """Recipes of all created objects that the roots lead to, the tensors among them, and every shadow on the way."""
    recipes: list[Recipe] = []
    outputs: list[RefNode] = []
    shadows: list[Shadow] = []                      # keeps the shadows alive, so that no id is used twice
    seen: set[int] = set()
    queue = collections.deque(roots)
    while queue:
        shadow = queue.popleft()
        if id(shadow) in seen:
            continue
        seen.add(id(shadow))
        shadows.append(shadow)
        if isinstance(shadow, RefNode) and isinstance(shadow.origin, Replayed):
            recipes.append(Recipe(shadow, shadow.origin, None, ()))
        elif isinstance(shadow, RefNode) and shadow.created:
            recipe = recipe_of(graph, shadow)
            recipes.append(recipe)
            if isinstance(shadow.state, TensorState):
                outputs.append(shadow)
            else:
                queue.append(recipe.empty)  # type: ignore[arg-type]
            attrs = graph.published.get(shadow, shadow).attrs
            if attrs is not None:
                queue.append(attrs)
            queue.extend(recipe.contents)
        else:
            if isinstance(shadow, Build) and graph.is_made(shadow.cls) and shadow.maker is None:
                raise Break("escaping-object", f"a new {shadow.cls.__qualname__} outlives the call, whose class was made in it")
            queue.extend(operands(shadow))
    return recipes, outputs, shadows


# -- what is known of the paths --------------------------------------------------------------------------------------


def _classes(graph: RefGraph, shadows: Iterable[Shadow]) -> dict[Source, type]:
    """The guarded type at every path that leads to one of `shadows`."""
    classes: dict[Source, type] = {}
    stack = [source for shadow in shadows if (source := getattr(shadow, "source", None)) is not None]
    seen: set[Source] = set()
    while stack:
        source = stack.pop()
        if source in seen:
            continue
        seen.add(source)
        cls = class_at(graph, source)
        if cls is not None:
            classes[source] = cls
        stack.extend(bases(source))
    return classes


def bases(source: Source) -> tuple[Source, ...]:
    """The paths that one step is taken from."""
    if isinstance(source, Computed):
        return source.args
    return () if source.base is None else (source.base,)


def class_at(graph: RefGraph, source: Source) -> type | None:
    """The class that the object at a path is guarded to have."""
    if isinstance(source, Constant):
        return type(source.value)
    for kind, class_of in CLASS_OF.items():
        requirement = graph.requirements.get((source, kind))
        if requirement is not None:
            return class_of(requirement[2])
    return None


# By kind of guard: the class of an object that meets its expectation.
CLASS_OF = {kind.name: kind.row.class_of for kind in Kind if kind.row.class_of is not None}
