"""Drivers: the real CPython objects that the program sees as its generators, coroutines and asynchronous generators. A driver has
code of its own, which passes what native code sends or throws to `body.step`.

The three drivers repeat each other, since what differs is `yield` and `await`, which no function can do for another: a coroutine
that waits must await something, by which CPython knows that it is awaited already. They also end alike: each raises in its own
frame, inside of `with outcome`, so that no traceback shows it.
"""
from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol


class Outcome:
    """The outcome of a step of a body. As a context around raising `exception`, it keeps the exception unchanged."""

    __slots__ = ("value", "exception", "finished", "_context", "_traceback")

    def __init__(self, value: Any = None, exception: BaseException | None = None, finished: bool = False) -> None:
        self.value, self.exception, self.finished = value, exception, finished

    def __enter__(self) -> None:
        self._context, self._traceback = self.exception.__context__, self.exception.__traceback__  # type: ignore[union-attr]

    def __exit__(self, *raised: object) -> None:
        exception, self.exception = self.exception, None
        exception.__context__, exception.__traceback__ = self._context, self._traceback  # type: ignore[union-attr]
        del self._context, self._traceback


class Wrapped:
    """A value that an asynchronous generator yields to its consumer, as opposed to what it passes on while it awaits."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Steps(Protocol):
    """What drivers drive: `generators.Body`."""

    def begin(self) -> Outcome:
        """The first step."""

    def step(self, sent: Any, thrown: BaseException | None) -> Outcome:
        """A further one, with what was sent or thrown."""


@types.coroutine
def _wait(value: Any) -> Generator[Any, Any, Any]:
    return (yield value)


def _generator(body: Steps) -> Generator[Any, Any, Any]:
    outcome = body.begin()
    while outcome.exception is None and not outcome.finished:
        try:
            sent, thrown = (yield outcome.value), None
        except BaseException as error:
            sent, thrown = None, error
        outcome = body.step(sent, thrown)
        thrown = None           # its traceback may hold this frame
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception
    return outcome.value


async def _coroutine(body: Steps) -> Any:
    outcome = body.begin()
    while outcome.exception is None and not outcome.finished:
        try:
            sent, thrown = await _wait(outcome.value), None
        except BaseException as error:
            sent, thrown = None, error
        outcome = body.step(sent, thrown)
        thrown = None           # its traceback may hold this frame
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception
    return outcome.value


async def _async_generator(body: Steps) -> AsyncGenerator[Any, Any]:
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
        thrown = None           # its traceback may hold this frame
    if outcome.exception is not None:
        with outcome:
            raise outcome.exception


_iterable_coroutine = types.coroutine(types.FunctionType(_generator.__code__, globals()))
DRIVER_CODES = frozenset(f.__code__ for f in (_wait, _generator, _coroutine, _async_generator, _iterable_coroutine))
KINDS: dict[int, tuple[str, Any]] = {         # by what says it in the flags of code
    inspect.CO_COROUTINE: ("coroutine", _coroutine),
    inspect.CO_ASYNC_GENERATOR: ("async generator", _async_generator),
    inspect.CO_GENERATOR: ("generator", _generator),
    inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE: ("generator", _iterable_coroutine)}
FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def start(driver: Any) -> None:
    """Has a driver make its first step."""
    _step(driver.asend(None)) if type(driver) is types.AsyncGeneratorType else driver.send(None)


def end(driver: Any) -> None:
    """Closes a driver, whose body has finished."""
    _step(driver.aclose()) if type(driver) is types.AsyncGeneratorType else driver.close()


def _step(awaitable: Any) -> None:
    """Drives an awaitable that does not wait."""
    with contextlib.suppress(StopIteration):
        awaitable.send(None)
