"""The interpreter: runs frames on real values, with a shadow beside each while the trace holds.

A frame that calls a Python function pushes a frame. The loop is not recursive, so that the depth of the user's program is not
limited by ours, and arguments live no longer than in CPython. Handlers run real operations through `real`, which separates
exceptions of the program (`UserError`) from faults of ours. They do shadow bookkeeping through `track`, which may give up the trace
(`Break`, or any fault) without touching the real state.
"""
from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from capture._C import is_a
from capture.config import STRICT
from capture.errors import BackendError, Break, InternalError, UserFrame, is_internal
from capture.interp.core import unwind
from capture.interp.core.deaths import Deaths
from capture.interp.core.frame import Abandoned, Continuation, Cut, Frame, UserError, Value
from capture.interp.core.trace_state import Generators, OpenBlocks, UserLines
from capture.refgraph.effects import user_stack
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import RefNode, Shadow

if TYPE_CHECKING:
    from capture.interp.breaks.early_breaks import EarlyBreaks
    from capture.interp.recording.fx_recorder import FxRecorder

T = TypeVar("T")
MOST_IDLE_WORK = 5_000      # calls, operators and rounds of loops without an operation of torch: about a second
UNASKED: AbstractContextManager[Any] = nullcontext()


class Interpreter:
    """Runs one captured call.

    After `run`, `broken` holds the reason for which the trace was given up, or None.
    """

    def __init__(self, graph: RefGraph | None, recorder: FxRecorder | None, early_breaks: EarlyBreaks | None = None) -> None:
        self.graph = graph if graph is not None else RefGraph()     # untracked: nothing is asked of it, nor noted in it
        self.recorder: FxRecorder = recorder  # type: ignore[assignment]
        self.thread = threading.get_ident()         # the one that runs the call
        self.tracking = graph is not None           # shadows are kept
        self.inlining = True                        # Python calls get frames of ours; off once a trace was given up
        self.broken: tuple[Break, tuple[UserFrame, ...]] | None = None
        self.dropped = False                        # no entry is to come of the call: this process was forked in the midst of it
        self.unrepeatable: tuple[BaseException, Break] | None = None    # raised by what a hit cannot be sure to repeat
        self.frame: Frame | None = None
        self.early_breaks = early_breaks            # a break may leave the interpreter as a Cut, and that before these calls
        self.breaks_earlier = False                 # one was added, so that the next capture goes on further
        self.at_cut = False                         # the interpreter was left by a Cut
        self.at_call = False                        # see `during_call`
        self.tries = 0                              # calls under way which torch makes again, natively, if the trace is given up
        self.leaving: Frame | None = None           # the frame whose locals are let go
        self._idle_work = 0                         # since `is_idle` met this number of operations:
        self._operations = 0
        self.deaths = Deaths(early_breaks)
        self.blocks = OpenBlocks()
        self.generators = Generators()
        self.lines = UserLines()
        self.result: list[Value] = []
        self._drives = 0                            # nested calls of `drive`

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, root: Frame) -> Value:
        """Runs `root`, and what it calls, to its end. Raises UserError for an exception that leaves it, and Cut."""
        root.then = self.result.append
        self.drive(lambda: self.enter(root), outer=None)
        return self.result[0]

    def go_on(self, start: Callable[[], None]) -> Value:
        """Resumes interpretation after a graph break that could not be continued; `start` performs the operation that was pending.
        Raises UserError."""
        self.drive(start, outer=None)
        return self.result[0]

    @property
    def can_cut(self) -> bool:
        """Whether a break may end the trace where the interpreter is, for a continuation to begin another."""
        return self.tracking and self.early_breaks is not None and self._drives == 1 and not self.blocks.began

    def during_call(self, resumable: bool, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)`, which calls a builtin. resumable: a continuation can take its result, so that a break within
        the call ends this trace, or the next one, before the call."""
        self.at_call = resumable
        try:
            return function(*args)
        finally:
            self.at_call = False

    def opened(self, node: RefNode, level: bool = False) -> None:
        """Notes that something has begun that must end in the same trace (a block, a level of torch.func); `node` stands for it.
        level: no later trace may begin inside of it either."""
        self.blocks.begin(node, [] if self.early_breaks is None else self.early_breaks.places(self), level)

    def drive(self, start: Callable[[], None], outer: Frame | None) -> None:
        """Calls `start`, which enters a frame or goes on in one, until the current frame is `outer`. Raises UserError, and Cut
        with the frames as they are.

        Nests: native code that calls back (a generator's driver) runs its frame above the current one.
        """
        self._drives += 1
        try:
            self._drive(start, outer)
        finally:
            self._drives -= 1

    def _drive(self, start: Callable[[], None], outer: Frame | None) -> None:
        handled, deaths = sys.exception(), self.deaths
        raised: BaseException | None = None
        fault: BaseException | None = None
        try:
            start()
        except UserError as error:
            raised, reraised = error.exception, error.reraised
        while fault is None:
            if raised is not None:
                unwind.raised(self, raised, reraised, outer)  # outside of `except`: the thread's handled exception stays the user's
            try:
                if raised is not None:
                    raised = None
                    deaths.end_trace_without_cut(self)
                frame: Any
                while (frame := self.frame) is not outer:
                    if deaths.asks:
                        deaths.before(self, frame)
                    at = frame.pc
                    frame.pc = at + 1
                    instruction = frame.instructions[at]
                    instruction.handler(self, frame, instruction)
                return
            except UserError as error:
                raised, reraised = error.exception, error.reraised
            except Cut:
                raise
            except BaseException as error:
                if is_a(error, RecursionError):           # they come out of our code, but for the program
                    raised, reraised = error.with_traceback(None), False
                elif unwind.is_asynchronous(error):
                    self.unrepeatable = error, Break("raised", type(error).__name__)
                    raised, reraised = error.with_traceback(unwind.from_handler(error)), False
                else:
                    fault = error
        unwind.set_handled(handled)
        try:
            raise fault
        finally:
            del fault       # which holds this frame

    def check_depth(self) -> None:
        """Raises UserError with RecursionError where CPython would not enter another frame."""
        if self.frame is not None and self.frame.depth >= sys.getrecursionlimit():
            unwind.throw(RecursionError("maximum recursion depth exceeded"))

    def enter(self, frame: Frame) -> None:
        """Makes `frame` the current one, called by the present one."""
        frame.back = self.frame
        frame.depth = _native_depth() if self.frame is None else self.frame.depth + 1
        if self.tracking:
            frame.mark, frame.operations = self.graph.mark, self.recorder.operations
            frame.rounds = frame.mark, frame.mark
        self.frame = frame

    def detach(self, frame: Frame) -> None:
        """The current frame is suspended: its caller becomes the current one. It keeps what it holds."""
        self.frame, frame.back = frame.back, None

    def leave(self, frame: Frame) -> None:
        """Drops the current frame and what it still holds."""
        self.frame, self.leaving = frame.back, frame
        if frame.object is None or not _is_held(frame):     # else its variables can still be read
            frame.stack.clear()
            frame.locals.clear()
            frame.variables = None
        frame.back = self.leaving = None
        self.graph.sweep(frame.mark)
        if self.graph.pops:
            self.graph.let_go()

    def let_go(self, frame: Frame, node: RefNode) -> None:
        """Called when `frame` drops an object: if nobody but the trace holds it, it dies now, with what it holds."""
        if not node.strong or not node.is_garbage():
            return
        if node.created:                            # of an exception, what its traceback shows dies with it
            self.graph.sweep(frame.mark if issubclass(node.cls, BaseException) else min(frame.rounds[0], node.serial - 1))
        if self.graph.pops or not node.created:
            self.graph.let_go()

    def new_round(self, frame: Frame) -> None:
        """Called when a loop of the current frame begins an iteration: frees what the last two iterations made and nobody holds any
        more."""
        self.note_work()
        if self.tracking:
            older, newer = frame.rounds
            self.graph.sweep(older)
            frame.rounds = newer, self.graph.mark

    def note_work(self) -> None:
        """Called for each call and operator of the program, and each round of a loop."""
        self._idle_work += 1

    def is_idle(self, times: int = 1) -> bool:
        """Whether the trace has gone on for long without an operation of torch, or several times as long."""
        if self._idle_work <= times * MOST_IDLE_WORK:
            return False
        if self.tracking and self.recorder.operations == self._operations:
            return True
        self._idle_work, self._operations = 0, self.recorder.operations if self.tracking else 0
        return False

    def returned(self, frame: Frame, value: Value) -> None:
        """`frame` ends with `value`, which goes to its continuation or on its caller's stack."""
        then = frame.then
        self.leave(frame)
        self.deliver(value, then)

    def deliver(self, value: Value, then: Continuation | None) -> None:
        """Hands a result to `then`, or pushes it on the current frame's stack."""
        if then is not None:
            then(value)
        else:
            self.frame.stack.append(value)  # type: ignore[union-attr]

    # -- real and shadow ---------------------------------------------------------------------------------------------

    def real(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls native code of the program. If it raises, raises UserError with the exception, without our own traceback entry."""
        try:
            return function(*args, **kwargs)
        except BaseException as exception:
            exception.__traceback__ = exception.__traceback__.tb_next  # type: ignore[union-attr]
            error = exception
        raise UserError(error)

    def about_to_change(self, real: Any) -> None:
        """Before an object is changed. Raises UserError in the body of an operator that may only compute."""
        if self.tracking and self.recorder.bodies:
            self.real(self.recorder.require_inside, real)

    def track(self, model: Callable[..., T], /, *args: Any, **kwargs: Any) -> T | None:
        """The result of `model`, mostly a shadow; or None if the trace was given up, now or earlier."""
        if not self.tracking:
            return None
        try:
            if self.graph.overriding:
                with self.unasked():
                    return model(*args, **kwargs)
            return model(*args, **kwargs)       # tens of thousands of times in the capture of a model
        except Break as reason:
            self.give_up(reason)
        except BackendError:
            raise
        except Exception as fault:
            if unwind.is_asynchronous(fault):
                raise
            self.fail(fault)
        return None

    def unasked(self) -> AbstractContextManager[Any]:
        """A context in which our own operations on tensors call no `__torch_function__` of classes or modes."""
        return torch._C.DisableTorchFunction() if self.graph.overriding else UNASKED

    def describe(self, model: Callable[[], Shadow], function: Value, args: list[Value], kwargs: dict[str, Value], result: Any,
                 then: Continuation | None = None) -> Shadow | None:
        """Like `track`, for the `result` of a call that has changed nothing and whose result is for `then`. If the model raises
        Break, raises Cut instead: then every hit makes the call, between two traces."""
        done = len(self.graph.effects)

        def model_or_cut() -> Shadow:
            try:
                return model()
            except Break as reason:
                if not self.can_cut or len(self.graph.effects) != done:
                    raise
                raise Cut(reason.with_traceback(None), function, args, kwargs, Value(result, None), then) from None
        return self.track(model_or_cut)

    def give_up(self, reason: Break) -> None:
        """Ends the trace here; the program goes on, on real values alone. Raises UserError where the program is
        tried out (see `tries`): it would really do what torch then does again."""
        if not self.tracking:
            return
        self.broken = (reason.with_traceback(None), reason.stack or self.stack())      # whose frames hold this interpreter
        self.tracking = self.inlining = False
        self.deaths.replaced()
        self.breaks_earlier = (reason.reason.id not in ("internal-fault", "preparing") and self.early_breaks is not None
                               and self.early_breaks.learn(self, reason))
        if self.tries:
            raise UserError(Abandoned())

    def try_out(self) -> None:
        """Begins a call that changes nothing, and which is made again natively if the trace is given up in it."""
        self.tries += 1

    def tried_out(self) -> None:
        """Such a call is over."""
        self.tries -= 1

    def stop_inlining(self) -> None:
        """From now on calls run in CPython, without frames of ours."""
        self.inlining = False

    def left_by_cut(self) -> None:
        """The interpreter was left by a Cut; it may have to go on."""
        self.at_cut = True

    def ended_by(self, exception: BaseException) -> None:
        """The call has raised. This is why it leaves no entry, if there was no reason before."""
        self.broken = self.broken or (Break("raised", type(exception).__name__), ())

    def end(self) -> None:
        """The call is over. Breaks the cycles by which iterators hold the interpreter, so that frames die."""
        self.tracking, self.frame = False, None

    def drop(self) -> None:
        """Ends the trace without a reason, and without leaving an entry; the program goes on, on real values alone."""
        self.tracking = self.inlining = False
        self.dropped = True

    def died(self, node: RefNode) -> None:
        """An object has died, and its finalizer has run."""
        self.deaths.noted(self, node, self.leaving)

    def replaced(self) -> None:
        """An effect has replaced or removed something."""
        self.deaths.replaced()

    def cannot_repeat(self, exception: BaseException, reason: Break) -> None:
        """Notes that the operation which raised `exception` may not raise it on a hit."""
        self.unrepeatable = exception, reason

    def is_unrepeatable(self, exception: BaseException) -> bool:
        """Whether no guard makes sure that `exception` is raised again on a hit."""
        return self.unrepeatable is not None and self.unrepeatable[0] is exception

    def caught(self, exception: BaseException) -> None:
        """A handler of the program takes over `exception`. If no guard makes sure that it is raised again on a hit, the trace
        ends."""
        if self.tracking and self.is_unrepeatable(exception) and not self._has_left_body():
            self.give_up(self.unrepeatable[1])  # type: ignore[index]

    def fail(self, fault: Exception) -> None:
        """Our own bookkeeping failed. Raises InternalError in strict mode."""
        where = self.stack()
        text = f"{type(fault).__name__}: {fault}" + (f"\n  at {where[-1]}" if where else "")
        if STRICT:
            raise InternalError(text) from fault
        self.give_up(Break("internal-fault", text))

    def _has_left_body(self) -> bool:
        """Whether the current frame is the one that has called the body of torch's control flow which is recorded."""
        return bool(self.recorder.bodies) and self.frame.depth <= self.recorder.bodies[-1][0].depth  # type: ignore[union-attr]

    def positions(self) -> tuple[tuple[types.CodeType, int, int], ...]:
        """Code object, byte offset and line of each of the user's frames, outermost first."""
        frames = []
        frame = self.frame
        while frame is not None:
            frames.append((frame.code, frame.instructions[frame.pc - 1].offset, frame.line))
            frame = frame.back
        return tuple(reversed(frames))

    def place(self) -> UserFrame | None:
        """The user's line being executed: the innermost one outside of torch and of capture."""
        return self.lines.innermost(self.frame)

    def stack(self) -> tuple[UserFrame, ...]:
        """The user's frames, outermost first."""
        frames = user_stack(self.positions())
        if all(is_internal(frame.file) for frame in frames) and (caller := self.lines.caller()) is not None:
            frames = (caller, *frames)      # a module of torch itself: what matters is who called it
        return frames


def _is_held(frame: Frame) -> bool:
    """Whether the program holds the frame object that it was given of a frame that ends, and which is left to it."""
    node, frame.object = frame.object.shadow, None  # type: ignore[union-attr]
    return isinstance(node, RefNode) and not node.is_garbage()


def _native_depth() -> int:
    """How many Python frames are on the thread's stack."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return depth
