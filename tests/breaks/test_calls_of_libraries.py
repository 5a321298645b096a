"""Calls of installed packages that know nothing of torch: where a trace ends inside of one, CPython runs the rest of it."""
from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, check

SOURCE = '''
import contextlib, sys, threading, time, warnings

LOCK = threading.RLock()


class Meter:
    """Counts under a lock; says of each tenth that it is one."""

    def __init__(self, start=0, callback=None):
        self.count, self.callback = start, callback
        with LOCK:
            self.begun = True
        self.ready = self.double(3)

    def double(self, number):
        with LOCK:
            return number * 2

    def add(self, number=1):
        with LOCK:
            if number < 0:
                raise ValueError(f"no {number}")
            self.count += number
            if self.callback is not None:
                self.callback(self.count)
        return self.count

    def add_in_handler(self, number):
        try:
            [][number]
        except IndexError:
            with LOCK:
                self.count += 1
                raise KeyError(number)

    def recovers(self, number):
        try:
            self.add(number)
        except ValueError as error:
            with LOCK:
                return str(error)

    def __iter__(self):
        for number in range(self.count):
            with LOCK:
                self.count -= 1
            received = yield number
            if received is not None:
                self.count += received
        return "end"

    @contextlib.contextmanager
    def held(self):
        with LOCK:
            yield self.count
        self.count += 1

    def __enter__(self):
        LOCK.acquire()
        return self

    def __exit__(self, *exception):
        LOCK.release()
        self.count += 100
        return exception[0] is KeyError

    @property
    def value(self):
        with LOCK:
            return self.count

    def above(self):
        with LOCK:
            return sys._getframe(1).f_code.co_name

    def warn(self):
        with LOCK:
            warnings.warn("above", stacklevel=2)

    def __lt__(self, other):
        with LOCK:
            return self.count < other.count

    def computes(self, tensor):
        with LOCK:
            return tensor * 2 + self.count

    def hands_on(self, function, *args):
        with LOCK:
            self.count += 1
        return function(*args)


class Loud:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("dead")
'''


@pytest.fixture
def meters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "meters_of_a_package.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(packages))
    yield importlib.import_module("meters_of_a_package")
    del sys.modules["meters_of_a_package"]


def makes(x, s):
    meter = s.Meter(5)
    return x * meter.ready + meter.count


def adds(x, s):
    x = x + s.meter.add()
    return (x * 2).relu() + s.meter.add(2)


def raises(x, s):
    x = x + 1
    s.meter.add(-1)
    return x


def catches(x, s):
    x = x + 1
    try:
        s.meter.add(-1)
    except ValueError as error:
        x, s.error = x * 2, error
    return x * 3


def raises_in_a_handler(x, s):
    x = x + 1
    try:
        s.meter.add_in_handler(3)
    except KeyError as error:
        s.error = error, error.__context__
    return x * 2


def inside_of_a_handler(x, s):
    try:
        raise RuntimeError("first")
    except RuntimeError as error:
        s.error = error
        x = x + s.meter.add()
        try:
            s.meter.add(-1)
        except ValueError as other:
            s.other = other
    return x * 2


def recovers(x, s):
    return x * len(s.meter.recovers(-3)), s.meter.recovers(1)


def iterates(x, s):
    s.meter.count = 3
    for number in s.meter:
        x = x * 2 + number
    return x


def delegates(x, s):
    def inner():
        result = yield from s.meter
        yield result
    s.meter.count = 3
    return x * 2, [item for item in inner()]


def sends(x, s):
    s.meter.count = 2
    numbers = iter(s.meter)
    got = [next(numbers), numbers.send(5)]
    numbers.close()
    return x + s.meter.count, got


def in_a_generator(x, s):
    def rounds(x):
        for _ in range(3):
            x = x * 2 + s.meter.add()
            yield x
    return [t + 1 for t in rounds(x)]


def holds(x, s):
    with s.meter.held() as count:
        x = x * 2 + count
    return x + s.meter.count


def enters(x, s):
    with s.meter as meter:
        x = x * 2 + meter.count
        if meter.count > 150:
            raise KeyError("swallowed")
    return x + 1


def asks_a_property(x, s):
    return x * 2 + s.meter.value, s.meter.value


def looks_up(x, s):
    def inner():
        return s.meter.above()
    return x * 2, s.meter.above(), inner()


def warns(x, s):
    x = x * 2
    s.meter.warn()
    return x + 1


def compares(x, s):
    return x * 2, sorted([s.Meter(3), s.Meter(1), s.Meter(2)])[0].count, max(s.Meter(1), s.Meter(4)).count


def calls_back(x, s):
    s.seen = []
    s.meter.callback = lambda count: s.seen.append((count, x.shape))
    x = x + s.meter.add()
    s.meter.callback = None
    return x + len(s.seen)


def hands_over(x, s):
    def inner(y):
        s.meter.add()
        return y.sin() + s.meter.count
    return s.meter.hands_on(inner, x * 2) + 1


def in_closures(x, s):
    total = 0

    def note():
        nonlocal total
        total += s.meter.add()
        return total
    note()
    x = x * note()
    return x + total


def in_no_grad(x, s):
    with torch.no_grad():
        x = x * 2
        s.meter.add()
        x = x + s.meter.count
    return x * 2


def in_a_comprehension(x, s):
    return [x * s.meter.add() for _ in range(3)], {s.meter.add(): x + k for k in range(2)}


def recurses(x, s, depth=3):
    s.meter.add()
    return x if depth == 0 else recurses(x * 2, s, depth - 1) + s.meter.add()


PROGRAMS = [makes, adds, raises, catches, raises_in_a_handler, inside_of_a_handler, recovers, iterates, delegates, sends,
            in_a_generator, holds, enters, asks_a_property, looks_up, warns, compares, calls_back, hands_over, in_closures,
            in_no_grad, in_a_comprehension, recurses]


def made(meters: Any, program: Callable) -> Callable:
    """What `check` runs: `program(x, state)` of a state with a meter."""
    def make():
        state = SimpleNamespace(Meter=meters.Meter, meter=meters.Meter())
        return lambda x: program(x, state), state
    return make


def add_much(state):
    state.meter.count += 1000


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager_mode(program: Callable, meters: Any) -> None:
    x = torch.arange(3.0)
    check(made(meters, program), *[call(x)] * 4, add_much, *[call(x + 1)] * 3, captures=None, fullgraph=False)


@pytest.mark.parametrize("program, breaks", [(makes, 1), (adds, 2), (catches, 1), (holds, 2), (asks_a_property, 2)],
                         ids=lambda parameter: getattr(parameter, "__name__", ""))
def test_a_call_is_one_break(program: Callable, breaks: int, meters: Any) -> None:
    x = torch.arange(3.0)
    compiled = capture.compile(made(meters, program)()[0], backend="eager")
    compiled(x)
    stats = capture.stats(compiled)
    assert (stats.breaks, stats.bailouts, stats.native_calls) == (breaks, 0, 0), str(capture.explain(compiled))


def test_what_works_on_tensors_is_captured(meters: Any) -> None:
    def program(x, state):
        return state.meter.computes(x).relu()
    compiled = capture.compile(made(meters, program)()[0], backend="eager")
    x = torch.arange(3.0)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 2)
    assert capture.stats(compiled).operations == 3


def test_a_trace_ends_where_an_exception_is_raised_again() -> None:
    """The `with` block of `subprocess.run` has given back the exception it handled; what holds the process dies as it is left."""
    def program(x):
        try:
            subprocess.check_output([sys.executable, "-ISc", "raise SystemExit(3)"], stderr=subprocess.STDOUT, timeout=60)
        except subprocess.CalledProcessError as error:
            return x * error.returncode
    check(lambda: program, *[call(torch.ones(2))] * 4, captures=None, fullgraph=False)
