"""Sorting by Python code: which items are compared, in which order, and what is left of a list where a comparison raises."""
from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capture.interp.polyfills import sorting
from tests.helpers import call, check

SIZES = [0, 1, 2, 3, 10, 63, 64, 65, 130, 300, 700]
X = torch.ones(2)


class Key:
    """Compares by a function of two numbers, which need not be an order, and notes each time."""

    def __init__(self, number: int, less: Callable[[int, int], Any], log: list[Any], most: float = math.inf) -> None:
        self.number, self.less, self.log, self.most = number, less, log, most

    def __lt__(self, other: Key) -> Any:
        self.log.append((self.number, other.number))
        if len(self.log) > self.most:
            raise KeyError(len(self.log))
        return self.less(self.number, other.number)


ORDERS: dict[str, Callable[[int, int], Any]] = {
    "total": lambda a, b: a < b, "coarse": lambda a, b: a // 7 < b // 7, "cyclic": lambda a, b: (b - a) % 11 < 5,
    "parts": lambda a, b: a & b == a and a != b, "none": lambda a, b: hash((a, b)) % 3 == 0, "never": lambda a, b: False}


def numbers(rng: random.Random, size: int) -> list[int]:
    """Runs of many lengths, ascending and descending."""
    length = rng.choice([1, 5, 40, size + 1])
    runs = [sorted((rng.randrange(2 * size + 1) for _ in range(length)), reverse=rng.random() < 0.3)
            for _ in range(size // length + 1)]
    return [number for run in runs for number in run][:size]


@pytest.mark.parametrize("size", SIZES)
def test_as_cpython_does(size: int) -> None:
    rng = random.Random(size)
    for name, less in ORDERS.items():
        for _ in range(6):
            given, reverse = numbers(rng, size), rng.random() < 0.4
            most = rng.randrange(1, 3 * size + 2) if rng.random() < 0.3 else math.inf
            logs: tuple[list[Any], list[Any]] = ([], [])
            expected, keys = ([Key(number, less, log, most) for number in given] for log in logs)
            order = list(range(size))
            outcomes = [attempt(lambda keys=expected, reverse=reverse: keys.sort(reverse=reverse)),
                        attempt(lambda keys=keys, order=order, reverse=reverse: sorting.merge_sort(order, keys, reverse))]
            assert outcomes[0] == outcomes[1] and logs[0] == logs[1], name
            assert [key.number for key in expected] == [keys[i].number for i in order]


def attempt(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except KeyError as error:
        return str(error)


PROGRAMS: list[Callable[[Any, Any, list[int]], Any]] = [
    lambda log, less, given: sorted([Key(n, less, log) for n in given], reverse=True),
    lambda log, less, given: sorted(given, key=functools.cmp_to_key(lambda a, b: -1 if less(a, b) else 1)),
    lambda log, less, given: sorted(map(set, [[1], [2], [1, 2], [0], [0, 1, 2]])),
    lambda log, less, given: sorted(given, key=lambda n: {n % 3, n % 5})]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ORDERS)
def test_captured(program: Any, name: str) -> None:
    def make():
        state = SimpleNamespace(log=[], given=numbers(random.Random(3), 20))
        return lambda x: (x + 1, [getattr(key, "number", key) for key in program(state.log, ORDERS[name], state.given)]), state
    check(make, call(X), call(X), lambda state: state.given.reverse(), call(X), captures=None)


@pytest.mark.parametrize("most", range(6))
def test_a_list_whose_sort_fails_keeps_all_items(most: int) -> None:
    def make():
        state = SimpleNamespace(log=[], items=[])
        state.items += [Key(number, ORDERS["total"], state.log, most) for number in (3, 1, 2)]

        def program(x):
            try:
                state.items.sort()
            except KeyError as error:
                return x, str(error), [key.number for key in state.items]
            return x + 1, [key.number for key in state.items]
        return program, state
    check(make, call(X), call(X), captures=None, fullgraph=False)
