"""Iterators of itertools that come from outside: what they yield is looked up ahead of them, and a hit moves them on."""
from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import call, check

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
