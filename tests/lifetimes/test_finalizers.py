"""Objects that run code of the program's as they die: no trace goes on behind that, and none leaves it out on a hit."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import capture
from capture.errors import GraphBreakError
from tests.helpers import call, check

X = torch.arange(3.0)


def make(use):
    """`use(x, state)` of a state with a class whose instances note, and count, that they have died."""
    def made():
        state = SimpleNamespace(log=[], dead=0)

        class Loud:
            def __init__(self, name):
                self.name = name

            def __del__(self):
                state.log.append(self.name)
                state.dead += 1

        class Slotted:
            __slots__ = ()
            __del__ = Loud.__del__
            name = "slotted"
        state.Loud, state.Slotted, state.held, state.last = Loud, Slotted, [Loud(k) for k in range(6)], Loud("last")
        return lambda x: use(x, state), state
    return made


def dropped_at_once(x, state):
    state.Loud("a")
    return x + 1


def dropped_as_the_call_ends(x, state):
    loud = state.Loud("a")      # noqa: F841
    return x + 1


def what_it_changed_is_read(x, state):
    loud = state.Loud("a")
    del loud
    return x + state.dead


def what_it_changes_is_read_before(x, state):
    loud = state.Loud("a")
    x = x + state.dead
    del loud
    return x


def without_references(x, state):
    state.Slotted()
    return x + 1


def in_a_callee(x, state):
    def inner(x):
        loud = state.Loud("a")
        return x * 2 + (loud is None)
    return inner(x + 1) + state.dead


def from_outside(x, state):
    state.held.pop()
    return x + state.dead


def overwritten(x, state):
    state.last = None
    x = x * 2
    return x + state.dead


def made_by_a_trace_before(x, state):
    loud = state.Loud("a")
    x = x + x.sum().item() + float((x * 2).numpy()[0])
    del loud
    return x + 1


USES = [dropped_at_once, dropped_as_the_call_ends, what_it_changed_is_read, what_it_changes_is_read_before, without_references,
        in_a_callee, from_outside, overwritten, made_by_a_trace_before]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_finalizers_run_on_every_call(use) -> None:
    check(make(use), *[call(X)] * 4, captures=None, fullgraph=False)


def test_what_is_around_the_call_is_captured() -> None:
    def program(x, state):
        x = (x * 2).tanh()
        x = in_a_callee(x, state)
        return x.relu() + 1
    stats = check(make(program), *[call(X)] * 4, captures=None, fullgraph=False)
    assert stats.graphs > 1 and stats.breaks


def test_fullgraph_says_why() -> None:
    program, _ = make(dropped_at_once)()
    with pytest.raises(GraphBreakError, match="Loud died"):
        capture.compile(program, fullgraph=True)(X)


def test_a_finalizer_that_comes_later() -> None:
    def made():
        state = SimpleNamespace(log=[])

        class Quiet:
            pass

        def program(x):
            Quiet()
            return x + 1
        state.Quiet = Quiet
        return program, state
    def change(state):
        state.Quiet.__del__ = lambda self: state.log.append("dead")
    check(made, call(X), call(X), change, call(X), call(X), captures=None, fullgraph=False)


def test_what_outlives_the_call_dies_when_it_is_dropped() -> None:
    """It is made on a hit like any other object."""
    def program(x, state):
        state.last = state.Loud("new")
        return x + 1, state.Loud("returned")
    check(make(lambda x, state: (x + 1, state.Loud("returned"))), call(X), call(X), call(X))
    check(make(program), *[call(X)] * 3, captures=None, fullgraph=False)


# -- of objects from outside: what a trace before has left, or a call has returned, to the continuation

def outside(state, name="outside"):
    """A new object that no trace has made."""
    return state.make(name)


def dies_in_the_middle(x, state):
    loud = outside(state)
    x = x * 2 + len(state.log)
    del loud
    return x + len(state.log) * 10


def dies_with_a_callee(x, state):
    def inner(loud):
        return x * 2 + len(loud.name)
    y = inner(outside(state))
    return y + len(state.log)


def dies_between_effects(x, state):
    loud = outside(state)
    state.log.append("before")
    loud = None     # noqa: F841
    state.log.append("after")
    return x * 2 + state.dead


def dies_with_a_list(x, state):
    louds = [outside(state, "a"), outside(state, "b")]
    louds.pop(0)
    x = x * 2 + state.dead
    louds.clear()
    return x + state.dead * 10


def dies_with_a_generator(x, state):
    def rounds(loud):
        yield loud.name
        yield loud.name + loud.name
    for name in rounds(outside(state)):
        x = x * 2 + len(name)
    return x + state.dead


def dies_in_a_handler(x, state):
    loud = outside(state)
    try:
        x = x + 1
        raise KeyError(loud.name)
    except KeyError as error:
        del loud
        state.log.append(str(error))
        x = x * 2 + state.dead
    return x


def dies_as_an_exception_passes(x, state):
    def inner(loud):
        raise KeyError(loud.name)
    try:
        inner(outside(state))
    except KeyError:
        x = x * 2
    return x + state.dead


def dies_round_by_round(x, state):
    for k in range(3):
        loud = outside(state, f"round {k}")
        x = x * 2 + state.dead
    del loud
    return x + state.dead


def dies_in_a_with(x, state):
    with torch.no_grad():
        loud = outside(state)
        x = x * 2
        del loud
        x = x + state.dead
    return x


DYING = [dies_in_the_middle, dies_with_a_callee, dies_between_effects, dies_with_a_list, dies_with_a_generator, dies_in_a_handler,
         dies_as_an_exception_passes, dies_round_by_round, dies_in_a_with]


@pytest.mark.parametrize("use", DYING, ids=lambda use: use.__name__)
def test_what_comes_from_outside_dies_where_it_does(use) -> None:
    def made():
        program, state = make(use)()
        state.make = capture.disable(lambda name: state.Loud(name))
        return program, state

    def longer(state):
        state.log.append("more")
    check(made, *[call(X)] * 4, longer, call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("use", [dies_in_the_middle, dies_with_a_callee])
def test_what_is_behind_such_a_death_is_captured(use) -> None:
    program, state = make(use)()
    state.make = capture.disable(lambda name: state.Loud(name))
    compiled = capture.compile(program, backend="eager")
    for _ in range(2):
        compiled(X)
    stats = capture.stats(compiled)
    assert stats.native_calls == 0 and stats.graphs > 1, str(capture.explain(compiled))
