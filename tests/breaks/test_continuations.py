"""Programs that are cut in calls, loops and expressions, and go on in a continuation."""
from __future__ import annotations

import pytest
import torch

from tests.breaks.cuts import Cuts, outside, run

CUTS = Cuts()


# -- where a break stands ----------------------------------------------------------------------------------------------

@CUTS.add()
def at_the_top(x):
    y = x * 2
    k = outside(3, y)
    return y * k, y, x


@CUTS.add()
def one_call_deep(x):
    def inner(t):
        t = t + 1
        k = outside(2, t)
        return t * k
    return inner(x * 2) - 1


@CUTS.add()
def three_calls_deep(x):
    def first(t, scale):
        u = second(t * scale)
        return u, scale

    def second(t):
        before = t + 1
        return before, third(t, key=before)

    def third(t, *, key):
        return outside(t * 2, key) + key
    return first(x, 3.0)


@CUTS.add(2)
def twice_in_one_expression(x):
    return [x, outside(2), x + 1, {"k": outside(3), "x": x}]


@CUTS.add(2)
def in_caller_and_callee(x):
    def inner(t):
        return outside(t + 1)
    y = inner(x)
    z = outside(y * 2)
    return y, z


@CUTS.add()
def the_result_is_thrown_away(x):
    y = x.exp()
    outside(None, y)
    return y


@CUTS.add()
def as_the_last_thing(x):
    return outside(x * 2)


# -- loops -------------------------------------------------------------------------------------------------------------

@CUTS.add(3, captures=3)
def for_over_a_list(x):
    for item in [1, 2, 3]:
        x = x * outside(2, item)
    return x


@CUTS.add(4, captures=4)         # `total` is a number first
def for_over_a_tuple_of_tensors(x):
    total = 0
    for item in (x, x + 1, x * 2, x - 1):
        total = total + outside(item, 1)
    return total


@CUTS.add(5, captures=3)
def for_over_a_range(x):
    for i in range(5):
        x = x + outside(1.0, i)
    return x


@CUTS.add(3, captures=3)
def for_over_a_dict(x):
    seen = []
    for key in {"a": 1, "b": 2, "c": 3}:
        seen.append(outside(key))
    return x * 2, seen


@CUTS.add(3, captures=3)
def for_over_items(x):
    state = {"a": x, "b": x + 1, "c": x * 2}
    total = []
    for key, value in state.items():
        total.append((key, outside(value) * 2))
    return total


@CUTS.add(3, captures=3)
def for_over_values(x):
    total = []
    for value in {"a": x, "b": x + 1, "c": x * 2}.values():
        total.append(outside(value) * 2)
    return total


@CUTS.add(3, captures=3)
def for_over_enumerate(x):
    total = []
    for i, value in enumerate([x, x + 1, x * 2], start=5):
        total.append((i, outside(value) + 1))
    return total


@CUTS.add(3, captures=3)
def for_over_zip(x):
    total = []
    for a, b, c in zip([x, x + 1, x * 2], (1, 2, 3), "abc"):
        total.append((outside(a), b, c))
    return total


@CUTS.add(3, captures=3)
def for_over_reversed(x):
    total = []
    for a in reversed([x, x + 1, x * 2]):
        total.append(outside(a) + 1)
    return total


@CUTS.add(3, captures=3)
def for_over_a_string(x):
    text = ""
    for letter in "abc":
        text += outside(letter)
    return x * 2, text


@CUTS.add(1, captures=2)
def for_over_a_set(x):
    for member in {7}:
        x = x * outside(2, member)
    return x


@CUTS.add(3, captures=4)
def for_over_rows(x):
    total = 0
    for row in torch.cat([x, x[:1]]):
        total = total + outside(row * 2)
    return total


@CUTS.add(4, captures=3)
def while_loop(x):
    n = 0
    while n < 4:
        x = x + outside(1.0, n)
        n += 1
    return x, n


@CUTS.add(6, captures=5)
def nested_loops_with_two_breaks(x):
    for i in range(2):
        x = outside(x + 1, i)
        for j in range(2):
            x = outside(x * 2, j)
    return x


@CUTS.add(3)
def loop_with_else_continue_and_break(x):
    for i in range(10):
        if i == 1:
            continue
        x = outside(x + 1, i)
        if i == 3:
            break
    else:
        x = x * 100
    return x


@CUTS.add(3)
def loop_else_is_reached(x):
    for i in range(3):
        x = outside(x + i)
    else:
        x = x * 100
    return x


@CUTS.add(2)
def the_iterable_is_broken(x):
    return [t * 2 for t in outside([x, x + 1])], [*outside((x,))]


@CUTS.add(3, captures=3)
def in_a_list_comprehension(x):
    k = 2
    return [outside(t) * k for t in (x, x + 1, x + 2)], k


@CUTS.add(2)
def in_a_dict_comprehension(x):
    return {name: outside(x + i) for i, name in enumerate("ab")}


@CUTS.add(2)
def in_the_condition_of_a_comprehension(x):
    return [t for t in (x, x * 2) if outside(True)]


@CUTS.add(4)
def in_a_nested_comprehension(x):
    return [[outside(x + i + j) for j in range(2)] for i in range(2)]


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_construct(program, options) -> None:
    run(program, options)
