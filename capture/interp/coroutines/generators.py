"""Generators, coroutines and asynchronous generators whose bodies are frames of our interpreter.

The program sees a real CPython object, a driver (generator_drivers.py), which steps our frame whenever native code resumes it.
Where interpreted code resumes it, the frame is entered directly, with shadows, and the driver stays where it is.

A generator that outlives its trace, because the trace was cut, is *dormant*: its frame is saved as a continuation, a generator
function, and its arguments. A trace that resumes it takes it over: it makes a frame of the continuation. Native code that resumes
it calls the continuation, and the driver delegates to the generator that this returns.
"""
from __future__ import annotations

import enum
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core import generator_drivers, unwind
from capture.interp.core.frame import NONE_VALUE, Continuation, Frame, OnRaise, UserError, Value
from capture.interp.core.generator_drivers import DRIVER_CODES, FLAGS, KINDS, Outcome, Wrapped
from capture.interp.core.instructions import Does, does
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines.bodies import Dormant, body_of, note_body, note_finished, take_over
from capture.interp.coroutines.protocol import close_iterator, fail, stop_iteration_error, throw_into
from capture.interp.dispatch import calls
from capture.refgraph.lookup import returned_by
from capture.refgraph.node import Build, IteratorState, RefNode

Consumer = tuple[Continuation, Continuation, OnRaise | None]


class State(enum.Enum):
    CREATED = "created"
    SUSPENDED = "suspended"
    RUNNING = "running"
    FINISHED = "finished"


class Body:
    """The frame behind a generator, coroutine or asynchronous generator.

    While it runs, `consumer` holds the continuations for what it yields, returns and raises; `alive` the object, which nobody else
    may hold; `base` the exception that its resumer is handling. `handled` is the exception that the body itself is handling, also
    while it is suspended. `driven`: the driver has been started. In place of `frame` there may be `dormant`, its saved state
    between two traces; `awaiting`, the same of a running body, as the trace knows it; or `inner`, the CPython object that the
    driver delegates to. `watcher`: the capture in which a dormant body may die.
    """

    __slots__ = ("interp", "frame", "kind", "state", "reference", "alive", "consumer", "driven", "native", "handled",
                 "base", "dormant", "awaiting", "inner", "watcher", "__weakref__")

    def __init__(self, kind: str, frame: Frame | None = None, interp: Interpreter | None = None) -> None:
        self.interp: Callable[[], Interpreter | None] = nobody if interp is None else weakref.ref(interp)
        self.frame: Frame = frame  # type: ignore[assignment]
        self.kind = kind
        self.state = State.CREATED
        self.reference: Callable[[], Any] = nobody
        self.alive: Any = None
        self.consumer: Consumer | None = None
        self.driven = self.native = False
        self.handled: BaseException | None = None
        self.base: BaseException | None = None
        self.dormant: Dormant | None = None
        self.awaiting: tuple[Value, list[Value], Value] | None = None
        self.inner: Any = None
        self.watcher: tuple[Callable[[], Interpreter | None], RefNode] | None = None

    # -- resumed by interpreted code -----------------------------------------------------------------------------------

    def send(self, interp: Interpreter, value: Value, yielded: Continuation, returned: Continuation,
             on_raise: OnRaise | None = None, native: bool = False) -> None:
        """Resumes the body with `value`. Raises UserError when it cannot be resumed."""
        if self.state is State.FINISHED:
            if self.kind == "coroutine":
                unwind.throw(RuntimeError("cannot reuse already awaited coroutine"))
            return returned(NONE_VALUE)
        if self.state is State.CREATED and value.real is not None:
            unwind.throw(TypeError(f"can't send non-None value to a just-started {self.kind}"))
        self._enter(interp, (yielded, returned, on_raise), native)
        self.frame.stack.append(value)

    def throw(self, interp: Interpreter, exception: BaseException, yielded: Continuation, returned: Continuation,
              on_raise: OnRaise | None = None, native: bool = False) -> None:
        """Resumes the body with an exception; an iterator that it delegates to gets the exception first. Raises UserError, in the
        body's frame if that could be entered."""
        if self.state is State.FINISHED:
            if self.kind == "coroutine":
                unwind.throw(RuntimeError("cannot reuse already awaited coroutine"))
            raise UserError(exception)
        delegate = self.delegate()
        self._enter(interp, (yielded, returned, on_raise), native)

        def raise_here() -> None:
            if self.handled is not None:    # what others handle does not become its context
                unwind.throw(exception)
            raise UserError(exception)
        if delegate is None:
            raise_here()
        elif is_a(exception, GeneratorExit):
            close_iterator(interp, delegate, raise_here)
        else:
            throw_into(interp, delegate, exception, lambda value: self.suspend(interp, value), self._delegate_returned,
                       raise_here, self._chain)

    def close(self, interp: Interpreter, then: Callable[[], None], on_raise: OnRaise | None = None) -> None:
        """Ends the body with GeneratorExit; `then()` follows."""
        if self.state is State.CREATED:
            self.alive = self.reference()
            self._finish()
        if self.state is State.FINISHED:
            return then()

        def ignored(value: Value) -> None:
            fail(RuntimeError(f"{self.kind} ignored GeneratorExit"), on_raise)

        def ended(exception: BaseException) -> bool:
            if is_a(exception, (GeneratorExit, StopIteration)):
                then()
                return True
            return on_raise is not None and on_raise(exception)
        self.throw(interp, GeneratorExit(), ignored, lambda value: then(), ended)

    def delegate(self) -> Value | None:
        """The iterator that the suspended body delegates to (`yield from`, `await`), or None."""
        if self.state is State.SUSPENDED and Does.DELEGATES in does(self.frame.instructions[self.frame.pc]):
            return self.frame.stack[-1]
        return None

    def _busy(self, thrown: BaseException | None) -> Exception:
        """What is raised where the body is to go on while it runs."""
        if self.kind != "async generator":
            return ValueError(f"{self.kind} already executing")
        method = "anext" if thrown is None else "aclose" if is_a(thrown, GeneratorExit) else "athrow"
        return RuntimeError(f"{method}(): asynchronous generator is already running")

    def _enter(self, interp: Interpreter, consumer: Consumer, native: bool) -> None:
        if self.state is State.RUNNING:
            unwind.throw(self._busy(None))
        interp.check_depth()
        self.state = State.RUNNING
        self.alive, self.native, self.consumer = self.reference(), native, consumer
        frame = self.frame
        frame.then, frame.on_raise, frame.generator = self._returned, self._raised, self
        self.base = None if native else sys.exception()     # a driver has a slot of its own for the handled exception
        if self.handled is not None:
            unwind.set_handled(self.handled)
        interp.enter(frame)

    # -- what becomes of the frame -------------------------------------------------------------------------------------

    def suspend(self, interp: Interpreter, value: Value) -> None:
        """YIELD_VALUE: the body's frame, which is the current one, waits; `value` goes to whoever resumed it."""
        frame = self.frame
        interp.detach(frame)
        frame.then = frame.on_raise = frame.generator = None
        self.state = State.SUSPENDED
        yielded, _, _ = self._release()
        real, self.alive = self.alive, None
        if not self.driven:     # CPython closes a dying generator only if it was started
            self.driven = True
            generator_drivers.start(real)
        yielded(value)

    def _chain(self, exception: BaseException) -> bool:
        """What comes out of a delegate that was thrown into is thrown into the body anew."""
        if self.handled is not None:
            unwind.throw(exception)
        return False

    def _delegate_returned(self, value: Value) -> None:
        """What the body delegates to has returned upon an exception: the loop around SEND is over."""
        frame = self.frame
        frame.stack[-1] = value
        frame.pc = frame.instructions[frame.pc - 2].value   # of SEND, which YIELD_VALUE follows

    def _returned(self, value: Value) -> None:
        _, returned, _ = self._finish()
        returned(value)

    def _raised(self, exception: BaseException) -> bool:
        _, _, on_raise = self._finish()
        replaced = stop_iteration_error(self.kind, exception)
        if replaced is not None:
            if on_raise is None or not on_raise(replaced):
                raise UserError(replaced)
            return True
        return on_raise is not None and on_raise(exception)

    def _finish(self) -> Consumer:
        self.state = State.FINISHED
        consumer = self._release()
        real, self.alive = self.alive, None
        frame = self.frame
        frame.then = frame.on_raise = frame.generator = None
        frame.stack.clear()
        frame.locals.clear()
        if real is not None:
            note_finished(real, frame.code)
            if not self.native:
                generator_drivers.end(real)
        return consumer

    def _release(self) -> Consumer:
        if self.handled is not None:
            unwind.set_handled(self.base)
        self.base = None
        consumer, self.consumer = self.consumer, None
        return consumer  # type: ignore[return-value]

    # -- between two traces ---------------------------------------------------------------------------------------------

    def take_over(self, interp: Interpreter, node: RefNode, record: Build) -> None:
        """Makes a dormant body, found outside as `node`, one of this trace; `record` is what the trace knows of its saved state."""
        assert self.dormant is not None
        _, function, arguments, raising = self.dormant
        _, function_shadow, items, raising_shadow = record.items
        values = [Value(real, shadow) for real, shadow in zip(arguments, items.items, strict=True)]  # type: ignore[attr-defined]
        waiting = Value(function, function_shadow), values, Value(raising, raising_shadow)
        self.interp, self.dormant = weakref.ref(interp), None
        interp.generators.note_resumed(self, node)
        node.state = IteratorState()
        if self.state is State.RUNNING:
            self.awaiting = waiting
        elif self.state is State.CREATED:
            self._make_frame(interp, waiting[0], [*values, NONE_VALUE])
        elif self.state is State.SUSPENDED:
            self._make_frame(interp, waiting[0], values)
            self.state = State.CREATED
            interp.drive(lambda: self.send(interp, NONE_VALUE, ignore, ignore), interp.frame)     # to the `yield` where it stands

    def go_on(self, interp: Interpreter, rest: list[Value], raising: bool, yielded: Continuation, returned: Continuation,
              on_raise: OnRaise | None) -> None:
        """Goes on in a body that awaits the outcome of a call: `rest` leads to that."""
        assert self.awaiting is not None
        function, values, raises = self.awaiting
        self._make_frame(interp, raises if raising else function, [*values, *rest])
        self.awaiting, self.state = None, State.SUSPENDED
        self._enter(interp, (yielded, returned, on_raise), native=False)
        self.frame.stack.append(NONE_VALUE)

    def _make_frame(self, interp: Interpreter, function: Value, arguments: list[Value]) -> None:
        """Makes the frame of a continuation, and takes it to behind RETURN_GENERATOR."""
        frame = self.frame = calls.make_frame(interp, function, arguments, {})
        frame.generator = self
        interp.drive(lambda: interp.enter(frame), interp.frame)

    def lie_down(self, record: Dormant) -> None:
        """Makes the body dormant, or finished."""
        self.interp, self.frame, self.inner, self.awaiting = nobody, None, None, None  # type: ignore[assignment]
        self.alive = self.consumer = self.handled = self.base = None
        self.state, self.dormant = State(record[0]), record
        real = self.reference()
        if real is None:
            return
        if self.state is State.FINISHED:
            real.close()
        elif self.state is not State.CREATED and not self.driven:
            self.driven = True
            real.send(None)

    def revive(self, raising: bool, *rest: Any) -> None:
        """Makes the object of CPython's that a dormant body is from now on; `rest` as in `go_on`. The driver closes it when it dies
        itself. That is to be the only time: a body that yields then is not closed again."""
        assert self.dormant is not None
        _, function, arguments, raises = self.dormant
        self.inner = _C.close_no_more((raises if raising else function)(*arguments, *rest))  # type: ignore[misc]
        self.dormant = None

    def go_on_natively(self) -> Any:
        """A step of a body that has been revived: returns what it yields, and raises StopIteration with what it returns."""
        self.state = State.SUSPENDED
        outcome = self._delegate(None, None)
        if outcome.exception is None and not outcome.finished:
            return outcome.value
        self.reference().close()
        if outcome.exception is None:
            raise StopIteration(outcome.value)
        with outcome:
            raise outcome.exception

    def _delegate(self, sent: Any, thrown: BaseException | None) -> Outcome:
        """A step of the object of CPython's that the driver delegates to."""
        inner = self.inner
        try:
            return Outcome(inner.send(sent) if thrown is None else inner.throw(thrown))
        except StopIteration as stop:
            self.state, self.inner = State.FINISHED, None
            return Outcome(returned_by(stop), finished=True)
        except BaseException as exception:
            self.state, self.inner = State.FINISHED, None
            exception.__traceback__ = exception.__traceback__.tb_next  # type: ignore[union-attr]
            return Outcome(exception=exception)
        finally:
            del thrown          # its traceback holds this frame

    # -- resumed by native code, through the driver --------------------------------------------------------------------

    def begin(self) -> Outcome:
        """The first thing a driver does: a step, unless our own loop has made steps before."""
        if self.driven:
            return Outcome(Wrapped(None) if self.kind == "async generator" else None)
        self.driven = True
        return self.step(None, None)

    def step(self, sent: Any, thrown: BaseException | None) -> Outcome:
        """Resumes the body for native code. A trace that still goes on is given up."""
        if thrown is not None:
            while thrown.__traceback__ is not None and thrown.__traceback__.tb_frame.f_code in DRIVER_CODES:
                thrown.__traceback__ = thrown.__traceback__.tb_next
            if self.state is State.FINISHED:        # its driver is being closed
                return Outcome(exception=thrown)
        if self.dormant is not None:
            if self.state is State.RUNNING:         # what it awaits may have been cut short, and nobody hold it any more
                dies = self.reference() is None
                return Outcome(exception=thrown if dies else self._busy(thrown))
            if not is_a(thrown, GeneratorExit) or not self._is_watched():
                self._stand_up()
        if self.inner is not None:
            try:
                return self._delegate(sent, thrown)
            finally:
                thrown = None
        if is_a(thrown, GeneratorExit) and self._discard():
            return Outcome(exception=thrown)
        interp = self._native_interpreter(closing=is_a(thrown, GeneratorExit))
        outcomes: list[Outcome] = []

        def yielded(value: Value) -> None:
            outcomes.append(Outcome(value.real))

        def returned(value: Value) -> None:
            outcomes.append(Outcome(value.real, finished=True))

        def start() -> None:
            if thrown is None:
                self.send(interp, Value(sent, None), yielded, returned, native=True)
            else:
                self.throw(interp, thrown, yielded, returned, native=True)
        try:
            interp.drive(start, interp.frame)
        except UserError as error:
            return Outcome(exception=error.exception)
        return outcomes[0]

    def _is_watched(self) -> bool:
        """Whether a trace records what the body does as it dies."""
        interp, node = (nobody(), None) if self.watcher is None else (self.watcher[0](), self.watcher[1])
        return interp is not None and interp.tracking and interp.thread == threading.get_ident() and take_over(interp, self, node)

    def _stand_up(self) -> None:
        """Revives a body that does not run."""
        if self.state is State.CREATED:
            self.revive(False, None)
        else:
            self.revive(False)
            self.inner.send(None)                   # to the `yield` where it stands

    def _discard(self) -> bool:
        """Finishes a body which is being closed, as most are by their death, if none of its code is to run then."""
        if self.state is State.SUSPENDED and self.frame is not None and not self._must_clean_up():
            delegate = self.delegate()
            if delegate is not None:
                inner = body_of(delegate.real)
                if inner is None or not inner._discard():
                    return False
            self.native = True
            self._finish()
        return self.state is State.FINISHED

    def _must_clean_up(self) -> bool:
        """Whether a handler, other than the one that wraps StopIteration, covers the place where the body waits."""
        cover = unwind.find_cover(self.frame)
        return cover is not None and Does.WRAPS_STOP not in does(self.frame.instructions[cover.target])

    def _native_interpreter(self, closing: bool) -> Interpreter:
        """The interpreter of the capture that made the body, on real values alone; after its end, and in other threads, one like
        it. What a body does when it dies belongs to the trace like all else: its death follows from what the program did."""
        interp = self.interp()
        lives = interp is not None and (interp.frame is not None or interp.tracking)
        elsewhere = lives and interp.thread != threading.get_ident()            # type: ignore[union-attr]
        if lives and (elsewhere or not closing):
            interp.give_up(Break("opaque-call", f"native code resumed {self.kind} {self.frame.code.co_qualname}"))  # type: ignore[union-attr]
        if not lives or elsewhere:
            interp = Interpreter(None, None)
            interp.stop_inlining()
        return interp   # type: ignore[return-value]


def create(interp: Interpreter, frame: Frame) -> Value:
    """RETURN_GENERATOR: the object whose body `frame` becomes."""
    function = frame.function.real
    body = Body(KINDS[frame.code.co_flags & FLAGS][0], frame, interp)
    real = _drive(body, frame.code.co_flags & FLAGS, function.__name__, function.__qualname__)
    interp.generators.note_made(body)
    return Value(real, interp.track(lambda: interp.graph.create(real)))


def _drive(body: Body, flags: int, name: str, qualname: str) -> Any:
    """The object whose body is this one."""
    real = KINDS[flags][1](body)
    real.__name__, real.__qualname__ = name, qualname
    body.reference = weakref.ref(real)
    note_body(real, body)
    return real


def blank(flags: int, name: str, qualname: str) -> Any:
    """A generator that `become_dormant` is to make dormant."""
    return _drive(Body(KINDS[flags][0]), flags, name, qualname)


def become_dormant(real: Any, *record: Any) -> None:
    """Makes a generator dormant that a trace has taken over or made."""
    body_of(real).lie_down(record)  # type: ignore[union-attr]


def go_on(generator: Any, *rest: Any) -> Any:
    """Goes on in the body of a generator that waits for the value of a call. `rest` gives that value: it is the value itself, or a
    continuation and its arguments. Returns what the generator yields next, and raises StopIteration with what it returns."""
    body: Body = body_of(generator)  # type: ignore[assignment]
    body.revive(False, *rest)
    del rest
    return body.go_on_natively()


def go_on_raising(generator: Any, exception: BaseException) -> Any:
    """As `go_on`, where the call has raised."""
    body: Body = body_of(generator)  # type: ignore[assignment]
    body.revive(True, exception)
    del exception
    return body.go_on_natively()


def nobody() -> None:
    """The target of a dead weak reference: None."""


def ignore(value: Value) -> None:
    """The continuation for a value that means nothing."""
