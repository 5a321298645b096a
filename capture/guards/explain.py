"""Why an entry does not apply to a call."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from capture import _C
from capture.guards.guard import Guard
from capture.refgraph.sizes import reads_sizes


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A guard of `entry` that fails (None: a value that it passes along is missing). `subject`: what differs, as a
    Python expression or in words; `expected`: what it was when the entry was made; `found`: what it is; `aspect`: which
    property of a tensor that is, if it is one."""

    entry: _C.CacheEntry
    guard: Guard | None
    subject: str
    expected: str
    found: str
    aspect: str

    @property
    def is_of_layout(self) -> bool:
        """Whether it is a tensor's shape or strides that differ."""
        return self.aspect in ("shape", "stride")

    @property
    def is_of_sizes(self) -> bool:
        """Whether a tensor's shape or strides differ, or a value computed from sizes."""
        return self.is_of_layout or self.guard is not None and self.guard.source is not None and reads_sizes(self.guard.source)

    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, got {self.found}"


def of_sizes_alone(failing: Iterable[Mismatch]) -> bool:
    """Whether a call differs from some entry in nothing but sizes. failing: all guards that fail."""
    mismatches = list(failing)
    others = {mismatch.entry for mismatch in mismatches if not mismatch.is_of_sizes}
    return any(mismatch.entry not in others for mismatch in mismatches)
