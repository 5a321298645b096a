"""The assumptions of a graph about tensors, and which effects came before the first operation that may raise."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capture.refgraph.node import RefNode, Shadow
from capture.refgraph.source import Computed


@dataclass(frozen=True, slots=True)
class Expectation:
    """An assumption: what a tensor, or a value computed from tensors, is, or whether it is true."""

    known: Shadow
    held: Any
    operation: Callable[..., Any]       # looks whether it is so
    at_once: bool                       # it is to be looked at in the midst of the graph
    changed: bool                       # the graph had changed something by then
    path: Computed | None = None        # by which a guard can find the tensor, whose truth it is


class Expectations:
    """The assumptions of one graph, and its operations that may raise."""

    def __init__(self) -> None:
        self.checks: list[Expectation] = []
        self.stop: Mapping[RefNode, int] | None = None      # if the graph may stop midway: the inputs that are written to before
        self.takes_back = False         # changes are taken back if something is not as expected
        self.fails = False              # some operation may raise on a hit, and the program tells how far it came …
        self.watched = False            # … by a handler
        self.promises: list[Computed] = []      # what guards can require of the state at entry, so that it does not raise
        self.effects_before: int | None = None      # how many effects come before the first of these operations
        self.effects_before_collective: int | None = None       # … before the first collective: the call cannot run again

    def add(self, expectation: Expectation) -> None:
        """Adds an assumption."""
        self.checks.append(expectation)

    def includes(self, known: Shadow) -> bool:
        """Whether there is an assumption on this value."""
        return any(check.known is known for check in self.checks)

    def take_guardable(self) -> list[Expectation]:
        """Removes the assumptions that guards can make."""
        found = [check for check in self.checks if check.path is not None]
        self.checks = [check for check in self.checks if check.path is None]
        return found

    def may_stop(self, written: Mapping[RefNode, int]) -> None:
        """Notes that an operation may stop the graph by itself, when that has written to these of its inputs."""
        self.stop = written

    def take_back(self) -> None:
        """Notes that changes are undone if an assumption fails."""
        self.takes_back = True

    def may_raise(self, effects: int, watched: bool, fails: bool, promises: list[Computed] | None = None) -> None:
        """Notes that an operation may raise on a hit, after so many effects. fails: the program would notice that the call runs
        again; watched: a handler of the program is in force; promises: it does not raise if these are true at entry."""
        if self.effects_before is None:
            self.effects_before = effects
        if watched and promises is not None:
            self.promises += promises
        else:
            self.watched |= watched
        self.fails |= watched or fails

    def communicates(self, effects: int) -> None:
        """Notes a collective, after so many effects."""
        if self.effects_before_collective is None:
            self.effects_before_collective = effects

    def take_promises(self) -> list[Computed]:
        """What guards must now require, since the graph changes something that cannot be taken back."""
        promises, self.promises = self.promises, []
        return promises

    def withdrawn(self, index: int) -> None:
        """Notes that the effect at an index was removed."""
        if self.effects_before is not None and index < self.effects_before:
            self.effects_before -= 1
        if self.effects_before_collective is not None and index < self.effects_before_collective:
            self.effects_before_collective -= 1
