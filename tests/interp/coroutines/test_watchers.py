"""What asks for the frames behind functions and generators is answered as CPython would, or by CPython."""
from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings

import pytest

from tests.interp.worlds import interpreted, natively, observe


def generators_tell_of_themselves(log):
    def inner():
        log.append((outer_generator.gi_running, outer_generator.gi_yieldfrom, inspect.getgeneratorstate(outer_generator)))
        yield 1

    def outer():
        yield from inner()
        yield 2
    outer_generator = outer()
    for _ in range(4):
        state = inspect.getgeneratorstate(outer_generator)
        log.append((state, outer_generator.gi_code is outer.__code__))
        below = outer_generator.gi_yieldfrom
        log.append(below and below.gi_code.co_name)
        log.append(next(outer_generator, "end"))


def coroutines_tell_of_themselves(log):
    class Wait:
        def __await__(self):
            log.append((inspect.getcoroutinestate(coroutine), coroutine.cr_await))
            yield 1

    async def program():
        await Wait()
    coroutine = program()
    log.append((inspect.getcoroutinestate(coroutine), coroutine.cr_code is program.__code__))
    coroutine.send(None)
    log.append((inspect.getcoroutinestate(coroutine), type(coroutine.cr_await)))
    coroutine.close()
    return inspect.getcoroutinestate(coroutine), coroutine.cr_await


def lines_are_told(log):
    def watched(n):
        n += 1
        return n

    def trace(frame, event, argument):
        if frame.f_code is watched.__code__:
            log.append((event, frame.f_lineno - watched.__code__.co_firstlineno))
        return trace
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        watched(1)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("program", [generators_tell_of_themselves, coroutines_tell_of_themselves, lines_are_told],
                         ids=lambda f: f.__name__)
def test_programs(program) -> None:
    assert observe(interpreted, program) == observe(natively, program)


class Watchful:
    """Knows whether anybody asks for its attributes."""

    def __init__(self, log):
        object.__setattr__(self, "log", log)

    def __getattribute__(self, name):
        object.__getattribute__(self, "log").append(name)
        return object.__getattribute__(self, name)

    def __add__(self, other):
        return "sum"

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return [10, 20][i]


class Hooks:
    """A `__getattribute__` that is no function."""

    def __get__(self, obj, cls):
        return lambda name: (name, cls.__name__)


class Hooked:
    __getattribute__ = Hooks()


def nobody_else_asks_for_attributes(log):
    x = Watchful(log)
    x.attribute = 1
    return (x + 1, 1 in x, len(x), x[0], x.attribute, [*x], {x: 1}[x], x == x, x is not None, bool(x), isinstance(x, Watchful),
            f"{x.attribute}", Hooked().anything)


def test_nobody_else_asks_for_attributes() -> None:
    assert observe(interpreted, nobody_else_asks_for_attributes) == observe(natively, nobody_else_asks_for_attributes)


class CalledAsDict(type):
    __call__ = dict


class Typed(metaclass=CalledAsDict):
    pass


class Wrong:
    def __init__(self, n=None):
        self.n = n

    def __getnewargs_ex__(self):
        return self.n


class WrongArguments:
    def __getnewargs__(self):
        return "no tuple"


class Returning:
    def __init__(self):
        return 5


class Pickled:
    def __getnewargs_ex__(self):
        return (1,), {}


def objects_are_made_as_in_c(log):
    log += [Typed(a=1), type(Typed(a=1)), Pickled().__reduce_ex__(2)]
    for attempt in (Returning, lambda: type(functools.cmp_to_key(id)).__call__, lambda: type(functools.cmp_to_key(id))(),
                    lambda: WrongArguments().__reduce_ex__(2), lambda: super.__new__(super).anything,
                    lambda: super.__new__(super).__thisclass__,
                    *(lambda n=n: Wrong(n).__reduce_ex__(4) for n in ("ab", (), ((), 5), (5, {}), ((), {"a": 1})))):
        try:
            log.append(attempt())
        except Exception as error:
            log.append((type(error), str(error)))


def test_objects_are_made_as_in_c() -> None:
    assert str(observe(interpreted, objects_are_made_as_in_c)) == str(observe(natively, objects_are_made_as_in_c))


def warnings_name_the_program(log):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        re.compile("(?P<\u00a9>x)")
        sys.modules.pop("sre_compile", None)
        import sre_compile  # noqa: F401
    return [(str(w.message), w.filename) for w in caught]


def expressions_over_buffers(log):
    data = bytearray(b"ababa")
    matches = re.finditer(b"a", data)
    try:
        data.extend(b"x" * 400)
    except BufferError as error:
        log.append(str(error))
    log.append([m.start() for m in matches])
    log.append([re.compile("b").finditer("abab", pos=2).__next__().start(), re.sub(b"b", lambda m: b"-", data),
                re.sub("b", lambda m: None, "aba")])
    return re.sub("a", lambda m: "-", "aaa", -1), re.subn("a", lambda m: "-", "aaa", 2)


@pytest.mark.parametrize("program", [warnings_name_the_program, expressions_over_buffers], ids=lambda f: f.__name__)
def test_library(program) -> None:
    assert observe(interpreted, program) == observe(natively, program)
