"""Flags, counters and pointers that tensors from outside hold are guarded as they are at entry."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.helpers import call, check

X = torch.linspace(-1.0, 1.0, 6).view(3, 2)


class InitialisedByData(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(2))
        self.register_buffer("initialised", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x):
        if self.initialised.item() == 0:
            self.loc.data.copy_(-x.mean(0))
            self.initialised.fill_(1)
        if not self.flag:
            self.flag = torch.tensor(True)
        return x + self.loc


def test_a_module_initialises_itself_by_its_first_call() -> None:
    calls = [call(X * i) for i in range(1, 5)]
    check(InitialisedByData, *calls, lambda module: module.initialised.zero_(), *calls, captures=3)


@pytest.mark.parametrize("read", [bool, int, lambda t: t.item(), lambda t: not t, lambda t: t.item() > 1,
                                  lambda t: 2 if t else 3, lambda t: [1, 2, 3][t], lambda t: ("a", "b", "c")[t],
                                  lambda t: [4, 5, 6][t.item()]])
@pytest.mark.parametrize("values", [[0, 1, 0, 2], [False, True, False, True]])
def test_each_way_is_a_trace(read, values) -> None:
    def program(x, t):
        return x * 2 if read(t) else x - 1, read(t)
    check(lambda: program, *(call(X, torch.tensor(value)) for value in values), captures=None)


def test_a_counter_becomes_a_number_that_changes() -> None:
    def program(x, n):
        return x * n.item(), x + int(n), n.item()
    check(lambda: program, *(call(X, torch.tensor(n)) for n in range(8)), captures=2)


def test_what_changes_too_often_decides_between_two_traces() -> None:
    def program(x, n):
        return x * 2, [str(i) for i in range(n.item())]
    stats = check(lambda: program, *(call(X, torch.tensor(n)) for n in range(6)), captures=None, fullgraph=False)
    assert stats.native_calls == 0 and stats.breaks


def test_what_the_trace_has_written_is_not_at_entry() -> None:
    def make():
        counter = torch.zeros(1, dtype=torch.int64)
        other = counter.view(1)

        def program(x):
            other.add_(1)
            return x * counter.item(), bool(counter), counter.item()
        return program, counter
    check(make, *[call(X)] * 4, captures=1)


def test_memory_that_comes_to_be_shared() -> None:
    def program(x, a, b):
        a.add_(1)
        return x * 2 if b.item() == 1 else x - 1
    a = torch.zeros(1, dtype=torch.int64)
    b = a.clone()
    check(lambda: program, call(X, a, b), call(X, a, a), call(X, a, b + 1), call(X, b, b), captures=None, fullgraph=False)


@pytest.mark.parametrize("change", [lambda t: t.to(torch.int32), lambda t: t.float(), lambda t: t.expand(2), lambda t: t.view(1, 1),
                                    lambda t: nn.Parameter(t.float(), False), lambda t: 1, lambda t: None])
def test_another_thing_at_that_place(change) -> None:
    def program(x, t):
        return (x * 2 if t == 1 else x) if t is None or type(t) is int or t.numel() > 1 else x - t.item() if t else x
    t = torch.tensor(1)
    check(lambda: program, call(X, t), call(X, change(t)), call(X, t), captures=None, fullgraph=False)
