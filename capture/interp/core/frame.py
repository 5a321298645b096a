"""Values and frames of the interpreter."""
from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from capture._C import is_a
from capture.errors import Break, is_file_of_capture
from capture.refgraph.node import Const, Shadow

if TYPE_CHECKING:
    from capture.interp.core.instructions import Instruction


Taker = TypeVar("Taker", bound=Callable[..., None])
BUILTINS: dict[str, Any] = types.__dict__["__builtins__"]
ORIGINALS = dict(BUILTINS)      # for polyfills: what a program puts into the places of builtins is not for them


class Value:
    """A stack slot or local: the real value and its shadow. After the trace was given up, shadows are None and not used
    (`Interpreter.track`)."""

    __slots__ = ("real", "shadow")

    def __init__(self, real: Any, shadow: Shadow | None) -> None:
        self.real = real
        self.shadow: Shadow = shadow  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Value({self.real!r:.60}, {self.shadow!r:.60})"


NONE_VALUE = Value(None, Const(None))
Asked = tuple[Value, str]       # an object, and the name of an attribute that it is asked for


class Handled(Value):
    """The stack slot in which PUSH_EXC_INFO keeps the exception that was handled before."""

    __slots__ = ()


class Resume(Enum):
    """What a waiting instruction does with the value that it waits for. A continuation must do the same in its place. A callable
    that is the `then` of a call has this as its attribute `resume` (`resuming`)."""

    PUSH = "push it and go on with the next instruction"
    DISCARD = "go on with the next instruction"
    NONE = "push None and go on with the next instruction"
    NEGATE = "push its opposite and go on with the next instruction"
    RETRY = "push it and begin the same instruction again"
    BEGIN = "begin with the next instruction"
    ADVANCE = "push it and go on with the next instruction; upon StopIteration, drop the iterator below and end the loop"
    SEND = "push it and go on with the next instruction; upon StopIteration, put its value in place of the iterator below and jump"
    YIELD = "nothing: the frame, of a generator, stands at a `yield`"
    AND = "if it is true, drop the value on the stack, whose truth it is, and go on; if not, jump"
    OR = "if it is false, drop the value on the stack, whose truth it is, and go on; if not, jump"

    @property
    def pushes(self) -> bool:
        """Whether the value, or another in its place, is on the stack then."""
        return self not in (Resume.DISCARD, Resume.BEGIN)

    @property
    def drops(self) -> bool:
        """Whether the value itself is not used."""
        return self is Resume.NONE or not self.pushes

    @property
    def runs_at_next(self) -> bool:
        """Whether the instruction that comes next is the one that waits, and runs then."""
        return self in (Resume.RETRY, Resume.BEGIN)

    @property
    def takes_stop(self) -> bool:
        """Whether StopIteration in place of the value ends a loop."""
        return self in (Resume.ADVANCE, Resume.SEND)

    @property
    def may_jump(self) -> bool:
        """Whether the value decides where to go on."""
        return self in (Resume.AND, Resume.OR)


def resuming(then: Taker, how: Resume) -> Taker:
    """Marks the `then` of a call with what a continuation has to do in its place."""
    then.resume = how  # type: ignore[attr-defined]
    return then


def discard(value: Value) -> None:
    """A continuation that drops the result."""


resuming(discard, Resume.DISCARD)


class UserError(Exception):
    """Carries an exception of the user's program through the interpreter, apart from our own faults. `reraised`: a handler of the
    same frame raises it again, so that its traceback already has this frame."""

    def __init__(self, exception: BaseException, reraised: bool = False) -> None:
        self.exception, self.reraised = exception, reraised


class Abandoned(BaseException):
    """Leaves a body of torch's control flow that cannot be recorded: torch is to trace it itself. No handler of the program sees
    it, not even a bare `except:` or `finally:`: for the program, the body has not begun."""


Continuation = Callable[[Value], None]
OnRaise = Callable[[BaseException], bool]       # whether it deals with the exception
# The arguments of a call; who takes its result, and what it raises (None: the frame that is running).
Args = list[Value]
Kwargs = dict[str, Value]
Then = Continuation | None
Catch = OnRaise | None


class Cut(BaseException):
    """Leaves the interpreter where the trace is to end, before a call that no trace can hold. `then` gets the result of
    `function(*args, **kwargs)`, `on_raise` its exception. The call has not been made yet; or it has, if it changed nothing that the
    trace knows: then `outcome` is its result, or the UserError with its exception."""

    def __init__(self, reason: Break, function: Value, args: list[Value], kwargs: dict[str, Value],
                 outcome: Value | UserError | None = None, then: Continuation | None = None,
                 on_raise: Callable[[BaseException], bool] | None = None) -> None:
        self.reason, self.function, self.args_, self.kwargs = reason, function, args, kwargs
        self.outcome, self.then, self.on_raise = outcome, then, on_raise


class Frame:
    """One activation of a code object, as CPython lays it out.

    `locals`: co_nlocalsplus slots, None where unbound; a cell or free variable's slot holds the cell object itself.
    `stack`: Values, or None for CPython's NULL (`push`). `pc`: index of the next instruction in `instructions`.
    `then` receives the returned value in place of a push on the caller's stack; `on_raise(exception)` may take over an
    exception that leaves the frame: true when it did.
    """

    __slots__ = ("code", "function", "instructions", "pc", "locals", "stack", "globals", "builtins", "namespace", "variables",
                 "object", "back", "then", "on_raise", "asked", "generator", "mark", "operations", "depth", "rounds")

    def __init__(self, code: types.CodeType, instructions: tuple[Instruction, ...], function: Value,
                 globals: dict[str, Any]) -> None:
        self.code = code
        self.function = function                    # the function object, whose shadow leads to globals and closure
        self.instructions = instructions
        self.pc = 0
        self.locals: list[Value | None] = []
        self.stack: list[Value] = []
        self.globals = globals
        builtins = ORIGINALS if is_file_of_capture(code.co_filename) else globals.get("__builtins__", BUILTINS)
        self.builtins: dict[str, Any] = builtins if is_a(builtins, dict) else builtins.__dict__
        self.namespace: Value | None = None         # class bodies: the mapping that names are stored into
        self.variables: Value | None = None         # of functions: what `locals()` returned
        self.object: Value | None = None            # the frame object that the program was given
        self.back: Frame | None = None
        self.then: Continuation | None = None
        self.on_raise: Callable[[BaseException], bool] | None = None
        self.asked: Asked | None = None             # the attribute that it computes
        self.generator: Any = None                  # the interp.generators.Body that this frame is the body of
        self.mark = 0                               # RefGraph.mark at entry
        self.operations = 0                         # that the trace had recorded at entry
        self.depth = 0                              # of frames below this one, ours and CPython's
        self.rounds = (0, 0)                        # `mark` at the beginning of the last two rounds of loops

    def push(self, value: Value | None) -> None:
        self.stack.append(value)  # type: ignore[arg-type]

    def push_item(self, item: Value) -> None:
        """The continuation for what the iterator of a loop has yielded."""
        self.stack.append(item)

    resuming(push_item, Resume.ADVANCE)

    def pop(self) -> Value:
        return self.stack.pop()

    def popn(self, n: int) -> list[Value]:
        """The top `n` slots, deepest first."""
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    @property
    def instruction(self) -> Instruction:
        """The instruction being executed."""
        return self.instructions[self.pc - 1]

    @property
    def line(self) -> int:
        """The user's line being executed."""
        return (self.instructions[self.pc - 1].line if self.pc else None) or self.code.co_firstlineno


def frames_from(frame: Frame | None) -> Iterator[Frame]:
    """A frame and those outside of it."""
    while frame is not None:
        yield frame
        frame = frame.back
