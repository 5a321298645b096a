"""Iterators of itertools that come from outside: what they yield is looked up ahead of them, and a hit moves them on."""
from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check

pytestmark = pytest.mark.filterwarnings("error::DeprecationWarning")     # Python 3.12 has one for what 3.14 has not
X = torch.tensor([1.0, -2.0, 3.0])
BATCHES = [X, X + 1, X * 2]

MAKERS = {
    "cycle": lambda: itertools.cycle([1.0, 2.0, 3.0]),
    "cycle of tensors": lambda: itertools.cycle(BATCHES),
    "cycle of nothing": lambda: itertools.cycle([]),
    "cycle of an iterator": lambda: itertools.cycle(iter((1.0, 2.0))),
    "cycle of a slice": lambda: itertools.cycle(itertools.islice(itertools.count(1), 1, 5, 2)),
    "islice": lambda: itertools.islice([1.0, 2.0, 3.0, 4.0], 3),
    "islice with a step": lambda: itertools.islice(itertools.count(2), 1, None, 3),
    "islice of a cycle": lambda: itertools.islice(itertools.cycle([1.0, 2.0]), 5),
    "chain": lambda: itertools.chain([1.0], (2.0, 3.0), {4.0: 1}, range(2)),
    "chain of chains": lambda: itertools.chain(itertools.chain([1.0], []), itertools.repeat(2.0, 2)),
    "chain from a list": lambda: itertools.chain.from_iterable([[1.0, 2.0], [3.0]]),
    "repeat": lambda: itertools.repeat(X),
    "repeat twice": lambda: itertools.repeat(2.0, 2),
    "chain without end": lambda: itertools.chain.from_iterable(itertools.cycle([[1.0, 2.0], [3.0]])),
    "chain over a part of it": lambda: itertools.chain.from_iterable(itertools.islice(itertools.repeat([1.0, 2.0]), 3)),
    "zip": lambda: zip(itertools.cycle([1.0, 2.0]), itertools.count()),
    "enumerate": lambda: enumerate(itertools.chain([1.0, 2.0], [3.0]), 5),
}
PROGRAMS = {
    "next": lambda state, x: x * value(next(state.it)),
    "next or": lambda state, x: x * value(next(state.it, 7.0)),
    "twice": lambda state, x: (x * value(next(state.it, 2.0)), x + value(next(state.it, 3.0))),
    "loop": lambda state, x: loop(state.it, x),
    "slice": lambda state, x: [x * value(item) for item in itertools.islice(state.it, 2)],
    "together": lambda state, x: [x * value(item) + i for i, item in zip(range(2), state.it)],
    "stored": lambda state, x: setattr(state, "last", next(state.it, None)),
}


def value(item):
    return item[0] if isinstance(item, tuple) else item


def loop(iterator, x):
    total = x
    for count, item in enumerate(iterator):
        total = total + value(item)
        if count == 1:
            break
    return total


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_iterators_of_itertools(maker, program) -> None:
    def make():
        state = SimpleNamespace(it=maker())
        return (lambda x: program(state, x)), state
    check(make, call(X), call(X), call(X), lambda state: next(state.it, None), call(X), call(X), captures=None, fullgraph=False,
          breaks=0 if program is not PROGRAMS["next"] else None)


class Batches(nn.Module):
    """A module with a source of data of its own."""

    def __init__(self):
        super().__init__()
        self.source = itertools.cycle(BATCHES)

    def forward(self, x):
        return x + next(self.source)


def test_a_cycle_of_tensors_is_captured_once() -> None:
    def make():
        module = Batches()
        return module, module
    check(make, *[call(X)] * 7, captures=1)


def test_what_a_chain_walks_over_may_be_of_python() -> None:
    def make():
        state = SimpleNamespace(it=itertools.chain([1.0], (float(i) for i in range(3))))
        return (lambda x: x * next(state.it)), None
    check(make, *[call(X)] * 3, captures=None, breaks=None, fullgraph=False)


# Iterators over one and the same iterator: what one takes, the others do not find.
SHARED = {
    "zip": lambda it: zip(it, it), "zip of zips": lambda it: zip(zip(it, it), it), "enumerate": lambda it: zip(it, enumerate(it)),
    "slices": lambda it: zip(itertools.islice(it, 4), it), "chain": lambda it: itertools.chain(zip(it, it), it),
    "cycle": lambda it: itertools.cycle(zip(it, it)), "chain over what it walks over": lambda it: chain_over_itself(it),
}


def chain_over_itself(items):
    outer = iter([items, items])
    return zip(itertools.chain.from_iterable(outer), outer)


def leaves(item):
    return [leaf for part in item for leaf in leaves(part)] if isinstance(item, tuple) else [item]


@pytest.mark.parametrize("maker", SHARED.values(), ids=SHARED)
def test_iterators_that_share_what_they_walk_over(maker) -> None:
    def make():
        state = SimpleNamespace(it=maker(iter([torch.tensor(float(i)) for i in range(20)])))
        return (lambda x: [x + leaf for leaf in leaves(next(state.it, ())) if isinstance(leaf, (torch.Tensor, int))]), state
    check(make, *[call(X)] * 5, captures=None, breaks=None, fullgraph=False)


def test_parts_that_are_shared_only_later() -> None:
    def make():
        state = SimpleNamespace(it=zip(iter(BATCHES * 4), iter(BATCHES * 4)))
        return (lambda x: [x + leaf for leaf in next(state.it)]), state

    def share(state):
        items = iter(BATCHES * 4)
        state.it = zip(items, items)
    check(make, call(X), call(X), share, call(X), call(X), captures=None)


# Two iterators that are advanced in one call.
PAIRS = {
    "zip": lambda it: (zip(it), it), "enumerate": lambda it: (it, enumerate(it)),
    "one": lambda it: (it, it),
    "slices": lambda it: (itertools.islice(it, 12), itertools.islice(it, 10)),
    "chains": lambda it: (itertools.chain([], it), zip(it)),
    "apart": lambda it: (zip(it), itertools.cycle(BATCHES)),
}


@pytest.mark.parametrize("maker", PAIRS.values(), ids=PAIRS)
def test_two_iterators_that_share_what_they_walk_over(maker) -> None:
    def make():
        first, second = maker(iter(BATCHES * 6))
        state = SimpleNamespace(first=first, second=second)
        return (lambda x: (x + leaves(next(state.first))[-1], x - leaves(next(state.second))[-1])), state
    check(make, *[call(X)] * 4, captures=None, breaks=None, fullgraph=False)


@pytest.mark.parametrize("kind", [iter, zip, enumerate])
def test_two_iterators_that_come_to_share_what_they_walk_over(kind) -> None:
    def make():
        state = SimpleNamespace(first=kind(iter(BATCHES * 6)), second=iter(BATCHES * 6))
        return (lambda x: (x + leaves(next(state.first))[-1], x - leaves(next(state.second))[-1])), state

    def share(state):
        state.second = iter(BATCHES * 6)
        state.first = zip(state.second)
    check(make, call(X), call(X), share, call(X), call(X), call(X), captures=None, breaks=None, fullgraph=False)


# In any state: what is made on a hit is what the capture made.
MADE = {
    "cycle": lambda: itertools.cycle(BATCHES), "islice": lambda: itertools.islice(BATCHES * 3, 1, 8, 2),
    "islice without end": lambda: itertools.islice(itertools.cycle(BATCHES), 2, None),
    "product": lambda: itertools.product(BATCHES, "ab"),
    "product of nothing": lambda: itertools.product(BATCHES, []), "permutations": lambda: itertools.permutations(BATCHES, 2),
    "combinations": lambda: itertools.combinations(BATCHES, 2), "groupby": lambda: itertools.groupby([1, 1, 2, 3, 3], str),
    "replacement": lambda: itertools.combinations_with_replacement(BATCHES, 2), "chain": lambda: itertools.chain(BATCHES, [X - 1]),
    "repeat": lambda: itertools.repeat(X, 4), "zip_longest": lambda: itertools.zip_longest(BATCHES, [X]),
}


@pytest.mark.parametrize("taken", [0, 1, 2, 4, 11])
@pytest.mark.parametrize("maker", MADE.values(), ids=MADE)
def test_no_iterator_is_asked_for_what_python_3_14_has_not(maker, taken) -> None:
    state = SimpleNamespace(it=None)

    def program(x):
        state.it = maker()
        for _ in range(taken):
            next(state.it, None)
        return x + 1

    def rest(function):
        function(X)
        return type(state.it), [plain(item) for item in itertools.islice(state.it, 12)]
    compiled = capture.compile(program)
    assert [rest(compiled) for _ in range(3)] == [rest(program)] * 3
    assert capture.stats(compiled).hits == 2


def plain(item):
    """What tells an item: groups by what they hold."""
    if isinstance(item, torch.Tensor):
        return item.tolist()
    return [plain(part) for part in item] if isinstance(item, (tuple, itertools._grouper)) else item
