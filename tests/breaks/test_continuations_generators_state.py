"""Generators that cross breaks: how long they live, what they look like, and state that changes around them."""
from __future__ import annotations

import gc
import inspect
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.breaks.cuts import X, compared, outside, raises
from tests.helpers import call, call_with, check

# -- generators that outlive the call ----------------------------------------------------------------------------------

def counting(t, log):
    try:
        for i in range(10):
            log.append(i)
            yield outside(t * i)
    finally:
        log.append("closed")


def test_a_generator_is_kept_between_calls() -> None:
    def make():
        state = SimpleNamespace(steps=None, log=[])

        def program(x):
            if state.steps is None:
                state.steps = counting(x, state.log)
                outside()
            return next(state.steps) + 1
        return program, state

    def drop(state):
        state.steps = None
    stats = check(make, *[call(X)] * 4, drop, *[call(X)] * 3, lambda state: next(state.steps), call(X), captures=None,
                  fullgraph=False)
    assert stats.hits > stats.captures, stats


def test_a_generator_of_the_caller() -> None:
    def make():
        state = SimpleNamespace(log=[])

        def program(x, steps):
            return [a + 1 for a, _ in zip(steps, range(3))], next(steps, None)
        return program, state

    def arguments(state):
        return X, counting(X, state.log)
    stats = check(make, *[call_with(arguments)] * 3, captures=None, fullgraph=False)
    assert stats.native_calls == 0 and stats.hits > 0, stats


def test_a_generator_is_kept_before_it_draws_what_it_holds() -> None:
    """The object is there before the random number is, which it holds behind the cut."""
    def make():
        state = SimpleNamespace(steps=None, seen=[])

        def steps(x):
            number = random.random()
            state.seen.append(state.steps)
            yield outside(x) + number
            yield x * number

        def program(x):
            state.steps = steps(x)
            return next(state.steps)
        return program, state
    stats = check(make, *[call(X)] * 3, lambda state: next(state.steps), call(X), fullgraph=False, captures=3, hits=5, breaks=1)
    assert stats.native_calls == 0, stats


def test_a_generator_that_holds_itself_is_kept() -> None:
    def make():
        state = SimpleNamespace(steps=None)

        def program(x):
            def steps():
                yield outside(x) + 1
                yield x * 2 if state.steps is made else x
            made = state.steps = steps()
            return next(made)
        return program, state
    stats = check(make, *[call(X)] * 3, lambda state: next(state.steps), call(X), fullgraph=False, captures=2, hits=6, breaks=1)
    assert stats.native_calls == 0, stats


def test_what_a_generator_reads_may_change_between_calls() -> None:
    def make():
        state = SimpleNamespace(scale=2.0, items=[1, 2])

        def steps(x):
            for item in state.items:
                yield outside(x * state.scale) + item

        def program(x):
            return [t * state.scale for t in steps(x)]
        return program, state
    check(make, call(X), call(X), lambda s: setattr(s, "scale", 3.0), call(X), lambda s: s.items.append(5), call(X),
          lambda s: s.items.clear(), call(X), call(X.double()), captures=None, fullgraph=False)


def test_what_the_call_outside_changes_is_seen_in_the_body() -> None:
    def make():
        state = SimpleNamespace(scale=1)

        @capture.disable
        def change():
            state.scale += 1

        def steps(x):
            for _ in range(3):
                change()
                yield x * state.scale

        def program(x):
            return sum(steps(x))
        return program, state
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("error", [ValueError, KeyError, StopIteration])
def test_an_exception_leaves_the_body(error) -> None:
    def steps(x):
        yield outside(x)
        raises(error, "text")
        yield x

    def program(x):
        y = 0
        for t in steps(x):
            y = y + t
        return y
    compared(program, call(X), call(X), call(X), captures=None)


def test_what_the_generator_looks_like() -> None:
    def steps(x):
        yield outside(x)
        yield x

    def program(x):
        made = steps(x)
        seen = [inspect.getgeneratorstate(made), made.__name__, made.__qualname__]
        next(made)
        outside()
        seen.append(inspect.getgeneratorstate(made))
        next(made)
        outside()
        seen.append((next(made, "end"), inspect.getgeneratorstate(made)))
        return seen, x * 2
    compared(program, call(X), call(X), captures=None)


@pytest.mark.parametrize("hits", [0, 1])
def test_what_the_body_held_dies_with_the_call(hits) -> None:
    alive = []

    class Held:
        pass

    def steps(x):
        held = Held()
        alive.append(weakref.ref(held))
        for i in range(5):
            yield outside(x * i)

    def program(x):
        made = steps(x)
        first = next(made)
        outside()
        return first + next(made)
    compiled = capture.compile(program, backend="eager")
    gc.collect()
    gc.disable()
    try:
        for _ in range(hits + 1):
            alive.clear()
            assert torch.equal(compiled(X), X)
            assert [ref() for ref in alive] == [None]
    finally:
        gc.enable()


def test_what_is_left_of_a_frame_dies_in_the_trace_in_which_the_frame_ends() -> None:
    """The last of a continuation's parameters, too, is held by nobody else."""
    def make():
        log = []

        def steps():
            try:
                yield 1
            finally:
                log.append("closed")

        def inner():
            waiting = steps()
            log.append(next(waiting))
            outside(waiting)

        def program(x):
            inner()
            log.append("left")
            return x + 1
        return program, log
    check(make, *[call(X)] * 3, captures=2, hits=4, breaks=1, fullgraph=False)


def test_rounds_that_are_alike_share_a_continuation() -> None:
    def steps(x, n):
        for _ in range(n):
            x = outside(x + 1)
            yield x

    def program(x, n):
        total = x
        for t in steps(x, n):
            total = total + t * 2
        return total
    stats = compared(program, *(call(X, n) for n in (3, 3, 20, 20)), captures=None)
    assert stats.captures <= 8 and stats.native_calls == 0, stats


def test_a_model_that_streams() -> None:
    class Streamer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

        def stages(self, x):
            for layer in self.layers:
                x = layer(x).relu()
                if x.sum() > 1e6:
                    return
                yield x

        def forward(self, x):
            return torch.stack([stage * 2 for stage in self.stages(x)]).sum(0)
    for backward in (False, True):
        stats = check(Streamer, call(X), call(X), call(X + 1), captures=3, hits=9, breaks=2, fullgraph=False, backward=backward)
        assert stats.native_calls == 0


# -- iterators of C that cross the same break --------------------------------------------------------------------------

def add_to_set(items):
    items.add(2)


def add_to_dict(items):
    items[2] = 2


def add_to_list(items):
    items.append(2)


@pytest.mark.parametrize(("new", "add"), [(set, add_to_set), (dict, add_to_dict), (list, add_to_list)])
def test_an_iterator_over_what_was_changed_before(new, add) -> None:
    def program(x, items):
        add(items)
        total = 0
        for item in items:
            total = total + outside(item, item)
        return x * total, items
    compared(program, *(call(X, dict.fromkeys([1]) if new is dict else new([1])) for _ in range(3)), captures=None)


def test_an_iterator_over_a_list_that_is_filled_later() -> None:
    def program(x):
        parts = []
        walk = iter(parts)
        parts += [iter((x, x + 1)), iter([x * 2])]
        return [outside(next(part)) for part in walk]
    compared(program, call(X), call(X), call(X), captures=None)


def test_a_cut_inside_of_an_asynchronous_generator() -> None:
    def program(x):
        async def rows(t):
            try:
                outside()
                for row in t:
                    yield row * 2
            finally:
                outside(None, t)

        async def main():
            generator = rows(x)
            first = await anext(generator)
            await generator.aclose()
            return first
        try:
            main().send(None)
        except StopIteration as stop:
            return stop.value
    compared(program, call(X), call(X), call(X * 2), captures=None)
