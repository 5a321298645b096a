"""The order in which sets are iterated that a hit makes or changes: as in eager mode, since it is made in the same way."""
from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import capture

X = torch.ones(2)
KINDS: list[type] = [int, str, float, bytes, list, dict, tuple, set, frozenset, complex]


def orders(found: Any) -> Any:
    """The orders of all sets among results."""
    if isinstance(found, (tuple, list)):
        return [orders(part) for part in found]
    return list(found) if isinstance(found, (set, frozenset)) else found


def agree(program: Callable[..., Any], *calls: Iterable[Any], captures: int | None = None) -> None:
    """Calls with lists of arguments, each of which is made anew for either world."""
    compiled = capture.compile(program, backend="eager")
    for make in calls:
        assert orders(compiled(X, *make())[1:]) == orders(program(X, *make())[1:])  # type: ignore[operator]
    if captures is not None:
        assert capture.stats(compiled).captures == captures


@pytest.mark.parametrize("numbers", list(itertools.permutations((0, 8, 16, 1))))
def test_a_set_is_made_of_what_it_was_made_of(numbers) -> None:
    def program(x, *numbers):
        return x + 1, set(numbers), {n for n in numbers}, {*numbers}, frozenset(numbers), {*numbers} | {24, 32}
    agree(program, *[lambda: numbers] * 3, captures=1)


def test_constants_are_added_one_by_one() -> None:
    def program(x):
        made = set()
        made.add(8)
        made.add(0)
        made.add(16)
        return x + 1, made, {8, 0, 16}, {0, 16, 8}, {16, 8, 0}
    agree(program, *[tuple] * 3, captures=1)


@pytest.mark.parametrize("number", range(2, 11))
def test_classes(number) -> None:
    def program(x, kinds):
        found = {kind for kind in kinds}
        return x + 1, found, set(found), frozenset(found), found | {type}, f"{found}"
    for kinds in (KINDS[:number], KINDS[:number][::-1]):
        agree(program, *[lambda: (kinds,)] * 3, captures=1)


def test_tables_of_any_size() -> None:
    def program(x, n):
        added = set()
        for i in range(n):
            added.add(i * 64 % 257)
        return x + 1, added, set(added), added | {1000}, added - {64}, added & set(range(100)), added ^ {0, 1, 2}
    for n in range(2, 24):
        agree(program, *[lambda: (n,)] * 2)


def test_a_set_that_has_shrunk() -> None:
    def program(x, n):
        found = set(range(n))
        for i in range(n):
            if i not in (5, 200):
                found.discard(i)
        return x + 1, found
    agree(program, *[lambda: (256,)] * 3)


def test_equal_sets_in_other_orders() -> None:
    def program(x, members):
        return x + 1, members | {1}, set(members), frozenset(members), members - {1}, [*(members | {1})]
    agree(program, *[lambda: ({8, 0},), lambda: ({0, 8},)] * 3)


def test_no_order_is_guarded_where_none_matters() -> None:
    def program(x, members):
        return x * len(members | {1}), 8 in set(members), (members | {1}) == {0, 1, 8}
    agree(program, *[lambda: ({8, 0},), lambda: ({0, 8},)] * 3, captures=1)


@pytest.mark.parametrize("name", ["update", "intersection_update", "difference_update", "symmetric_difference_update"])
@pytest.mark.parametrize("kind", [set, list, dict.fromkeys, tuple, frozenset])
def test_a_set_from_outside_takes_in_others(name, kind) -> None:
    def program(x, target, other):
        getattr(target, name)(other)
        return x + 1, target
    for other in ([64, 0, 128, 1, 9], [0, 64, 9, 128, 1]):
        agree(program, *[lambda: ({8, 0}, kind(other)), lambda: ({0, 8}, kind(other))] * 3)


@pytest.mark.parametrize("name", ["update", "intersection_update", "difference_update", "symmetric_difference_update"])
def test_a_set_is_its_own_operand(name) -> None:
    def program(x, target):
        getattr(target, name)(target)
        return x + 1, target
    agree(program, *[lambda: ({8, 0, 3},)] * 3, captures=1)


def test_what_is_added_to_sets_of_other_tables() -> None:
    def shrunk():
        found = set(range(100))
        for i in range(100):
            if i != 5:
                found.discard(i)
        return found

    def program(x, target):
        target.add(200)
        return x + 1, [*target], target
    agree(program, *[lambda: ({5},), lambda: (shrunk(),)] * 3)


def test_sets_that_are_shown() -> None:
    def program(x, kinds):
        found = {kind for kind in kinds}
        shown = f"{found} {frozenset(found)}", str(found)
        print(found)
        found.add(type)
        return x + 1, shown, found
    agree(program, *[lambda: (KINDS,)] * 3)


def test_a_frozen_set_that_the_call_makes_lives_on() -> None:
    def program(x, *numbers):
        return x + 1, frozenset(numbers), {frozenset(numbers): 1}
    agree(program, *[lambda: (3, 4)] * 3, captures=1)


def layout(found: set) -> Any:
    return list(found), capture._C.set_layout(found), capture._C.set_finger(found)


def grown(found: set) -> Any:
    """What becomes of a set that goes on to take in and give away members."""
    taken = [found.pop() for _ in range(len(found) // 2)]
    found |= {64, 1, "x", 2.5}
    return taken, list(found)


OPERATIONS: dict[str, Callable[[set, Any, Any], Any]] = {
    "add": lambda s, a, b: s.add(a), "discard": lambda s, a, b: s.discard(a), "pop": lambda s, a, b: s and s.pop(),
    "again": lambda s, a, b: s and s.add(s.pop()), "update": lambda s, a, b: s.update((a, b)),
    "ixor": lambda s, a, b: s.__ixor__({a, b}), "isub": lambda s, a, b: s.__isub__({a, b}),
    "iand": lambda s, a, b: s.__iand__({a, b, 8, 0}),
    "dict": lambda s, a, b: s.update({a: 1, b: 2}), "keys": lambda s, a, b: s.update({a: 1, b: 2}.keys()),
    "many": lambda s, a, b: s.update(range(20)), "clear": lambda s, a, b: s.clear()}
MADE: list[Callable[[set, Any, Any], set]] = [
    lambda s, a, b: set(s), lambda s, a, b: s | {a}, lambda s, a, b: s ^ {a, b}, lambda s, a, b: s - {b},
    lambda s, a, b: s & {a, b}, lambda s, a, b: s.copy(), lambda s, a, b: {a: 1}.keys() ^ s,
    lambda s, a, b: set({a: 1, b: 2, 8: 0, 16: 1, "q": 2, "r": 3})]


@pytest.mark.parametrize("seed", range(60))
def test_sets_lie_as_in_eager_mode(seed) -> None:
    """Sets from outside and made ones after random changes: their order, their tables, and what becomes of them later."""
    rng = random.Random(seed)
    members = [8, 0, 16, 3, "a", "b", "c", True, 24, 1.5, None]
    steps = [(rng.choice(list(OPERATIONS)), rng.choice(members), rng.choice(members)) for _ in range(rng.randrange(1, 9))]
    made = [(rng.choice(MADE), rng.choice(members), rng.choice(members)) for _ in range(3)]
    before = [(rng.choice(list(OPERATIONS)), rng.choice(members), rng.choice(members)) for _ in range(rng.randrange(6))]

    def program(x, s):
        own = {0, 8, 16}
        for name, a, b in steps:
            OPERATIONS[name](s, a, b)
            OPERATIONS[name](own, a, b)
        found = [make(rng_set, a, b) for make, a, b in made for rng_set in (s, own)]
        return x + 1, own, *found, frozenset(own) ^ {8}

    def outside():
        s = set(rng_members)
        for name, a, b in before:
            OPERATIONS[name](s, a, b)
        return s

    rng_members = rng.sample(members, rng.randrange(1, 6))
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    lasting = {engine: outside() for engine in (program, compiled)}
    for fresh in (True, True, False, False, False):
        seen = {}
        for engine in (program, compiled):
            s = outside() if fresh else lasting[engine]
            results = [s, *engine(X, s)[1:]]
            seen[engine] = [layout(r) for r in results], [grown(set(r) if isinstance(r, frozenset) else r) for r in results]
        assert seen[compiled] == seen[program]


class Keyed:
    """Hashed and compared in Python code, so that members meet in one slot, and equal others by what they hold."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return self.name % 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and other.name == self.name


@pytest.mark.parametrize("seed", range(40))
def test_sets_of_members_that_python_code_hashes(seed) -> None:
    """In the order of eager mode, and with its layout, whatever was added and taken out."""
    rng = random.Random(seed)
    steps = [(rng.choice(("add", "discard", "pop", "clear", "add", "add")), rng.randrange(8)) for _ in range(rng.randrange(1, 12))]

    def program(x, s, *members):
        own = {members[0], 8}
        for name, i in steps:
            for found in (s, own):
                if name in ("add", "discard"):
                    getattr(found, name)(members[i])
                elif name == "clear" or found:
                    getattr(found, name)()
        return x + 1, s, own, {*own, members[1]}, set(own), [getattr(m, "name", m) for m in own]

    compiled = capture.compile(program, backend="eager")
    members: list[Any] = [Keyed(number) for number in range(6)] + [0, "a"]
    for number in range(4):
        if number == 3:
            members[:6] = [Keyed(number) for number in range(6)]
        seen = []
        for engine in (program, compiled):
            _, *found, names = engine(X, {members[3], members[5], 1}, *members)
            seen.append(([layout(each) for each in found], names))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_is_laid_by_hashes_that_are_known(kind) -> None:
    """Members are not asked, neither where they lie as they lay nor where one has another hash than the others had."""
    class Unasked:
        __hash__ = __eq__ = None        # type: ignore[assignment]

    a, b = Unasked(), Unasked()
    lay = capture._C.lay_set
    for slots, order in (((5, 2), (b, a)), ((4, 3), (b, a))):       # no way leads to the second
        found = kind()
        lay(found, (a, b), slots, bytes(slot in slots for slot in range(8)), 0, (5, 5))
        assert tuple(found) == order and capture._C.candidates(found, 5) == [a, b]
