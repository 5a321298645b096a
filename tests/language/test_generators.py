"""Generators, and coroutines driven by hand, in one graph."""
from __future__ import annotations

import asyncio
import contextlib
import types
from types import SimpleNamespace

import pytest
import torch

import capture
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@programs.make(X, change=lambda state: setattr(state, "scale", 3.0), captures=2)
def a_generator_that_reads_state():
    state = SimpleNamespace(scale=2.0)

    def rows(x):
        for row in x:
            yield row * state.scale
    return lambda x: torch.stack(list(rows(x))), state


@programs.add(X)
def values_that_are_sent(x):
    def averager():
        total, count, mean = 0.0, 0, None
        while True:
            item = yield mean
            if item is None:
                return total, count
            total, count = total + item, count + 1
            mean = total / count
    g = averager()
    next(g)
    means = [g.send(row) for row in x]
    try:
        g.send(None)
    except StopIteration as stop:
        return means, stop.value


@programs.add(X)
def exceptions_thrown_in(x):
    def resilient():
        value = x
        while True:
            try:
                value = yield value * 2
            except ValueError as error:
                value = x + len(error.args)
            except GeneratorExit:
                log.append("closed")
                raise
    log = []
    g = resilient()
    first = next(g)
    second = g.throw(ValueError("a", "b"))
    third = g.send(x - 1)
    g.close()
    return first, second, third, log


@programs.make(X, change=lambda state: state.append(1), captures=2)
def a_pipeline_of_generators():
    factors = [2.0, 3.0]

    def source(x):
        yield from x

    def scaled(rows):
        for row, factor in zip(rows, factors):
            yield row * factor

    def accumulated(rows):
        total = 0.0
        for row in rows:
            total = total + row
            yield total
    return lambda x: list(accumulated(scaled(source(x)))), factors


@programs.add(X)
def delegation_that_returns(x):
    def inner(t):
        got = yield t + 1
        return got * 2

    def outer():
        first = yield from inner(x)
        second = yield from inner(first)
        return first, second
    g = outer()
    values = [next(g), g.send(x), None]
    try:
        g.send(x * 3)
    except StopIteration as stop:
        values[2] = stop.value
    return values


@programs.add(X)
def delegation_to_containers(x):
    def flat():
        yield from (x, x + 1)
        yield from [row * 2 for row in x]
        yield from {"a": x}.values()
        yield from range(2)
        yield from map(torch.neg, x)
    return list(flat())


@programs.add(X)
def a_recursive_generator(x):
    def walk(tree):
        if isinstance(tree, torch.Tensor):
            yield tree * 2
        else:
            for branch in tree:
                yield from walk(branch)
    return list(walk([x, [x + 1, [x + 2]], ()]))


@programs.add(X)
def interleaved_generators(x):
    def count(t):
        n = 0
        while True:
            n += 1
            yield t * n
    a, b = count(x), count(-x)
    return next(a), next(b), next(a), next(b) + next(a), next(b)


@programs.add(X)
def generator_expressions(x):
    scale = 2
    lazily = (row * scale for row in x)
    first = next(lazily)
    scale = 10
    return first, list(lazily), sum(r.sum() for r in x), max((len(r) for r in x), default=0), dict((i, r) for i, r in enumerate(x))


@programs.add(X)
def a_generator_method(x):
    class Walker:
        def __init__(self, items):
            self.items = items

        def __iter__(self):
            for item in self.items:
                yield item * 2

        def pairs(self):
            previous = None
            for item in self:
                if previous is not None:
                    yield previous, item
                previous = item
    return list(Walker(x)), list(Walker([x, x + 1, x + 2]).pairs())


@programs.add(X)
def a_generator_finalised_by_its_end(x):
    def guarded():
        try:
            yield x
            yield x + 1
        finally:
            log.append("finally")
    log = []
    for value in guarded():
        break
    log.append("after")
    everything = list(guarded())
    return value, everything, log


@programs.add(X)
def generators_kept_in_objects(x):
    class Stream:
        def __init__(self, t):
            self.rows = (row * 2 for row in t)
            self.seen = []

        def __next__(self):
            row = next(self.rows)
            self.seen.append(row)
            return row

        def __iter__(self):
            return self
    stream = Stream(x)
    first = next(stream)
    return first, [row + 1 for row in stream], stream.seen


@programs.add(X)
def a_generator_as_context_manager(x):
    @contextlib.contextmanager
    def scaled(t):
        log.append("in")
        try:
            yield t * 2
        finally:
            log.append("out")
    log = []
    with scaled(x) as y, scaled(y) as z:
        pass
    return y, z, log


@types.coroutine
def pause(value):
    return (yield value)


@programs.add(X)
def coroutines_driven_by_hand(x):
    async def step(t, n):
        got = await pause(("step", n))
        return t * got

    async def main():
        total = await step(x, 1)
        async with Resource() as factor:
            total = total + await step(x, 2) * factor
        return total

    class Resource:
        async def __aenter__(self):
            log.append(await pause("enter"))
            return 3.0

        async def __aexit__(self, *exc):
            log.append(await pause("exit"))
    log, requests, value = [], [], None
    coroutine = main()
    try:
        for n in range(10):
            requests.append(coroutine.send(value))
            value = n + 2.0
    except StopIteration as stop:
        return stop.value, requests, log


@programs.add(X)
def awaitables_of_classes(x):
    class Future:
        def __init__(self):
            self.result = None

        def __await__(self):
            yield self
            return self.result

    async def work(future):
        try:
            return (await future) * 2
        except KeyError:
            return x
    future = Future()
    a = work(future)
    same = a.send(None) is future
    future.result = x + 1
    try:
        a.send(None)
    except StopIteration as stop:
        first = stop.value
    b = work(future)
    b.send(None)
    try:
        b.throw(KeyError("k"))
    except StopIteration as stop:
        return same, first, stop.value


@programs.add(X)
def a_small_scheduler(x):
    async def worker(name, t, n):
        for i in range(n):
            results.append((name, t * i))
            await pause(None)
        return name
    results, done = [], []
    queue = [worker("a", x, 2), worker("b", -x, 3)]
    while queue:
        task = queue.pop(0)
        try:
            task.send(None)
        except StopIteration as stop:
            done.append(stop.value)
        else:
            queue.append(task)
    return results, done


@programs.add(X)
def a_coroutine_that_is_closed(x):
    async def work():
        try:
            await pause(x)
        finally:
            log.append("closed")
    log = []
    coroutine = work()
    y = coroutine.send(None)
    coroutine.close()
    return y * 2, log, asyncio.iscoroutinefunction(work)


@programs.add(X)
def asynchronous_generators(x):
    async def rows(t):
        for row in t:
            await pause(row)
            got = yield row * 2
            if got is not None:
                yield got

    async def collect():
        taken = [row async for row in rows(x)]
        agen = rows(x)
        first = await agen.__anext__()
        second = await agen.asend(x[1] + 1)
        third = await anext(agen)
        missing = await anext(agen, "none")
        return taken, first, second, third, missing
    c = collect()
    waits = []
    value = None
    while True:
        try:
            waits.append(c.send(value))
        except StopIteration as stop:
            return stop.value, waits


@programs.add(X)
def steps_of_an_asynchronous_generator_begun_while_another_waits(x):
    def steps(kind):
        async def rows():
            log.append(await pause("waits"))
            yield x + 1
            yield x + 2

        async def first():
            log.append(agen.ag_running)
            log.append(await anext(agen))
            log.append(agen.ag_running)

        async def other():
            log.append(agen.ag_running)
            try:
                if kind == "anext":
                    return await anext(agen)
                if kind == "asend":
                    return await agen.asend(None)
                if kind == "athrow":
                    return await agen.athrow(KeyError())
                await agen.aclose()
            except RuntimeError as error:
                return str(error)
        log, agen = [], rows()
        a, b = first(), other()
        for coroutine in (a, b, a):
            try:
                log.append(coroutine.send(None))
            except StopIteration as stop:
                log.append(stop.value)
        return log
    return [steps(kind) for kind in ("anext", "asend", "athrow", "aclose")]


@programs.add(X)
def an_asynchronous_generator_that_awaits_itself(x):
    async def rows():
        try:
            await anext(agen)
        except RuntimeError as error:
            yield str(error), x + 1

    async def collect(agen):
        return [row async for row in agen]
    agen = rows()
    try:
        collect(agen).send(None)
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize("step", [anext, lambda agen: anext(agen, 5), lambda agen: agen.asend(None)])
def test_an_asynchronous_generator_that_goes_on_with_itself_in_another_function(step):
    """The step is not awaited where it is made: the graph breaks, while the body runs."""
    def program(x):
        async def rows():
            try:
                await step(agen)
            except RuntimeError as error:
                log.append(str(error))
            yield x + 1

        async def collect():
            async for row in agen:
                return row
        agen, log = rows(), []
        try:
            collect().send(None)
        except StopIteration as stop:
            return stop.value, log
    found = program(X)
    assert found[1] == ["anext(): asynchronous generator is already running"]
    for _ in range(3):
        assert str(capture.compile(program)(X)) == str(found)


@programs.add(X)
def asynchronous_generators_that_are_closed(x):
    log = []

    async def rows(t):
        try:
            for row in t:
                try:
                    yield row
                except ValueError as error:
                    log.append(str(error))
                    yield row * 3
        finally:
            log.append("closed")

    async def main():
        agen = rows(x)
        first = await anext(agen)
        second = await agen.athrow(ValueError("thrown"))
        await agen.aclose()
        async for row in rows(x):
            break
        try:
            await anext(agen)
        except StopAsyncIteration:
            log.append("over")
        return first, second
    try:
        main().send(None)
    except StopIteration as stop:
        return stop.value, log


@programs.add(X)
def a_generator_that_outlives_the_call(x):
    def rows(t):
        total = 0
        for row in t:
            total = total + row
            yield total
    generator = rows(x)
    first = next(generator)
    return first, [*map(next, [generator])], Tail(generator)


class Tail:
    """What is left of a generator, which the tests look at."""

    def __init__(self, generator):
        self.generator = generator


@programs.make(X, change=lambda state: setattr(state, "stream", None), captures=None)
def a_stream_that_goes_on_from_call_to_call():
    state = SimpleNamespace(stream=None)

    def rows(t):
        step = 0
        while True:
            yield t + step
            step += 1

    def program(x):
        if state.stream is None:
            state.stream = rows(x)
        return next(state.stream)
    return program, state


test_generators = programs.test()


@pytest.mark.parametrize("cleans_up", [False, True])
def test_a_generator_of_an_earlier_call_that_dies_in_a_later_one(cleans_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone on in native code since, and is closed by another one that delegates to it."""
    log: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: log.append(unraisable.exc_value))

    def plain(x):
        yield x + 1
        yield x + 2

    def careful(x):
        try:
            yield from plain(x)
        finally:
            log.append("closed")

    def begun(x):
        rows = (careful if cleans_up else plain)(x)
        next(rows)
        return rows

    def passed_on(rows):
        yield from rows

    def finish(rows):
        rows = passed_on(rows)
        next(rows)
        print(end="")
        return 1
    begin, end = capture.compile(begun, backend="eager"), capture.compile(finish, backend="eager")
    for _ in range(4):
        rows = begin(X)
        assert end(rows) == finish(begun(X)) and next(rows, None) is None
        assert log == ["closed"] * 2 * cleans_up
        log.clear()
