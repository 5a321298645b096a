"""The order in which a mock function makes objects and repeats effects."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from capture.errors import Break
from capture.refgraph.effects import CallEffect, Effect, Replayed, operands_of
from capture.refgraph.node import IteratorState, RefNode, Shadow
from capture.refgraph.recipes import Perform, Recipe, operands


@dataclass(frozen=True, slots=True, eq=False)
class Make:
    """`node = value`: the mock function makes an object of the trace."""

    node: RefNode
    value: Shadow


Step = Make | Effect | CallEffect


def ordered(recipes: Sequence[Recipe], effects: Sequence[Effect | CallEffect]) -> list[Step]:
    """All objects in the order of their creation, complete once what they hold is there: cycles are closed last. Then the
    effects, with the objects between them that hold what a call effect has returned. Raises Break if there is no such order."""
    order = _Order(recipes, effects)
    order.advance()
    for effect in effects:
        order.repeat(effect)
    return order.steps


class _Order:
    """The steps so far, and what is yet to be made, filled or repeated."""

    def __init__(self, recipes: Sequence[Recipe], effects: Sequence[Effect | CallEffect]) -> None:
        self.steps: list[Step] = []
        self.by_node = {recipe.node: recipe for recipe in sorted(recipes, key=lambda recipe: recipe.node.serial)}
        self.pending = {node: recipe for node, recipe in self.by_node.items() if recipe.empty is not None}
        self.unfilled = [recipe for recipe in recipes if recipe.empty is None]
        self.making: set[RefNode] = set()
        self.undone = {effect for effect in effects if isinstance(effect, CallEffect)}
        self.changes: dict[RefNode, list[Effect]] = {}      # of outside containers, which iterators over them must not see
        for effect in effects:
            if isinstance(effect, Effect):
                self.changes.setdefault(effect.target, []).append(effect)

    def advance(self) -> None:
        """Makes and fills all that is possible by now."""
        for recipe in list(self.pending.values()):
            if recipe.node in self.pending and not ((self.undone or self.changes) and self._awaits(recipe, set())):
                self._make(recipe)
        for recipe in list(self.unfilled):
            if self._is_ready(recipe.contents):
                self._fill(recipe)

    def repeat(self, effect: Effect | CallEffect) -> None:
        """Repeats an effect, and makes what has waited for it."""
        if isinstance(effect, Effect):
            for part in objects_in(operands_of(effect)):
                if part in self.pending:        # held by what is changed: it is made all the same
                    self._make(self.pending[part])
        self.steps.append(effect)
        if isinstance(effect, CallEffect):
            self.undone.remove(effect)
            self.advance()
        else:
            self.changes[effect.target].remove(effect)
            if not self.changes[effect.target]:
                del self.changes[effect.target]
                self.advance()

    def _is_ready(self, shadows: Iterable[Shadow]) -> bool:
        return not any(leaf in self.pending or leaf in self.undone for leaf in _leaves(shadows))

    def _needs(self, recipe: Recipe) -> Iterator[Shadow]:
        """What must be there before an object can be made: of what an iterator walks over, all that it holds."""
        yield recipe.empty  # type: ignore[misc]
        if isinstance(recipe.empty, Perform):
            for part in objects_in([recipe.empty]):
                if part in self.by_node:
                    yield from self.by_node[part].contents

    def _awaits(self, recipe: Recipe, seen: set[Recipe]) -> bool:
        """Whether an object cannot be made before an effect was done."""
        seen.add(recipe)
        if isinstance(recipe.node.state, IteratorState) and any(
                self.changes.get(part) for part in objects_in([recipe.empty])):  # type: ignore[list-item]
            return True
        return any(leaf in self.undone or leaf in self.pending and (inner := self.pending[leaf]) not in seen
                   and self._awaits(inner, seen) for leaf in _leaves(self._needs(recipe)))

    def _make(self, recipe: Recipe) -> None:
        node = recipe.node
        if node in self.making:
            raise Break("escaping-object", f"a new {node.cls.__qualname__} outlives the call; it is made from itself")
        self.making.add(node)
        for part in objects_in([recipe.empty]):  # type: ignore[list-item]
            if part in self.pending:
                self._make(self.pending[part])
            if isinstance(recipe.empty, Perform):   # an iterator looks into what it walks over
                self._complete(part)
        complete = self._is_ready(recipe.contents)          # an object that holds itself is not
        del self.pending[node]
        if complete and recipe.final is not None:
            self.steps.append(Make(node, recipe.final))
            return
        self.steps.append(Make(node, recipe.empty))  # type: ignore[arg-type]
        if complete:
            self.steps.extend(recipe.fill)
        else:
            self.unfilled.append(recipe)

    def _complete(self, node: RefNode) -> None:
        """Fills an object that was made before what it holds."""
        recipe = next((recipe for recipe in self.unfilled if recipe.node is node), None)
        if recipe is not None:
            for part in objects_in(recipe.contents):
                if part in self.pending:
                    self._make(self.pending[part])
            if not self._is_ready(recipe.contents):
                name = node.cls.__qualname__
                raise Break("escaping-object", f"an iterator outlives the call; what it walks over, a {name}, is not complete then")
            self._fill(recipe)

    def _fill(self, recipe: Recipe) -> None:
        self.unfilled.remove(recipe)
        self.steps.extend(recipe.fill)


def objects_in(shadows: Iterable[Shadow]) -> Iterator[RefNode]:
    """The objects which expressions refer to."""
    return (leaf for leaf in _leaves(shadows) if isinstance(leaf, RefNode))


def _leaves(shadows: Iterable[Shadow]) -> Iterator[RefNode | CallEffect]:
    """The objects, and the call effects, that expressions refer to."""
    stack = list(shadows)
    while stack:
        shadow = stack.pop()
        if isinstance(shadow, RefNode):
            yield shadow
        elif isinstance(shadow, Replayed):
            yield shadow.op
        stack.extend(operands(shadow))
