"""Flags, counters and pointers that tensors from outside hold are guarded as they are at entry."""
from __future__ import annotations

from types import SimpleNamespace

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


class Flagged(nn.Module):
    """What is decided by follows from single numbers, of any type, that buffers hold."""

    def __init__(self, decide):
        super().__init__()
        self.register_buffer("flag", torch.tensor([0.0]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("limit", torch.tensor(3.0))
        self.decide = decide

    def forward(self, x):
        if self.decide(self):
            return x * 2 + self.flag
        return x - self.limit


@pytest.mark.parametrize("decide", [
    lambda m: not m.flag, lambda m: m.flag, lambda m: m.flag == 0, lambda m: m.flag.item() == 0,
    lambda m: (m.count < m.limit).all(),
    lambda m: float(m.flag) < 1, lambda m: bool(m.count == 0) and m.flag.sum() < 0.5,
    lambda m: torch.any(m.flag != 0), lambda m: (m.flag + torch.tensor([1.0])).item() == m.count.item() + 1])
def test_what_follows_from_numbers_that_tensors_hold_decides(decide) -> None:
    calls = [call(X * i) for i in range(1, 4)]
    check(lambda: Flagged(decide), *calls, lambda module: module.flag.fill_(1.0), *calls,
          lambda module: module.limit.fill_(0.5), *calls, lambda module: module.count.fill_(0), *calls, captures=None)


def test_a_flag_of_floats_is_two_traces() -> None:
    calls = [call(X * i) for i in range(1, 5)]
    check(lambda: Flagged(lambda m: m.flag == 0), *calls[:1], lambda module: module.flag.fill_(1.0), *calls,
          lambda module: module.flag.fill_(0.0), *calls, captures=2)


def test_the_truth_of_a_number_that_changes_is_one_trace() -> None:
    steps = [step for i in range(1, 9) for step in (lambda module, i=i: module.flag.fill_(i / 10), call(X))]
    check(lambda: Flagged(lambda m: m.flag), *steps, captures=1)


def test_numbers_that_change_decide_by_the_way_alone() -> None:
    steps = [step for i in range(8) for step in (lambda module, i=i: module.limit.fill_(i / 2), call(X))]
    check(lambda: Flagged(lambda m: m.limit > 1.2), *steps, captures=2)


def test_a_number_written_before_it_decides_is_not_at_entry() -> None:
    def make():
        total = torch.zeros(1)

        def program(x):
            before = total * 2
            total.add_(1)
            return x * 2 if total > 2 else x - 1, x + 1 if before < 3 else x
        return program, total
    check(make, *[call(X)] * 6, captures=None, fullgraph=False)


# -- numbers that the trace counts in tensors ---------------------------------------------------------------------------

def counting(dtype=torch.float32, start=0.0):
    def make():
        state = SimpleNamespace(step=torch.tensor(start, dtype=dtype), log=[])

        def program(x):
            state.step += 1
            number = state.step.item()
            correction = 1 - 0.9 ** number
            state.log.append(number)
            return (x / correction ** 0.5).addcmul_(x, x, value=-0.1 / correction), number
        return program, state
    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_counted_is_a_number_of_the_graph(dtype) -> None:
    """However often: one capture holds for all steps, and for a counter that is set or exchanged."""
    def exchange(state):
        state.step = torch.tensor(7.0, dtype=dtype)
    calls = call(X), call(X), call(X), lambda state: state.step.fill_(40), call(X), exchange, call(X), call(X)
    check(counting(dtype), *calls, captures=1, hits=5)


@pytest.mark.parametrize("start", [float(1 << 24), 0.1, 0.7, 1e30, float("inf")])
def test_it_is_rounded_as_torch_rounds_it(start) -> None:
    check(counting(start=start), call(X), call(X), lambda state: state.step.fill_(16777215), call(X), call(X), captures=1, hits=3)


def counted_twice(state):
    state.step += 1
    state.step += 1
    return state.step.item()


def written_behind_it(state):
    state.step.add_(1)
    state.step.mul_(2)
    return float(state.step)


def written_by_another_name(state):
    state.step += 1
    state.alias.mul_(3)
    return state.step.item()


def read_before_and_after(state):
    before = state.step.item()
    state.step += 2
    return before + state.step.item()


@pytest.mark.parametrize("count", [counted_twice, written_behind_it, written_by_another_name, read_before_and_after])
def test_what_else_is_written_to_a_counter(count) -> None:
    def make():
        step = torch.tensor([1.0])
        state = SimpleNamespace(step=step, alias=step.view(()))
        return lambda x: (x * count(state), state.step.sum() * 2), state
    check(make, call(X), call(X), lambda state: state.step.fill_(5), call(X), call(X), captures=None)


def test_counters_that_come_to_share_memory() -> None:
    def make():
        state = SimpleNamespace(left=torch.tensor(1.0), right=torch.tensor(1.0))

        def program(x):
            state.left += 1
            state.right += 1
            return x * state.left.item() - state.right.item() ** 2
        return program, state

    def share(state):
        state.right = state.left.view(())
    check(make, call(X), call(X), share, call(X), call(X), captures=2, hits=2)
