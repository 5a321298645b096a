"""The interface by which the graphs of a trace ask about the running program: where it is, whether the trace may end."""
from __future__ import annotations

from typing import TYPE_CHECKING

from capture.refgraph.node import RefNode, Shadow, source_of
from capture.refgraph.source import Source

if TYPE_CHECKING:
    from capture.errors import UserFrame
    from capture.refgraph.effects import Position


class Context:
    """The interface, and its default: no program is running.

    kind: the kind of the call that runs (`_C.call_kind`).
    """

    kind = 0

    def position(self) -> UserFrame | None:
        """The line that the program is executing."""
        return None

    def positions(self) -> tuple[Position, ...]:
        """The same with all callers, outermost first."""
        return ()

    def died(self, node: RefNode) -> None:
        """An object has died, and its finalizer has run."""

    def replaced(self) -> None:
        """An effect has replaced or removed something, which may be alive by our own nodes alone."""

    def can_cut(self) -> bool:
        """Whether the trace may end here."""
        return False

    def takes_backward(self) -> bool:
        """Whether what compiles the graph takes backward passes inside of it."""
        return False

    def takes_numbers(self) -> bool:
        """Whether it takes numbers of Python as inputs."""
        return False

    def takes_autograd_functions(self) -> bool:
        """Whether it takes autograd functions of the program's, as graphs of their passes."""
        return False

    def path_to(self, shadow: Shadow) -> Source | None:
        """The path which recomputes a scalar at entry, also where it was read out of a tensor; None where there is none."""
        return source_of(shadow)

    def took_fewer(self) -> bool:
        """Whether in some capture a slice of the last few elements, made in the present line, was of a tensor with fewer."""
        return False

    def changes_often(self, source: Source, kind: str) -> str | None:
        """The user's name for the value at a path, if the trace should end because several captures expect different values there;
        else None."""
        return None
