"""What is asked of an iterator that a body delegates to, and what becomes of the exceptions that end generators."""
from __future__ import annotations

from collections.abc import Callable

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Continuation, OnRaise, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines.bodies import find
from capture.interp.dispatch import attributes, calls
from capture.refgraph.lookup import returned_by
from capture.refgraph.node import Const, Shadow


def stop_iteration_error(kind: str, exception: BaseException) -> RuntimeError | None:
    """The error that an exception becomes when it leaves a body and would be taken for its end, or None."""
    if is_a(exception, StopIteration):
        replaced = RuntimeError(f"{kind} raised StopIteration")
    elif kind == "async generator" and is_a(exception, StopAsyncIteration):
        replaced = RuntimeError(f"{kind} raised StopAsyncIteration")
    else:
        return None
    replaced.__cause__ = replaced.__context__ = exception
    return replaced


def fail(exception: BaseException, on_raise: OnRaise | None) -> None:
    """Raises an exception, as new, out of an operation that `on_raise` watches."""
    if on_raise is None or not on_raise(exception):
        unwind.throw(exception)


def throw_into(interp: Interpreter, iterator: Value, exception: BaseException, yielded: Continuation,
               returned: Continuation, otherwise: Callable[[], None], on_raise: OnRaise) -> None:
    """`iterator.throw(exception)`; or `otherwise()` if there is no such method."""
    body = find(interp, iterator)
    if body is not None:
        return body.throw(interp, exception, yielded, returned, on_raise)

    def stopped(raised: BaseException) -> bool:
        if is_a(raised, StopIteration):
            returned(returned_value(interp, raised))
            return True
        return on_raise(raised)

    def call(method: Value) -> None:
        calls.call(interp, method, [unwind.exception_value(interp, exception)], None, yielded, stopped)

    def missing(raised: BaseException) -> bool:
        if is_a(raised, AttributeError):
            otherwise()
            return True
        return False
    attributes.load(interp, iterator, "throw", call, missing)


def close_iterator(interp: Interpreter, iterator: Value, then: Callable[[], None]) -> None:
    """`iterator.close()` if there is such a method, followed by `then()`."""
    body = find(interp, iterator)
    if body is not None:
        return body.close(interp, then)

    def missing(raised: BaseException) -> bool:
        if is_a(raised, AttributeError):
            then()
            return True
        return False

    def call(method: Value) -> None:
        calls.call(interp, method, [], None, lambda _: then())
    attributes.load(interp, iterator, "close", call, missing)


def returned_value(interp: Interpreter, stop: StopIteration) -> Value:
    """The value that an iterator which the trace does not know has returned."""
    value = returned_by(stop)

    def model() -> Shadow:
        if value is None:
            return Const(None)
        raise Break("outside-iterator", "an iterator returned a value")
    return Value(value, interp.track(model))
