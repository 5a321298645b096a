"""Programs: coroutines."""
from __future__ import annotations

import sys
import types

from tests.interp.programs.base import program


@types.coroutine
def suspend(value):
    return (yield value)


def drive(coroutine, log, *sends):
    """Runs a coroutine with the values or exceptions to send; what it yields is logged."""
    sends = list(sends)
    value = None
    while True:
        try:
            value = coroutine.throw(value) if isinstance(value, BaseException) else coroutine.send(value)
        except StopIteration as stop:
            return stop.value
        log.append(("yielded", value))
        value = sends.pop(0) if sends else None


@program
def coroutines(log):
    async def leaf(x):
        got = await suspend(x)
        log.append(("got", got))
        return x * 2

    async def main():
        a = await leaf(1)
        b = await leaf(2)
        return a + b
    log.append(drive(main(), log, "s", "t"))
    c = main()
    log.append((type(c).__name__, c.__name__, c.send(None)))
    c.close()
    try:
        c.send(None)
    except RuntimeError as error:
        log.append(str(error))

    async def catching():
        try:
            await leaf(5)
        except ValueError as error:
            log.append(("caught", str(error)))
            return "recovered"
        finally:
            log.append("finally")
    log.append(drive(catching(), log, ValueError("thrown")))

    async def raising():
        await leaf(1)
        raise KeyError("from coroutine")
    try:
        drive(raising(), log)
    except KeyError as error:
        log.append(repr(error))

    async def stops():
        raise StopIteration(1)
    try:
        drive(stops(), log)
    except RuntimeError as error:
        log.append(str(error))

    class Awaitable:
        def __await__(self):
            got = yield "awaiting"
            return got

    async def custom():
        return await Awaitable()
    log.append(drive(custom(), log, 7))

    class BadAwaitable:
        def __await__(self):
            return 5

    async def bad(x):
        await x
    for x in (5, BadAwaitable(), [1]):
        try:
            drive(bad(x), log)
        except TypeError as error:
            log.append(str(error))
    shared = leaf(9)

    async def first():
        await shared
    f, s = first(), first()
    f.send(None)
    try:
        s.send(None)
    except RuntimeError as error:
        log.append(str(error))
    f.close()
    s.close()


@program
def async_with(log):
    class Manager:
        def __init__(self, swallows=False):
            self.swallows = swallows

        async def __aenter__(self):
            log.append("aenter")
            return await suspend("entering")

        async def __aexit__(self, kind, value, traceback):
            log.append(("aexit", kind, repr(sys.exception())))
            await suspend("exiting")
            return self.swallows

    async def main():
        async with Manager() as m:
            log.append(m)
        async with Manager(swallows=True):
            raise ValueError("swallowed")
        async with Manager():
            raise KeyError("leaves")
    try:
        drive(main(), log, 1, 2, 3)
    except KeyError as error:
        log.append(repr(error))

    class Bad:
        def __aenter__(self):
            return 5

        def __aexit__(self, *args):
            return 6

    async def bad(m):
        async with m:
            pass
    for m in (Bad(), 5):
        try:
            drive(bad(m), log)
        except TypeError as error:
            log.append(str(error))


@program
def async_for(log):
    class Iterator:
        def __init__(self, n):
            self.n = n

        def __aiter__(self):
            return self

        async def __anext__(self):
            if self.n == 0:
                raise StopAsyncIteration
            self.n -= 1
            await suspend(("item", self.n))
            return self.n

    async def agen(n):
        try:
            for i in range(n):
                got = yield i
                log.append(("got", got))
                await suspend("between")
        finally:
            log.append("agen finally")

    async def main():
        async for x in Iterator(2):
            log.append(x)
        else:
            log.append("else")
        async for x in agen(3):
            if x == 2:
                break
        log.append([x async for x in agen(2)])
        log.append({x: y async for x in Iterator(1) for y in [1]})
        log.append([x async for x in (y * 2 async for y in agen(2)) if x])
        log.append([await suspend(x) for x in (1, 2)])
        a = agen(3)
        log.append((type(a).__name__, a.__name__))
        log.append((await a.__anext__(), await a.asend("sent")))
        try:
            await a.athrow(KeyError("thrown"))
        except KeyError as error:
            log.append(repr(error))
        b = agen(1)
        await b.__anext__()
        await b.aclose()
        try:
            await b.__anext__()
        except StopAsyncIteration:
            log.append("exhausted")

    async def bad(x):
        async for _ in x:
            pass
    drive(main(), log)

    class NoNext:
        def __aiter__(self):
            return self

    class BadNext(NoNext):
        def __anext__(self):
            return 5

    class Fails(NoNext):
        async def __anext__(self):
            raise KeyError("in anext")
    for x in (5, NoNext(), BadNext(), Fails()):
        try:
            drive(bad(x), log)
        except (TypeError, KeyError) as error:
            log.append((str(error), repr(error.__cause__)))

    async def stops():
        yield 1
        raise StopAsyncIteration

    async def use():
        try:
            async for _ in stops():
                pass
        except RuntimeError as error:
            log.append((str(error), repr(error.__cause__)))
    drive(use(), log)


@program
def asyncio_runs(log):
    import asyncio

    async def worker(name, queue):
        while (item := await queue.get()) is not None:
            log.append((name, item))
            await asyncio.sleep(0)

    async def ticker(n):
        for i in range(n):
            yield i
            await asyncio.sleep(0)

    async def main():
        queue = asyncio.Queue()
        task = asyncio.create_task(worker("w", queue))
        async for i in ticker(3):
            await queue.put(i)
        await queue.put(None)
        await task
        results = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        async with asyncio.timeout(10):
            pass
        return results
    return asyncio.run(main())
