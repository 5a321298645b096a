"""Generators that go on when they are closed: how often their code runs as they die is what CPython makes of it."""
from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, check

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def from_a_handler(log, n):
    try:
        yield n
    except GeneratorExit:
        log.append(("asked to end", n))
        yield -n
    finally:
        log.append(("left", n))


def from_a_cleanup(log, n):
    try:
        yield n
    finally:
        log.append(("leaving", n))
        yield -n
        log.append(("left", n))


def for_ever(log, n):
    while True:
        try:
            yield n
        except GeneratorExit:
            log.append(("once more", n))


def within(log, n):
    yield from from_a_handler(log, n)


async def awaiting(log, n):
    try:
        await waits()
    finally:
        log.append(("leaving", n))
        await waits()
        log.append(("left", n))


@types.coroutine
def waits():
    yield 1


def replaced(box, made):
    box.kept = made


def removed(box, made):
    box.kept = None


def closed(box, made):
    if box.kept is not None:
        try:
            box.kept.close()
        except RuntimeError as error:
            box.log.append(str(error))
    box.kept = made


def dropped(box, made):
    made = None


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """The garbage collector would close some of them at another time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("counting", [True, False])         # else the same entry fits each time, but what dies runs code
@pytest.mark.parametrize("end", [replaced, removed, closed, dropped])
@pytest.mark.parametrize("body", [from_a_handler, from_a_cleanup, for_ever, within, awaiting])
def test_a_body_that_goes_on(body: Callable[..., Any], end: Callable[..., None], counting: bool) -> None:
    def make():
        box = types.SimpleNamespace(kept=None, log=[], n=0)

        def f(x):
            box.n += counting
            made = body(box.log, box.n)
            made.send(None)
            end(box, made)
            return x + (len(box.log) if counting else 1)
        return f, box
    check(make, *[call(torch.ones(2))] * 4, forget, call(torch.ones(2)), captures=None, fullgraph=False)


def forget(box: Any) -> None:
    """Outside of any call."""
    box.kept = None


@pytest.mark.parametrize("body", [from_a_handler, from_a_cleanup, for_ever, within, awaiting])
def test_what_a_capture_has_made_dies_in_a_call_that_runs_natively(body: Callable[..., Any]) -> None:
    """Its entry fits, but the value that it replaces runs code as it dies: once, though two objects of CPython's stand for it."""
    def make() -> tuple[Callable[[int], int], list[Any]]:
        box, log = types.SimpleNamespace(kept=None), list[Any]()

        def f(x: int) -> int:
            made = body(log, 1)
            made.send(None)
            box.kept = made
            return x
        return f, log

    seen = []
    for engine in (lambda f: f, lambda f: capture.compile(f, backend="eager")):
        f, log = make()
        call = engine(f)
        for _ in range(4):
            call(1)
            seen.append(list(log))
    assert seen[:4] == seen[4:]
