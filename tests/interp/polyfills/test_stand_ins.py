"""Iterators and other objects of C in whose place there are ones of ours, which call Python code: they are told by nothing."""
from __future__ import annotations

import copy
import functools
import gc
import hashlib
import itertools
import operator
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, check
from tests.interp.worlds import interpreted, natively, observe

DATA = [3, 1, 2, 2, 5]
MAKERS = [
    lambda: map(str, DATA), lambda: map(pow, DATA, DATA), lambda: filter(lambda x: x > 1, DATA), lambda: filter(None, [0, *DATA]),
    lambda: zip(map(str, DATA), "ab"), lambda: zip(map(str, DATA), DATA, strict=True), lambda: enumerate(map(str, DATA), 3),
    lambda: itertools.count(3), lambda: itertools.count(2.5, -1), lambda: itertools.cycle("abc"), lambda: itertools.cycle([]),
    lambda: itertools.repeat("x", 3), lambda: itertools.repeat(1), lambda: itertools.repeat(1, -3),
    lambda: itertools.chain("ab", DATA), lambda: itertools.chain.from_iterable(["ab", DATA]), lambda: itertools.accumulate(DATA),
    lambda: itertools.accumulate(DATA, max, initial=2), lambda: itertools.accumulate([None, 1], lambda a, b: b),
    lambda: itertools.islice(DATA, 3), lambda: itertools.islice(DATA, 1, None, 2), lambda: itertools.islice(DATA, 2, 2),
    lambda: itertools.starmap(pow, [(2, 3), [3, 2]]), lambda: itertools.takewhile(lambda x: x != 2, DATA),
    lambda: itertools.dropwhile(lambda x: x != 2, DATA), lambda: itertools.filterfalse(lambda x: x > 1, DATA),
    lambda: itertools.compress("abcde", [1, 0, 1, 1]), lambda: itertools.zip_longest("abc", DATA, fillvalue=0),
    lambda: itertools.product("ab", [1, 2]), lambda: itertools.product("ab", repeat=2), lambda: itertools.product(),
    lambda: itertools.product("", "a"), lambda: itertools.permutations("abc", 2), lambda: itertools.permutations("abc"),
    lambda: itertools.combinations("abcd", 3), lambda: itertools.combinations("ab", 3),
    lambda: itertools.combinations_with_replacement("abc", 2), lambda: itertools.tee("abcd")[1],
]


def steps_of(make):
    """What is seen of an iterator on its way: its class, its text, how it is copied, and what copies have left."""
    def program(log):
        iterator = make()
        for _ in range(6):
            log.append((type(iterator), iterator.__class__, isinstance(iterator, Iterator), iter(iterator) is iterator))
            if type(iterator).__repr__ is not object.__repr__:
                log.append(repr(iterator))
            twin = copy.deepcopy(iterator)
            log.append((type(twin), list(itertools.islice(twin, 4)), operator.length_hint(iterator, -1)))
            log.append(next(iterator, "end"))
        return log
    return program


@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_iterators_have_no_initializer_of_their_own(number: int) -> None:
    def program(log):
        iterator = MAKERS[number]()
        next(iterator, None)
        for given, named in (((), {}), ((1,), {}), ((1, 2, 3), {}), ((), {"step": 1})):
            log.append((iterator.__init__(*given, **named), object.__init__(iterator, *given, **named)))
        return [*log, *itertools.islice(iterator, 5)]

    assert observe(interpreted, program) == observe(natively, program)


@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_iterators_are_told_by_nothing(number: int) -> None:
    program = steps_of(MAKERS[number])
    assert observe(interpreted, program) == observe(natively, program)


@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_native_code_meets_the_same(number: int) -> None:
    def program(log):
        iterator = MAKERS[number]()
        next(iterator, None)
        return iterator

    def seen(iterator):
        twins = copy.deepcopy(iterator), copy.deepcopy(iterator)
        copied = [(type(twin), list(itertools.islice(twin, 4))) for twin in twins]
        return iterator.__class__, copied, list(itertools.islice(iterator, 4))
    assert seen(interpreted(program, [])) == seen(natively(program, []))


def noted(log, name, items):
    for item in items:
        log.append((name, item))
        yield item


def groups_as_they_come(log):
    groups = itertools.groupby(noted(log, "item", "aabbc"), key=lambda x: log.append(("key", x)) or x)
    for key, group in groups:
        log.append((key, next(group)))
    first, last = itertools.groupby("aab"), itertools.groupby("aab")
    _, group = next(first)
    next(first)
    return list(group), [(key, list(group)) for key, group in last]


def copies_share_what_was_taken(log):
    a, b, c = itertools.tee(noted(log, "item", range(4)), 3)
    log += [next(a), next(a), next(b)]
    d = copy.copy(a)
    return list(d), list(b), list(a), list(c), itertools.tee(a, 0), [type(x) for x in itertools.tee(a)]


def nothing_is_taken_ahead(log):
    pairs = itertools.product(range(1000), repeat=20)
    orders = itertools.permutations(range(50))
    zipped = zip(noted(log, "left", "ab"), noted(log, "right", "a"))
    return next(pairs), next(orders), list(zipped), list(itertools.islice(noted(log, "sliced", range(9)), 1, 4, 2))


def failing_at_once(log):
    for make in (lambda: map(str, 5), lambda: itertools.accumulate(5), lambda: itertools.cycle(5), lambda: itertools.islice([], -1),
                 lambda: itertools.islice([], 1, "a"), lambda: itertools.islice([], 1, 2, 0), lambda: itertools.repeat(1, "a"),
                 lambda: itertools.count("a"), lambda: itertools.groupby(5), lambda: itertools.zip_longest(5),
                 lambda: itertools.combinations("ab", -1), lambda: zip(map(str, "a"), 5), lambda: itertools.pairwise(5),
                 lambda: itertools.tee([], -1), lambda: itertools.chain().__setstate__(5), lambda: itertools.product(5),
                 lambda: next(itertools.chain(5)), lambda: list(zip(map(str, "ab"), "a", strict=True)), lambda: map(str)):
        try:
            log.append(make())
        except Exception as error:
            log.append((type(error), str(error)))


def other_objects(log):
    @functools.lru_cache(maxsize=2)
    def cached(x):
        log.append(x)
        return x
    digest = hashlib.sha256(b"abc")
    reverse = functools.cmp_to_key(lambda a, b: b - a)
    log += [type(cached), type(digest), isinstance(digest, type(hashlib.md5())), digest.hexdigest(), copy.copy(cached) is cached,
            type(reverse(1))]
    log += [cached(1), cached(1.0), cached(True), cached(1), cached.cache_info(), cached.cache_parameters(), cached.__wrapped__(5)]
    return reverse(1) > reverse(2), reverse(1) == reverse(1), sorted(DATA, key=reverse), vars(cached).keys()


@pytest.mark.parametrize("program",
                         [groups_as_they_come, copies_share_what_was_taken, nothing_is_taken_ahead, failing_at_once, other_objects],
                         ids=lambda f: f.__name__)
def test_programs(program) -> None:
    assert observe(interpreted, program) == observe(natively, program)


def weak_references(log):
    objects = [map(str, DATA), zip(map(str, DATA)), itertools.count(1), itertools.tee(DATA)[0], functools.cmp_to_key(pow)(1),
               hashlib.sha256(), functools.lru_cache(str), iter(str, "")]
    for each in objects:
        for refer in (weakref.ref, weakref.proxy, weakref.WeakSet().add, lambda each: weakref.WeakValueDictionary(a=each)):
            try:
                log.append(refer(each) is None)
            except TypeError as error:
                log.append(str(error))


def test_weak_references() -> None:
    assert observe(interpreted, weak_references) == observe(natively, weak_references)


def test_one_graph() -> None:
    def program(x, n):
        wanted = filter(lambda t: t.ndim == 1, [x, x.sum()])
        numbered = enumerate(map(lambda t: t + n, wanted))
        choices = itertools.combinations([x, x * 2, x * 3], 2)
        first = next(choices)
        groups = [(k, sum(g)) for k, g in itertools.groupby([x, x + 1, x.sum()], key=lambda t: t.ndim)]
        return type(numbered), isinstance(wanted, filter), list(numbered), first, list(choices), groups
    check(lambda: program, call(torch.ones(2), 3), call(torch.ones(2), 3))


def test_iterators_outlive_the_call() -> None:
    def program(x):
        scaled = map(lambda t: t * 2, [x, x + 1])
        choices = itertools.permutations([x, 5], 2)
        return next(scaled), scaled, next(choices), choices

    def rest(x):
        first, scaled, chosen, choices = program(x)
        return first, list(scaled), chosen, list(choices)
    import capture
    compiled = capture.compile(program)
    for x in (torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)):
        first, scaled, chosen, choices = compiled(x)
        found, expected = (first, list(scaled), chosen, list(choices)), rest(x)
        assert str(found) == str(expected)


class Described:
    """Has special methods that are no functions."""

    @property
    def __len__(self):
        return lambda: 3

    @property
    def __eq__(self):
        return lambda other: "equal"

    @staticmethod
    def __add__(other):
        return "added", other

    @classmethod
    def __getitem__(cls, key):
        return cls, key


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__new__", "__module__"):
            return type.__getattribute__(cls, name)
        raise AssertionError(f"the class was asked for {name}")

    def __instancecheck__(cls, instance):
        raise AssertionError("the class was asked what its instances are")


class Guarded(metaclass=Meta):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __add__(self, other):
        return self.n + other

    def __iter__(self):
        return iter("ab")


def special_methods_are_bound_as_in_c(log):
    d, g = Described(), Guarded(2)
    return len(d), d == 1, d + 2, d[3], bool(d), len(g), g + 1, list(g), bool(g)


def test_special_methods() -> None:
    assert observe(interpreted, special_methods_are_bound_as_in_c) == observe(natively, special_methods_are_bound_as_in_c)


class Forbidden(list):
    __iter__ = __contains__ = __reversed__ = __len__ = __add__ = __eq__ = None


def methods_that_are_none(log):
    x = Forbidden("ab")
    for attempt in (lambda: list(x), lambda: 1 in x, lambda: reversed(x), lambda: len(x), lambda: x + [], lambda: x == [],
                    lambda: hash(x), lambda: [*x], lambda: iter(x), lambda: sorted(x)):
        try:
            log.append(attempt())
        except TypeError as error:
            log.append(str(error))


def test_methods_that_are_none() -> None:
    assert observe(interpreted, methods_that_are_none) == observe(natively, methods_that_are_none)


def zipped(noted):
    for _ in zip(noted("a"), range(2)):
        pass


def dropped(noted):
    pairs = zip(noted("a"), noted("b"))
    next(pairs)
    del pairs


def rebound(noted):
    items = map(lambda item: item, noted("a"))
    next(items)
    items = filter(None, items)
    items = list(itertools.islice(items, 1))


def of_itertools(noted):
    for item in itertools.chain(noted("a"), noted("b")):
        if item:
            break
    for _ in itertools.takewhile(lambda item: item < 1, noted("c")):
        pass
    for _ in enumerate(itertools.accumulate(noted("d"))):
        break


def used_up(noted):
    return len(list(zip(noted("a"), noted("b"), strict=True)))


@pytest.mark.parametrize("use", [zipped, dropped, rebound, of_itertools, used_up], ids=lambda f: f.__name__)
def test_what_an_iterator_holds_dies_with_it(use) -> None:
    """Generators run their `finally` then, before what the program does next; without the garbage collector."""
    def make():
        log = []

        def noted(name):
            try:
                yield from range(4)
            finally:
                log.append(f"{name} ends")

        def program(x):
            use(noted)
            log.append("after")
            return x + 1
        return program, log
    enabled = gc.isenabled()
    gc.disable()
    try:
        check(make, call(torch.ones(2)), call(torch.ones(2)))
    finally:
        if enabled:
            gc.enable()


class Rows:
    """A sequence by `__getitem__` alone."""

    def __init__(self):
        self.rows = [1.0, 2.0]

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return len(self.rows)


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("new", [iter, reversed, enumerate, lambda r: map(lambda v: v * 2, r), lambda r: zip(r, [5, 6]),
                                 lambda r: filter(lambda v: v > 1, r), lambda r: iter(r.rows.copy().pop, 1.0)])
def test_one_that_is_kept_is_compared_by_what_it_has_left(new, steps) -> None:
    def make():
        state = SimpleNamespace(kept=None, rows=Rows())

        def program(x):
            state.kept = new(state.rows)
            for _ in range(steps):
                x = x + (next(state.kept, None) is None)
            return x, state.kept
        return program, state
    x = torch.ones(2)
    check(make, call(x), call(x), lambda state: next(state.kept, None), call(x), captures=None, fullgraph=False)
