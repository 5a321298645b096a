"""Ends a trace where an object with a finalizer has died: the finalizer has run, and the trace has not seen what it did."""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from capture.errors import Break
from capture.interp.core.frame import NONE_VALUE, Cut, Frame, Resume, Value, resuming
from capture.interp.core.instructions import Does
from capture.interp.core.instructions import does as does_of
from capture.interp.core.registry import DEATHS
from capture.refgraph.effects import is_foreign
from capture.refgraph.node import Const, RefNode

if TYPE_CHECKING:
    from capture.interp.breaks.early_breaks import EarlyBreaks, Place
    from capture.interp.core.interpreter import Interpreter


INERT = Does.LOADS_LOCAL | Does.READS_LOCAL | Does.WRITES_LOCAL | Does.LOADS_CONSTANT      # nothing beyond the frame is read


class Deaths:
    """The objects that have died in the trace of one call. The interpreter asks before each instruction whether the trace is to
    end."""

    def __init__(self, early_breaks: EarlyBreaks | None) -> None:
        self._early_breaks = early_breaks
        self._known: tuple[int, ...] = ()           # what was known when an object died
        self._begun = False                         # the first of the program's own instructions has been met
        self._replaced = False                      # an effect of the last instruction has replaced or removed something
        self.pending: Break | None = None           # an object has died in the last instruction: why the trace is to end
        self.place: Place | None = None             # the instruction in which an object has died
        self._foreseen = early_breaks is not None and early_breaks.has_ends     # there are instructions to end before
        self.asks = self._foreseen                  # to be told of the next instruction, by `before`

    def noted(self, interp: Interpreter, node: RefNode, leaving: Frame | None) -> None:
        """Notes that an object has died: what the trace reads from now on may not be the state at entry. If the trace made the
        object, no hit would make it. If it came from outside, it dies on a hit as the trace ends: that is why the trace ends now.
        leaving: the frame whose locals are released, if any."""
        if interp.thread != threading.get_ident() or interp.graph.sealed:
            return
        goes_on = DEATHS.get(id(node.cls))
        if goes_on is not None and interp.tracking and goes_on(interp, node) or is_foreign(node):
            return
        reason = Break("finalizer", f"a {node.cls.__name__} died", interp.stack())
        if node.created or node.strong:
            interp.give_up(reason)
        elif interp.frame is not None and interp.tracking and self.pending is None:
            self.pending, self._known, self.asks = reason, _knowledge(interp), True
            self.place = None if self._early_breaks is None else self._early_breaks.last_instruction(leaving or interp.frame)

    def replaced(self) -> None:
        """An effect has replaced or removed something, or the trace was given up: what our nodes alone keep alive is to die."""
        self._replaced = self.asks = True

    def before(self, interp: Interpreter, frame: Frame) -> None:
        """Called before an instruction, if `asks`. Raises Cut where the trace is to end."""
        if self._replaced:
            interp.graph.let_go(everything=not interp.tracking)
            self._replaced = interp.tracking and _reads_nothing(frame)
            if not self._replaced:
                interp.graph.note_reading()
        if self.pending is not None:
            self.end_trace(interp, frame)
        elif self._foreseen:
            self.end_trace_early(interp, frame)
        self.asks = self._replaced or self._foreseen or self.pending is not None

    def end_trace(self, interp: Interpreter, frame: Frame) -> None:
        """Ends the trace before the next instruction, since an object has died in the last one. Raises Cut."""
        if self._early_breaks is not None and not self._early_breaks.is_between_instructions(frame):
            return                                      # of the program's
        reason, self.pending = self.pending, None
        assert reason is not None
        if interp.can_cut and self._known == _knowledge(interp):
            raise cut_between_instructions(reason)
        interp.give_up(reason)

    def end_trace_without_cut(self, interp: Interpreter) -> None:
        """Ends the trace if an object has died in an instruction that has raised."""
        if self.pending is not None:
            interp.give_up(self.pending)
            self.pending = None

    def end_trace_early(self, interp: Interpreter, frame: Frame) -> None:
        """Ends the trace before an instruction in which an object died whose finalizer changed what an earlier trace knew, unless
        it begins with that. Raises Cut."""
        if not interp.can_cut or not self._early_breaks.is_between_instructions(frame):  # type: ignore[union-attr]
            return
        reason = self._early_breaks.end_here(frame) if self._begun else None  # type: ignore[union-attr]
        self._begun = True
        if reason is not None:
            raise cut_between_instructions(reason)


def _reads_nothing(frame: Frame) -> bool:
    """Whether the next instruction does no more than handing on what its frame has."""
    does = does_of(frame.instructions[frame.pc])
    return does is Does.LEAVES and (frame.then is None or frame.back is None) or bool(does) and does in INERT


def _knowledge(interp: Interpreter) -> tuple[int, ...]:
    """Counts of what the trace knows, which grow when it learns something."""
    return len(interp.graph.requirements), interp.graph.mark, interp.recorder.operations


def cut_between_instructions(reason: Break) -> Cut:
    """A cut between two instructions, where no call has to be made."""
    return Cut(reason, Value(nothing, Const(nothing)), [], {}, NONE_VALUE, begin)


def nothing() -> None:
    """What is done between two traces where no call has to be."""


def begin(value: Value) -> None:
    """The continuation for its result."""


resuming(begin, Resume.BEGIN)
