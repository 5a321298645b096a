"""What the graphs of a trace ask of the run of the program that they follow."""
from __future__ import annotations

from typing import TYPE_CHECKING

from capture.refgraph.node import RefNode, Shadow, source_of
from capture.refgraph.source import Source

if TYPE_CHECKING:
    from capture.errors import UserFrame
    from capture.refgraph.effects import Position


class Context:
    """This one stands for no run: the program does not run."""

    def position(self) -> UserFrame | None:
        """Where the program is."""
        return None

    def positions(self) -> tuple[Position, ...]:
        """The same, with the callers, outermost first."""
        return ()

    def died(self, node: RefNode) -> None:
        """An object has died, and its finalizer has run."""

    def can_cut(self) -> bool:
        """Whether the trace may end here."""
        return False

    def path_to(self, shadow: Shadow) -> Source | None:
        """The path which recomputes a scalar at entry, also where it was read out of a tensor; None where there is none."""
        return source_of(shadow)

    def changes_often(self, source: Source, kind: str) -> str | None:
        """What users call the thing at a path, if the trace is to end, since it was another one in too many captures; else None."""
        return None
