"""Effects: the ordered mutations of outside objects, which the mock function repeats."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capture.refgraph.node import RefNode, Shadow


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """`operation(target, *args)` on an outside object: `dict.__setitem__`, `list.append`, `object.__setattr__` …

    Only builtin operations: no effect runs Python code of the user's. Objects that the trace created have no effects;
    the mock function builds them in their final state.
    """

    operation: Callable[..., Any]
    target: RefNode
    args: tuple[Shadow, ...]
