"""Equal keys that are not the same object: which of them a set or dict holds after a hit, is seen by `is` and by attributes."""
from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import capture
from tests.subclasses import Float, FrozenSet, Int, Str, Tuple

Pair = collections.namedtuple("Pair", "a b")


class Marked(Pair):
    """A tuple with attributes of its own."""


class Plain:
    def method(self) -> int:
        return 1


def marked(*parts: Any) -> Marked:
    made = Marked(*parts)
    made.mark = object()
    return made


owner, part = Plain(), Plain()
# Each family: ways to make objects that are equal, or that are not and may meet in one container.
FAMILIES: tuple[tuple[Callable[[], Any], ...], ...] = (
    (lambda: 1, lambda: True, lambda: 1.0, lambda: Int(1), lambda: Float(1), lambda: np.float64(1.0), lambda: np.int64(1),
     lambda: 2),
    (lambda: "a", lambda: Str("a"), lambda: np.str_("a"), lambda: "b"),
    (lambda: (1, "a"), lambda: Pair(1, "a"), lambda: marked(1, "a"), lambda: Tuple((1, "a")), lambda: (True, "a"),
     lambda: Pair(1.0, "a"), lambda: (2, "a")),
    (lambda: Pair(part, 1), lambda: (part, 1), lambda: Pair(part, True), lambda: marked(part, 1), lambda: Pair(owner, 1)),
    (lambda: owner.method, lambda: owner.method, lambda: types.MethodType(Plain.method, owner), lambda: part.method),
    (lambda: frozenset({1}), lambda: FrozenSet({1}), lambda: frozenset({True}), lambda: frozenset({2})),
)
SET = ("s.add({k})", "s.discard({k})", "s.remove({k})", "s.update([{k}])", "s |= {{{k}}}", "s -= {{{k}}}", "s ^= {{{k}}}",
       "s &= {{a, {k}}}", "found.append(s.pop())", "found.append({k} in s)", "found.extend(s)", "found.append({{{k}, c}})",
       "found.append(s | {{{k}}})", "found.append(frozenset([{k}]))", "found.append(s & {{{k}}})", "s.clear()")
DICT = ("d[{k}] = {v}", "found.append(d.pop({k}, None))", "found.append(d.setdefault({k}, {v}))", "del d[{k}]",
        "d.update({{{k}: {v}}})", "d |= {{{k}: {v}}}", "found.append(d.popitem())", "found.append(d.get({k}))", "found.extend(d)",
        "found.append({{{k}: {v}, c: 0}})", "found.append(dict.fromkeys([{k}, a]))", "found.extend(d.items())",
        "found.append(dict(d))", "found.append(set(d))", "d = dict([({k}, {v})])")
NEW = ("a", "b", "c", "a", "b", "c", "Pair(part, 1)", "Pair(1, 'a')", "owner.method")


def draw(number: int) -> tuple[str, tuple[Callable[[], Any], ...], list[list[int]]]:
    """A program of a few statements on a set and a dict, a family of objects, and which of these each call is given: those of the
    first call again (made anew, so that it may hit), then others."""
    rng = random.Random(number)
    family = rng.choice(FAMILIES)
    lines = [rng.choice(SET + DICT).format(k=rng.choice(NEW), v=rng.randrange(9)) for _ in range(rng.randrange(1, 5))]
    body = "".join(f"\n        {line}" for line in lines)
    source = (f"def program(x, s, d, a, b, c):\n    found = []\n    try:{body}\n"
              "    except KeyError:\n        found.append('absent')\n    return x + 1, found, s, d\n")
    places = [rng.randrange(len(family)) for _ in range(5)]
    return source, family, [places, places, places, *([rng.randrange(len(family)) for _ in range(5)] for _ in range(3)), places]


def identities(value: Any, given: dict[int, str]) -> Any:
    """A value with the objects that the program was given by name, and tuples of plain numbers and text by value alone."""
    cls = type(value)
    if cls in (int, float, bool, str, type(None)) or cls is tuple and all(type(item) in (int, float, bool, str) for item in value):
        return cls.__name__, repr(value)
    if id(value) in given and cls is not types.MethodType and cls is not frozenset:
        return given[id(value)]
    if cls is types.MethodType:
        return "method", identities(value.__self__, given)
    if isinstance(value, (set, frozenset)):
        return cls.__name__, sorted((identities(item, given) for item in value), key=repr)
    if isinstance(value, dict):
        return cls.__name__, [(identities(key, given), identities(item, given)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return cls.__name__, [identities(item, given) for item in value]
    return cls.__name__, repr(value)


def call(program: Callable[..., Any], family: tuple[Callable[[], Any], ...], places: list[int]) -> Any:
    """What a call came to. The set and the dict hold an object of the family each."""
    held, kept, a, b, c = (family[place]() for place in places)
    given = {id(owner): "owner", id(part): "part"}
    for name, value in zip(("held", "kept", "a", "b", "c"), (held, kept, a, b, c)):
        given.setdefault(id(value), name)
    x, found, s, d = program(torch.ones(2), {held}, {kept: 7}, a, b, c)
    return x.tolist(), [identities(part, given) for part in (found, s, d)]


def differences(number: int) -> tuple[list[str], int]:
    """What calls of a program came to, where that is not what eager mode makes of them; and how many calls hit."""
    source, family, calls = draw(number)
    namespace = {"Pair": Pair, "owner": owner, "part": part}
    exec(source, namespace)
    compiled = capture.compile(namespace["program"])
    problems = []
    for round, places in enumerate(calls):
        found, expected = call(compiled, family, places), call(namespace["program"], family, places)
        if found != expected:
            problems.append(f"program {number}, call {round} with {places}: eager {expected}, captured {found}\n{source}")
    return problems, capture.stats(compiled).hits


def test_a_set_holds_the_tuple_it_was_given():
    s: set[Any] = set()

    @capture.compile(fullgraph=True)
    def program(x, a, b):
        s.add(a)
        s.discard(b)
        return x + 1

    for _ in range(3):
        s.clear()
        pair = marked("a", "b")
        program(torch.ones(2), pair, 2.0)
        assert next(iter(s)) is pair
    assert capture.stats(program).hits == 2


def test_a_dict_holds_the_tuple_it_was_given():
    d: dict[Any, int] = {}

    @capture.compile(fullgraph=True)
    def program(x, a):
        d[a] = 1
        return x + 1, {a: 2}

    for _ in range(3):
        d.clear()
        pair = marked("a", "b")
        _, made = program(torch.ones(2), pair)
        assert next(iter(d)) is pair and next(iter(made)) is pair
    assert capture.stats(program).hits == 2


def test_keys_read_of_a_container_are_those_that_it_holds_now():
    s: set[Any] = set()
    d: dict[Any, int] = {}

    @capture.compile(fullgraph=True)
    def program(x):
        return x + 1, list(d), list(s), s.pop(), d.popitem()

    for _ in range(3):
        s.clear()
        d.clear()
        first, second = marked(1, 2), marked(1, 2)
        s.add(first)
        d[second] = 1
        _, keys, members, popped, item = program(torch.ones(2))
        assert keys[0] is second and members[0] is first and popped is first and item[0] is second
    assert capture.stats(program).hits > 0


def test_a_key_made_of_new_objects_is_made_anew_on_each_hit():
    s: set[Any] = set()
    d: dict[Any, int] = {}

    @capture.compile(fullgraph=True)
    def program(x):
        one = Plain()
        d[Pair(one, 1)] = 1
        d[one.method] = 2
        d[frozenset({one})] = 3
        s.add(one.method)
        s.add(frozenset({one}))
        return x + 1, one

    seen = set()
    for _ in range(3):
        s.clear()
        d.clear()
        _, one = program(torch.ones(2))
        assert [key for key in d] == [Pair(one, 1), one.method, frozenset({one})]
        assert s == {one.method, frozenset({one})}
        seen.add(one)
    assert len(seen) == 3 and capture.stats(program).hits == 2


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_drawn_programs(start):
    found = [differences(number) for number in range(start, start + 20)]
    assert sum(hits for _, hits in found) > 10
    assert not [problem for problems, _ in found for problem in problems]
