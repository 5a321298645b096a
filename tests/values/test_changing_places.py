"""Items of lists and dicts from outside that are stored, or looked up, at places which are others on each call: two captures."""
from __future__ import annotations

import copy
import types
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import nn

from tests.helpers import call, call_with, check

X = torch.arange(1.0, 5.0)


def world(program, **state):
    """A program over attributes of `state`."""
    def make():
        outside = types.SimpleNamespace(**copy.deepcopy(state))
        return lambda *args: program(outside, *args), outside
    return make


# --- lists that are written to

class Replay:
    """The memory of an agent: it grows to its capacity, then what is oldest is replaced."""

    def __init__(self, capacity):
        self.capacity, self.memory, self.position = capacity, [], 0

    def push(self, *item):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = item
        self.position = (self.position + 1) % self.capacity

    def __len__(self):
        return len(self.memory)


def test_a_replay_memory() -> None:
    def make():
        memory = Replay(6)

        def program(x):
            y = x * 2
            memory.push(x, y, len(memory))
            return y + len(memory)
        return program, memory
    stats = check(make, *(call(X * i) for i in range(20)), captures=None)
    assert stats.captures <= 4, stats       # while it grows, and when it is full


def test_a_ring_of_tensors() -> None:
    def program(state, x):
        old = state.ring[state.at % 4]
        state.ring[state.at % 4] = x + old
        state.at += 1
        return old * 2
    check(world(program, ring=[X + i for i in range(4)], at=0), *(call(X * i) for i in range(12)), captures=2)


def test_numbers_of_each_step() -> None:
    def program(state, x, step):
        loss = (x * step).mean()
        state.losses[step] = loss.item()
        state.rates[-step - 1] = 0.1 * step
        return loss
    check(world(program, losses=[0.0] * 20, rates=[0.0] * 20), *(call(X, step) for step in range(20)), captures=2)


def test_several_items_in_their_order() -> None:
    def program(state, x, i, j):
        state.items[i] = x
        state.items[j] = x * 2
        state.items[0] = "first"
        state.items.append(i)
        state.items[-1] = len(state.items)
        return x + 1, len(state.items), bool(state.items)
    steps = [call(X, i, j) for i, j in [(1, 2), (2, 1), (3, 3), (0, 0), (-1, 2), (2, -1), (-3, 0)]]
    stats = check(world(program, items=[0, 1, 2, 3]), *steps, captures=None)
    assert stats.captures <= 3, stats


@pytest.mark.parametrize("index", [7, -8, 1.0, True, "1", None], ids=repr)
def test_a_place_that_is_none(index) -> None:
    def program(state, x, i):
        state.items[i] = x
        return x + 1
    check(world(program, items=[0] * 5), *(call(X, i) for i in (0, 1, 2, index, 3, 4, index)), captures=None)


def test_a_list_that_becomes_shorter() -> None:
    def program(state, x, i):
        state.items[i] = x
        return x + 1
    check(world(program, items=[0] * 5), *(call(X, i) for i in (0, 4, 3)), lambda state: state.items.pop(),
          *(call(X, i) for i in (3, 4, -4, -5)), captures=None)


@pytest.mark.parametrize("read", [
    lambda items, i: items[i], lambda items, i: items[0], lambda items, i: items[-1], lambda items, i: list(items),
    lambda items, i: [item for item in items], lambda items, i: items[1:], lambda items, i: items.pop(),
    lambda items, i: sum(items), lambda items, i: items.insert(0, 1), lambda items, i: str(items),
    lambda items, i: print(items),
    lambda items, i: items + [1],
    lambda items, i: items.index(0), lambda items, i: items.extend([1]),
    lambda items, i: items.__setitem__(slice(0, 1), [5]),
    lambda items, i: items.clear() or items.extend([0] * 5), lambda items, i: items == [1], lambda items, i: max(items),
    lambda items, i: items.reverse(),
    lambda items, i: torch.tensor(items), lambda items, i: 0 in items, lambda items, i: items.__delitem__(0)], ids=lambda f: None)
def test_a_list_that_is_read_after_that(read) -> None:
    def program(state, x, i):
        state.items[i] = i + 10
        return x * 2, read(state.items, i), state.items
    stats = check(world(program, items=[0] * 5), *(call(X, i) for i in (0, 1, 2, 3, 1)), captures=None, fullgraph=False)
    assert not stats.native_calls and not stats.bailouts, stats


def test_a_list_that_may_be_another_one() -> None:
    def program(state, x, i):
        before = state.other[0]
        state.items[i] = i + 1
        return x * 2, before, state.other[0], state.other[1]

    def shared(state):
        state.other = state.items
    check(world(program, items=[0] * 4, other=[5] * 4), *(call(X, i) for i in range(3)), shared, call(X, 0), call(X, 1),
          captures=None, fullgraph=False)


def test_a_write_is_seen_by_what_follows_in_its_order() -> None:
    def program(state, x, i):
        print("before", state.items)
        state.items[i] = x.sum().item()
        state.log.append(i)
        return x
    check(world(program, items=[0] * 4, log=[]), *(call(X * i, i) for i in range(4)), captures=None, fullgraph=False)


# --- dicts that are looked into

@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda items: defaultdict(None, items)], ids=["dict", "ordered", "default"])
def test_a_key_that_changes(kind) -> None:
    def program(state, x, key):
        found = x * state.table[key] + state.table.get(key)
        return found, state.table.get(key * 2, 7), state.table.get(key * 3), key in state.table
    table = kind((f"k{i}", X * i) for i in range(12))
    check(world(program, table=table), *(call(X, f"k{i}") for i in range(12)), captures=2)


def test_a_key_that_is_not_always_there() -> None:
    def program(state, x, key):
        if key in state.table:
            return x * state.table[key]
        return x - 1, state.table.get(key), state.table.get(key, 5)
    stats = check(world(program, table={i: float(i) for i in range(0, 12, 3)}), *(call(X, i) for i in range(12)), captures=None)
    assert stats.captures <= 4, stats


def test_a_key_that_is_missing_raises() -> None:
    def program(state, x, key):
        return x * state.table[key]
    check(world(program, table={0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}), *(call(X, i) for i in (0, 1, 2, 9, 3, 9)), captures=None)


def test_counts_of_labels() -> None:
    def program(state, x, label):
        state.counts[label] = state.counts.get(label, 0) + 1
        return x + 1
    stats = check(world(program, counts={}), *(call(X, i % 5) for i in range(15)), captures=None)
    assert stats.captures <= 4, stats


def test_modules_by_a_number_and_by_a_name() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
            self.heads = nn.ModuleDict({f"task{i}": nn.Linear(4, 2) for i in range(5)})
            self.steps = 0

        def forward(self, x, task):
            self.steps += 1
            return self.heads[task](self.blocks[self.steps % 5](x)), self.blocks[-1](x)
    stats = check(Net, *(call(X, f"task{i % 5}") for i in range(15)), captures=None, backward=True)
    assert stats.captures <= 4, stats


def test_items_of_different_kinds() -> None:
    def program(state, x, key):
        item = state.table[key]
        return x * item if isinstance(item, float) else x + item.sum() if isinstance(item, torch.Tensor) else (x, item)
    check(world(program, table={0: 2.0, 1: X, 2: "name", 3: 3.0, 4: [1]}), *(call(X, i % 5) for i in range(15)), captures=None)


def test_a_dict_that_was_changed_before() -> None:
    def program(state, x, key):
        state.table["a"] = x
        return x + state.table[key]
    check(world(program, table={"a": X, "b": X * 2, "c": X * 3}), *(call(X, key) for key in "bcabca"), captures=None)


def test_a_dict_that_is_changed_afterwards() -> None:
    def program(state, x, key):
        old = state.table[key]
        state.table["a"] = old + x
        state.table[key] = x
        return old * 2
    table = {"a": X, "b": X * 2, "c": X * 3}
    check(world(program, table=table), *(call(X, key) for key in "bcabca"), captures=None, fullgraph=False)


def test_the_same_item_in_other_words() -> None:
    def program(state, x, key):
        first, second = state.table[key], state.table["b"]
        first.append(1)
        return first is second, len(second), x + 1
    check(world(program, table={"a": [], "b": [], "c": []}), *(call(X, key) for key in "abcbac"), captures=None)


class Key:
    """Equal to a number, as Python code says."""

    asked = 0

    def __hash__(self):
        return hash(2)

    def __eq__(self, other):
        Key.asked += 1
        return other == 2


def test_keys_that_python_code_compares() -> None:
    def make():
        Key.asked = 0
        table = {0: 1.0, Key(): 5.0, 1: 2.0}
        return lambda x, key: (x * table.get(key, 3.0), key in table), [table, Key]
    check(make, *(call(X, i) for i in (0, 1, 0, 3)), captures=None, fullgraph=False)


def test_what_was_just_stored_is_read_back() -> None:
    def program(state, x, key):
        state.table[f"{key}!"] = x * 2
        found = state.table[f"{key}!"]
        state.table[key] = found + 1
        return state.table.get(key), key in state.table, found
    check(world(program, table={}), *(call(X, f"k{i}") for i in range(8)), captures=2)


def test_another_key_than_what_was_just_stored() -> None:
    def program(state, x, key, other):
        state.table[key] = x * 2
        return state.table[other], other in state.table
    keys = ["ab", "cb", "bb", "bc", "cc", "ab", "bb"]
    check(world(program, table={"a": X, "b": X, "c": X}), *(call(X, *pair) for pair in keys), captures=None, fullgraph=False)


def test_a_dict_that_may_be_the_one_written_to() -> None:
    def program(state, x, key):
        state.one["a"] = x
        return x * state.other[key], key in state.other

    def shared(state):
        state.other = state.one
    table = {"a": X, "b": X * 2, "c": X * 3}
    check(world(program, one=dict(table), other=dict(table)), *(call(X, key) for key in "abc"), shared,
          *(call(X + 1, key) for key in "abca"), captures=None, fullgraph=False)


class Index:
    """An integer whose questions are counted."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __index__(self) -> int:
        self.asked.append("index")
        return 1

    def __hash__(self) -> int:
        self.asked.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def stored_and_dropped(x, key):
    names = {2: "a", "b": 3}
    names[key] = 1
    return x + 1


def made_and_dropped(x, key):
    return x + 1, {"a": 2, key: 1} and 3


def item_of_a_list(x, key):
    return x + OUTSIDE[key]


OUTSIDE = [1.0, 2.0, 3.0]


@pytest.mark.parametrize("program", [stored_and_dropped, made_and_dropped, item_of_a_list])
@pytest.mark.parametrize("other", [[1], slice(None), {}, "index", "b", 1.0, None, 2], ids=str)
def test_a_key_of_another_type(program, other) -> None:
    """Also one that no hit looks up, since the dict is gone by then: what cannot be hashed raises, Python code is asked."""
    def make():
        asked: list[str] = []
        return program, asked

    def with_other(state):
        return X, Index(state) if other == "index" else other
    keys = (0, 1, 2) if program is item_of_a_list else ("a", "c", "d")
    calls = [call(X, key) for key in keys for _ in range(2)]
    check(make, *calls, call_with(with_other), call_with(with_other), *calls, captures=None, fullgraph=False)
