"""The order of statements, as it is kept while they are merged."""
from __future__ import annotations

import itertools
import random

import pytest

from capture.backends.native.dependencies import Order, bits
from capture.backends.native.ir import Extern

from .programs import buffer, extern, whole


def random_body(choose: random.Random, count: int) -> list[Extern]:
    """Statements that read some of what others wrote, most often of the latest; some write over what there is."""
    made = [buffer("x", kind="input")]
    body = []
    for number in range(count):
        near = made[-4:] if choose.random() < 0.8 else made
        args = [whole(one) for one in choose.sample(near, min(len(near), choose.randint(1, 2)))]
        result = choose.choice(made[1:]) if len(made) > 1 and choose.random() < 0.2 else buffer(f"b{number}")
        body.append(extern(f"e{number}", "aten::add.Tensor", [*args, 1.0][:2], result))
        made += [result] * (result not in made)
    return body


def closed(before: list[set[int]]) -> list[set[int]]:
    """All that must come before, with what must come before that."""
    while True:
        grown = [mine.union(*(before[other] for other in mine)) for mine in before]
        if grown == before:
            return before
        before = grown


@pytest.mark.parametrize("seed", range(40))
def test_merging_keeps_all_that_follows(seed: int) -> None:
    """Beside the definition: the members of a group share all that comes before and after any of them."""
    choose = random.Random(seed)
    order = Order(random_body(choose, 18))
    before = [set(bits(mask)) for mask in order.before]
    assert before == closed(before)
    for place, other in itertools.product(range(len(before)), repeat=2):
        assert order.depends(place, other) == (other in before[place]) == bool(order.after[other] >> place & 1)
    groups = [1 << place for place in range(len(before))]
    for _ in range(12):
        left, right = choose.sample(groups, 2)
        if order.between(left, right):
            continue
        groups = [group for group in groups if group not in (left, right)] + [left | right]
        order.merge(left | right)
        members = set(bits(left | right))
        for place in members:
            before[place] |= members - {place}
        before = [mine - {place} for place, mine in enumerate(closed(before))]
        assert [set(bits(mask)) for mask in order.before] == before
        assert [set(bits(mask)) for mask in order.after] == [
            {later for later, mine in enumerate(before) if place in mine} for place in range(len(before))]
