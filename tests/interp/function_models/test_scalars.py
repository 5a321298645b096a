"""Iterators, identity, types, and pure functions."""
from __future__ import annotations

import abc
import functools
import math
import operator
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import call, check


class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


class Sized:
    def __len__(self):
        return 2


class Child(Base, Sized):
    def f(self):
        return 1


# Each is called with a tensor, a number, a string, and a list of numbers.
def arithmetic(x, n, s, xs):
    m = n * 2 + 1 - n // 2 ** 2
    m += 1
    m <<= 2
    return (x * m, m % 3, -m, +m, ~m, abs(-m), m & 6, m | 1, m ^ 3, m >> 1, divmod(m, 4), pow(m, 2), pow(m, 2, 5),
            round(m / 3, 2), float(m), int(m / 2),
            bool(m), complex(m), min(m, 3), max(m, 3, 9), m == 3, m < 4 <= 9, not m, (m).bit_length(),
            (1.5).is_integer(), hash(m) == m, bin(m))


def text(x, n, s, xs):
    return (s.upper(), s + "b", s * 2, f"{n:>4}|{n!r}|{s:>{n}}", "%s-%d" % (s, n), "{} {k}".format(n, k=s),
            s.split("e"), ",".join([s, "z"]), s[1:], s[0],
            "e" in s, len(s), s.replace("e", str(n)), s.startswith(("h", "x")), repr(s), str(n), s.encode(), s == "hey",
            ord(s[0]), chr(n + 65),
            "".join(reversed(s)), s.partition("e"), str(xs), repr((s, n)), "-".join(str(v) for v in xs), f"{x.dtype}",
            int("7"), float("1.5"))


def maths(x, n, s, xs):
    return (math.sqrt(n), math.floor(n / 2), math.ceil(1.5), math.pi, math.prod(xs), math.log(n), math.isinf(n),
            math.gcd(4, 6), math.fsum(xs), sum(xs),
            sum(xs, 1.0), max(xs), min(xs), sorted(xs, reverse=True), any(v > 2 for v in xs), all(xs), math.inf > n,
            sum([x, x]), max([1, 2], default=3),
            max([], default=n))


def lazy_result(x, n, s, xs):
    return n + 1, s + "!", xs[0] * 2, len(s), str(n), n > 1


def ranges(x, n, s, xs):
    total = x
    for i in range(n):
        total = total + i
    r = range(1, 10, 2)
    return (total, list(r), r[1], len(r), 3 in r, r[1:], list(reversed(r)), list(range(len(xs))), r == range(1, 10, 2),
            sum(range(n)), slice(1, n))


def iterators(x, n, s, xs):
    result = []
    for i, (a, b) in enumerate(zip(xs, s), 1):
        result.append((i, a, b))
    it = iter(xs)
    first = next(it)
    rest = list(it)
    for v in reversed(xs):
        x = x * v
    pairs = list(zip(*[iter(xs)] * 2))
    e = enumerate(xs)
    return (result, first, rest, x, pairs, next(it, "end"), next(e), list(e), tuple(zip(xs, range(2))),
            dict(enumerate(s)), [*zip(xs)], list(zip()))


def shared_iterator(x, n, s, xs):
    it = iter([x, x + 1, x + 2, x + 3, x + 4])
    first = [a for a, _ in zip(it, (1, 2))]
    return first, next(it), list(zip(it, it))


def list_grows_under_iterator(x, n, s, xs):
    a = [x]
    for v in a:
        if len(a) < 4:
            a.append(v + 1)
    it = iter(a)
    next(it)
    a.insert(0, 7)
    return a, next(it)


def exhausted(x, n, s, xs):
    it = iter(xs[:1])
    next(it)
    try:
        next(it)
    except StopIteration:
        return x + 1


def strict(x, n, s, xs):
    try:
        list(zip(xs, s[:1], strict=True))
    except ValueError as e:
        return str(e), x

def identity(x, n, s, xs):
    y = x
    f = len
    return (x is y, x is not xs, n is None, None is None, xs is xs, f is len, s is not None, x is None, type(n) is int,
            True is (n > 1), SimpleNamespace is None, xs == xs, x.dtype is torch.float32, x.dtype == torch.float32,
            torch.float32 != x.dtype, len == len, int != str)  # noqa: E721


def types_(x, n, s, xs):
    c = Child()
    return (isinstance(n, int), isinstance(n, (str, float)), isinstance(x, torch.Tensor), isinstance(c, Base),
            isinstance(c, int | Sized), issubclass(Child, Base),
            type(c).__name__, type(x) is torch.Tensor, isinstance(xs, list), isinstance(len, type(len)),
            issubclass(bool, int), type(xs)(s), isinstance(x, nn.Parameter),
            isinstance(None, type(None)), callable(c), isinstance(True, int))


def truth(x, n, s, xs):
    return (bool(xs), not s, bool(None), bool(Child()), xs or x, s and x, bool(0.0), bool(len), not Sized(),
            operator.truth(n), operator.not_(xs))


def functional(x, n, s, xs):
    p = functools.partial(pow, 2)
    q = functools.partial(p, n)
    add = functools.partial(torch.add, x, alpha=2)
    m = MethodType(lambda self, k: self + k, n)
    ns = SimpleNamespace(a=x, b=1)
    ns.c = ns.a + ns.b
    return (p(3), q(), add(x), m(4), ns, ns.c, functools.reduce(operator.add, xs),
            functools.reduce(lambda a, b: a * b, xs, x), operator.itemgetter(1)(xs),
            operator.itemgetter(0, 2)(xs), operator.attrgetter("dtype")(x), operator.methodcaller("upper")(s),
            sorted(xs, key=operator.neg),
            max(enumerate(xs), key=operator.itemgetter(1)), p.args, q.func)


def returned_partial(x, n, s, xs):
    return functools.partial(torch.add, x, alpha=n), SimpleNamespace(a=x)


PROGRAMS = [arithmetic, text, maths, lazy_result, ranges, iterators, shared_iterator, list_grows_under_iterator,
            exhausted, strict, identity, types_, truth,
            functional, returned_partial]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program) -> None:
    arguments = call(torch.ones(2), 3, "hey", [1.0, 2.0, 3.0])
    check(lambda: program, arguments, arguments)


def test_arithmetic_that_decides_nothing_is_not_guarded() -> None:
    check(lambda: lazy_result, call(torch.ones(2), 3, "hey", [1.0]), call(torch.ones(2), 4, "hello", [7.0]), captures=1)

    def counts(x, state):
        state["step"] += 1
        return x + 1
    check(lambda: counts, call(torch.ones(2), {"step": 0}), call(torch.ones(2), {"step": 41}), captures=1)


def test_none_is_told_from_any_number() -> None:
    def f(x, n):
        return x if n is None else x + 1
    check(lambda: f, call(torch.ones(2), 1), call(torch.ones(2), 2), call(torch.ones(2), None), captures=2)


def test_truth_of_a_number_is_not_its_value() -> None:
    def f(x, n):
        return x if n else x + 1
    check(lambda: f, call(torch.ones(2), 1), call(torch.ones(2), 2), call(torch.ones(2), 0), captures=2)


def test_type_of_a_number_is_not_its_value() -> None:
    def f(x, n):
        return x if isinstance(n, int) else x + 1
    check(lambda: f, call(torch.ones(2), 1), call(torch.ones(2), 2), call(torch.ones(2), 1.0), captures=2)


def test_distinct_arguments() -> None:
    def f(x, y):
        return x + 1 if x is y else x * y
    a = torch.ones(2)
    check(lambda: f, call(torch.ones(2), torch.ones(2)), call(a, a), call(torch.ones(2), torch.ones(2)), captures=2)
