"""The methods of generators and coroutines of ours, called by interpreted code."""
from __future__ import annotations

import functools
import types
from collections.abc import Callable, Generator
from typing import Any

from capture._C import is_a
from capture.interp.core import unwind
from capture.interp.core.frame import NONE_VALUE, Args, Catch, Continuation, Frame, Kwargs, Resume, Then, UserError, Value, resuming
from capture.interp.core.generator_drivers import GENERATORS
from capture.interp.core.instructions import Does, does
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import reduction
from capture.interp.coroutines.bodies import body_of, code_of, find
from capture.interp.coroutines.generators import Body, State, go_on, go_on_raising
from capture.interp.coroutines.protocol import fail
from capture.interp.dispatch import calls
from capture.interp.polyfills.async_generators import STEPS, is_ours, resume
from capture.refgraph.node import Build, Const


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


def _stopped(interp: Interpreter, stop: StopIteration, value: Value) -> Any:
    """The exception by which a generator of ours returns a value."""
    node = interp.graph.create(stop)
    node.slots["value"] = value.shadow
    node.slots["args"] = Build(tuple, (value.shadow,) if stop.args else ())
    return node


def _method(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch,
            operate: Callable[[Body, Continuation, Continuation], None]) -> bool:
    """A method of one of our generators: the result is what the generator yields; if it returns, an exception is raised."""
    body = find(interp, args[0]) if args and not kwargs else None
    if body is None:
        return False

    def returned(value: Value) -> None:
        if body.kind == "async generator":
            end: Any = StopAsyncIteration()
            interp.track(interp.graph.create, end)
        else:
            end = StopIteration() if value.real is None else StopIteration(value.real)
            interp.track(_stopped, interp, end, value)
        fail(end, on_raise)
    caller = interp.frame
    try:
        operate(body, _delivery(interp, then), returned)
        return True
    except UserError as error:
        if interp.frame is not caller or on_raise is None:
            raise       # the body's frame, once entered, passes the exception on itself
        exception = error.exception
    unwind.hand_on(interp, exception, on_raise)
    return True


def _delivery(interp: Interpreter, then: Then) -> Continuation:
    """Hands a value to `then`, or pushes it."""
    def deliver(value: Value) -> None:
        interp.deliver(value, then)
    if not calls.is_resumable(then):
        return deliver
    return resuming(deliver, getattr(then, "resume", Resume.PUSH))


@reduction(go_on)
def _go_on(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch, raising: bool = False) -> bool:
    def operate(body: Body, yielded: Continuation, returned: Continuation) -> None:
        body.go_on(interp, args[1:], raising, yielded, returned, on_raise)
    return _method(interp, args, kwargs, then, on_raise, operate)


@reduction(go_on_raising)
def _go_on_raising(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return _go_on(interp, args, kwargs, then, on_raise, raising=True)


@reduction(types.GeneratorType.send, types.CoroutineType.send)
def _send(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return len(args) == 2 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.send(interp, args[1], yielded, returned, on_raise))


@reduction(types.GeneratorType.__next__, next)
def _next(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    return len(args) == 1 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.send(interp, NONE_VALUE, yielded, returned, on_raise))


@reduction(types.GeneratorType.__iter__, types.AsyncGeneratorType.__aiter__)
def _iter(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    """A generator is its own iterator."""
    if kwargs or len(args) != 1 or not is_a(args[0].real, GENERATORS):
        return False
    interp.deliver(args[0], then)
    return True


@reduction(types.GeneratorType.throw, types.CoroutineType.throw)
def _throw(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    def operate(body: Body, yielded: Continuation, returned: Continuation) -> None:
        exception = thrown_exception(interp, [a.real for a in args[1:]])
        body.throw(interp, exception, yielded, returned, on_raise)
    return _method(interp, args, kwargs, then, on_raise, operate)


@reduction(types.GeneratorType.close, types.CoroutineType.close)
def _close(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    def closed() -> None:
        interp.deliver(NONE_VALUE, then)
    return len(args) == 1 and _method(
        interp, args, kwargs, then, on_raise,
        lambda body, yielded, returned: body.close(interp, closed, on_raise))


@reduction(resume)
def _resume(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if find(interp, args[0]) is None and code_of(args[0].real) is not None:        # one that has finished
        ended: Any = StopAsyncIteration() if len(args) == 2 else args[2].real
        interp.track(lambda: interp.graph.find(ended) or interp.graph.create(ended))
        fail(ended, on_raise)
        return True
    def operate(body: Body, yielded: Continuation, returned: Continuation) -> None:
        if len(args) == 2:
            body.send(interp, args[1], yielded, returned, on_raise)
        else:
            body.throw(interp, thrown_exception(interp, [args[2].real]), yielded, returned, on_raise)
    return _method(interp, args, kwargs, then, on_raise, operate)


def _is_awaited(frame: Frame) -> bool:
    """Whether the result of the call at a frame's instruction is awaited next. If not, CPython makes the object: it knows whether
    it was awaited before, and may be driven by hand."""
    return Does.AWAITS_ITEM in does(frame.instruction) or Does.AWAITS in does(frame.instructions[frame.pc])


def _step(step: Any, interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    """A step of an asynchronous generator: `step` makes it, of the polyfills."""
    if kwargs or not args or not is_ours(args[0].real) or len(args) > 2 or not _is_awaited(interp.frame):  # type: ignore[arg-type]
        return False
    calls.call(interp, Value(step, Const(step)), args, None, then, on_raise)
    return True


for _method_of_c, _function in STEPS.items():
    reduction(_method_of_c)(functools.partial(_step, _function))


# -- what they tell of themselves --------------------------------------------------------------------------------------

def _code(body: Body) -> Value:
    return Value(body.frame.code, Const(body.frame.code))


def _running(body: Body) -> Value:
    running = body.state is State.RUNNING
    return Value(running, Const(running))


def _stepping(body: Body) -> Value:
    """Of an asynchronous generator: it runs as long as the step that was begun, which may wait for what the body awaits."""
    running = body.state is State.RUNNING or body.delegate() is not None
    return Value(running, Const(running))


def _suspended(body: Body) -> Value:
    suspended = body.state is State.SUSPENDED
    return Value(suspended, Const(suspended))


def _told(cls: type, name: str, tell: Callable[[Body], Value]) -> None:
    """`generator.<name>`, which the driver would answer for itself."""
    @reduction(cls.__dict__[name])
    def get(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
        body = find(interp, args[0])
        if body is None and not interp.tracking:
            body = body_of(args[0].real)        # of another run
        if body is None and tell is _code and not interp.tracking and (code := code_of(args[0].real)) is not None:
            value = Value(code, None)
        elif body is None and tell is _stepping and code_of(args[0].real) is not None:      # finished
            value = Value(False, Const(False))
        elif body is None or body.frame is None:
            return False
        else:
            value = tell(body)
        interp.deliver(value if interp.tracking else Value(value.real, None), then)
        return True


for _cls, _prefix, _delegate in ((types.GeneratorType, "gi", "yieldfrom"), (types.CoroutineType, "cr", "await")):
    _told(_cls, f"{_prefix}_code", _code)
    _told(_cls, f"{_prefix}_running", _running)
    _told(_cls, f"{_prefix}_suspended", _suspended)
    _told(_cls, f"{_prefix}_{_delegate}", lambda body: body.delegate() or NONE_VALUE)
_told(types.AsyncGeneratorType, "ag_running", _stepping)
