"""What is done before a graph that fails on a hit, and is taken back: draws from streams of random numbers, dropped gradients.

PYTEST_DONT_REWRITE: assertions are part of what is tested here.
"""
from __future__ import annotations

import io
import random
import weakref
from types import SimpleNamespace

import numpy
import torch
from torch import nn

import capture
from capture.interp.recording.undo_log import MOST_BYTES
from tests.helpers import call, check
from tests.interp.recording.failing import BAD, CALLS, X

LARGE = MOST_BYTES // 4 + 4


# -- numbers that were drawn -------------------------------------------------------------------------------------------

def test_effects_before_an_operation_that_fails_on_drawn_numbers() -> None:
    def make():
        state = SimpleNamespace(log=[], stored=None)

        def function(x):
            number = random.random()
            state.log.append("drawn")
            state.stored = x * number
            y = torch.linalg.cholesky(x)
            state.log.append("done")
            return y + number
        return function, state
    check(make, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)


def test_streams_give_the_same_numbers_again() -> None:
    def make():
        state = SimpleNamespace(log=[], total=torch.zeros(2, 2), own=random.Random(3), rng=numpy.random.default_rng(3))

        def function(x):
            state.total.add_(x * random.random() + state.own.uniform(0.0, 2.0))
            scale = numpy.random.uniform(0.5, 1.0) * state.rng.random()
            try:
                return torch.linalg.cholesky(x) * scale
            except RuntimeError:
                state.log.append((scale, random.random(), state.own.random(), state.rng.random(), numpy.random.rand()))
                return state.total * scale
        return function, state
    stats = check(make, *CALLS, captures=None, fullgraph=False)
    assert stats.breaks == 0 and stats.hits == 5


# -- gradients that are dropped before the graph -------------------------------------------------------------------------

def drops(state, x):
    before = [p.grad is not None for p in state.norm.parameters()]
    for p in state.norm.parameters():
        p.grad = None
    state.log.append("dropped")
    y = state.norm(x)
    state.log.append(y.detach())
    try:
        z = torch.linalg.cholesky(x)
    except RuntimeError:
        state.log.append(before)
        z = x
    return (y * z).sum()


def make_drops():
    state = SimpleNamespace(norm=nn.BatchNorm1d(2), log=[])
    return (lambda x: drops(state, x)), state


def test_dropped_gradients_are_there_again() -> None:
    stats = check(make_drops, *CALLS, captures=2, hits=4, backward=True)
    assert stats.graphs == 2


def test_dropped_gradients_stay_where_nothing_fails() -> None:
    """They are no more held once the graph has run."""
    state = make_drops()[1]
    compiled = capture.compile(drops, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(state, X).backward()
    gradients = [weakref.ref(p.grad) for p in state.norm.parameters()]
    loss = compiled(state, X)
    assert [gradient() for gradient in gradients] == [None, None] and loss.requires_grad
    assert capture.stats(compiled).hits == 2


def test_many_dropped_gradients_are_not_held() -> None:
    """The trace is cut before what may fail where a handler would tell, and nowhere else."""
    def make(handled):
        weight = nn.Parameter(torch.ones(LARGE))
        state = SimpleNamespace(weight=weight, log=[])

        def function(x):
            weight.grad = None
            state.log.append("dropped")
            loss = weight.sum() * x.sum()
            if not handled:
                return loss * torch.linalg.cholesky(x).sum()
            try:
                return loss * torch.linalg.cholesky(x).sum()
            except RuntimeError:
                state.log.append("failed")
                return loss
        return function, state
    stats = check(lambda: make(True), *CALLS, captures=None, fullgraph=False, backward=True)
    assert stats.breaks > 0
    stats = check(lambda: make(False), call(X), call(X), call(X + 1), captures=1, hits=2, fullgraph=False, backward=True)
    assert stats.breaks == 0


# -- what comes after the graph ------------------------------------------------------------------------------------------

def test_a_call_that_fails_after_the_graph_takes_nothing_back() -> None:
    def make():
        state = SimpleNamespace(total=torch.zeros(2, 2), stream=io.StringIO())

        def function(x):
            state.total.add_(x)
            y = torch.linalg.cholesky(x)
            print("done", file=state.stream)
            return y
        return function, state
    check(make, call(X), call(X), lambda state: state.stream.close(), call(X), captures=1, hits=2, fullgraph=False)
