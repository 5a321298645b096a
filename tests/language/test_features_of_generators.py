"""Features of the language, end to end: generators and coroutines; with tensors in between."""
from __future__ import annotations

import contextlib
import itertools

import torch

from tests.programs import NATIVE, Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@programs.add(X)
def generators(x):
    def rows(t, log):
        try:
            for row in t:
                got = yield row * 2
                log.append(got)
        finally:
            log.append("closed")
        return "done"

    def delegating(t, log):
        result = yield from rows(t, log)
        log.append(result)
        yield t.sum()
    log = []
    everything = list(delegating(x, log))
    g = rows(x, log)
    first = next(g)
    second = g.send(5)
    g.close()
    h = rows(x, log)
    next(h)
    try:
        h.throw(ValueError("thrown"))
    except ValueError as error:
        log.append(str(error))
    return everything, first, second, log


@programs.add(X)
def generators_consumed_by_builtins(x):
    def count(n):
        while n:
            yield n
            n -= 1
    return (sum(count(3)), max(count(4)), tuple(count(2)), sorted(count(3)), dict(zip(count(2), x)), *count(2),
            any(n == 2 for n in count(3)), all(n > 0 for n in count(3)), ",".join(str(n) for n in count(3)),
            torch.stack([x * n for n in count(2)]), list(itertools.islice(count(9), 2)), set(count(2)))


@programs.add(X)
def a_generator_left_half_way(x):
    def endless():
        n = 0
        while True:
            yield x * n
            n += 1
    g = endless()
    return next(g), next(g), [t for _, t in zip(range(2), g)]


@programs.add(X)
def stop_iteration_and_defaults(x):
    g = (n for n in range(2))
    values = [next(g, None) for _ in range(3)]

    def returning():
        yield 1
        return x
    h = returning()
    next(h)
    try:
        next(h)
    except StopIteration as stop:
        return stop.value, values


class Pause:
    def __await__(self):
        got = yield "paused"
        return got


@programs.add(X)
def coroutines(x):
    async def inner(t):
        return t * await Pause()

    async def outer():
        async with contextlib.AsyncExitStack():
            return [await inner(x), await inner(x + 1)]
    coroutine = outer()
    log = [coroutine.send(None), coroutine.send(2)]
    try:
        coroutine.send(3)
    except StopIteration as stop:
        return stop.value, log


@programs.add(X, **NATIVE)
def asynchronous_generators(x):
    async def rows():
        for row in x:
            yield row

    async def main():
        return [row * 2 async for row in rows()]
    try:
        main().send(None)
    except StopIteration as stop:
        return stop.value


test_generators = programs.test()
