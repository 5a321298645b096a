"""Lists from outside that grow from call to call: reading some items, or the length, costs a bounded number of captures."""
from __future__ import annotations

import copy
import random
import types

import pytest
import torch

from capture.interp.function_models.sequences import anchored
from tests.helpers import call, check

X = torch.arange(1.0, 5.0)


def world(program, items=5, **state):
    """A program over `state.items`: tensors, and what else it needs."""
    def make():
        outside = types.SimpleNamespace(items=[X + i for i in range(items)], **copy.deepcopy(state))
        return lambda x: program(outside, x), outside
    return make


def grow(state):
    state.items.append(X * len(state.items))


@pytest.mark.parametrize("places", [slice(-3, None), slice(-3, -1), slice(2), slice(1, 3), slice(-1, -4, -1), slice(2, None, -1),
                                    slice(-4, None, 2), slice(None, -3, -1), slice(3, 1), slice(-1, -3)], ids=str)
def test_a_slice_that_no_length_moves_is_one_capture(places) -> None:
    def program(state, x):
        picked = state.items[places]
        picked.append(x)
        return [item * 2 for item in picked], picked

    check(world(program), *[call(X), grow] * 4, captures=1)


@pytest.mark.parametrize("places", [slice(1, None), slice(None, -1), slice(None), slice(None, None, -1), slice(-9, None),
                                    slice(1, 9), slice(-3, 9)], ids=str)
def test_a_slice_that_depends_on_the_length_is_captured_for_each(places) -> None:
    def program(state, x):
        return [item * 2 for item in state.items[places]], x + 1

    check(world(program), *[call(X), grow] * 3, captures=3)


def test_the_end_of_a_list_that_the_call_makes_longer() -> None:
    def program(state, x):
        state.items.append(x)
        return torch.stack(state.items[-3:]).mean(0), state.items[-1] + state.items[-2]

    check(world(program), *[call(X * i) for i in range(5)], captures=1)


def test_a_slice_is_captured_again_when_an_item_of_it_is_missing() -> None:
    def program(state, x):
        return [item + x for item in state.items[-3:]]

    check(world(program), call(X), lambda state: state.items.__delitem__(slice(2, None)), call(X), grow, call(X), grow, call(X),
          captures=2)


def test_indices_are_those_of_every_list_that_has_such_items() -> None:
    numbers = random.Random(0)
    parts = [None, *range(-4, 5)]
    found = 0
    for _ in range(3000):
        places = slice(numbers.choice(parts), numbers.choice(parts), numbers.choice([None, 1, 2, 3, -1, -2]))
        indices = anchored(places)
        if indices is None:
            continue
        found += 1
        for length in range(12):
            items = list(range(length))
            if all(-length <= index < length for index in indices):
                assert items[places] == [items[index] for index in indices], (places, length)
    assert found > 500


def test_a_length_that_changes() -> None:
    def program(state, x):
        state.seen = len(state.items)
        return x * len(state.items), f"{len(state.items)} items"

    check(world(program), *[call(X), grow] * 5, captures=2)


def test_a_length_after_items_were_added() -> None:
    def program(state, x):
        before = len(state.items)
        state.items.append(x)
        return x + 1, before, len(state.items), len(state.items) - before

    check(world(program), *[call(X)] * 5, captures=2)


def test_what_is_decided_by_a_length_is_a_capture_for_each_way() -> None:
    def program(state, x):
        if len(state.items) % 3 == 0:
            return x + 1
        return x - 1 if len(state.items) > 9 else x * 2

    stats = check(world(program), *[call(X), grow] * 10, captures=None)
    assert stats.captures == 4, stats.misses          # the first fixed the length


def test_a_length_of_a_list_that_is_written_to() -> None:
    def program(state, x):
        before = len(state.items)
        state.items.pop(0)
        return x + 1, before, len(state.items)

    check(world(program), call(X), grow, call(X), grow, grow, call(X), captures=None)


def test_a_length_of_what_comes_to_be_the_list_written_to() -> None:
    def program(state, x):
        state.items.append(x)
        return x + 1, len(state.others)

    def shared(state):
        state.others = state.items

    check(world(program, others=[1]), call(X), lambda state: state.others.append(2), call(X), call(X), shared, call(X), call(X),
          captures=None)


def test_an_index_that_changes_picks_tensors_that_are_alike() -> None:
    def program(state, x):
        state.at = (state.at + 1) % len(state.items)
        return x * state.items[state.at] + state.items[-state.at]

    check(world(program, at=0), *[call(X)] * 12, captures=2)


def test_an_index_that_changes_and_the_last_item_in_other_words() -> None:
    def program(state, x):
        state.at = (state.at + 1) % 4
        first, second = state.items[state.at], state.items[1]
        return first is second, first + second + x

    stats = check(world(program, at=0), *[call(X)] * 12, captures=None)
    assert stats.captures <= 4, stats.misses


def test_an_index_past_the_end() -> None:
    def program(state, x):
        state.at += 1
        return x + state.items[state.at]

    check(world(program, at=0), *[call(X)] * 7, captures=None)


def test_an_index_that_changes_picks_different_kinds() -> None:
    def program(state, x):
        state.at = (state.at + 1) % 3
        item = state.kinds[state.at]
        return x * item if isinstance(item, float) else x + item.sum() if isinstance(item, torch.Tensor) else (x, item)

    check(world(program, at=0, kinds=[2.0, X, "name"]), *[call(X)] * 9, captures=None)


def test_an_index_into_a_list_that_was_changed() -> None:
    def program(state, x):
        state.at = (state.at + 1) % 3
        state.items[0] = x
        return x + state.items[state.at]

    check(world(program, at=0), *[call(X * i) for i in range(8)], captures=None)


def test_an_item_at_a_changing_index_is_written_to() -> None:
    def program(state, x):
        state.at = (state.at + 1) % 4
        state.items[state.at].add_(x)
        return state.items[1] * 2

    check(world(program, at=0), *[call(X * i) for i in range(9)], captures=None)
