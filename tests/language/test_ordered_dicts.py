"""Equality of dicts that keep an order of their own, and of classes derived from these: on capture, on a hit, in another order."""
from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture


class Derived(OrderedDict[Any, Any]):
    pass


class Key:
    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


VALUE = torch.ones(1)
ITEMS: dict[str, Callable[[], list[Any]]] = {
    "numbers": lambda: [("a", 1), ("b", 2)], "tensors": lambda: [("a", 1), ("b", VALUE)],
    "keys in Python": lambda: [(Key(1), 1), (Key(2), VALUE)]}


@pytest.mark.parametrize("first, second", list(itertools.product((Derived, OrderedDict, dict), repeat=2)))
@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS)
def test_the_order_counts_between_two(first, second, items) -> None:
    def program(x, a, b):
        return x * 2, a == b, a != b, [a] == [b], a in [b]
    function = capture.compile(program)
    a, b, x = first(items()), second(items()), torch.ones(2)
    for turned in (None, None, a, None, b, None):
        if isinstance(turned, OrderedDict):
            turned.move_to_end(next(iter(turned)))
        assert function(x, a, b)[1:] == program(x, a, b)[1:]


def test_dicts_that_are_made_in_the_frame() -> None:
    def program(x):
        a, b = Derived(b=1, a=x), Derived(a=x, b=1)
        return a == b, a != b, a == OrderedDict(a=x, b=1), a == {"a": x, "b": 1}, {"a": x, "b": 1} == a, a == Derived(b=1, a=x)
    function, x = capture.compile(program), torch.ones(2)
    for _ in range(2):
        assert function(x) == program(x) == (False, True, False, True, True, True)
