"""Guards: one condition each on the state at a frame's entry.

`GuardTree` evaluates them in C++; `Guard.as_python` prints the same condition as a Python expression over the frame's
locals, `__function__` and the helpers of `capture.guards.helpers`; tests evaluate both on the same states.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from capture.errors import UserFrame
from capture.guards import expression
from capture.refgraph.source import Source

SCALARS = frozenset({int, float, bool, complex, str, bytes, type(None)})


class Kind(enum.Enum):
    """What is checked of `x`, the object at the guard's source, against `expected`. An unreachable path fails.

    A Python expression runs no user code: lengths, keys and items are read by the builtin type's own functions.
    """

    TYPE = "type(x) is expected"
    ID = "x is expected"
    VALUE = "x has expected's exact type and value; floats bit for bit; containers recursively"
    TRUTH = "x is a builtin scalar, string, range or container, or Ellipsis, and bool(x) is expected"
    LENGTH = "builtin len(x) == expected, for list, tuple, dict, set, frozenset, str, bytes, bytearray, deque"
    KEYS = "x is a dict or set (or subclass), and its keys in order are expected: a tuple, compared as VALUE or by identity"
    PRESENT = "x is a dict, and has the key expected"
    ABSENT = "x is a dict, and lacks the key expected"
    NO_ATTR = "x is a class, and its MRO has no attribute named expected"
    MRO = "x is a class whose MRO is expected: a tuple, compared by identity"
    CONTENT = "x is a set or frozenset (or subclass), and equals expected: a frozenset of builtin scalars"
    MEMBER = "x is a set or frozenset (or subclass) that holds expected: a scalar or an object hashed by identity"
    NOT_MEMBER = "x is a set or frozenset (or subclass) that does not hold expected"
    TENSOR = "x is a tensor with the properties expected: a TensorProperties"
    ALIAS = "x is the object at expected: a Source"
    DISTINCT = "x is none of the objects at expected: a tuple of Sources (unreachable ones differ)"
    STORAGE = "expected: tuples (Source, group, offset in bytes or None): tensors share storage within groups only, there"
    MODES = "the process-wide and thread-wide modes of torch equal expected: a Modes; source is None"


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition: `kind` of the object at `source` against `expected`. `place`: the user's line that read it."""

    source: Source | None
    kind: Kind
    expected: Any
    place: UserFrame | None = field(default=None, compare=False, repr=False)

    def as_python(self) -> str:
        """The condition as a Python expression, for reading."""
        return expression.condition(self.kind.name, self.source, self.expected, expression.Readable())

    def evaluate(self, locals: dict[str, Any], function: FunctionType) -> bool:
        """Whether that expression holds for a frame with these locals. Slow: for tests and people."""
        return expression.evaluate(self.kind.name, self.source, self.expected, locals, function)

    def __str__(self) -> str:
        return self.as_python()
