"""Programs that are cut inside of generators and coroutines, or while some wait, and go on in a continuation."""
from __future__ import annotations

import contextlib
import itertools
import sys

import pytest
import torch

from capture import pipeline
from capture.config import RECAPTURE_LIMIT
from tests.breaks.cuts import Cuts, X, compared, outside, raises, run
from tests.helpers import call

CUTS = Cuts()


# -- a loop over a generator -------------------------------------------------------------------------------------------

@CUTS.add(2)
def in_the_body(x):
    def rows(t):
        for row in t:
            yield outside(row) * 2
    return [row + 1 for row in rows(x)]


@CUTS.add(6, captures=4)
def in_the_body_of_a_longer_loop(x):
    def steps(t):
        for i in range(6):
            yield t * outside(2.0, i)
    total = x
    for step in steps(x):
        total = total + step
    return total


@CUTS.add(3)
def in_the_consumer(x):
    def steps(t):
        for i in range(3):
            yield t + i
    total = 0
    for step in steps(x):
        total = total + outside(step, 1)
    return total


@CUTS.add(6, captures=4)
def in_the_body_and_in_the_consumer(x):
    def steps(t):
        for i in range(3):
            t = outside(t + 1, i)
            yield t
    total = x
    for step in steps(x):
        total = outside(total + step)
    return total


@CUTS.add(2)
def before_the_first_and_behind_the_last(x):
    def steps(t):
        t = outside(t * 2)
        yield t
        yield t + 1
        outside(None, t)
    return list(steps(x))


@CUTS.add(1)
def before_it_is_started(x):
    def steps(t):
        k = t * 2
        yield k
        yield k + t
    made = steps(x)
    k = outside(3)
    return [t * k for t in made]


@CUTS.add(2)
def called_by_the_body(x):
    def scaled(t, k):
        return t * outside(2, k) + 1

    def steps(t):
        for k in range(2):
            yield scaled(t, k) - 1
    return sum(steps(x))


@CUTS.add(5, captures=4)
def a_branch_on_a_tensor(x):
    def steps(t):
        while t.sum() < 60:
            t = t * 2
            yield t
    return [t + 1 for t in steps(x)]


@CUTS.add(3)
def operations_of_every_kind(x):
    def steps(t):
        yield not t.sum() > 0
        yield t.sum() < 100 and t
        yield (t.sum() > 100 or 5) if t.mean() < 3 else None
    return list(steps(x)), x + 1


@CUTS.add(2)
def what_it_returns(x):
    def steps(t):
        yield outside(t)
        return outside(t * 2)

    def total(t):
        result = yield from steps(t)
        yield result + 1
    return list(total(x))


@CUTS.add(2)
def two_at_a_time(x):
    def steps(t, name):
        for i in range(2):
            yield t * i, name
    first, second = steps(x, "a"), steps(x + 1, "b")
    seen = []
    for a in first:
        seen.append((outside(a), next(second)))
    return seen


@CUTS.add(4)
def zipped(x):
    def steps(t):
        for i in range(2):
            yield outside(t + i)
    return [a * b for a, b in zip(steps(x), steps(x * 2))]


@CUTS.add(3)
def mapped(x):
    return list(map(lambda t: outside(t) + 1, [x, x * 2, x * 3]))


@CUTS.add(3, captures=3)
def a_generator_expression(x):
    k = 2
    return list(outside(t) * k for t in (x, x + 1, x + 2)), k


@CUTS.add(2)
def the_condition_of_a_generator_expression(x):
    return sum(t for t in (x, x * 2) if outside(True))


@CUTS.add(4, captures=4)
def generator_expressions_in_one_another(x):
    return tuple(a + b for a in (outside(t) for t in (x, x * 2)) for b in (outside(a),))


@CUTS.add(2)
def any_of_them(x):
    return any(bool((t > 3).any()) for t in (x[:1], x, x * 2)), x * 2


@CUTS.add(3)
def recursive(x):
    def walk(tree):
        if isinstance(tree, list):
            for part in tree:
                yield from walk(part)
        else:
            yield outside(tree) + 1
    return list(walk([x, [x * 2, [x * 3]]]))


@CUTS.add(3)
def closures_and_cells(x):
    count = 0

    def steps(t):
        nonlocal count
        total = 0

        def add(u):
            nonlocal total
            total = total + u
            return total
        for i in range(3):
            count += 1
            yield add(outside(t * i))
    return [t + count for t in steps(x)], count


class Stream:
    def __init__(self, t):
        self.t, self.steps = t, self.run()

    def run(self):
        while True:
            self.t = outside(self.t + 1)
            yield self.t * 2

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.steps)


@CUTS.add(2)
def in_a_method(x):
    stream = Stream(x)
    return next(stream), next(stream), stream.t


# -- the protocol ------------------------------------------------------------------------------------------------------

@CUTS.add(3)
def sent_values(x):
    def steps(t):
        k = 1
        while True:
            got = yield outside(t) * k
            k = k if got is None else got
    made = steps(x)
    return next(made), made.send(3), next(made)


@CUTS.add(2)
def a_default(x):
    def steps(t):
        yield outside(t)
        outside(None)
    made = steps(x)
    return next(made, None), next(made, "end"), next(made, "end")


@CUTS.add(3)
def thrown_exceptions(x):
    def steps(t):
        for i in range(3):
            try:
                yield t * i
            except ValueError as error:
                outside(None, str(error))
                yield str(error), sys.exception() is error
            finally:
                seen.append(i)
    seen = []
    made = steps(x)
    a = next(made)
    b = made.throw(ValueError("a"))
    outside()
    c = next(made)
    d = made.throw(ValueError("b"))
    return a, b, c, d, seen


@CUTS.add(2)
def closed(x):
    def steps(t):
        try:
            yield outside(t)
            yield None
        finally:
            seen.append("closed")
    seen = []
    made = steps(x)
    first = next(made)
    outside()
    made.close()
    return first, seen, next(made, "end")


@CUTS.add(2)
def delegation_with_send_and_throw(x):
    def inner(t):
        seen = []
        try:
            for _ in range(3):
                seen.append((yield outside(t, len(seen))))
        except KeyError as error:
            return seen, str(error)

    def outer(t):
        result = yield from inner(t)
        yield result
    made = outer(x)
    next(made), made.send(1)
    return made.throw(KeyError("k"))


@CUTS.add(2, native=2)       # the generator is dropped where it waits, and what it waits in might have a `finally`
def delegation_to_an_iterator_of_c(x):
    def outer(t):
        yield from [t, t * 2]
        yield from range(2)
    return [outside(t) for t in itertools.islice(outer(x), 2)]


@CUTS.add(2)
def stop_iteration_raised_inside(x):
    def steps(t):
        yield outside(t)
        outside()
        raise StopIteration
    try:
        return list(steps(x))
    except RuntimeError as error:
        return str(error), repr(error.__cause__)


@CUTS.add(1)
def resumed_while_it_runs(x):
    def steps(t):
        outside()
        try:
            next(made)
        except ValueError as error:
            yield str(error)
    made = steps(x)
    return list(made), x * 2


# -- exceptions, finally, with -----------------------------------------------------------------------------------------

@CUTS.add(2)
def caught_in_the_body(x):
    def steps(t):
        for i in range(2):
            try:
                raises(ValueError, str(i))
            except ValueError as error:
                yield t * i, str(error)
    return list(steps(x))


@CUTS.add(1)
def caught_in_the_consumer(x):
    def steps(t):
        yield t
        raises(KeyError, "k")
        yield None
    seen = []
    try:
        for t in steps(x):
            seen.append(t)
    except KeyError as error:
        return seen, str(error), x * 2


@CUTS.add(2)
def finally_in_the_body(x):
    def steps(t):
        try:
            yield outside(t)
        finally:
            seen.append(outside("finally"))
    seen = []
    for t in steps(x):
        x = x + t
    return x, seen


@CUTS.add(3)
def in_the_handler_of_a_body(x):
    def steps(t):
        try:
            raise ValueError("v")
        except ValueError:
            yield repr(sys.exception()), outside(t)
            outside()
            yield repr(sys.exception())
        yield repr(sys.exception())
    try:
        raise KeyError("k")
    except KeyError:
        seen = [(value, repr(sys.exception())) for value in steps(x)]
        outside()
        return seen, repr(sys.exception()), x * 2


@CUTS.add(2)
def a_manager_of_contextlib(x):
    @contextlib.contextmanager
    def manager():
        log.append(outside("enter"))
        try:
            yield 3
        finally:
            log.append("exit")
    log = []
    with manager() as k:
        y = outside(x) * k
    return y, log


@CUTS.add(3)
def a_manager_that_suppresses(x):
    @contextlib.contextmanager
    def manager():
        outside()
        try:
            yield 3
        except ValueError as error:
            log.append(outside(str(error)))
    log = []
    with manager():
        y = x * 2
        raises(ValueError, "v")
    return y, log


@CUTS.add(1)
def a_manager_around_tensors(x):
    @contextlib.contextmanager
    def scaled(t):
        with torch.no_grad():
            yield t * 2
    w = x.clone().requires_grad_()
    with scaled(w) as y:
        z = outside(w * 2) + y
    return z, w * 3


@CUTS.add(1)
def abandoned_with_finally(x):
    def steps(t):
        try:
            while True:
                yield t
        finally:
            seen.append("closed")
    seen = []
    for t in steps(x):
        y = outside(t) + 1
        break
    return y, seen, len(seen)


# -- coroutines driven by hand -----------------------------------------------------------------------------------------

def drive(coroutine):
    """What a coroutine returns, and all that it has yielded."""
    yielded = []
    try:
        while True:
            yielded.append(coroutine.send(None))
    except StopIteration as stop:
        return stop.value, yielded


class Pause:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return got, self.value


@CUTS.add(2)
def awaited_coroutines(x):
    async def inner(t):
        return t * outside(3)

    async def outer(t):
        a = await inner(t)
        b = await inner(a)
        return a + b
    return drive(outer(x))


@CUTS.add(3)
def coroutines_that_wait(x):
    async def inner(t):
        await Pause(outside(1))
        return t * 2

    async def outer(t):
        a = await inner(t)
        outside(None, a)
        _, b = await Pause(a)
        return outside(a + b)
    return drive(outer(x))


class Manager:
    def __init__(self, log):
        self.log = log

    async def __aenter__(self):
        return outside(3)

    async def __aexit__(self, *exception):
        self.log.append(outside("exit"))


@CUTS.add(2)
def async_with(x):
    async def main(t):
        async with Manager(log) as k:
            return t * k
    log = []
    return drive(main(x)), log


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_construct(program, options) -> None:
    run(program, options)


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_construct_when_continuations_run_natively(program, options, monkeypatch) -> None:
    monkeypatch.setattr(pipeline, "tell_limit", lambda unit, mismatches: None)
    with RECAPTURE_LIMIT.set(1):
        compared(program, call(X), call(X), call(X.T.contiguous()), captures=None)
