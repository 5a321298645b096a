"""Builtins that call Python code: special methods, iterables of Python, sorting by key, itertools."""
from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from capture.interp.core.registry import POLYFILLS, takes
from capture.interp.polyfills.protocols import hash_
from tests.helpers import call, check


class Vector:
    """Has most special methods, and knows who was called."""

    def __init__(self, *items):
        self.items = items

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self, other))) if isinstance(other, Vector) else NotImplemented

    def __radd__(self, other):
        return ("radd", other)

    def __iadd__(self, other):
        self.items = (*self.items, other)
        return self

    def __mul__(self, other):
        return Vector(*(a * other for a in self.items))

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.items, other.items))

    def __neg__(self):
        return Vector(*(-a for a in self.items))

    def __invert__(self):
        return "inverted"

    def __abs__(self):
        return 7

    def __divmod__(self, other):
        return "divmod", other

    def __pow__(self, other):
        return "pow", other

    def __eq__(self, other):
        return self.items == other.items if isinstance(other, Vector) else NotImplemented

    def __lt__(self, other):
        return self.items < other.items

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        yield from self.items

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, value):
        self.items = (*self.items[:i], value, *self.items[i + 1:])

    def __delitem__(self, i):
        self.items = (*self.items[:i], *self.items[i + 1:])

    def __contains__(self, item):
        return "yes" if item in (1, 2) else ""

    def __bool__(self):
        return self.items[0] == 1

    def __repr__(self):
        return f"Vector{self.items!r}"

    def __format__(self, spec):
        return f"<{spec}>"

    def __index__(self):
        return 1

    def __float__(self):
        return 2.5

    def __int__(self):
        return 3

    def __round__(self, ndigits=None):
        return "round", ndigits

    def __floor__(self):
        return "floor"

    def __reversed__(self):
        return iter(self.items[::-1])

    def __hash__(self):
        return 5

    def __call__(self, x):
        return x + self.items[0]


class Sub(Vector):
    def __radd__(self, other):
        return ("sub radd", other.items)


class Countdown:
    """An iterator, class-based."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Letters:
    """Iterated by index."""

    def __getitem__(self, i):
        return "abc"[i]

    def __len__(self):
        return 3


class MyInt(int):
    def __radd__(self, other):
        return "radd"


class Meta(type):
    def __instancecheck__(cls, instance):
        return instance == 1

    def __subclasscheck__(cls, other):
        return other is int

    def __getitem__(cls, i):
        return i

    def __len__(cls):
        return 4


class Odd(metaclass=Meta):
    pass


@functools.total_ordering
@dataclasses.dataclass
class Version:
    major: int
    minor: Any = 0

    def __lt__(self, other):
        return (self.major, self.minor) < (other.major, other.minor)


class Pair(NamedTuple):
    a: Any
    b: Any = 2


class Queue(collections.deque):
    pass


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mode(str, enum.Enum):
    TRAIN = "train"


def arithmetic(x, n, xs):
    v, w = Vector(1, x), Vector(2, x + 1)
    u = v + w
    s = v + Sub(3, 4)
    v += 5
    w += w
    try:
        v - w
    except TypeError as e:
        message = str(e)
    try:
        v + 1
    except TypeError as e:
        message += str(e)
    return (u.items, s, v.items, len(w), 1 + v, "s" + v, (v * 2).items, Vector(1, 2) @ Vector(3, 4), (-v).items, ~v,
            abs(v), divmod(v, 2), v ** 2, message,
            pow(v, 3), 1 + MyInt(2), MyInt(2) + 1, n + MyInt(1), x + 1)


def comparisons(x, n, xs):
    v = Vector(1, 2)
    results = [v == Vector(1, 2), v != Vector(1, 2), v == 1, v != 1, v < Vector(3, 0), Vector(3, 0) > v, 1 == v,
               sorted([Vector(2), Vector(1)])[0].items[0],
               max(Vector(2), Vector(3), Vector(1)).items, min([Vector(2), Vector(1)]).items[0], v in [Vector(1, 2)],
               [v] == [Vector(1, 2)],
               (1, v) != (1, Vector(1, 2)), {"a": v} == {"a": Vector(1, 2)}, [Vector(2)].index(Vector(2)),
               [v, v, 1].count(v), [Vector(1)] < [Vector(2)]]
    try:
        v <= v
    except TypeError as e:
        results.append(str(e))
    a, b = Version(1, 2), Version(2)
    return (results, a < b, a >= b, a == Version(1, 2), max(a, b), sorted([b, a]), x * a.minor, Size.SMALL < Size.LARGE,
            Size.SMALL + 1, Mode.TRAIN == "train", f"{Size.LARGE:d}")


def protocols(x, n, xs):
    v = Vector(1, 2, x)
    v[0] = 9
    del v[1]
    return (v.items, len(v), v[0], v[1], 1 in v, 3 in v, bool(v), not v, (1 if v else 2), [*v][0], str(v[0]),
            f"{v:spec}", repr(Vector(1)), str(Vector(2)), f"{Vector(3)!r}",
            int(v), float(v), operator.index(v), [10, 20][v], round(v), round(v, 1), math.floor(v), list(reversed(v)),
            hash(v), v(x), range(5)[v], Odd[3], len(Odd))


def iteration(x, n, xs):
    result = []
    for i in Countdown(3):
        result.append(i)
    for a, b in zip(Countdown(3), Letters()):
        result.append((a, b))
    first, *rest = Countdown(4)
    it = iter(Letters())
    return (result, first, rest, list(Letters()), tuple(Countdown(2)), dict(enumerate(Countdown(2))), set(Countdown(3)),
            sum(Countdown(4)), "a" in Letters(), next(it),
            next(it), next(it), next(it, None), sorted(Countdown(3)), list(enumerate(Letters(), 5)), max(Countdown(5)),
            list(reversed(Letters())), [*Countdown(2)],
            {*Countdown(2)}, 2 in Countdown(4), list(iter(iter([1, 2, 3]).__next__, 3)), ",".join(Letters()),
            list(map(str, Countdown(2))), x + sum(Countdown(3)))


def generators(x, n, xs):
    def count(k):
        while k:
            yield x * k
            k -= 1
    return (list(count(2)), tuple(count(1)), sum(count(3)), {str(i): t for i, t in enumerate(count(2))},
            [*count(1), *count(2)], list(zip(count(2), xs)), any(v > 1 for v in xs),
            all(v > 1 for v in xs), sum(v for v in xs), max(v for v in xs), ",".join(str(v) for v in xs),
            sorted(v for v in xs), dict((str(v), x) for v in xs),
            next(v for v in xs if v > 1), list(map(lambda a, b: a + b, xs, xs)), list(filter(None, [0, 1, x.dim()])),
            list(filter(lambda v: v > 1, xs)),
            functools.reduce(lambda a, b: a + b, count(3)), len(list(count(3))), min((v for v in ()), default=n),
            list(collections.deque(v for v in xs)))


def sorting(x, n, xs):
    pairs = [("b", 2), ("a", 2), ("c", 1)]
    pairs.sort(key=lambda p: p[1])
    words = sorted(["bb", "a", "ccc"], key=len, reverse=True)
    tensors = sorted([x + 1, x, x * 2], key=lambda t: t.shape[0])
    stable = sorted([(1, "x"), (0, "y"), (1, "a")], key=operator.itemgetter(0), reverse=True)
    return (pairs[0][0], pairs[1][0], words, tensors, stable[0][1], stable[1][1], sorted(xs, key=lambda v: -v),
            min(xs, key=lambda v: abs(v - 2)), max(words, key=len),
            sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
            max({"a": 1, "b": 3}.items(), key=lambda kv: kv[1])[0], sorted({"b": 1, "a": 2}))


def streams(x, n, xs):
    take = itertools.islice
    a, b = itertools.tee(xs)
    return (list(itertools.chain(xs, [x], "ab")), list(itertools.chain.from_iterable([[1], [x]])),
            list(take(itertools.count(3, 2), 3)), list(take(itertools.cycle("ab"), 5)),
            list(itertools.repeat(x, 2)), list(itertools.accumulate(xs)),
            list(itertools.accumulate(xs, operator.mul, initial=2)), list(take(xs, 1, None)),
            list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.takewhile(lambda v: v < 3, xs)),
            list(itertools.dropwhile(lambda v: v < 2, xs)),
            list(itertools.compress("abc", [1, 0, 1])), list(itertools.pairwise(xs)),
            list(itertools.zip_longest(xs, "a", fillvalue=x)),
            [p for p in itertools.product("ab", (1, x))], [c for c in itertools.combinations(xs, 2)],
            list(itertools.permutations("abc", 2))[-1],
            [(k, list(g)) for k, g in itertools.groupby("aabc")], list(itertools.filterfalse(lambda v: v > 1, xs)),
            list(a), list(b),
            list(itertools.combinations_with_replacement("ab", 2)), [p for p in itertools.product(range(2), repeat=2)])


def classes(x, n, xs):
    return (isinstance(1, Odd), isinstance(2, Odd), issubclass(int, Odd), isinstance(1, (str, Odd)),
            isinstance(x, Odd) if False else 0, Pair(x), Pair(x, 1).b,
            Pair(1) == (1, 2), repr(Pair(1)), Pair(x)._replace(b=3), isinstance(Pair(1), tuple), list(Size), Size(2),
            Size["SMALL"].name, Mode("train").value)


def in_containers(x, n, xs):
    ts = [x, x + 1]
    return x in ts, ts.index(ts[0]), ts == ts, [x] == ts, ts != [1], (x, 1) == (x,
        1), {"k": x} == {"k": x}, sum(ts), sum([[1], [x]], []), max([1, 2], [1, 3])


PROGRAMS = [arithmetic, comparisons, protocols, iteration, generators, sorting, streams, classes, in_containers]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program) -> None:
    arguments = call(torch.ones(2), 3, [1.0, 2.0, 3.0])
    check(lambda: program, arguments, arguments)


# Expressions of one variable, whose polyfills must fail as the builtins do.
FAILING = [
    lambda v: len(Sub) if v else 0, lambda v: sum(["a"], "") if v else 0, lambda v: sum([v, "a"]), lambda v: max([]),
    lambda v: min(()), lambda v: [].index(v), lambda v: collections.deque([Vector(1)]).index(v),
    lambda v: (Vector(1),).index(v), lambda v: Pair(Vector(1), 2).index(v), lambda v: Queue([Vector(1)]).index(v),
    lambda v: [v].remove(3), lambda v: next(iter([])), lambda v: int(object()), lambda v: Vector(1) < 2,
    lambda v: 1 - Vector(1), lambda v: dict([(1, 2, 3)]),
    lambda v: list(zip([1], [1, 2], strict=True)), lambda v: functools.reduce(operator.add, []),
    lambda v: list(map(5, [1])), lambda v: {}["a"], lambda v: (1, 2)[5],
    lambda v: {v: 1}[2], lambda v: {[]: 1}, lambda v: sorted([1, "a"]), lambda v: sorted([Version(1), "a"]),
    lambda v: iter(5), lambda v: len(5), lambda v: "a" in 5,
    lambda v: ",".join([1]), lambda v: ",".join(i for i in [1]), lambda v: isinstance(1, 5), lambda v: {1}.remove(2),
    lambda v: [1, 2][v + 0.5], lambda v: list(5), lambda v: dict(5),
    lambda v: Vector(1)["a"], lambda v: collections.deque().popleft(), lambda v: {}.popitem(), lambda v: [].pop(),
    lambda v: set().pop(), lambda v: enumerate(5),
    lambda v: zip(5), lambda v: reversed({1}), lambda v: round("a"), lambda v: int("x"), lambda v: -"a",
    lambda v: "a" + 1, lambda v: [1] + (2,), lambda v: len(1, 2),
    lambda v: operator.itemgetter(0)(), lambda v: operator.attrgetter("a")([v], v), lambda v: {}.setdefault(v, v, v),
    lambda v: {}.pop(v, v, v), lambda v: [].__init__(v, v), lambda v: property.__get__(v, v), lambda v: dict.pop(v, v)]


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("names", [(), ("nonsense",), ("key",), ("default", "start"), ("self",)])
def test_arguments_that_do_not_fit_are_for_the_builtin(count: int, names: tuple[str, ...]) -> None:
    for entries in POLYFILLS.values():
        for _, polyfill in entries:
            signature = inspect.signature(polyfill)
            try:
                empty_function(signature)(*range(count), **dict.fromkeys(names))
                expected = True
            except TypeError:
                expected = False
            assert takes(polyfill, count, names) == expected, (polyfill, signature)


def empty_function(signature: inspect.Signature) -> Callable[..., None]:
    """A function that takes what `signature` says. (`Signature.bind` is wrong about some arguments in Python 3.13.0.)"""
    parameters = [p.replace(annotation=p.empty, default=p.default if p.default is p.empty else None)
                  for p in signature.parameters.values()]
    return eval(f"lambda {str(signature.replace(parameters=parameters, return_annotation=signature.empty))[1:-1]}: None")


@pytest.mark.parametrize("number", range(len(FAILING)))
def test_errors_are_the_builtins_own(number: int) -> None:
    failing = FAILING[number]

    def program(x, v):
        try:
            return failing(v)
        except Exception as e:
            return type(e), str(e), x + 1
    check(lambda: program, call(torch.ones(2), 1), captures=None, fullgraph=False)


@pytest.mark.parametrize("number", [0, -1, -2, 2**61 - 1, 2**61, 2**63 - 1, -2**63, 2**63, 2**70], ids=str)
def test_hash_takes_a_word_as_it_is(number: int) -> None:
    class Hashed:
        def __hash__(self):
            return number

    obj = Hashed()
    assert hash_(obj) == hash(obj)


def test_errors_of_operators_name_classes_of_c_by_their_modules() -> None:
    import fractions

    def program(x):
        said = []
        for other in (torch.Generator, types.SimpleNamespace, fractions.Fraction):
            for function in (operator.add, operator.iadd, operator.lt):
                try:
                    function(fractions.Fraction(1, 2), other())
                except TypeError as error:
                    said.append(str(error))
        return x + 1, said
    check(lambda: program, call(torch.ones(2)), call(torch.ones(2)), captures=None, fullgraph=False)


@pytest.mark.parametrize("invert", [lambda v: ~v, lambda v: v.__invert__(), lambda v: [1, 2, 3, 4][~v], lambda v: v and ~v])
def test_an_inverted_bool_warns_on_each_call(invert: Callable[[Any], Any]) -> None:
    """Since Python 3.12; an int does not."""
    steps = [call(torch.ones(2), v) for v in (True, True, 1, 1, False, False, True, 0, 1)]
    check(lambda: lambda x, v: (x + 1, invert(v)), *steps, captures=None)
