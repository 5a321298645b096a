"""The order in which a fused program runs, beside a plain statement of the rule."""
from __future__ import annotations

import functools
import random
from collections.abc import Collection, Mapping, Sequence

import pytest
import torch

from capture.backends.native.cost import bytes_of
from capture.backends.native.dependencies import Order, bits
from capture.backends.native.index import Var, index
from capture.backends.native.ir import Buffer, Extern, Nest, Store, load, op
from capture.backends.native.ordering import in_order
from capture.backends.native.rewrite import reads, writes

from .programs import buffer, extern, whole


def summing(result: Buffer, args: Sequence[Buffer]) -> Nest:
    """A kernel of the first elements."""
    i = Var(f"i_{result.name}", 4)
    total = functools.reduce(lambda one, other: op("add", torch.float32, one, other), (load(arg, index(i)) for arg in args))
    return Nest(result.name, (i,), (), (Store(result.name, index(i), total),))


def random_body(choose: random.Random, count: int) -> tuple[list[Nest | Extern], dict[str, Buffer]]:
    """Statements that read some of what others wrote, of different sizes."""
    made = [buffer("x", 4, kind="input"), buffer("y", 40, kind="input")]
    body: list[Nest | Extern] = []
    for number in range(count):
        args = choose.sample(made, min(len(made), choose.randint(1, 3)))
        result = buffer(f"b{number}", choose.choice((4, 40, 400)))
        body.append(summing(result, args) if choose.random() < 0.7 else
                    extern(f"e{number}", "aten::cat", list(map(whole, args)), result))
        made.append(result)
    return body, {one.name: one for one in made}


def by_the_rule(body: Sequence[Nest | Extern], groups: Sequence[int], order: Order, buffers: Mapping[str, Buffer],
                kept: Collection[str], dying: Collection[str]) -> list[int]:
    """In the program's order, but that what frees more memory than it takes runs as soon as it can."""
    mentions = {group: set().union(*(reads(body[place]) | writes(body[place]) for place in bits(group))) for group in groups}
    there = {name for name, one in buffers.items() if one.kind == "input"}
    waiting, done, result = sorted(groups, key=lambda group: bits(group)[0]), 0, []

    def gain(group: int) -> int:
        others = set().union(*(mentions[other] for other in waiting if other != group))
        dead = {name for name in mentions[group] - others if name not in set(kept) - set(dying)}
        size = {name: bytes_of(buffers[name]) if name not in there or buffers[name].kind != "input" or name in dying else 0
                for name in mentions[group]}
        return sum(size[name] for name in dead & there) - sum(size[name] for name in mentions[group] - there - dead)
    while waiting:
        able = [group for group in waiting if all(not order.before[place] & ~done & ~group for place in bits(group))]
        chosen = next((group for group in able if isinstance(body[bits(group)[0]], Nest) and gain(group) > 0), able[0])
        result.append(chosen)
        there |= mentions[chosen]
        waiting.remove(chosen)
        done |= chosen
    return result


@pytest.mark.parametrize("seed", range(60))
def test_the_order_is_the_one_that_the_rule_gives(seed: int) -> None:
    choose = random.Random(seed)
    body, buffers = random_body(choose, 24)
    order = Order(body)
    groups = [1 << place for place in range(len(body))]
    for _ in range(choose.randint(0, 8)):
        left, right = choose.sample(groups, 2)
        if not order.between(left, right) and all(isinstance(body[place], Nest) for place in bits(left | right)):
            order.merge(left | right)
            groups = [group for group in groups if group not in (left, right)] + [left | right]
    kept = choose.sample(sorted(buffers), 4)
    dying = choose.sample(["x", "y"], choose.randint(0, 2))
    assert in_order(body, groups, order, buffers, kept, dying) == by_the_rule(body, groups, order, buffers, kept, dying)
