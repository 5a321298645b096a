"""Lists that the trace makes by repeating items, as often as a size or a number says that changes from call to call."""
from __future__ import annotations

from capture.refgraph.node import ListState, RefNode, Shadow
from capture.refgraph.sizes import Size, Sizes


class Repetition(ListState):
    """`[x] * n`: holds for any n until somebody asks for its items, which fixes n. once: what is repeated."""

    __slots__ = ("once", "times", "_sizes", "_all")

    def __init__(self, once: list[Shadow], times: Size, sizes: Sizes) -> None:
        self.once, self.times, self._sizes = once, times, sizes
        self._all: list[Shadow] | None = None

    @property
    def items(self) -> list[Shadow]:  # type: ignore[override]
        if self._all is None:
            self._all = self.once * self._sizes.fix(self.times)
        return self._all

    @property
    def distinct(self) -> list[Shadow]:
        return self.once if self._all is None else self._all

    @property
    def is_open(self) -> bool:
        """Whether it is of any length."""
        return self._all is None

    @property
    def length(self) -> Size:
        """How many items there are."""
        return self._sizes.resolved(self.times * len(self.once))


def repetition(shadow: Shadow | None) -> Repetition | None:
    """The state of a list of any length; None for anything else."""
    state = shadow.state if isinstance(shadow, RefNode) else None
    return state if isinstance(state, Repetition) and state.is_open else None
