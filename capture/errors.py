"""What can go wrong, and the table of stable break reasons.

A break reason is an identifier with a fixed explanation and remedy; what changes from case to case is the `context`.
Modelled on `torch._dynamo.exc.unimplemented`.
"""
from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """A stable reason for which a graph ends: `id` never changes once released."""

    id: str
    explanation: str
    remedy: str


@dataclass(frozen=True, slots=True)
class UserFrame:
    """One line of the user's program on the stack of a break, outermost first."""

    file: str
    line: int
    function: str

    @classmethod
    def at(cls, code: types.CodeType, line: int) -> UserFrame:
        """A line of a code object."""
        return cls(code.co_filename, line, code.co_qualname)

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


# Files that users did not write, and are not shown: those of capture, of torch, and what Python keeps frozen.
TORCH = tuple(os.path.join(folder, "") for folder in (importlib.util.find_spec("torch").submodule_search_locations or ()))  # type: ignore[union-attr]
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
INTERNAL = (OWN, "<frozen ", *TORCH)
GENERATED = "<capture", "<eval_with_key>"       # how the files of generated code begin
# Folders of installed packages, by what every Python calls them (Debian's has the second): this environment's, the user's own, and
# those of other environments on the path.
PACKAGES = tuple(os.path.join(os.sep, name, "") for name in ("site-packages", "dist-packages"))


@functools.cache
def is_file_of_capture(file: str) -> bool:
    """Whether a file is capture's."""
    return file.startswith(OWN)


@functools.cache
def is_internal(file: str) -> bool:
    """Whether a file belongs to capture, torch or Python's frozen modules, whose frames users are not shown."""
    return file.startswith(INTERNAL)


@functools.cache
def is_of_torch(file: str) -> bool:
    """Whether a file is torch's own."""
    return file.startswith(TORCH)


@functools.cache
def is_of_library(file: str) -> bool:
    """Whether a file belongs to an installed package, torch among them, rather than to the program that uses it."""
    return is_of_torch(file) or any(folder in file for folder in PACKAGES)


def user_frames(stack: Iterable[UserFrame]) -> tuple[UserFrame, ...]:
    """The frames of a stack that users are shown; all, if none is theirs."""
    stack = tuple(stack)
    return tuple(frame for frame in stack if not is_internal(frame.file)) or stack


def warn(text: str) -> None:
    """Warns the user at the innermost line of the program that led here (none in threads and processes of ours). The program goes
    on even if a filter makes an exception of the warning, or standard error is closed."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (is_internal(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(GENERATED)
                                 or frame.f_globals.get("__name__") in ("contextlib", "threading")):
        frame = frame.f_back
    with contextlib.suppress(Warning, ValueError):
        if frame is None:
            warnings.warn_explicit(f"capture: {text}", UserWarning, "<capture>", 0)
        else:
            scope = frame.f_globals
            warnings.warn_explicit(f"capture: {text}", UserWarning, frame.f_code.co_filename, frame.f_lineno,
                                   scope.get("__name__"), scope.setdefault("__warningregistry__", {}))


def note(text: str) -> None:
    """Prints a line to standard error, if there is such a stream and it is open."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr)


REASONS: dict[str, Reason] = {}


def _reason(id: str, explanation: str, remedy: str) -> None:
    REASONS[id] = Reason(id, explanation, remedy)


_reason("opaque-call", "a C function was called whose effects are not known to capture",
        "move the call out of the compiled function, or express it with torch or plain Python operations")
_reason("disabled-call", "the called function was excluded from capture, by capture.disable or torch.compiler.disable",
        "remove the disable, or move the call out of the compiled function")
_reason("torch-compiled", "the called function was compiled by torch.compile, which runs it",
        "remove that torch.compile: a compiled function is captured together with what it calls")
_reason("data-dependent", "Python code needs a value that only the graph computes (item, bool, int, tolist, numpy …)",
        "keep the value in a tensor (torch.where, index_select, clamp …), or read it outside of the compiled function")
_reason("data-dependent-shape", "a shape was used that depends on the values of a tensor (nonzero, boolean mask, unique …)",
        "use an operation whose result has a fixed shape (torch.where, multiplication by a mask), or move the operation out of the "
        "compiled function")
_reason("changing-result", "the program decides by a result that differs on every call (a random number, the time, a file …)",
        "none needed: each branch is captured once; or make the call outside of the compiled function, and pass in its result")
_reason("changing-value", "a number, string or length from outside decides what the program does, and often changes: the graph "
                          "ends there, which saves a capture for each value",
        "none needed; or use it only in arithmetic with tensors, or keep it the same")
_reason("tensor-op-raised", "a tensor operation raised an exception that the program caught",
        "test the condition instead of catching the exception")
_reason("failing-operation", "an operation may raise on a later call, and a change near it could not be undone then: the graph "
                             "ends between the two, so that exception handlers find the same state as in eager mode",
        "none needed; or move the operation, or the change, out of the `try`")
_reason("uninitialized-tensor", "this call of a lazy module creates its parameters, and runs natively; later calls are captured",
        "none needed; or call the module once before it is compiled")
_reason("preparing", "this call prepares what later ones use, and runs natively; later calls are captured", "none needed")
_reason("side-effect-call", "the call acts on the world outside of the program, and a hit cannot repeat it",
        "move it out of the compiled function")
_reason("own-code", "code of the program (a `__str__`, a logging handler) runs inside of a call that every later call repeats, and "
                    "may change what the program reads afterwards",
        "pass the text itself (`str(x)`, an f-string); or make the call outside of the compiled function")
_reason("clock", "a clock is read: the graph ends there, so that all work before it is done when the clock is read",
        "none needed; or read clocks outside of the compiled function")
_reason("lock", "a lock is taken: the graph ends there, so that what the lock protects is read while it is held",
        "none needed; or hold the lock around the call of the compiled function")
_reason("late-change", "an object was printed or logged, and changed later in the same call",
        "print a copy of the object, or print after the change")
_reason("outside-iterator", "an iterator or generator created outside of the compiled function was advanced",
        "pass a list or tuple, or create the iterator inside of the compiled function")
_reason("escaping-object", "an object made during the call is needed after it, and capture cannot make it again on later calls",
        "return tensors, numbers, strings, containers or instances of plain classes")
_reason("unsupported-tensor", "the program works on tensors of an unknown subclass, or under a tracer of torch's own",
        "pass plain tensors, and call the function outside of the tracer")
_reason("untracked-mutation", "an object was changed by native code in a way that capture could not follow",
        "make the change in Python code that capture can see, or outside of the compiled function")
_reason("finalizer", "an object died during the call, and code ran as it died: a `__del__`, a callback of a weak reference",
        "make such objects outside of the compiled function, and keep them until it has returned")
_reason("changing-global-state", "the call changes state of the process that guards depend on",
        "make the change outside of the compiled function")
_reason("idle-loop", "every iteration of a loop breaks the graph and has no tensor operation: CPython runs the loop, and what "
                     "follows it is captured",
        "none needed; or move what breaks the graph out of the loop")
_reason("long-loop", "a loop goes on for long without an operation of torch: CPython runs what is left of it, or the whole call if "
                     "it is a library's",
        "none needed; or move the loop out of the compiled function")
_reason("long-call", "a function goes on for long without an operation of torch: CPython runs the call of it",
        "none needed; or call it outside of the compiled function")
_reason("debugger", "a debugger stops in this frame; the rest of the call runs natively, so that it can be stepped through",
        "remove the call of the debugger when you no longer need it")
_reason("autograd-inside", "a backward pass inside of the compiled function runs by itself, between two graphs: it has hooks, or "
                           "other arguments than gradients",
        "none needed; or remove the hooks")
_reason("raised", "the call ended in an exception, whose traceback only the program itself can produce",
        "none needed: calls like this one run natively")
_reason("internal-fault", "capture itself failed: this is a bug in capture; the program went on natively",
        "please report it with the text of the fault; set CAPTURE_STRICT=1 to raise it")


class CaptureError(Exception):
    """Base of all errors which capture raises on its own behalf."""


class Break(CaptureError):
    """The trace cannot go on here. Raised by models of calls while tracking; never reaches the user's program.

    `stack`: the user's frames, outermost first, where these are not the present ones.

    Raises KeyError when `id` is not in `REASONS`.
    """

    def __init__(self, id: str, context: str, stack: tuple[UserFrame, ...] = ()) -> None:
        self.reason = REASONS[id]
        self.context, self.stack = context, stack
        super().__init__(f"{context}: {self.reason.explanation}")


class CheckFailed(CaptureError):
    """A check in the graph failed: a tensor does not hold the value that the trace assumed. Nothing has been changed yet, and the
    call runs natively."""


class AssumptionFailed(CheckFailed):
    """A decision by a tensor came out otherwise than the trace assumed (design.md, "Assumptions"). Later captures end before that
    decision."""


class Reformed(CheckFailed):
    """An autograd function returned tensors of another form than in the capture. cls: the function. resized: only their sizes
    differ."""

    def __init__(self, cls: type, resized: bool) -> None:
        self.cls, self.resized = cls, resized
        super().__init__(f"{cls.__qualname__} returned tensors of another form than in the capture")


class RaisedInside(CheckFailed):
    """An autograd function raised, in a call that runs natively then. cls: the function."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        super().__init__(f"{cls.__qualname__} raised")


class GraphBreakError(CaptureError):
    """A graph break under `fullgraph=True`. The message holds reason, the user's line, and a remedy."""

    def __init__(self, reason: Reason, context: str, stack: tuple[UserFrame, ...]) -> None:
        self.reason, self.context, self.stack = reason, context, user_frames(stack)
        where = "".join(f"\n  at {frame}" for frame in self.stack)
        super().__init__(f"[{reason.id}] {context}: {reason.explanation}.{where}\n  remedy: {reason.remedy}.")


class ConstraintError(CaptureError, RuntimeError):
    """A size does not vary as the user said it would (`torch._dynamo.mark_dynamic`, `shapes_spec`): the program works for one value
    only, or a call has a size that was ruled out. The message says where."""


class RecaptureError(CaptureError, RuntimeError):
    """A call would be captured under `torch.compiler.set_stance("fail_on_recompile")`. The message says why no entry fits."""


class InternalError(CaptureError):
    """A fault of capture's own. Raised only with CAPTURE_STRICT=1; otherwise the program goes on natively."""


class BackendError(CaptureError):
    """A backend is unknown, or failed on a graph."""


class ToolchainError(BackendError):
    """There is no usable compiler, or it failed. The message is one sentence with the remedy; `log` is all that it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class ArgumentError(CaptureError, TypeError):
    """A public function was called with an argument that it cannot use; the message names the remedy."""


def described(value: object) -> str:
    """An argument in the message of an ArgumentError: its class and the beginning of its repr, if that does not raise."""
    return f"{type(value).__name__}: {shown(value)}"


def shown(value: object) -> str:
    """The beginning of an object's repr."""
    try:
        return f"{value!r:.80}"
    except Exception:       # the program's own, which must not hide the error that is being told
        return "its repr raises"
