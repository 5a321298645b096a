"""What the interpreter notes of a trace beside its frames: blocks that are open, generators, and lines of the user's."""
from __future__ import annotations

import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

from capture.errors import UserFrame, is_internal
from capture.interp.core.frame import Frame
from capture.refgraph.node import RefNode, Shadow

if TYPE_CHECKING:
    from capture.interp.breaks.early_breaks import Place

_UNKNOWN = UserFrame("", 0, "")


class OpenBlocks:
    """What has begun and must end in the same trace: blocks, levels of torch.func, `__torch_function__` modes."""

    def __init__(self) -> None:
        self.began: dict[RefNode, list[Place]] = {}         # by what it is noted -> the calls that led to it, innermost first
        self.levels: set[RefNode] = set()                   # … of these, what no trace may begin in
        self.modes: list[tuple[Shadow, RefNode]] = []       # that are asked what functions of torch do; since which operation

    def begin(self, node: RefNode, places: list[Place], level: bool) -> None:
        """Notes that a block has begun. level: no later trace may begin inside of it."""
        self.began[node] = places
        if level:
            self.levels.add(node)

    def end(self, node: RefNode | None = None) -> None:
        """Notes that the block of `node` has ended; None: the innermost one."""
        if node is None:
            self.began.popitem()
        else:
            self.began.pop(node, None)

    def enter_mode(self, mode: Shadow, node: RefNode) -> None:
        """Notes that the block of `node` is one of a `__torch_function__` mode."""
        self.modes.append((mode, node))

    def leave_mode(self) -> Shadow:
        """Notes that the innermost mode was left, and returns it."""
        mode, node = self.modes.pop()
        self.end(node)
        return mode


class Generators:
    """The generators whose bodies a trace runs, each by its body."""

    def __init__(self) -> None:
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()     # by this trace
        self.resumed: dict[Any, RefNode] = {}                   # from outside -> their objects

    def note_made(self, body: Any) -> None:
        """The trace has made a generator."""
        self.made.add(body)

    def note_resumed(self, body: Any, node: RefNode) -> None:
        """The trace has resumed a generator from outside, whose object is `node`."""
        self.resumed[body] = node


class UserLines:
    """The lines of the user's program in which a trace is, each as one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[types.CodeType, int], UserFrame] = {}
        self._caller: UserFrame | None = _UNKNOWN

    def innermost(self, frame: Frame | None) -> UserFrame | None:
        """The line that `frame` executes, or the next frame outside of it that is neither torch's nor capture's."""
        while frame is not None and is_internal(frame.code.co_filename):
            frame = frame.back
        if frame is None:
            return self.caller()
        key = frame.code, frame.line
        line = self._known.get(key)
        if line is None:
            line = self._known[key] = UserFrame.at(frame.code, frame.line)
        return line

    def caller(self) -> UserFrame | None:
        """The line that called the captured function, or None when it is not known."""
        if self._caller is _UNKNOWN:
            frame = sys._getframe()
            while frame is not None and is_internal(frame.f_code.co_filename):
                frame = frame.f_back  # type: ignore[assignment]
            self._caller = None if frame is None else UserFrame.at(frame.f_code, frame.f_lineno)
        return self._caller
