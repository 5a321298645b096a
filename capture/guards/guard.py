"""Guards: one condition each on the state at a frame's entry.

`GuardTree` evaluates them in C++; `Guard.as_python` prints the same condition as a Python expression over the frame's
locals, `__function__` and the helpers of `capture.guards.helpers`; tests evaluate both on the same states.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from capture.errors import UserFrame
from capture.guards import expression
from capture.refgraph.requirements import Kind
from capture.refgraph.source import Source


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition: `kind` of the object at `source` against `expected`. `place`: the user's line that read it."""

    source: Source | None
    kind: Kind
    expected: Any
    place: UserFrame | None = field(default=None, compare=False, repr=False)

    def as_python(self) -> str:
        """The condition as a Python expression, for reading."""
        return expression.condition(self.kind, self.source, self.expected, expression.Readable())

    def evaluate(self, locals: dict[str, Any], function: FunctionType) -> bool:
        """Whether that expression holds for a frame with these locals. Slow: for tests and people."""
        return expression.evaluate(self.kind, self.source, self.expected, locals, function)

    def __str__(self) -> str:
        return self.as_python()
