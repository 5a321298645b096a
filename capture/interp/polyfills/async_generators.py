"""Steps of our asynchronous generators that are awaited at once: what the body awaits is passed to the code that drives the step,
what it yields is the step's result."""
from __future__ import annotations

import types
from collections.abc import Generator
from typing import Any

from capture.interp.core.generator_drivers import DRIVER_CODES, Wrapped
from capture.interp.core.registry import polyfill


def is_ours(agen: Any, *args: Any) -> bool:
    """Whether the body of an asynchronous generator is a frame of ours."""
    return type(agen) is types.AsyncGeneratorType and agen.ag_code in DRIVER_CODES


def resume(agen: Any, value: Any, exception: BaseException | None = None) -> Any:
    """Goes on in the body of an asynchronous generator, with a value or an exception. Returns what it awaits or, wrapped, what it
    yields; raises StopAsyncIteration at its end. While tracing, the interpreter enters the body's frame instead."""
    if agen.ag_frame is None:
        raise StopAsyncIteration if exception is None else exception
    outcome = agen.ag_frame.f_locals["body"].step(value, exception)
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception
    if outcome.finished:
        raise StopAsyncIteration
    return outcome.value


def first(agen: Any, method: str, *sent: Any) -> Any:
    """Where a step begins, which may not while another one waits for what the body awaits."""
    if agen.ag_running:
        raise RuntimeError(f"{method}(): asynchronous generator is already running")
    return resume(agen, *sent)


def item(agen: Any, step: Any) -> Generator[Any, Any, Any]:
    """The next item that a generator yields, which has come to `step`."""
    while type(step) is not Wrapped:
        sent = error = None
        try:
            sent = yield step
        except BaseException as raised:
            error = raised
        step = resume(agen, sent) if error is None else resume(agen, None, error)
        error = None            # its traceback holds this frame
    return step.value


@types.coroutine
def asend(agen: Any, value: Any) -> Generator[Any, Any, Any]:
    """`agen.asend(value)`."""
    return (yield from item(agen, first(agen, "anext", value)))


@polyfill(types.AsyncGeneratorType.__aiter__, aiter, applies=is_ours)
def itself(agen: Any) -> Any:
    """`aiter(agen)`."""
    return agen


def next_item(agen: Any, *default: Any) -> Any:
    """`anext(agen)`."""
    return item_or(agen, *default) if default else asend(agen, None)


@types.coroutine
def item_or(agen: Any, default: Any) -> Generator[Any, Any, Any]:
    """`anext(agen, default)`."""
    try:
        return (yield from item(agen, first(agen, "anext", None)))
    except StopAsyncIteration:
        return default


@types.coroutine
def athrow(agen: Any, exception: Any) -> Generator[Any, Any, Any]:
    """`agen.athrow(exception)`."""
    return (yield from item(agen, first(agen, "athrow", None, exception)))


@types.coroutine
def aclose(agen: Any) -> Generator[Any, Any, None]:
    """`agen.aclose()`."""
    try:
        yield from item(agen, first(agen, "aclose", None, GeneratorExit()))
    except (StopAsyncIteration, GeneratorExit):
        return
    raise RuntimeError("async generator ignored GeneratorExit")


# By the C function that each stands for.
STEPS = {types.AsyncGeneratorType.asend: asend, types.AsyncGeneratorType.__anext__: next_item, anext: next_item,  # type: ignore[dict-item]
         types.AsyncGeneratorType.athrow: athrow, types.AsyncGeneratorType.aclose: aclose}  # type: ignore[dict-item]
