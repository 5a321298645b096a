"""The assumptions of a graph about tensors, and which effects came before the first operation that may raise."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capture.refgraph.node import RefNode, Shadow


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a tensor holds, or a value that follows from tensors, or its truth."""

    known: Shadow
    held: Any
    operation: Callable[..., Any]       # looks whether it is so
    at_once: bool                       # it is to be looked at in the midst of the graph
    changed: bool                       # the graph had changed something by then


class Expectations:
    """Of one graph."""

    def __init__(self) -> None:
        self.checks: list[Expectation] = []
        self.stop: Mapping[RefNode, int] | None = None      # if the graph may stop midway: the inputs that are written to before
        self.takes_back = False         # changes are taken back if something is not as expected
        self.fails = False              # some operation may raise on a hit, and the program tells how far it came …
        self.watched = False            # … by a handler
        self.effects_before: int | None = None      # how many effects come before the first of these operations

    def add(self, expectation: Expectation) -> None:
        """Something more is taken for granted."""
        self.checks.append(expectation)

    def includes(self, known: Shadow) -> bool:
        """Whether something is taken for granted of this."""
        return any(check.known is known for check in self.checks)

    def may_stop(self, written: Mapping[RefNode, int]) -> None:
        """An operation looks itself whether something is as expected, when the graph has written to these of its inputs."""
        self.stop = written

    def take_back(self) -> None:
        """Changes are to be taken back if something is not as expected."""
        self.takes_back = True

    def may_raise(self, effects: int, watched: bool, fails: bool) -> None:
        """An operation may raise on a hit, after so many effects. fails: the program would tell; watched: by a handler."""
        if self.effects_before is None:
            self.effects_before = effects
        self.watched |= watched
        self.fails |= watched or fails

    def withdrawn(self, index: int) -> None:
        """The effect at an index is no effect any more."""
        if self.effects_before is not None and index < self.effects_before:
            self.effects_before -= 1
