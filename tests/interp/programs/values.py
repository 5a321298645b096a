"""Programs: values, names, operators."""
from __future__ import annotations

import functools
from collections import OrderedDict

from tests.interp.programs.base import Counter, Point, program

G = 1



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
    log += [1 < x < 10, 1 < x < 3, 10 < x < log.append("not evaluated"), x == 5 != 6, x is x, x is not None, x in (5,),
            x not in [5]]
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
    attempt(lambda: undefined_name)
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
    return (functools.partial(f, 1, d=2)(b"x", e=3), sorted([3, 1, 2], key=lambda v: -v),
            list(map(lambda v, w: v + w, [1, 2], [3, 4])))


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
    import json.decoder as jd
    import math
    import os.path
    import os.path as p
    from collections.abc import Iterator
    from os import path
    from os import sep as s
    log.append((os.path is p, path is p, s, Iterator.__name__, math.pi, jd.__name__))
    try:
        from os import nothing_like_this
    except ImportError as error:
        log.append((str(error), error.name, error.path == os.__file__))
    try:
        import nothing_like_this
    except ModuleNotFoundError as error:
        log.append(str(error))
    try:
        from . import missing
    except ImportError as error:
        log.append(type(error).__name__)
    return nothing_like_this


@program
def asserts(log):
    assert log is not None, "unused"
    try:
        assert not 1, f"message {1}"
    except AssertionError as error:
        log.append(error.args)
    assert len(log) > 5
