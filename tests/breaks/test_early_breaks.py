"""Breaks where nothing can be continued half-way: traces end before the call that led there, and go on behind it."""
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import capture
from capture.errors import GraphBreakError
from tests.breaks.cuts import LOG, X, compared, outside, raises
from tests.helpers import call, check

PROGRAMS = []


def program(*, backward: bool = False):
    """Registers a function of one tensor whose break stands where no continuation can take over."""
    def register(function):
        PROGRAMS.append(pytest.param(function, backward, id=function.__name__))
        return function
    return register


# -- what must end in the trace that it began in -----------------------------------------------------------------------

@program()
def a_level_of_vmap(x):
    y = torch.vmap(lambda t: outside(t * 2) + 1)(x)
    return y * 3


@program()
def a_level_below_another(x):
    def inner(t):
        return torch.func.grad(lambda u: (outside(u) * u).sum())(t)
    y = x * 2
    return torch.vmap(inner)(y) + 1


@program()
def a_level_one_call_deep(x):
    def inner(t):
        return torch.func.jacfwd(lambda u: outside(u).sin())(t)[0] + 1
    return inner(x[0]) * 2


@program()
def a_block_of_inference_mode(x):
    y = x * 3
    with torch.inference_mode():
        a = y * 2
        outside(None, torch.is_inference_mode_enabled())
        b = a + 1
    return b.is_inference(), torch.is_inference_mode_enabled(), y + 1


@program()
def inference_mode_by_a_decorator(x):
    @torch.inference_mode()
    def inner(t):
        t = t * 2
        return outside(t) + 1
    y = inner(x + 1)
    return y.is_inference(), torch.is_inference_mode_enabled(), x * 2


@program()
def inference_mode_inside_of_no_grad(x):
    with torch.no_grad():
        with torch.inference_mode():
            a = outside(x * 2) + 1
        b = x * 3
    return a.is_inference(), b.is_inference(), torch.is_grad_enabled(), x + 1


@program()
def inference_mode_that_is_left_by_an_exception(x):
    try:
        with torch.inference_mode():
            y = x * 2
            raises(KeyError)
    except KeyError as error:
        return x * 2, torch.is_inference_mode_enabled(), y.is_inference(), str(error)


@program()
def inference_mode_that_is_switched_off_inside(x):
    with torch.inference_mode():
        a = outside(x * 2)
        with torch.inference_mode(False):
            b = outside(x * 3) + 1
        c = a + 1
    return a.is_inference(), b.is_inference(), c.is_inference(), x + 1


@program(backward=True)
def the_body_of_a_checkpoint(x):
    def block(t):
        t = t.sin()
        outside(None, t)
        return t * 2
    y = x * 2
    return checkpoint(block, y, use_reentrant=False) + 1


@program(backward=True)
def a_checkpoint_one_call_deep(x):
    def block(t):
        return outside(t.sin()) * 2

    def inner(t):
        u = t + 1
        return checkpoint(block, u, use_reentrant=False) * u
    return inner(x) + inner(x * 2)


# -- what an operation of C waits for ----------------------------------------------------------------------------------

class Key:
    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return outside(hash(self.value))

    def __eq__(self, other):
        return outside(self.value == other.value)


@program()
def a_dict_with_keys_of_python(x):
    table = {Key(1): x * 2, Key(2): x * 3}
    return table[Key(2)] + 1, len(table), Key(1) in table


class Rows:
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return self

    def __next__(self):
        if self.count == 0:
            raise StopIteration
        self.count -= 1
        return outside(self.count)


@program()
def an_iterable_taken_apart(x):
    y = x + 1
    first, second = Rows(2)
    *rest, last = Rows(3)
    return y * first, second, rest, last


@program()
def an_iterable_as_arguments(x):
    def inner(*numbers):
        return sum(numbers)
    return x * inner(*Rows(3))


class Error(Exception):
    def __init__(self):
        super().__init__(outside("made"))


@program()
def a_class_of_exceptions_that_is_raised(x):
    y = x * 2
    try:
        raise Error
    except Error as error:
        return y + 1, str(error)


@program()
def two_such_places(x):
    y = x * 2
    first, second = Rows(2)
    y = y + first
    third, fourth = Rows(2)
    return y * 2, second, third, fourth


@program()
def in_a_loop(x):
    total = x * 1
    for i in range(3):
        total = total * 2
        a, b = Rows(2)
        total = total + a
    return total


@program()
def deep_inside(x):
    def take(t):
        t = t + 1
        first, second = Rows(2)
        return t * first + second

    def middle(t):
        return take(t * 2) - 1
    return middle(x) + 3


@program()
def under_a_handler(x):
    try:
        first, second = Rows(3)
    except ValueError as error:
        return x * 2, str(error), type(error.__context__)


@pytest.mark.parametrize(("function", "backward"), PROGRAMS)
def test_what_is_around_such_a_break_is_captured(function, backward) -> None:
    argument = X.clone().requires_grad_() if backward else X
    steps = [call(argument) for _ in range(6)]
    stats = compared(function, *steps, captures=None, backward=backward)
    assert stats.native_calls == 0 and stats.hits > 0 and stats.operations > 0, stats


def test_what_runs_in_such_a_place_runs_once() -> None:
    def make():
        LOG.clear()
        state = {"steps": 0}

        def function(x):
            state["steps"] += 1
            y = x * state["steps"]
            with torch.inference_mode():
                state["steps"] += 10
                outside(None, state["steps"])
                z = x + state["steps"]
            return y, z.is_inference()
        return function, (state, LOG)
    check(make, *[call(X)] * 4, captures=None, fullgraph=False, dynamic=True)


def test_calls_that_need_no_such_end_are_not_cut() -> None:
    """The place is that of one call, not of all calls of the same line of torch."""
    class Talks(nn.Module):
        def forward(self, x):
            with torch.inference_mode():
                outside()
            return x * 2

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    talks = Talks()

    def function(x):
        return model(talks(model(x)))
    stats = compared(function, *[call(X)] * 4, captures=None)
    assert stats.native_calls == 0 and stats.graphs <= 4, stats


def test_the_report_names_the_line_that_broke() -> None:
    def function(x):
        y = x + 1
        first, second = Rows(2)
        return y * first + second
    compiled = capture.compile(function)
    for _ in range(3):
        compiled(X)
    frame = capture.report(compiled).frames[0]
    assert {place.function.rpartition(".")[2] for broken in frame.breaks for place in broken.stack} >= {"function", "__next__"}


def test_fullgraph_says_so_at_the_first_call() -> None:
    def function(x):
        with torch.inference_mode():
            return outside(x)
    with pytest.raises(GraphBreakError):
        capture.compile(function, fullgraph=True)(X)


# -- attributes that may be missing ------------------------------------------------------------------------------------

class Lazy:
    def __getattr__(self, name):
        if name.startswith("_"):
            outside()
            raise AttributeError(name)
        return outside(name)

    @property
    def broken(self):
        outside()
        return self._missing

    @property
    def fails(self):
        raise KeyError(outside("from a property"))


class Setter:
    value = None

    def __setattr__(self, name, value):
        object.__setattr__(self, name, outside(value))

    def __delattr__(self, name):
        outside()
        object.__delattr__(self, name)


def has(x):
    lazy = Lazy()
    return hasattr(lazy, "a"), hasattr(lazy, "_a"), x * 2


def get(x):
    lazy = Lazy()
    return getattr(lazy, "a", 1), getattr(lazy, "_a", x + 1), getattr(lazy, "broken", None), x * 2


def other_exceptions(x):
    try:
        return getattr(Lazy(), "fails", 3)
    except KeyError as error:
        return x * 2, str(error), repr(error.__context__)


def set_and_delete(x):
    setter = Setter()
    a = setattr(setter, "value", 3)
    before = setter.value
    b = delattr(setter, "value")
    return x * before, a, b, setter.value


class Text:
    def __repr__(self):
        return outside("text")

    def __format__(self, spec):
        return outside(f"<{spec}>")


def formatted(x):
    text = Text()
    return f"{text!r:>6}|{text:>3}|{text!s}", format(text, "a"), x * 2


@pytest.mark.parametrize(("function", "cuts"), [(has, 2), (get, 5), (other_exceptions, 1), (set_and_delete, 2), (formatted, 4)])
def test_breaks_in_code_that_a_builtin_asks(function, cuts) -> None:
    stats = compared(function, *[call(X)] * 3, captures=cuts + 1, hits=2 * (cuts + 1), breaks=cuts)
    assert stats.native_calls == 0, stats


class Odd(tuple):
    """A key of which a trace cannot tell whether it equals a shape."""

    __slots__ = ()

    def __hash__(self):
        return hash(tuple(X.shape))

    def __eq__(self, other):
        return other == 3


def test_the_opposite_of_what_was_asked() -> None:
    """A continuation that begins with it is where the trace was to end before: it must not make that call for ever."""
    def make():
        held = {Odd((1,)): 2}

        def function(x):
            if x.shape not in held:
                x = x + 1
            return x * 2
        return function, held
    check(make, *[call(X)] * 4, captures=None, fullgraph=False, dynamic=True)
