"""Programs of plain Python for the interpreter: each takes a log."""
from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import traceback
import types
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

PROGRAMS: list[Any] = []


def program(function):
    PROGRAMS.append(function)
    return function


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __repr__(self):
        return f"Point({self.x}, {self.y})"

    __hash__ = None


class Counter:
    def __init__(self, n):
        self.i, self.n = 0, n

    def __iter__(self):
        return self

    def __next__(self):
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.i


class Manager:
    def __init__(self, log, swallows=False, fails_on=None):
        self.log, self.swallows, self.fails_on = log, swallows, fails_on

    def __enter__(self):
        self.log.append("enter")
        if self.fails_on == "enter":
            raise LookupError("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, str(value), traceback is None, repr(sys.exception())))
        if self.fails_on == "exit":
            raise LookupError("exit")
        return self.swallows


G = 1


# -- values, names, operators ------------------------------------------------------------------------------------------

@program
def arithmetic(log):
    a, b = 7, 3
    log += [a + b, a - b, a * b, a / b, a // b, a % b, a ** b, a << b, a >> b, a & b, a | b, a ^ b, -a, +a, ~a, not a]
    a += 1; a -= 2; a *= 3; a /= 2; a //= 1; a %= 7; a **= 2
    c = 12
    c <<= 2; c >>= 1; c &= 15; c |= 3; c ^= 9
    m = Matrix(2)
    n = m @ Matrix(5)
    m @= Matrix(3)
    return a, c, m.n, n.n


class Matrix:
    def __init__(self, n):
        self.n = n

    def __matmul__(self, other):
        return Matrix(self.n * other.n)

    def __rmul__(self, other):
        return Matrix(self.n * other)

    def __lt__(self, other):
        return self.n < other.n

    def __bool__(self):
        return self.n > 2

    def __contains__(self, item):
        return item == self.n

    def __getitem__(self, key):
        return key

    def __neg__(self):
        return Matrix(-self.n)


@program
def overloaded(log):
    a, b = Matrix(2), Matrix(3)
    log.append((3 * a).n)
    log.append([a < b, a > b, 2 in a, 3 not in a, a[1:2], a[::3], a[1, 2:3, ...], (-a).n])
    log.append("true" if a else "false")
    log.append("true" if b else "false")
    return (a and 1) is a, (b and 1), (a or 5) == 5, (not a)


@program
def comparisons(log):
    x = 5
    log += [1 < x < 10, 1 < x < 3, 10 < x < log.append("not evaluated"), x == 5 != 6, x is x, x is not None, x in (5,), x not in [5]]
    log += [1 <= x, x >= 6, x != 5, None is None]
    if 0 < x <= 5 and x is not None or log.append("no"):
        log.append("yes")
    while not x < 3:
        x -= 1
    return x


@program
def walrus_and_conditional(log):
    if (n := len([1, 2, 3])) > 2:
        log.append(n)
    total = [y := 1, y ** 2, (z := y + 1)]
    return total, z, [last := i for i in range(4)], last, ("a" if n else "b")


@program
def fstrings(log):
    name, value, width = "x", 3.14159, 10
    log.append(f"{name}={value:.2f} {value!r:>{width}} {name!s} {name!a} {{}} {value=} {name}")
    log.append(f"{Point(1, 2)} {[1, 2]!r:>12} {name:^5}|")
    return f"{name}" + f"{value:{width}.{2}f}"


@program
def unpacking(log):
    a, b = 1, 2
    a, b = b, a
    c, *d, e = range(6)
    (f, (g, *h)), i = (1, (2, 3, 4)), "xy"
    [j, k] = {"j": 1, "k": 2}
    *l, = Counter(3)
    m, n = (x for x in "mn")
    p, q, r = [1, 2, 3]
    s, t = {1: 2}, {3}
    u, v, w = "abc"
    return a, b, c, d, e, f, g, h, i, j, k, l, m, n, p, q, r, s, t, u, v, w


@program
def failed_unpacking(log):
    for make in (lambda: (1,), lambda: (1, 2, 3), lambda: [1], lambda: "abc", lambda: 5, lambda: Counter(1), lambda: Counter(7),
                 lambda: (x for x in range(3)), lambda: {}):
        try:
            a, b = make()
        except (ValueError, TypeError) as error:
            log.append(str(error))
        try:
            a, b, *c, d = make()
            log.append((a, b, c, d))
        except (ValueError, TypeError) as error:
            log.append(str(error))


@program
def containers(log):
    base, more = [1, 2], {"b": 2}
    log.append([*base, 3, *(4, 5), *range(2)])
    log.append((*base, *"xy"))
    log.append({*base, 1, *Counter(2)})
    log.append({"a": 1, **more, "c": 3, **OrderedDict(d=4)})
    log.append({1: "a", 1.0: "b", True: "c"})
    log.append({1, 1.0, True})
    nested = {"k": [1, {"x": (1, 2)}]}
    nested["k"][1]["x"] = base[0:1]
    nested["k"][0] += 5
    del nested["k"][1]["x"], base[0]
    base[0:0] = [7, 8]
    base[::2] = [0, 0]
    del base[:1]
    return nested, base, base[-1], "abc"[::-1]


@program
def bad_containers(log):
    def attempt(f):
        try:
            f()
        except Exception as error:
            log.append((type(error).__name__, str(error)))
    attempt(lambda: [*5])
    attempt(lambda: (*None,))
    attempt(lambda: {*5})
    attempt(lambda: {**5})
    attempt(lambda: {[]})
    attempt(lambda: {[]: 1})
    attempt(lambda: {**[(1, 2)]})
    attempt(lambda: print(*5))
    attempt(lambda: print(**5))
    attempt(lambda: print(**{1: 2}))
    attempt(lambda: Point(1, x=2))
    attempt(lambda: Point(1, 2, 3))
    attempt(lambda: Point())
    attempt(lambda: (lambda a, /, b, *, c: 0)(a=1, b=2, c=3))
    attempt(lambda: (lambda *, c, d: 0)())
    attempt(lambda: log[0]())
    attempt(lambda: 1 + "a")
    attempt(lambda: 1 < "a")
    attempt(lambda: [][0])
    attempt(lambda: {}["k"])
    attempt(lambda: 5 in 5)
    attempt(lambda: -"a")
    attempt(lambda: iter(5))
    attempt(lambda: undefined_name)  # noqa: F821
    attempt(lambda: log.nothing)
    attempt(lambda: setattr(5, "a", 1))
    attempt(lambda: f"{5:zz}")


@program
def comprehensions(log):
    n = 3
    log.append([x * n for x in range(5) if x % 2])
    log.append({x: y for x, y in zip("ab", (1, 2))})
    log.append({x % 3 for x in range(10)})
    log.append(list(x + y for x in range(2) for y in range(x, 3)))
    log.append([[i * j for j in range(i)] for i in range(4)])
    x = "kept"
    fs = [lambda: x for x in range(3)]
    log.append([f() for f in fs])
    log.append([x for x in Counter(3)] + [y for y in (z for z in range(2))])
    try:
        [1 / i for i in (1, 0)]
    except ZeroDivisionError:
        log.append(x)
    return x, sum(i for i in range(10)), any(i > 3 for i in range(5)), max((len(w), w) for w in ["a", "bbb", "cc"])


@program
def deleting(log):
    a = [1]
    b = a
    del a
    try:
        a
    except UnboundLocalError as error:
        log.append(str(error))
    try:
        del a
    except UnboundLocalError as error:
        log.append(str(error))

    def outer():
        x = 1

        def inner():
            return x
        del x
        try:
            inner()
        except NameError as error:
            log.append(str(error))
        try:
            x
        except UnboundLocalError as error:
            log.append(str(error))
        try:
            del x
        except UnboundLocalError as error:
            log.append(str(error))
        x = 2
        return inner()
    log.append(outer())
    point = Point(1, 2)
    del point.x
    try:
        del point.x
    except AttributeError as error:
        log.append(str(error))
    return b


@program
def globals_and_closures(log):
    global G, H
    G += 1
    H = G * 2
    log.append((G, H))
    del H
    try:
        H
    except NameError as error:
        log.append(str(error))
    try:
        del H
    except NameError as error:
        log.append(str(error))
    G = 1

    def counter(start=0):
        n = start

        def step(by=1):
            nonlocal n
            n += by
            return n

        def get():
            return n
        return step, get
    step, get = counter(5)
    step()
    step(3)
    other, _ = counter()
    other()
    return get(), other(), step.__closure__[0].cell_contents, step.__name__, step.__qualname__


@program
def functions(log):
    def f(a, b=2, /, c=3, *args, d, e=5, **kwargs):
        return a, b, c, args, d, e, kwargs
    log.append(f(1, d=4))
    log.append(f(1, 2, 3, 4, 5, d=6, e=7, f=8))
    log.append(f(*[1, 2], *(3, 4), **{"d": 1}, **{"x": 2}))
    log.append(f(*Counter(3), d=0))
    log.append(f(*"ab", **OrderedDict(d=1)))

    def annotated(x: int, y: "str" = "a", *, z: list[int] = [1]) -> float:
        """Doc."""
        z.append(x)
        return z
    annotated(1)
    log.append((annotated(2), annotated.__annotations__, annotated.__doc__, annotated.__defaults__, annotated.__kwdefaults__))
    log.append([(lambda x=i, *a, k=i: (x, a, k))() for i in range(2)])
    return functools.partial(f, 1, d=2)(b"x", e=3), sorted([3, 1, 2], key=lambda v: -v), list(map(lambda v, w: v + w, [1, 2], [3, 4]))


@program
def recursion(log):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def ackermann(m, n):
        if m == 0:
            return n + 1
        return ackermann(m - 1, 1) if n == 0 else ackermann(m - 1, ackermann(m, n - 1))
    return fib(12), ackermann(2, 3)


@program
def loops(log):
    for i in range(5):
        if i == 1:
            continue
        if i == 3:
            break
        log.append(i)
    else:
        log.append("no")
    for i in []:
        pass
    else:
        log.append("else")
    n = 3
    while n:
        n -= 1
        if n == 1:
            continue
    else:
        log.append("while else")
    for i, (a, b) in enumerate(zip([1, 2], "ab")):
        log.append((i, a, b))
    for key in (d := {"a": 1}):
        d[key] = 2
    for x in Counter(2):
        for y in Counter(2):
            if y == 2:
                break
            log.append((x, y))
    return i, d


@program
def nones(log):
    def f(x=None, y=None):
        if x is None:
            x = []
        if y is not None:
            x.append(y)
        while x is None:
            pass
        return x if x is not None else 0
    return f(), f(y=1), f([2], 3), [v for v in (1, None, 2) if v is not None], [v for v in (1, None) if v is None]


@program
def imports(log):
    import os.path
    import os.path as p
    from os import path, sep as s
    from collections.abc import Iterator
    import math, json.decoder as jd
    log.append((os.path is p, path is p, s, Iterator.__name__, math.pi, jd.__name__))
    try:
        from os import nothing_like_this
    except ImportError as error:
        log.append((str(error), error.name, error.path == os.__file__))
    try:
        import nothing_like_this  # noqa: F811
    except ModuleNotFoundError as error:
        log.append(str(error))
    try:
        from . import missing
    except ImportError as error:
        log.append(type(error).__name__)
    return nothing_like_this  # noqa: F821


@program
def asserts(log):
    assert log is not None, "unused"
    try:
        assert not 1, f"message {1}"
    except AssertionError as error:
        log.append(error.args)
    assert len(log) > 5


# -- classes -----------------------------------------------------------------------------------------------------------

@program
def classes(log):
    x = "enclosing"

    class Meta(type):
        def __new__(meta, name, bases, namespace, **kwargs):
            log.append((name, sorted(k for k in namespace if not k.startswith("__")), kwargs))
            return super().__new__(meta, name, bases, namespace)

        def __prepare__(name, bases, **kwargs):
            return {"prepared": 1}

        def __call__(cls, *args):
            log.append(("making", cls.__name__))
            return super().__call__(*args)

    class Base(metaclass=Meta, flag=1):
        """Doc of Base."""
        y: int = 1
        z: "str"
        own = x
        x = [prepared]  # noqa: F821
        squares = [i * i for i in range(3)]

        def __init__(self, value):
            self.value = value

        @property
        def double(self):
            return self.value * 2

        @double.setter
        def double(self, new):
            self.value = new / 2

        @staticmethod
        def s(a):
            return a

        @classmethod
        def c(cls, a):
            return cls.__name__, a

        def __repr__(self):
            return f"<{__class__.__name__} {self.value}>"

        del own

        for i in range(2):
            pass

    class Derived(Base):
        def __init__(self, value):
            super().__init__(value + 1)
            super(Derived, self).__init__(self.value)

        @property
        def double(self):
            return super().double + 1

        @classmethod
        def c(cls, a):
            return super().c(a)
    b, d = Base(1), Derived(2)
    b.double = 10
    log.append((b, d, b.double, d.double, d.c(3), Base.s(4), Base.__annotations__, Base.__doc__, Base.squares, Base.x, Base.__qualname__))
    try:
        d.double = 3
    except AttributeError as error:
        log.append(type(error).__name__)
    return isinstance(d, Base), [c.__name__ for c in Derived.__mro__], hasattr(Base, "own"), b.i


@program
def descriptors(log):
    class Descriptor:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner):
            log.append(("get", self.name, instance is None))
            return 1

        def __set__(self, instance, value):
            log.append(("set", self.name, value))

        def __delete__(self, instance):
            log.append(("delete", self.name))

    class C:
        d = Descriptor()
        __slots__ = ("s", "__dict__")

        def __getattr__(self, name):
            log.append(("getattr", name))
            if name == "bad":
                raise AttributeError("bad!")
            return name

        def __setattr__(self, name, value):
            log.append(("setattr", name))
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(("delattr", name))
            super().__delattr__(name)

        def __getitem__(self, key):
            return key

        def __setitem__(self, key, value):
            log.append(("setitem", key, value))

        def __delitem__(self, key):
            log.append(("delitem", key))

        def __call__(self, *args, **kwargs):
            return args, kwargs

        def __len__(self):
            return 0

        def __iter__(self):
            yield from (1, 2)

        def __format__(self, spec):
            return f"<{spec}>"

        def __hash__(self):
            return 5

        def __eq__(self, other):
            log.append("eq")
            return True
    c = C()
    c.d = c.d + 1
    del c.d
    c.s = 2
    c.other = c.s
    log.append((c.s, c.other, c.missing, getattr(c, "bad", "default"), hasattr(c, "bad"), C.d))
    del c.other
    c[1] = c[2:3]
    del c[4]
    log.append((c(1, x=2), bool(c), [*c], f"{c:abc}", c == 1, {c: 1, C(): 2} and 3))
    try:
        c.bad
    except AttributeError as error:
        log.append(str(error))


@program
def dataclass_and_inheritance(log):
    @dataclass
    class D:
        a: int
        b: list = None

    class E(D, dict):
        pass
    e = E(1)
    e["k"] = D(2, [3])
    return e.a, repr(e["k"]), D(1) == D(1), repr(D(5))


# -- exceptions --------------------------------------------------------------------------------------------------------

@program
def try_forms(log):
    def run(kind):
        try:
            log.append("try")
            if kind:
                raise kind("x")
        except (KeyError, IndexError) as error:
            log.append(("lookup", type(error).__name__, repr(sys.exception())))
        except ValueError:
            log.append("value")
            raise
        else:
            log.append("else")
            return "else"
        finally:
            log.append(("finally", repr(sys.exception())))
        return "end"
    for kind in (None, KeyError, IndexError):
        log.append(run(kind))
    for kind in (ValueError, TypeError):
        try:
            run(kind)
        except Exception as error:
            log.append(type(error).__name__)
    log.append(repr(sys.exception()))

    def overriding():
        for i in range(3):
            try:
                if i == 1:
                    return "returned"
                continue
            finally:
                log.append(i)
                if i == 1:
                    break
        return "after"
    return overriding()


@program
def uncaught(log):
    def f(n):
        if n == 0:
            return 1 / n
        return f(n - 1)
    f(3)


@program
def uncaught_multiline(log):
    def f(a,
          b):
        return (a
                + b)
    value = f(
        1,
        "2",
    )
    return value


@program
def raising(log):
    def attempt(f):
        try:
            f()
        except BaseException as error:
            log.append((type(error).__name__, error.args, repr(error.__cause__), repr(error.__context__), error.__suppress_context__))

    def chain():
        try:
            raise KeyError("k")
        except KeyError as error:
            raise ValueError("v") from error

    def implicit():
        try:
            raise KeyError("k")
        except KeyError:
            raise ValueError("v")

    def from_none():
        try:
            {}["k"]
        except KeyError:
            raise ValueError from None

    def from_class():
        raise ValueError("v") from KeyError

    def in_finally():
        try:
            raise KeyError("k")
        finally:
            raise ValueError("v")

    def nothing():
        raise

    def not_exception():
        raise 5

    def bad_cause():
        raise ValueError from 5

    def odd_class():
        class Odd(Exception):
            def __new__(cls):
                return 5
        raise Odd

    def called():
        def g():
            return 1 / 0
        try:
            g()
        except ZeroDivisionError:
            g()

    def nested():
        try:
            try:
                raise KeyError(1)
            except KeyError:
                try:
                    raise IndexError(2)
                except IndexError:
                    log.append(repr(sys.exception()))
                log.append(repr(sys.exception()))
                raise
        except KeyError as e:
            log.append(repr(e.__context__))
            raise RuntimeError from e

    def custom():
        class Mine(Exception):
            def __init__(self, a, *, b=2):
                super().__init__(a)
                self.b = b
        raise Mine(1, b=3)

    def bad_clause():
        try:
            raise KeyError
        except 5:
            pass

    def bad_clauses():
        try:
            raise KeyError
        except (ValueError, 5):
            pass

    def exits():
        raise SystemExit(3)
    for f in (chain, implicit, from_none, from_class, in_finally, nothing, not_exception, bad_cause, odd_class, called, nested, custom,
              bad_clause, bad_clauses, exits):
        attempt(f)


@program
def chained_uncaught(log):
    def g():
        raise KeyError("inner")
    try:
        g()
    except KeyError as error:
        try:
            raise ValueError("middle")
        except ValueError:
            raise RuntimeError("outer") from error


@program
def reraised_uncaught(log):
    def g():
        try:
            return [][0]
        except KeyError:
            log.append("no")
        finally:
            log.append("finally")
    try:
        g()
    except IndexError:
        log.append("once")
        raise


@program
def raised_by_helper(log):
    def reraise():
        raise
    try:
        1 / 0
    except ZeroDivisionError:
        reraise()


@program
def stored_exception(log):
    saved = None
    try:
        raise ValueError("a")
    except ValueError as error:
        saved = error
    try:
        error
    except NameError as e:
        log.append(str(e))
    try:
        raise saved
    except ValueError as again:
        log.append(again is saved)
    try:
        raise KeyError
    except KeyError:
        raise saved


@program
def with_forms(log):
    with Manager(log) as m, Manager(log):
        log.append(m is not None)
    with Manager(log, swallows=True):
        raise ValueError("swallowed")

    def returning():
        with Manager(log):
            return "value"
    log.append(returning())
    for _ in range(2):
        with Manager(log):
            break
    for fails_on in ("enter", "exit"):
        try:
            with Manager(log, fails_on=fails_on):
                raise KeyError("body")
        except Exception as error:
            log.append((type(error).__name__, repr(error.__context__)))
    for manager in (5, types.SimpleNamespace(__enter__=1)):
        try:
            with manager:
                pass
        except TypeError as error:
            log.append(str(error))

    class Half:
        def __enter__(self):
            pass
    try:
        with Half():
            pass
    except TypeError as error:
        log.append(str(error))
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        {}["missing"]

    @contextlib.contextmanager
    def generated():
        log.append("before")
        try:
            yield 5
        except KeyError as error:
            log.append(("inside", repr(error), repr(error.__context__)))
        finally:
            log.append("after")
    with generated() as five:
        raise KeyError(five)
    log.append(repr(sys.exception()))
    with Manager(log):
        raise ValueError("leaves")


@program
def except_star(log):
    def run(exception, inner=None):
        try:
            try:
                raise exception
            except* ValueError as group:
                log.append(("value", type(group).__name__, [repr(e) for e in group.exceptions], repr(sys.exception())))
                if inner == "raise":
                    raise KeyError("new")
                if inner == "reraise":
                    raise
            except* (TypeError, OSError) as group:
                log.append(("type", [repr(e) for e in group.exceptions]))
            else:
                log.append("else")
            finally:
                log.append(repr(sys.exception()))
        except BaseException as error:
            log.append((type(error).__name__, str(error), [repr(e) for e in getattr(error, "exceptions", ())], repr(error.__context__)))
    run(ExceptionGroup("g", [ValueError(1), TypeError(2)]))
    run(ExceptionGroup("g", [ValueError(1), KeyError(2), ExceptionGroup("h", [ValueError(3), IndexError(4)])]))
    run(ValueError("naked"))
    run(KeyError("unmatched"))
    run(ExceptionGroup("g", [ValueError(1), TypeError(2)]), "raise")
    run(ExceptionGroup("g", [ValueError(1), KeyError(2)]), "raise")
    run(ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)]), "reraise")
    run(ValueError("naked"), "reraise")
    run(ValueError("naked"), "raise")
    try:
        try:
            raise ValueError
        except* ExceptionGroup:
            pass
    except TypeError as error:
        log.append(str(error))
    try:
        pass
    except* ValueError:
        pass
    log.append(repr(sys.exception()))
    try:
        raise ExceptionGroup("last", [ValueError(1), KeyError(2)])
    except* ValueError:
        pass


# -- generators --------------------------------------------------------------------------------------------------------

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
    log.append(list(i))

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
    log.append((squares.__name__, iter(squares) is squares, list(map(lambda v: v + 1, squares)), "x" in gen_of("x"), ",".join(gen_of("abc"))))
    log.append(sorted(gen_of([3, 1]), key=lambda v: v))
    return all(v for v in [1, 0]), min(gen_of([2, 1])), dict((k, v) for k, v in [(1, 2)])


def gen_of(items):
    for item in items:
        yield item


# -- coroutines --------------------------------------------------------------------------------------------------------

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


# -- match -------------------------------------------------------------------------------------------------------------

@program
def matching(log):
    def f(x):
        match x:
            case 0 | 1:
                return "small"
            case -1.5 | "s" | None | True:
                return "literal"
            case [1, 2, *rest]:
                return ("list", rest)
            case (a, [b, c]) if a == b:
                return ("nested", a, b, c)
            case [_]:
                return "one"
            case {"k": v, "l": [w]}:
                return ("kl", v, w)
            case {"k": v, **rest}:
                return ("k", v, rest)
            case Point(x=0, y=y):
                return ("on axis", y)
            case Point(a, b):
                return ("point", a, b)
            case str() as s:
                return ("str", s)
            case int(n) if n > 10:
                return ("int", n)
            case bytes(b) | bytearray(b):
                return ("bytes", b)
            case Named.value:
                return "named"
            case _:
                return "other"

    class Named:
        value = 7
    for x in (0, 1, -1.5, "s", None, True, [1, 2, 3, 4], (1, [1, 3]), (1, [2, 3]), [5], {"k": 1, "l": [2]}, {"k": 1, "m": 2}, Point(0, 5),
              Point(1, 2), "text", 11, 9, b"b", bytearray(b"c"), 7, {}, (), range(1), OrderedDict(k=3)):
        log.append(f(x))


@program
def handled_behind_builtins(log):
    """What the program runs after a builtin failed does not see an exception of the interpreter's."""
    class C:
        __match_args__ = ("a", "b")
        a = 1

        @property
        def b(self):
            log.append(repr(sys.exception()))
            raise AttributeError("b")

        def __getattr__(self, name):
            log.append((name, repr(sys.exception())))
            raise AttributeError(name)
    c = C()
    log.append(getattr(c, "b", None))
    match c:
        case C(x, y):
            log.append("no")
        case C(a=1, z=_):
            log.append("no")
        case C(x):
            log.append(x)
    log.append(next(iter(()), "default"))

    def delegating():
        yield from iter([1, 2])
    g = delegating()
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error.__context__))
    try:
        from types import nothing_at_all  # noqa: F401
    except ImportError as error:
        log.append(repr(error.__context__))
    c.missing


@program
def bad_matching(log):
    class NoArgs:
        pass

    class BadArgs:
        __match_args__ = ["x"]

    class OddArgs:
        __match_args__ = (5,)

    class Twice:
        __match_args__ = ("x",)
        x = 1

    def attempt(f, x):
        try:
            log.append(f(x))
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))

    def no_args(x):
        match x:
            case NoArgs(a):
                return a

    def bad_args(x):
        match x:
            case BadArgs(a):
                return a

    def odd_args(x):
        match x:
            case OddArgs(a):
                return a

    def twice(x):
        match x:
            case Twice(a, x=b):
                return a, b

    def too_many(x):
        match x:
            case Point(a, b, c):
                return a, b, c

    def self_twice(x):
        match x:
            case int(a, b):
                return a, b

    def not_class(x):
        cls = 5
        match x:
            case cls():
                return 1

    def duplicate(x):
        class K:
            a, b = "k", "k"
        match x:
            case {K.a: 1, K.b: 2}:
                return 1
    attempt(no_args, NoArgs())
    attempt(bad_args, BadArgs())
    attempt(odd_args, OddArgs())
    attempt(twice, Twice())
    attempt(too_many, Point(1, 2))
    attempt(self_twice, 1)
    attempt(not_class, 1)
    attempt(duplicate, {"k": 1, "l": 2})

    class Missing:
        __match_args__ = ("nope",)

    def missing(x):
        match x:
            case Missing(a):
                return a
            case Missing(also=b):
                return b
        return "no match"
    attempt(missing, Missing())


# -- the environment ---------------------------------------------------------------------------------------------------

@program
def builtins_that_see_frames(log):
    a = 1

    class C:
        def who(self):
            return super().__repr__().startswith("<")

        def capturing(self):
            return lambda me: (self, super().__class__)
    log.append((sorted(locals()), dir() == sorted(vars()), eval("a"), eval("a + b", {"b": 1}, {"a": 5})))
    exec("log.append(a)")
    frame = sys._getframe()
    log.append((frame.f_code.co_name, sys._getframe().f_lineno, frame.f_globals is globals(), frame.f_code.co_filename == __file__))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def warn(level):
            warnings.warn("a warning", stacklevel=level)
        warn(1)
        warn(2)
        log.append([(w.lineno, w.filename == __file__) for w in caught])
    try:
        eval("1 / 0")
    except ZeroDivisionError as error:
        log.append([(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)])

    def keywords(self, function, interp, **others):
        return self, function, interp, others
    log.append(functools.partial(keywords, self=1)(function=2, interp=3, model=4))
    log.append(dict(self=1, function=2, interp=3, model=4, args=5))
    log.append(globals() is sys.modules[__name__].__dict__)
    log.append((C().who(), C().capturing()(C())[1].__name__))
    return a, callable(C), isinstance(C(), C), type(C()).__name__, vars(Point(1, 2)), dir(Point(1, 2))[-2:]


@program
def long_jumps(log):
    total = 0
    for i in range(3):
        if i == 1:
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
        else:
            try:
                total += log.nothing
            except AttributeError:
                total -= 1
    return total


exec("def many_constants(log):\n    return [" + ", ".join(f"'c{i}'" for i in range(300)) + "]\n" +  # noqa: S102
     "def many_names(log):\n" + "".join(f"    v{i} = {i + 1000}\n" for i in range(300)) + "    return v0, v150, v299\n")
program(many_constants)  # noqa: F821
program(many_names)  # noqa: F821
