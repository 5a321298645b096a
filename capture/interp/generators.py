"""Generators, coroutines and asynchronous generators whose bodies are frames of ours.

The program sees a genuine object of CPython: a driver below, whose own code is not the body but steps the frame of
ours whenever native code resumes it. Where interpreted code resumes it, the frame is entered directly, with shadows,
and the driver stays where it is.
"""
from __future__ import annotations

import enum
import inspect
import sys
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from capture.errors import Break
from capture.interp import attributes, calls, unwind
from capture.interp.frame import Continuation, Frame, UserError, Value
from capture.interp.interpreter import Interpreter
from capture.interp.models import reduction
from capture.refgraph.node import Build, Const

OnRaise = Callable[[BaseException], bool]
Consumer = tuple[Continuation, Continuation, OnRaise | None]
Args, Kwargs, Then, Catch = list[Value], dict[str, Value], Continuation | None, OnRaise | None
AWAITING = 2    # RESUME's argument after a `yield from` or `await` is at least this


class State(enum.Enum):
    CREATED = enum.auto()
    SUSPENDED = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


class Wrapped:
    """What an asynchronous generator yields to its consumer, apart from what it passes on while it awaits."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Outcome:
    """What a step of a body came to. As a context around the raising of `exception`, keeps that from being changed."""

    __slots__ = ("value", "exception", "finished", "_context", "_traceback")

    def __init__(self, value: Any = None, exception: BaseException | None = None, finished: bool = False) -> None:
        self.value, self.exception, self.finished = value, exception, finished

    def __enter__(self) -> None:
        self._context, self._traceback = self.exception.__context__, self.exception.__traceback__  # type: ignore[union-attr]

    def __exit__(self, *raised: object) -> None:
        exception, self.exception = self.exception, None
        exception.__context__, exception.__traceback__ = self._context, self._traceback  # type: ignore[union-attr]
        del self._context, self._traceback


class Body:
    """The frame behind a generator, coroutine or asynchronous generator.

    While it runs: `consumer` holds the continuations for what it yields, returns and raises; `alive` the object, which
    nobody else may hold; `base` the exception being handled by whoever resumed it. `handled` is the one being handled
    by the body itself, also while it is suspended. `driven`: the driver has been started.
    """

    __slots__ = ("interp", "frame", "kind", "state", "reference", "alive", "consumer", "driven", "native", "handled",
                 "base", "__weakref__")

    def __init__(self, interp: Interpreter, frame: Frame, kind: str) -> None:
        self.interp = weakref.ref(interp)
        self.frame, self.kind = frame, kind
        self.state = State.CREATED
        self.reference: Callable[[], Any] = lambda: None
        self.alive: Any = None
        self.consumer: Consumer | None = None
        self.driven = self.native = False
        self.handled: BaseException | None = None
        self.base: BaseException | None = None

    # -- resumed by interpreted code -----------------------------------------------------------------------------------

    def send(self, interp: Interpreter, value: Value, yielded: Continuation, returned: Continuation,
             on_raise: OnRaise | None = None, native: bool = False) -> None:
        """Resumes the body with `value`. Raises UserError when it cannot be resumed."""
        if self.state is State.FINISHED:
            if self.kind == "coroutine":
                unwind.throw(RuntimeError("cannot reuse already awaited coroutine"))
            return returned(Value(None, Const(None)))
        if self.state is State.CREATED and value.real is not None:
            unwind.throw(TypeError(f"can't send non-None value to a just-started {self.kind}"))
        self._enter(interp, (yielded, returned, on_raise), native)
        self.frame.stack.append(value)

    def throw(self, interp: Interpreter, exception: BaseException, yielded: Continuation, returned: Continuation,
              on_raise: OnRaise | None = None, native: bool = False) -> None:
        """Resumes the body with an exception, which what it delegates to gets first. Raises UserError, in the body's
        frame if that could be entered."""
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
        elif isinstance(exception, GeneratorExit):
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
            if isinstance(exception, (GeneratorExit, StopIteration)):
                then()
                return True
            return on_raise is not None and on_raise(exception)
        self.throw(interp, GeneratorExit(), ignored, lambda value: then(), ended)

    def delegate(self) -> Value | None:
        """The iterator that the suspended body delegates to (`yield from`, `await`), or None."""
        if self.state is State.SUSPENDED:
            following = self.frame.instructions[self.frame.pc]
            if following.opname == "RESUME" and following.arg & 3 >= AWAITING:
                return self.frame.stack[-1]
        return None

    def _enter(self, interp: Interpreter, consumer: Consumer, native: bool) -> None:
        if self.state is State.RUNNING:
            unwind.throw(ValueError(f"{self.kind} already executing"))
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
        interp.frame = frame.back
        frame.back = frame.then = frame.on_raise = frame.generator = None
        self.state = State.SUSPENDED
        yielded, _, _ = self._release()
        real, self.alive = self.alive, None
        if not self.driven:     # CPython closes a dying generator only if it was started
            self.driven = True
            real.send(None)
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
        if real is not None and not self.native:
            real.close()
        return consumer

    def _release(self) -> Consumer:
        if self.handled is not None:
            unwind.set_handled(self.base)
        self.base = None
        consumer, self.consumer = self.consumer, None
        return consumer  # type: ignore[return-value]

    # -- resumed by native code, through the driver --------------------------------------------------------------------

    def begin(self) -> Outcome:
        """The first thing a driver does: a step, unless our own loop has made steps before."""
        if self.driven:
            return Outcome()
        self.driven = True
        return self.step(None, None)

    def step(self, sent: Any, thrown: BaseException | None) -> Outcome:
        """Resumes the body for native code. A trace that still goes on is given up."""
        if thrown is not None:
            while thrown.__traceback__ is not None and thrown.__traceback__.tb_frame.f_code in DRIVER_CODES:
                thrown.__traceback__ = thrown.__traceback__.tb_next
            if isinstance(thrown, GeneratorExit) and self._discard():
                return Outcome(exception=thrown)
        interp = self._native_interpreter(closing=isinstance(thrown, GeneratorExit))
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

    def _discard(self) -> bool:
        """Finishes a body which is being closed, as most are by their death, if none of its code is to run then."""
        if self.state is State.SUSPENDED and not self._must_clean_up():
            delegate = self.delegate()
            if delegate is not None:
                inner = _body_of(delegate.real)
                if inner is None or not inner._discard():
                    return False
            self.native = True
            self._finish()
        return self.state is State.FINISHED

    def _must_clean_up(self) -> bool:
        """Whether a handler, other than the one that wraps StopIteration, covers the place where the body waits."""
        cover = unwind.find_cover(self.frame)
        return cover is not None and self.frame.instructions[cover.target].opname != "CALL_INTRINSIC_1"

    def _native_interpreter(self, closing: bool) -> Interpreter:
        """The interpreter of the capture that made the body, on real values alone; after its end, one like it. What a body
        does when it dies belongs to the trace like all else: its death follows from what the program did."""
        interp = self.interp()
        if interp is None or interp.frame is None:
            interp = Interpreter(None, None)
            interp.inlining = False
        elif not closing:
            interp.give_up(Break("opaque-call", f"native code resumed {self.kind} {self.frame.code.co_qualname}"))
        return interp


# -- drivers -----------------------------------------------------------------------------------------------------------

@types.coroutine
def _wait(value: Any) -> Generator[Any, Any, Any]:
    return (yield value)


def _generator(body: Body) -> Generator[Any, Any, Any]:
    outcome = body.begin()
    while outcome.exception is None and not outcome.finished:
        try:
            sent, thrown = (yield outcome.value), None
        except BaseException as error:
            sent, thrown = None, error
        outcome = body.step(sent, thrown)
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception
    return outcome.value


async def _coroutine(body: Body) -> Any:
    outcome = body.begin()
    while outcome.exception is None and not outcome.finished:
        try:
            sent, thrown = await _wait(outcome.value), None
        except BaseException as error:
            sent, thrown = None, error
        outcome = body.step(sent, thrown)
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception
    return outcome.value


async def _async_generator(body: Body) -> AsyncGenerator[Any, Any]:
    outcome = body.begin()
    while outcome.exception is None and not outcome.finished:
        try:
            if isinstance(outcome.value, Wrapped):
                sent, thrown = (yield outcome.value.value), None
            else:
                sent, thrown = await _wait(outcome.value), None
        except BaseException as error:
            sent, thrown = None, error
        outcome = body.step(sent, thrown)
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception


_iterable_coroutine = types.coroutine(types.FunctionType(_generator.__code__, globals()))
DRIVER_CODES = frozenset(f.__code__ for f in (_wait, _generator, _coroutine, _async_generator, _iterable_coroutine))
_KINDS = {inspect.CO_COROUTINE: ("coroutine", _coroutine),
          inspect.CO_ASYNC_GENERATOR: ("async generator", _async_generator),
          inspect.CO_GENERATOR: ("generator", _generator),
          inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE: ("generator", _iterable_coroutine)}
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
# By id of the object, whose driver keeps the body alive.
_bodies: weakref.WeakValueDictionary[int, Body] = weakref.WeakValueDictionary()


def stop_iteration_error(kind: str, exception: BaseException) -> RuntimeError | None:
    """The error that an exception becomes when it leaves a body and would be taken for its end, or None."""
    if isinstance(exception, StopIteration):
        replaced = RuntimeError(f"{kind} raised StopIteration")
    elif kind == "async generator" and isinstance(exception, StopAsyncIteration):
        replaced = RuntimeError(f"{kind} raised StopAsyncIteration")
    else:
        return None
    replaced.__cause__ = replaced.__context__ = exception
    return replaced


def create(interp: Interpreter, frame: Frame) -> Value:
    """RETURN_GENERATOR: the object whose body `frame` becomes."""
    kind, driver = _KINDS[frame.code.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE)]
    body = Body(interp, frame, kind)
    real = driver(body)
    function = frame.function.real
    real.__name__, real.__qualname__ = function.__name__, function.__qualname__
    body.reference = weakref.ref(real)
    _bodies[id(real)] = body
    return Value(real, interp.track(lambda: interp.graph.create(real)))


def find(interp: Interpreter, real: Any) -> Body | None:
    """The body of a generator or coroutine made by this capture, which may be resumed directly; None for all others."""
    if type(real) is types.GeneratorType or type(real) is types.CoroutineType:
        body = _body_of(real)
        if body is not None and body.interp() is interp:
            return body
    return None


def _body_of(real: Any) -> Body | None:
    body = _bodies.get(id(real))
    return body if body is not None and body.reference() is real else None


# -- the protocol ------------------------------------------------------------------------------------------------------

def fail(exception: BaseException, on_raise: OnRaise | None) -> None:
    """Raises an exception, as new, out of an operation that `on_raise` watches."""
    if on_raise is None or not on_raise(exception):
        unwind.throw(exception)


def throw_into(interp: Interpreter, iterator: Value, exception: BaseException, yielded: Continuation,
               returned: Continuation, otherwise: Callable[[], None], on_raise: OnRaise) -> None:
    """`iterator.throw(exception)`; or `otherwise()` if there is no such method."""
    body = find(interp, iterator.real)
    if body is not None:
        return body.throw(interp, exception, yielded, returned, on_raise)

    def stopped(raised: BaseException) -> bool:
        if isinstance(raised, StopIteration):
            returned(Value(raised.value, interp.track(_stop_value, interp, raised)))
            return True
        return on_raise(raised)

    def call(method: Value) -> None:
        calls.call(interp, method, [unwind.exception_value(interp, exception)], None, yielded, stopped)

    def missing(raised: BaseException) -> bool:
        if isinstance(raised, AttributeError):
            otherwise()
            return True
        return False
    attributes.load(interp, iterator, "throw", call, missing)


def close_iterator(interp: Interpreter, iterator: Value, then: Callable[[], None]) -> None:
    """`iterator.close()` if there is such a method, followed by `then()`."""
    body = find(interp, iterator.real)
    if body is not None:
        return body.close(interp, then)

    def missing(raised: BaseException) -> bool:
        if isinstance(raised, AttributeError):
            then()
            return True
        return False

    def call(method: Value) -> None:
        calls.call(interp, method, [], None, lambda _: then())
    attributes.load(interp, iterator, "close", call, missing)


def _stopped(interp: Interpreter, stop: StopIteration, value: Value) -> Any:
    """The exception by which a generator of ours returns a value."""
    node = interp.graph.create(stop)
    node.slots["value"] = value.shadow  # type: ignore[assignment]
    node.slots["args"] = Build(tuple, (value.shadow,) if stop.args else ())  # type: ignore[arg-type]
    return node


def _stop_value(interp: Interpreter, stop: StopIteration) -> Any:
    if stop.value is None:
        return Const(None)
    raise Break("outside-iterator", "an iterator returned a value")


def thrown_exception(interp: Interpreter, args: list[Any]) -> BaseException:
    """The exception that `generator.throw(*args)` raises. Raises UserError where CPython refuses the arguments."""
    caught: list[BaseException] = []

    def catch() -> Generator[None, None, None]:
        try:
            yield
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
            caught.append(error)
    catcher = catch()
    next(catcher)
    try:
        interp.real(catcher.throw, *args)
    except UserError:
        if not caught:
            raise
    return caught[0]    # what was raised is the StopIteration of `catch`


def _method(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch,
            operate: Callable[[Body, Continuation, Continuation], None]) -> bool:
    """A method of a generator of ours: whatever it yields is the result; what it returns becomes StopIteration."""
    body = find(interp, args[0].real) if args and not kwargs else None
    if body is None:
        return False

    def returned(value: Value) -> None:
        stop = StopIteration() if value.real is None else StopIteration(value.real)
        interp.track(_stopped, interp, stop, value)
        fail(stop, on_raise)
    caller = interp.frame
    try:
        operate(body, lambda value: interp.deliver(value, then), returned)
        return True
    except UserError as error:
        if interp.frame is not caller or on_raise is None:
            raise       # the body's frame, once entered, passes the exception on itself
        exception = error.exception
    unwind.settle(interp, exception, on_raise)
    return True


@reduction(types.GeneratorType.send, types.CoroutineType.send)
def _send(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return len(args) == 2 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.send(interp, args[1], yielded, returned, on_raise))


@reduction(types.GeneratorType.__next__)
def _next(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return len(args) == 1 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.send(interp, Value(None, Const(None)), yielded, returned, on_raise))


@reduction(types.GeneratorType.throw, types.CoroutineType.throw)
def _throw(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    def operate(body: Body, yielded: Continuation, returned: Continuation) -> None:
        exception = thrown_exception(interp, [a.real for a in args[1:]])
        body.throw(interp, exception, yielded, returned, on_raise)
    return _method(interp, args, kwargs, then, on_raise, operate)


@reduction(types.GeneratorType.close, types.CoroutineType.close)
def _close(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    def closed() -> None:
        interp.deliver(Value(None, Const(None)), then)
    return len(args) == 1 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.close(interp, closed, on_raise))


@reduction(next)
def _next_of(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    """`next(generator)` and `next(generator, default)`."""
    if len(args) != 2:
        return _next(interp, args, kwargs, then, on_raise)

    def default(exception: BaseException) -> bool:
        if isinstance(exception, StopIteration):
            interp.deliver(args[1], then)
            return True
        return on_raise is not None and on_raise(exception)
    return _next(interp, args[:1], kwargs, then, default)
