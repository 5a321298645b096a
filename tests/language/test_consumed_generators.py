"""Generators that builtins consume: each item is used before the next one is made, and sets have the order of eager mode."""
from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.helpers import call, check


@pytest.mark.parametrize("items", [[1, 2, 3], [1, [], 3], list(range(40)), list(range(40, 0, -3)), [True, 1, 1.0],
                                   ["a", (1, 2), "a"], [1.5, "q", 3], [1.5, float("nan"), 10 ** 400, 2]])
@pytest.mark.parametrize("consume", [frozenset, set, math.fsum, frozenset({1, 9, 17, 33}).union, {1, 9, 17, 33}.union, sum, max])
def test_what_consumes_a_generator_takes_one_item_after_the_other(items: list, consume: Callable) -> None:
    def make():
        taken: list = []

        def yielded():
            for item in items:
                taken.append(item)
                yield item

        def program(x):
            y = x + 1
            try:
                found = consume(yielded())
            except (TypeError, OverflowError) as error:
                return y, str(error)
            return y, found, list(found) if isinstance(found, (set, frozenset)) else None
        return program, taken

    check(make, *[call(torch.ones(2))] * 3, captures=None, fullgraph=False)
