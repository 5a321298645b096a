"""Streams of random numbers that the program makes from a seed, and iterators from outside, in one graph."""
from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


# -- random numbers ----------------------------------------------------------------------------------------------------

@programs.add(X)
def numbers_that_decide(x):
    stream = random.Random(7)
    for _ in range(4):
        x = x * stream.uniform(1, 2) if stream.random() < 0.5 else x + stream.randint(0, 9)
    return x, stream.choice("abc"), stream.sample(range(10), 3), stream.gauss(0, 1), stream.choices([1, 2, 3], k=2)


@programs.add(X)
def a_fixed_projection(x):
    stream = numpy.random.RandomState(3)
    weight = torch.from_numpy(stream.randn(3, 2).astype(numpy.float32))
    order = numpy.random.default_rng(5).permutation(3)
    return x @ weight, x[:, order], stream.rand(), int(stream.randint(3, size=2).sum())


@programs.make(X, change=lambda state: setattr(state, "means", numpy.array([5.0, 6.0])), captures=2)
def a_draw_that_is_given_an_array():
    state = SimpleNamespace(means=numpy.array([1.0, 2.0]), spread=numpy.float64(0.5))

    def program(x):
        stream = numpy.random.RandomState(3)
        drawn = stream.normal(state.means, state.spread)
        return x * float(drawn[0]), float(drawn[1]), numpy.random.default_rng(5).choice(state.means)
    return program, state


@programs.add(X)
def a_list_is_shuffled(x):
    order, kept = list(range(3)), [2.0, 3.0]
    random.Random(1).shuffle(order)
    numpy.random.RandomState(2).shuffle(kept)
    return x[:, order], kept


@programs.add(X)
def a_stream_is_seeded_by_text(x):
    stream = random.Random(5)
    stream.seed("name")
    return x * stream.random()


@programs.add(X)
def a_stream_is_seeded_again(x):
    stream = random.Random("name")
    first = stream.random()
    stream.seed(3)
    return x * stream.random() + first


@programs.make(X, change=lambda state: setattr(state, "seed", 8), captures=2)
def a_stream_that_outlives_the_call():
    state = SimpleNamespace(seed=3)

    def program(x):
        state.python, state.numpy, state.new = (
            random.Random(state.seed), numpy.random.RandomState(state.seed), numpy.random.default_rng(state.seed))
        return x * state.python.random() + state.numpy.rand() + state.new.random()
    return program, state


@programs.add(X)
def a_stream_that_is_another_each_time(x):
    stream = random.Random()
    return x * 2, isinstance(stream.random(), float)


test_streams = programs.test()


def test_a_stream_goes_on_where_the_call_has_left_it() -> None:
    state = SimpleNamespace()

    def program(x):
        state.python, state.numpy = random.Random(3), numpy.random.RandomState(3)
        return x * state.python.random() + state.numpy.rand()
    program(X)
    expected = state.python.random(), state.numpy.rand()
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(X)
        assert (state.python.random(), state.numpy.rand()) == expected
    assert capture.stats(compiled).hits == 2


def test_a_seed_that_is_another_on_each_call() -> None:
    def make():
        state = SimpleNamespace(epoch=0)

        def program(x):
            state.epoch += 1
            return x * random.Random(state.epoch).random()
        return program, state
    check(make, *[call(X)] * 3, captures=3)
    check(make, *[call(X)] * 5, captures=None, fullgraph=False)


# -- iterators ---------------------------------------------------------------------------------------------------------

def numbers_of_objects():
    state = SimpleNamespace(ids=itertools.count(5), steps=itertools.count(10, -2))
    return (lambda x: (x * 2, next(state.ids), next(state.ids), next(state.steps))), state


def numbers_that_are_no_integers():
    state = SimpleNamespace(times=itertools.count(0.5, 0.1), halves=itertools.count(1.0), mixed=itertools.count(-1, 0.25))
    return (lambda x: (x * next(state.times), next(state.times), next(state.halves), next(state.mixed), next(state.mixed))), state


def counted_rows():
    state = SimpleNamespace(ids=itertools.count())
    return (lambda x: ([row * i for row, i in zip(x, state.ids)], [i for i, row in zip(state.ids, x)], next(state.ids))), state


def all_that_is_left():
    state = SimpleNamespace(items=[1.0, 2.0, 3.0], left=None)

    def program(x):
        return x * 2, list(state.left), list(enumerate(state.left)), next(state.left, None)
    return program, state


def in_step():
    state = SimpleNamespace(items=[1.0, 2.0, 3.0], left=None)

    def program(x):
        pairs = []
        for i, (a, b) in enumerate(zip(state.left, x)):
            pairs.append((i, a, b))
        return pairs, next(state.left, None)
    return program, state


def begin(state) -> None:
    if "items" in vars(state):
        state.left = iter(state.items)


def grow(state) -> None:
    if "items" in vars(state):
        state.items.append(9.0)
        state.left = iter(state.items)


@pytest.mark.parametrize("make", [numbers_of_objects, numbers_that_are_no_integers, counted_rows, all_that_is_left, in_step])
def test_iterators_from_outside(make) -> None:
    check(make, begin, call(X), begin, call(X), call(X), grow, call(X), grow, call(X), captures=None)


def test_a_counter_is_never_captured_anew() -> None:
    check(numbers_of_objects, *[call(X)] * 4, captures=1)
    check(numbers_that_are_no_integers, *[call(X)] * 5, captures=2)
