"""Calls before which traces end, because a break stands inside of them where no continuation can take over.

Such places are the body of an activation checkpoint, Python code that a C function waits for, and a block of inference mode: each
must run in one trace, or natively, from its begin to its end. The first time, a break there ends the trace, and the rest of the
call runs natively. The place of the call that led there, made by a frame that can be continued, is remembered. Later captures end
the trace before that call, which is then made natively as a whole, between two traces.

The same is done with a call that prints an object which the program changes later, since on a hit it would print the final state.
And where an object dies whose finalizer changes what the trace knows, the next trace ends right before that instruction.
"""
from __future__ import annotations

import types
from typing import TYPE_CHECKING

from capture.errors import Break, UserFrame
from capture.interp.breaks import continuations, positions
from capture.interp.core import unwind
from capture.interp.core.frame import Frame, Resume, frames_from
from capture.refgraph.effects import user_stack

if TYPE_CHECKING:
    from capture.interp.core.interpreter import Interpreter

# Where each of the live frames is, outermost first: id of the program's own code, and index of the next instruction.
Place = tuple[tuple[int, int], ...]
MOST = 16       # places of one compiled function: each costs a capture that comes to nothing


class EarlyBreaks:
    """The places before which traces of one compiled function, and of its continuations, end, and why: a break further inside could
    not be continued."""

    def __init__(self) -> None:
        self._reasons: dict[Place, Break] = {}
        self._innermost: set[tuple[int, int]] = set()
        self._codes: dict[int, types.CodeType] = {}     # whose ids are in places
        self._ends: dict[Place, Break] = {}     # before which instruction, since something dies in it
        self._shown: set[tuple[UserFrame, ...]] = set()     # where objects were shown that changed later

    def here(self, interp: Interpreter) -> Break | None:
        """Why the trace is to end before the call that the current frame is about to make; None if it need not. (In its prologue a
        continuation is where it waited: the call there was made.)"""
        if not self._innermost or interp.frame is None or position_of(interp.frame) not in self._innermost:
            return None
        if not positions.has_begun(interp.frame):
            return None
        return self._reasons.get(place_of(interp.frame))

    def is_too_early(self, interp: Interpreter) -> bool:
        """Whether an object that this call is shown was changed later in an earlier trace."""
        return bool(self._shown) and user_stack(interp.positions()) in self._shown

    def is_between_instructions(self, frame: Frame) -> bool:
        """Whether a frame has reached instructions of the program, so that a continuation may begin with the next one."""
        return positions.has_begun(frame)

    @property
    def has_ends(self) -> bool:
        """Whether there are instructions before which traces are to end."""
        return bool(self._ends)

    def end_here(self, frame: Frame) -> Break | None:
        """Why the trace must end before the next instruction; None if it need not."""
        return self._ends.get(place_of(frame))

    def last_instruction(self, frame: Frame) -> Place | None:
        """The place of the instruction that a frame is executing, of the program's own ones."""
        if not positions.has_begun(frame):
            return None
        self._keep_codes(frame)
        *outer, (code, pc) = place_of(frame)
        return *outer, (code, pc - 1)

    def learn(self, interp: Interpreter, reason: Break) -> bool:
        """Called when the trace ends for `reason` where it cannot be cut. Returns whether a later capture will end at an earlier
        place, where it can be."""
        if reason.reason.id == "late-change" and reason.stack:
            known = reason.stack in self._shown
            self._shown.add(reason.stack)
            return not known
        place = interp.deaths.place
        if place is not None and place not in self._ends and len(self._ends) < MOST:
            self._ends[place] = Break("finalizer", reason.context, interp.stack())
            return True
        for place in self._idle_calls(interp) if reason.reason.id == "long-call" else self._candidates(interp):
            if place not in self._reasons and len(self._reasons) < MOST:
                self._reasons[place] = Break(reason.reason.id, reason.context, interp.stack())
                self._innermost.add(place[-1])
                return True
        return False

    def _candidates(self, interp: Interpreter) -> list[Place]:
        """The calls before which the next trace may end, the best first: what began, and has not ended, is to begin between two
        traces; a level of torch.func is to do so, and to end, inside of the call."""
        opened, began = next(iter(interp.blocks.began.items()), (None, []))
        if opened is not None and opened not in interp.blocks.levels:
            return began or self.places(interp, interp.at_cut)
        return [place for place in self.places(interp, interp.at_cut) if opened is None or place in began]

    def _idle_calls(self, interp: Interpreter) -> list[Place]:
        """The outermost call that has recorded no operation so far, and those outside of it."""
        frames = list(frames_from(interp.frame))
        before = sum(frame.operations < interp.recorder.operations for frame in frames)      # that were entered before the last one
        return [place for place in self.places(interp) if len(place) <= max(before, 1)]

    def places(self, interp: Interpreter, outside: bool = False) -> list[Place]:
        """The places of the calls which the live frames have made, innermost first, of those frames that can be continued and are
        the program's own. `outside`: without that of the current frame."""
        frames: list[Frame] = []
        for frame in frames_from(interp.frame):
            frames = [*frames, frame] if frame.namespace is None else []
            if frame.back is not None and not continuations.is_awaited_by_bytecode(frame):
                frames = []
        own = [frame for frame in frames if not (outside and frame is interp.frame)
               and frame.globals.get("__package__") not in unwind.OWN_PACKAGES]
        if own:
            self._keep_codes(own[0])
        return [place_of(frame) for frame in own]

    def _keep_codes(self, innermost: Frame) -> None:
        """Has the code of a frame, and of those outside of it, live as long as places name it by its id."""
        codes = [positions.own_position(frame, Resume.PUSH)[0] for frame in frames_from(innermost)]
        self._codes.update({id(code): code for code in codes})


def place_of(frame: Frame) -> Place:
    """Where a frame and those outside of it are."""
    return tuple(map(position_of, frames_from(frame)))[::-1]


def position_of(frame: Frame) -> tuple[int, int]:
    """Where one frame is, in the program's own code even if it runs a continuation."""
    code, pc, _ = positions.own_position(frame, Resume.PUSH)
    return id(code), pc
