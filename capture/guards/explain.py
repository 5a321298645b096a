"""Why an entry does not apply to a call."""
from __future__ import annotations

from dataclasses import dataclass

from capture import _C
from capture.guards.guard import Guard


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first guard of `entry` that fails (None: a value that it passes along is missing). `subject`: what differs, as a
    Python expression or in words; `expected`: what it was when the entry was made; `found`: what it is."""

    entry: _C.CacheEntry
    guard: Guard | None
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, got {self.found}"
