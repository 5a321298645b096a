"""Autograd functions that raise on a hit: the program's handlers catch what they raise, and what came before them is done once."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import call, check

FAILS: list[bool] = []
GOOD, BAD = torch.tensor([0, 2]), torch.tensor([0, 9])
BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"}, "native": {"backend": "native", "options": {"background": False}}}


class ByState(torch.autograd.Function):
    """Raises as a variable of the program says."""

    @staticmethod
    def forward(ctx, x, index):
        if FAILS:
            raise RuntimeError("told to")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class ByIndex(torch.autograd.Function):
    """Raises for an index out of range. It only computes, and its two passes can become graphs."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):
        index, = ctx.saved_tensors
        return torch.zeros(4, dtype=grad.dtype).index_add(0, index, grad), None


class ByValue(torch.autograd.Function):
    """Raises for a value, at which it looks."""

    @staticmethod
    def forward(ctx, x, index):
        if index.max() > 3:
            raise ValueError(f"index {index.max().item()}")
        return x * index.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Writing(ByState):
    """Writes to its argument before it raises."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.mark_dirty(x)
        x.add_(1)
        if FAILS:
            raise RuntimeError("told to")
        return x


def caught(function, state):
    def program(x, index):
        try:
            return function.apply(x.clone(), index)
        except (RuntimeError, ValueError, IndexError) as error:
            state.log.append(str(error))
            return x - 1
    return program


def caught_amid_changes(function, state):
    def program(x, index):
        state.log.append("before")
        state.total.add_(1)
        try:
            y = function.apply(x.clone(), index)
        except (RuntimeError, ValueError, IndexError) as error:
            state.log.append(type(error).__name__)
            y = x - 1
        state.total.mul_(2)
        state.log.append("after")
        return y.sum() + state.total
    return program


def caught_amid_draws(function, state):
    def program(x, index):
        noise = torch.rand(4)
        try:
            y = function.apply(x * noise, index)
        except (RuntimeError, ValueError, IndexError):
            y = x - torch.rand(4)
        return y.sum() + torch.rand(2), noise
    return program


def caught_amid_gradients(function, state):
    def program(x, index):
        state.weight.grad = None
        loss = (state.weight * 3).sum()
        try:
            loss = loss + function.apply(x * state.weight, index).sum()
        except (RuntimeError, ValueError, IndexError):
            loss = loss * 2
        loss.backward()
        return loss.detach()
    return program


def caught_by_a_caller(function, state):
    def inner(x, index):
        state.total.add_(1)
        return function.apply(x.clone(), index)

    def program(x, index):
        try:
            return inner(x, index)
        except (RuntimeError, ValueError, IndexError):
            return state.total + 1
        finally:
            state.log.append("at last")
    return program


def caught_behind_another(function, state):
    def program(x, index):
        try:
            y = function.apply(x.clone(), index)
            state.total.add_(1)
            return function.apply(y[:2].repeat(2), index) + function.apply(y[:1].repeat(4), index % 7)
        except (RuntimeError, ValueError, IndexError):
            return x * 3
    return program


def raised_amid_changes(function, state):
    def program(x, index):
        state.log.append("before")
        state.total.add_(1)
        y = function.apply(x.clone(), index)
        state.log.append("after")
        return y.sum() + state.total
    return program


def raised_after_a_write(function, state):
    """Where nobody tells, the call does not run again: what was written stays."""
    def program(x, index):
        state.total.add_(1)
        return function.apply(x.clone(), index)
    return program


PROGRAMS = (caught, caught_amid_changes, caught_amid_draws, caught_amid_gradients, caught_by_a_caller, caught_behind_another,
            raised_amid_changes, raised_after_a_write)


UNCOUNTED = {
    "data": lambda x: x.data.add_(1), "numpy": lambda x: x.detach().numpy().__iadd__(1), "detach": lambda x: x.detach().add_(1),
    "dlpack": lambda x: torch.from_dlpack(x.detach()).add_(1), "view": lambda x: x.detach().view(2, 2)[0].add_(1)}


@pytest.mark.parametrize("write", UNCOUNTED.values(), ids=UNCOUNTED)
@pytest.mark.parametrize("before", [False, True], ids=["alone", "after an effect"])
def test_what_it_writes_to_its_argument_is_written_once(write, before: bool) -> None:
    class Unseen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            write(x)
            if x.sum() > 40:
                raise ValueError("large")
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    def make():
        state = SimpleNamespace(log=[], x=torch.arange(4.0))

        def program():
            if before:
                state.log.append("before")
            return Unseen.apply(state.x) + 1
        return program, state

    def fill(state):
        state.x.fill_(10)

    def empty(state):
        state.x.zero_()
    check(make, call(), call(), call(), fill, call(), empty, call(), fill, call(), captures=None, fullgraph=False)


@pytest.mark.parametrize("function", [ByState, ByIndex, ByValue, Writing])
def test_effects_before_it_after_a_write_that_cannot_be_taken_back(function) -> None:
    def make():
        FAILS.clear()
        state = SimpleNamespace(total=torch.zeros(1 << 19), count=0)

        def program(x, index):
            state.total.add_(1)
            state.count += 1
            y = function.apply(x.clone(), index)
            return y.sum() + state.total[0]
        return program, state

    def fail(state):
        FAILS.append(True)
    good = call(torch.arange(4.0), GOOD)
    check(make, good, good, good, fail, call(torch.arange(4.0), BAD), captures=None, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [ByState, ByIndex, ByValue, Writing])
@pytest.mark.parametrize("made", PROGRAMS)
def test_on_a_hit(made, function, backend: str) -> None:
    def make():
        FAILS.clear()
        state = SimpleNamespace(log=[], total=torch.zeros(2), weight=nn.Parameter(torch.ones(4)))
        return made(function, state), state

    def fail(state):
        FAILS.append(True)

    def recover(state):
        FAILS.clear()
    x = torch.arange(4.0)
    good = call(x, GOOD)
    check(make, good, good, fail, call(x, BAD), recover, good, fail, call(x, BAD), recover, good, captures=None, fullgraph=False,
          **BACKENDS[backend])
