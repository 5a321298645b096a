"""What a graph changes, and whether that can be undone if the graph fails on a hit."""
from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import equal as equal_tensors  # whatever the program puts in its place

from capture import _C
from capture.interp.recording.undo_log import MOST_BYTES, Overwritten
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import RefNode


class Mutations:
    """The changes of one graph. most: how many bytes a hit may copy to undo them."""

    def __init__(self, refs: RefGraph, most: float = MOST_BYTES) -> None:
        self.refs, self.most = refs, most
        self.mutates = False                    # it writes to an existing tensor
        self.changes = False                    # … from outside, or changes other state
        self.leaves_behind = False              # something is to be undone when it raises
        self.overwritten = Overwritten()
        self.observed = Overwritten()           # of this, what was seen to be written, and is not only what code might have done
        self._random = _C.get_random_state()

    def begin_write(self) -> None:
        """Notes that a tensor, or other state, is about to be written to."""
        self.mutates = True

    def wrote(self, tensors: Iterable[torch.Tensor], inputs: Iterable[RefNode], for_good: bool,
              observed: Iterable[torch.Tensor] | None, keeps_values: bool) -> None:
        """These tensors from outside were written to, or other state. inputs: of the graph. for_good: no copy brings it back.
        observed: those of which more is known than that they may have been; None: all. keeps_values: only their versions count."""
        overwritten = self.overwritten.adding(tensors, inputs, self.refs.find, keeps_values)
        self.changes, self.overwritten = True, overwritten.beyond_recall() if for_good else overwritten
        if observed is None:
            seen = self.observed.adding(tensors, inputs, self.refs.find, keeps_values)
            self.observed = seen.beyond_recall() if for_good else seen
        else:
            changed = set(map(id, observed))
            self.observed = self.observed.adding([t for t in tensors if id(t) in changed], inputs, self.refs.find)

    def relaid(self, observed: bool) -> None:
        """A tensor was given another layout, memory or history, which no copy brings back. observed: else it only may have been."""
        self.overwritten = self.overwritten.beyond_recall()
        if observed:
            self.observed = self.observed.beyond_recall()

    def leave_behind(self) -> None:
        """Notes state that the graph leaves behind if it raises later."""
        self.leaves_behind = True

    @property
    def so_far(self) -> tuple[bool, Overwritten, Overwritten]:
        """For `back_to`."""
        return self.changes, self.overwritten, self.observed

    def back_to(self, before: tuple[bool, Overwritten, Overwritten]) -> None:
        """What was noted since `so_far` has not become part of the graph."""
        self.changes, self.overwritten, self.observed = before

    def has_drawn(self) -> bool:
        """Whether random numbers of the CPU were drawn."""
        return not equal_tensors(self._random, _C.get_random_state())

    def is_harmless(self) -> bool:
        """Whether the graph has changed nothing so far that outlives it: neither a tensor nor the state of random numbers."""
        return not self.changes and not self.has_drawn()

    @property
    def kept_bytes(self) -> int:
        """How many bytes a hit copies so that the call can run again."""
        return self.overwritten.bytes + self.refs.dropped_bytes

    def can_stop(self) -> bool:
        """Whether the graph can stop here, and all that it was seen to do so far be taken back. Gradients that were dropped need no
        copy."""
        return not self.observed.for_good and self.observed.bytes <= self.most

    def can_take_back(self) -> bool:
        """Whether all changes so far can be undone, so that the call can run again. Draws of random numbers always can."""
        return self.kept_bytes <= self.most and not (self.changes and self.overwritten.for_good)
