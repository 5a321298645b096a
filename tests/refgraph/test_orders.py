"""The order in which sets are iterated that a hit makes or changes: as in eager mode, since it is made in the same way."""
from __future__ import annotations

import itertools
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
