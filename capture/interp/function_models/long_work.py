"""Code that goes on for long without an operation of torch: to interpret it takes a thousand times as long as to run it, and so
it is left to CPython. Of a package that knows nothing of torch, the whole call; of the program, the rest of a loop, or a call that
makes no operation. Under `fullgraph` everything is interpreted."""
from __future__ import annotations

from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.deaths import cut_between_instructions
from capture.interp.core.frame import Frame, frames_from
from capture.interp.core.interpreter import Interpreter
from capture.interp.function_models.packages import knows_no_torch

# How much longer than a package the program may go on: what it computes from constants costs nothing on a hit.
LOOPS = 2
CALLS = 3           # longer than loops: they are left where they are, and a call as a whole from the next capture on


def leave_loop(interp: Interpreter, frame: Frame) -> None:
    """Called where a loop of the current frame begins another round, and the trace has been idle for long. Raises Cut."""
    if interp.early_breaks is None:
        return
    reason = Break("long-loop", frame.code.co_qualname)
    if knows_no_torch(frame):
        interp.give_up(reason)              # a later trace ends before the call
    elif interp.is_idle(LOOPS) and interp.can_cut and frame.namespace is None and _is_left(frame) and (
            interp.early_breaks.is_between_instructions(frame)):
        raise cut_between_instructions(reason)


def leave_call(interp: Interpreter) -> None:
    """Called where the current frame makes a call, and the trace has been idle for long."""
    frame = interp.frame
    if interp.early_breaks is not None and frame is not None and interp.is_idle(CALLS) and _is_left(frame):
        interp.give_up(Break("long-call", frame.code.co_qualname))


def _is_left(frame: Frame) -> bool:
    """Whether CPython may run what a frame does. Not if it, or one outside of it, is the body of a generator: CPython would run one
    that a trace has made through code of ours, many times slower than its own. Nor if it is of ours, and may drive such a body."""
    return frame.globals.get("__package__") not in unwind.OWN_PACKAGES and all(
        each.generator is None for each in frames_from(frame))
