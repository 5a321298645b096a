"""What follows from numbers that tensors from outside held at entry decides: the truth is guarded, whatever the numbers are."""
from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tests.helpers import call, call_with, check

X = torch.linspace(-1.0, 1.0, 6).view(3, 2)
CALLS = [call(X * i) for i in range(1, 10)]


class Counting(nn.Module):
    """`decide(self)` moves counters on, and says which way to go."""

    def __init__(self, decide, **buffers):
        super().__init__()
        for name, value in {"count": torch.tensor(0), **buffers}.items():
            self.register_buffer(name, value.clone())
        self.decide = decide

    def forward(self, x):
        if self.decide(self):
            return x * 2 + self.count
        return x - 1


class InitialisedByData(nn.Module):
    """Normalises by what the first batch was."""

    def __init__(self):
        super().__init__()
        self.loc, self.scale = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        if self.seen == 0:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-6))
        self.seen += 1
        return (x + self.loc) * self.scale


class MovingAverage(nn.Module):
    """The decay of an average grows to its limit."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps.add_(1)
        decay = min(0.5, (1 + self.steps) / (10 + self.steps))
        self.average.mul_(decay).add_(x.mean(0) * (1 - decay))
        return x - self.average


@pytest.mark.parametrize("module", [InitialisedByData, MovingAverage], ids=lambda module: module.__name__)
def test_a_module_that_counts_its_calls(module) -> None:
    check(module, *CALLS, captures=2)


def written(write, decide=lambda m: m.count == 3):
    def move_on(module):
        write(module)
        return decide(module)
    return move_on


MOVED = {
    "in place": written(lambda m: m.count.add_(1)),
    "by an operator": written(lambda m: setattr(m, "count", m.count + 1)),
    "by an operator in place": written(lambda m: m.__setattr__("count", m.count.__iadd__(1))),
    "through a view": written(lambda m: m.count.view(1).add_(1)),
    "through a view that decides": written(lambda m: m.count.add_(1), lambda m: m.count.view(1)[0] == 3),
    "by an item": written(lambda m: m.ring.__setitem__(0, (m.ring[0] + 2) % 6), lambda m: m.ring[0] == 4),
    "by a copy": written(lambda m: m.count.copy_(m.count + 1)),
    "filled": written(lambda m: m.flag.fill_(True), lambda m: m.flag),
    "set to zero": written(lambda m: (m.count.add_(1), m.flag.zero_()), lambda m: m.flag or m.count > 5),
    "before it was": lambda m: (lambda before: m.count.add_(1) is None or before)(m.count == 3),
    "as it was": lambda m: (lambda before: m.count.add_(1) is None or before == 3)(m.count.clone()),
    "as a number": written(lambda m: m.count.add_(1), lambda m: m.count.item() % 4 == 0),
    "as a number before": lambda m: (lambda before: m.count.add_(1) is None or before == 3)((m.count * 1).item()),
    "as a number of another type": written(lambda m: m.total.add_(0.1), lambda m: float(m.total) > 0.3),
    "rounded": written(lambda m: m.total.add_(0.1), lambda m: m.total > 0.3),
    "in a new tensor": lambda m: (lambda t: t.__setitem__(0, m.total[0]) or t.sum() > 2)(torch.ones(2)),
    "of both": written(lambda m: m.count.add_(1), lambda m: (m.count > 2) & ~(m.count > 5)),
    "twice": written(lambda m: (m.count.add_(1), m.count.mul_(2)), lambda m: m.count > 20),
}


@pytest.mark.parametrize("decide", [pytest.param(decide, id=name) for name, decide in MOVED.items()])
def test_what_was_moved_on_decides(decide) -> None:
    def make():
        return Counting(decide, total=torch.zeros(1), flag=torch.tensor(False), ring=torch.zeros(1, dtype=torch.int64))
    stats = check(make, *CALLS, lambda m: m.count.zero_(), *CALLS[:3], lambda m: m.total.fill_(7.0), *CALLS[:3], captures=None)
    assert stats.captures <= 3, stats


def test_a_loop_that_a_counter_ends() -> None:
    def decide(module):
        while module.count < 3:
            module.count += 1
        return module.count == 3
    check(lambda: Counting(decide), *CALLS[:2], lambda m: m.count.fill_(1), *CALLS[:2], lambda m: m.count.fill_(9), *CALLS[:2],
          captures=4)


def test_a_limit_that_changes() -> None:
    def make():
        limits = types.SimpleNamespace(most=2)
        module = Counting(lambda m: m.count > limits.most)

        def program(x):
            limits.most += 1
            module.count += 2
            return module(x), module.count + limits.most
        return program, (module, limits)
    stats = check(make, *CALLS, captures=None)
    assert stats.captures <= 3, stats


@pytest.mark.parametrize("write", [
    lambda m, x: m.count.copy_(x.sum() > 0), lambda m, x: m.count.add_(x.shape[0]).add_(x[0, 0].long()),
    lambda m, x: m.count.random_(0, 3), lambda m, x: m.count.data.add_(1), lambda m, x: m.count.set_(torch.tensor(2)),
    lambda m, x: m.history[1:2].add_(1), lambda m, x: torch.add(m.count, 1, out=m.count)], ids=lambda f: None)
def test_what_follows_from_more_than_that_is_not_guarded(write) -> None:
    class Program(Counting):
        def forward(self, x):
            write(self, x)
            return x * 2 if self.count == 1 or self.history[1] > 3 else x - 1
    check(lambda: Program(None, history=torch.zeros(4)), *CALLS[:5], call(-X), call(-X), captures=None, fullgraph=False)


@pytest.mark.parametrize("order", ["alias first", "number first"])
def test_another_tensor_on_the_same_memory(order) -> None:
    def make():
        base = torch.zeros(2, dtype=torch.int64)
        state = types.SimpleNamespace(number=base[0], alias=base[0:1], whole=base)

        def program(x):
            seen = state.number == 3 if order == "number first" else None
            view = state.alias.view(())
            state.alias.add_(1)
            if view == 2 or state.number == 4:
                return x * 2
            state.whole.mul_(2)
            return (x + 1 if seen else x - 1), state.number == 4
        return program, state
    check(make, *CALLS[:6], captures=None, fullgraph=False)


def test_memory_that_comes_to_be_shared() -> None:
    def program(x, a, b):
        a.add_(1)
        return x * 2 if b == 1 else x - 1 if a == 2 else x
    a = torch.zeros(1, dtype=torch.int64)
    check(lambda: program, call(X, a, a + 1), call(X, a, a), call(X, a + 1, a), call(X, a, a + 1), call(X, a, a), captures=None,
          fullgraph=False)


@pytest.mark.parametrize("change", [lambda t: t.int(), lambda t: t.double(), lambda t: t.expand(2), lambda t: t.view(1, 1),
                                    lambda t: nn.Parameter(t.float(), False), lambda t: 1.5])
def test_another_thing_at_that_place(change) -> None:
    def program(x, t):
        t += 1
        return x * 2 if (t == 2 if type(t) is float or t.numel() == 1 else False) else x - 1
    t = torch.tensor([1])
    check(lambda: program, call(X, t), call(X, change(t)), call(X, t + 1), call(X, change(t)), captures=None, fullgraph=False)


def test_modes_that_are_switched_in_between() -> None:
    def make():
        state = types.SimpleNamespace(scale=torch.tensor([[0.25]]))

        def program(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                product = torch.mm(state.scale, state.scale + 1e-3)
            with torch.no_grad():
                state.scale += 0.001
            return (x * 2 if product > 0.0627 else x - 1), (x * 2 if state.scale > 0.2525 else x)
        return program, state
    check(make, *CALLS, captures=None, fullgraph=False)


def test_gradients_through_what_was_decided() -> None:
    module = lambda: Counting(lambda m: m.count.add_(1) % 3 == 0)
    check(module, *(call((X * i).requires_grad_()) for i in range(1, 8)), captures=2, backward=True)


def test_a_counter_among_the_arguments() -> None:
    def make():
        state = types.SimpleNamespace(steps=torch.zeros((), dtype=torch.int64))

        def program(x, steps):
            steps += 1
            return x / steps if steps > 4 else x
        return program, state
    check(make, *[call_with(lambda state: (X.clone(), state.steps))] * 8, captures=2)


@pytest.mark.parametrize("decide", [lambda t: t > 0, lambda t: t - 3 >= 0, lambda t: t.item() > 0, lambda t: not t % 2])
def test_elements_of_one_tensor_decide(decide) -> None:
    """As in the loop of a diffusion model over its steps. Where in the memory of all an element lies does not matter."""
    def make():
        steps = torch.tensor([6, 5, 4, 3, 2, 1, 0, 7, 8])
        return (lambda x, t: x * t if decide(t) else x - 1), steps
    check(make, *[call_with(lambda steps, i=i: (X.clone(), steps[i])) for i in (*range(9), 0)], captures=2)


def test_elements_that_come_to_lie_in_what_is_written_to() -> None:
    def make():
        state = types.SimpleNamespace(steps=torch.tensor([3, 2, 1, 0]), other=torch.tensor([3, 2, 1, 0]))

        def program(x, written, t):
            if t > 0:
                x = x + 1
            written.sub_(1)
            return (x * 2 if t > 0 else x - 1), t
        return program, state

    def step(name, i):
        return call_with(lambda state: (X.clone(), state.steps, getattr(state, name)[i]))
    check(make, step("other", 0), step("other", 1), step("other", 3), step("steps", 0), step("steps", 1), step("other", 0),
          step("steps", 1), captures=None, fullgraph=False)
