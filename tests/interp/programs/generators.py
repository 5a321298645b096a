"""Programs: generators."""
from __future__ import annotations

import itertools
import sys

from tests.interp.programs.base import Counter, program


@program
def generators(log):
    def gen(n):
        log.append("start")
        for i in range(n):
            got = yield i
            log.append(("got", got))
        return "done"
    g = gen(3)
    log.append((type(g).__name__, g.__name__, g.__qualname__, next(g), g.send("a"), next(g)))
    try:
        next(g)
    except StopIteration as stop:
        log.append(("value", stop.value))
    log.append(next(g, "default"))
    log.append(list(gen(2)))
    log.append([x for x in gen(2)])
    for x in gen(4):
        if x == 1:
            break
    log.append(tuple(gen(0)))
    log.append(sum(gen(3)))
    a, b = gen(2)
    log.append(dict(zip(gen(2), "ab")))
    try:
        gen(1).send(5)
    except TypeError as error:
        log.append(str(error))
    it = gen(2)
    log.append(list(itertools.islice(it, 1)))
    log.append(next(it))
    log.append(list(it))
    return a, b


@program
def generator_throw_and_close(log):
    def gen():
        while True:
            try:
                log.append(("yielded", (yield 1)))
            except ValueError as error:
                log.append(("caught", str(error), repr(sys.exception())))
                yield "handling"
            except GeneratorExit:
                log.append("closing")
                raise
            finally:
                log.append("finally")
    g = gen()
    next(g)
    log.append(g.throw(ValueError("a")))
    log.append(repr(sys.exception()))
    log.append(next(g))
    log.append(g.throw(ValueError))
    log.append(g.send(2))
    g.close()
    g.close()
    log.append(next(g, "over"))
    try:
        g.throw(KeyError("after the end"))
    except KeyError as error:
        log.append(str(error))
    h = gen()
    try:
        h.throw(KeyError("before the start"))
    except KeyError as error:
        log.append(str(error))
    log.append(list(h))
    i = gen()
    i.close()
    log.append((list(i), i.gi_frame))

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2
    s = stubborn()
    next(s)
    try:
        s.close()
    except RuntimeError as error:
        log.append(str(error))

    def bad():
        yield 1
        raise StopIteration("inside")
    b = bad()
    next(b)
    try:
        next(b)
    except RuntimeError as error:
        log.append((str(error), repr(error.__cause__), repr(error.__context__)))

    def recursive():
        yield next(r)
    r = recursive()
    try:
        next(r)
    except ValueError as error:
        log.append(str(error))
    k = gen()
    next(k)
    for args in ((5,), (ValueError("x"), 3), (ValueError, "y"), (ValueError, ValueError("z"), 5)):
        try:
            log.append(k.throw(*args))
            next(k)
        except TypeError as error:
            log.append(str(error))


@program
def generator_dies(log):
    def gen(name):
        try:
            yield 1
            yield 2
        finally:
            log.append(("finally", name))
    next(gen("temporary"))
    log.append("next")
    for _ in gen("loop"):
        break
    log.append("after loop")
    g = gen("deleted")
    next(g)
    del g
    log.append("deleted")
    unstarted = gen("unstarted")
    del unstarted

    def outer():
        yield from gen("delegate")
    o = outer()
    next(o)
    del o
    log.append("outer gone")
    return next(x for x in range(3))


@program
def delegation(log):
    def inner():
        try:
            got = yield 1
            log.append(("inner got", got))
            yield 2
        except ValueError as error:
            log.append(("inner caught", str(error)))
            yield "recovered"
        finally:
            log.append("inner finally")
        return "result"

    def outer(iterable):
        result = yield from iterable
        log.append(("result", result))
        return "outer"
    log.append(list(outer(inner())))
    o = outer(inner())
    log.append((next(o), o.send("x"), list(o)))
    o = outer(inner())
    next(o)
    log.append((o.throw(ValueError("t")), list(o)))
    o = outer(inner())
    next(o)
    o.close()
    o = outer(inner())
    next(o)
    try:
        o.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error))
    log.append(list(outer([1, 2])))
    log.append(list(outer(Counter(2))))
    log.append(list(outer("ab")))
    o = outer(iter([1, 2]))
    next(o)
    try:
        o.throw(KeyError("no throw method"))
    except KeyError as error:
        log.append(repr(error))
    o = outer(iter([1, 2]))
    next(o)
    o.close()
    try:
        next(outer(5))
    except TypeError as error:
        log.append(str(error))

    class Full:
        def __iter__(self):
            return self

        def __next__(self):
            return "next"

        def send(self, value):
            log.append(("send", value))
            return "sent"

        def throw(self, *args):
            log.append(("throw", repr(args[0])))
            raise StopIteration("stopped")

        def close(self):
            log.append("close")
    o = outer(Full())
    log.append((next(o), o.send(1)))
    try:
        o.throw(ValueError("v"))
    except StopIteration as stop:
        log.append(stop.value)
    o = outer(Full())
    next(o)
    o.close()

    def tree(n):
        if n:
            yield from tree(n - 1)
            yield n
            yield from tree(n - 1)
    return list(tree(3))


@program
def delegation_catches(log):
    def inner():
        yield 1
        raise KeyError("from inner")

    def outer():
        try:
            yield from inner()
        except KeyError as error:
            log.append((repr(error), repr(sys.exception())))
            yield "after"
        try:
            yield from Full()
        except LookupError as error:
            log.append(repr(error))

    class Full:
        def __iter__(self):
            return self

        def __next__(self):
            return 5

        def throw(self, error):
            raise LookupError("throw")

        def close(self):
            raise LookupError("close")
    o = outer()
    log.append((next(o), next(o), next(o)))
    try:
        o.throw(ValueError("x"))
    except StopIteration:
        log.append("stopped")
    o = outer()
    next(o), next(o), next(o)
    o.close()


@program
def uncaught_in_generator(log):
    def inner():
        yield 1
        raise KeyError("deep")

    def outer():
        yield from inner()
    for x in outer():
        log.append(x)


@program
def uncaught_in_consumed_generator(log):
    def gen():
        yield 1
        try:
            raise KeyError("deep")
        except KeyError:
            raise ValueError("other")
    try:
        raise LookupError("outside")
    except LookupError:
        return list(gen())


@program
def handled_in_generators(log):
    def gen():
        log.append(repr(sys.exception()))
        try:
            raise KeyError("own")
        except KeyError:
            yield 1
            log.append(repr(sys.exception()))
            yield 2
            log.append(repr(sys.exception()))
        log.append(repr(sys.exception()))
        yield 3
    g = gen()
    try:
        raise ValueError("first")
    except ValueError:
        log.append((next(g), repr(sys.exception())))
    log.append(repr(sys.exception()))
    log.append((next(g), repr(sys.exception())))
    try:
        raise IndexError("second")
    except IndexError:
        log.append((next(g), repr(sys.exception())))
    log.append(repr(sys.exception()))
    h = gen()
    try:
        raise OSError("third")
    except OSError:
        log.append((list(h), repr(sys.exception())))


@program
def generator_protocol(log):
    import inspect

    def gen():
        yield 1
    g = gen()
    log.append((inspect.getgeneratorstate(g), inspect.isgenerator(g)))
    next(g)
    log.append(inspect.getgeneratorstate(g))
    list(g)
    log.append(inspect.getgeneratorstate(g))
    squares = (i * i for i in range(3))
    log.append((squares.__name__, iter(squares) is squares, list(map(lambda v: v + 1, squares)), "x" in gen_of("x"),
                ",".join(gen_of("abc"))))
    log.append(sorted(gen_of([3, 1]), key=lambda v: v))
    return all(v for v in [1, 0]), min(gen_of([2, 1])), dict((k, v) for k, v in [(1, 2)])


def gen_of(items):
    for item in items:
        yield item
