"""Counts how often the plan of a mock function uses each value, to decide which are read or computed once and kept in a
variable."""
from __future__ import annotations

import collections
from collections.abc import Iterable

from capture.refgraph.effects import Replayed, operands_of
from capture.refgraph.mock import MockPlan, bases
from capture.refgraph.mock_order import Make
from capture.refgraph.node import Const, Expr, RefNode, Shadow, TensorState
from capture.refgraph.recipes import operands
from capture.refgraph.source import Constant, Source
from capture.refgraph.value_types import is_weak


class Usage:
    """How often a plan uses each value, and so which are read or computed once and kept. `order`: every shadow once, operands
    first. `kept`: entry state that something besides arithmetic uses, and so is read at the start. `hoisted`: arithmetic on entry
    state alone, computed at the start. `risky`: arithmetic on tensors' values that may raise, and so comes before any effect;
    `risky_late`: arithmetic on what calls returned."""

    def __init__(self, plan: MockPlan) -> None:
        roots: list[Shadow] = [*plan.numbers, *plan.risks, *filter(None, [plan.before])]
        for step in (*plan.early, *plan.steps):
            if not isinstance(step, Make):
                roots += operands_of(step)
            else:
                roots += [step.value] if isinstance(step.value, Replayed) else operands(step.value)
        roots.append(plan.result)
        self.order = operands_first(roots)
        self.uses: collections.Counter[int] = collections.Counter(map(id, roots))
        self.paths: collections.Counter[Source] = collections.Counter()
        kept = {id(shadow) for shadow in roots}     # shadows that something besides arithmetic uses
        replayed: set[int] = set()                  # shadows that depend on objects which the mock function makes
        for shadow in self.order:
            parts = operands(shadow)
            self.uses.update(map(id, parts))
            made = isinstance(shadow, Replayed) or isinstance(shadow, RefNode) and shadow.created
            if made or not replayed.isdisjoint(map(id, parts)):
                replayed.add(id(shadow))
            if not isinstance(shadow, Expr) or id(shadow) in replayed:
                kept.update(map(id, parts))
        self.kept: dict[Source, None] = {}
        for shadow in self.order:
            source = path_of(shadow)
            if source is not None:
                self._need(source, self.uses[id(shadow)])
                if id(shadow) in kept:
                    self.kept[source] = None
        late: set[int] = set()                      # shadows that depend on what is there only after effects
        self.risky, risks = [], set(map(id, plan.risks))
        for shadow in self.order:
            if isinstance(shadow, Replayed) or isinstance(shadow, RefNode) and shadow.created and not isinstance(
                    shadow.state, TensorState) or not late.isdisjoint(map(id, operands(shadow))):
                late.add(id(shadow))
            elif id(shadow) in risks:
                self.risky.append(shadow)
        self.risky_late = [shadow for shadow in plan.risks if id(shadow) in late]
        self.used = {shadow.op for shadow in self.order if isinstance(shadow, Replayed)}
        self.hoisted: list[Shadow] = [shadow for shadow in self.order
                        if isinstance(shadow, Expr) and id(shadow) in kept and id(shadow) not in replayed]

    def _need(self, source: Source, uses: int) -> None:
        if source not in self.paths:
            for base in bases(source):
                self._need(base, 1)
        self.paths[source] += uses


def path_of(shadow: Shadow) -> Source | None:
    """The path of the entry state that a shadow stands for."""
    if isinstance(shadow, Const):
        return Constant(shadow.value) if is_weak(shadow.value) else None
    return getattr(shadow, "source", None)


def operands_first(roots: Iterable[Shadow]) -> list[Shadow]:
    """All that `roots` are made from, each once, after its operands."""
    order: list[Shadow] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        shadow, done = stack.pop()
        if done:
            order.append(shadow)
        elif id(shadow) not in seen:
            seen.add(id(shadow))
            stack.append((shadow, True))
            stack += [(part, False) for part in reversed(operands(shadow))]
    return order
