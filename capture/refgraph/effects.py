"""Effects: what a call does to the world outside of it, in order. The mock function repeats it on every hit.

Mutations of outside objects are *effects* in the narrow sense. Calls that act on the world (printing, logging, files) or ask
it (clocks, random numbers) are *call effects*; what they return is a replayed value, which nothing in the trace may decide on.
"""
from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capture.refgraph.node import Expr, RefNode, Shadow

# One frame of the user's program: code object, offset of the instruction, line.
Position = tuple[types.CodeType, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """`operation(target, *args)` on an outside object: `dict.__setitem__`, `list.append`, `object.__setattr__` …

    Only builtin operations: no effect runs Python code of the user's. Objects that the trace created have no effects;
    the mock function builds them in their final state. early: done before the graph runs, for what it lets go of.
    """

    operation: Callable[..., Any]
    target: RefNode
    args: tuple[Shadow, ...]
    early: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CallEffect:
    """`function(*args, **kwargs)`, done for real at its place among the effects; the last of `args` go by keyword, `names`.

    shown: what of `args` the call may look into; such objects must be as they were at `serial`, a point in the order of
    the trace. early: the call only asks for a value, which must be had before the graph runs: a clock. positions: the
    user's frames that made the call, outermost first.
    """

    function: Shadow
    args: tuple[Shadow, ...]
    names: tuple[str, ...]
    shown: tuple[Shadow, ...]
    early: bool
    serial: int
    positions: tuple[Position, ...]

    @property
    def operands(self) -> tuple[Shadow, ...]:
        return self.function, *self.args


@dataclass(frozen=True, slots=True, eq=False)
class Replayed(Expr):
    """What a call effect returned: another value on every hit. `op` is the effect itself. returns: the type that it always
    has, or None when it may differ."""

    op: CallEffect
    returns: type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Traceback(Expr):
    """The traceback of an exception which the trace has raised: `runtime.extend` of the one that it had before."""


def is_foreign(shadow: Shadow | None) -> bool:
    """Whether an object, or what it belongs to, was returned by a call effect: an opened file."""
    while isinstance(shadow, RefNode):
        shadow = shadow.origin
    return isinstance(shadow, Replayed)


class Keywords:
    """`function` as a callable of positional arguments alone, the last of which it takes by keyword, `names`."""

    __slots__ = ("function", "names", "__name__")

    def __init__(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        self.function, self.names, self.__name__ = function, names, function.__name__

    def __call__(self, *args: Any) -> Any:
        split = len(args) - len(self.names)
        return self.function(*args[:split], **dict(zip(self.names, args[split:])))
