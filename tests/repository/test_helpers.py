"""The differential helper agrees with itself on two eager worlds, and notices every kind of difference."""
from __future__ import annotations

import random
import types
import warnings

import pytest
import torch

from tests import helpers
from tests.helpers import call, call_with

ROWS = torch.arange(6.0).reshape(2, 3)
SHARED = [1, 2]


def problems(make, *steps, engine, tolerance=None, backward=False) -> str:
    """What the helper reports when `engine` stands in for capture."""
    eager = helpers.run(make, steps, backward=backward)
    return "\n".join(helpers.compare(eager, helpers.run(make, steps, engine, backward=backward), tolerance))


def with_state(function, **state):
    """A factory of `function` together with fresh state, which it receives as its first argument."""
    def make():
        namespace = types.SimpleNamespace(**{k: v() for k, v in state.items()})
        return (lambda *args: function(namespace, *args)), namespace
    return make


def test_two_eager_worlds_agree_on_a_program_that_does_a_bit_of_everything() -> None:
    def make():
        class Tree:
            __slots__ = ("leaf", "children")
            total = 0

        state = types.SimpleNamespace(tree=Tree(), seen=[], pool={"a": iter([1, 2, 3])}, cls=Tree)
        state.tree.leaf = torch.nn.Linear(3, 3)
        state.tree.children = {1, 2, "x"}

        def program(x, scale=1.0, *, out):
            state.cls.total += 1
            state.seen.append((x, random.random()))
            next(state.pool["a"])
            out[len(out)] = state.tree.leaf(x) * scale + torch.rand(3)
            print("step", state.cls.total)
            warnings.warn("careful")
            if scale == 0:
                raise ValueError("scale", scale) from KeyError(1)
            return out, state.seen, x.t(), state
        return program, state

    steps = call(ROWS, out={}), call(ROWS, 2.0, out={}), lambda s: s.seen.clear(), call(ROWS, 0, out={})
    assert problems(make, *steps, engine=lambda program: program) == ""


@pytest.mark.parametrize(("right", "wrong", "found"), [
    (lambda x: x, lambda x: x.clone(), "Same(path='result')"),
    (lambda x: x[0], lambda x: x[0].clone(), "storage"),
    (lambda x: (x + 1, x + 1), lambda x: ((x + 1,) * 2), "result[1]"),
    (lambda x: x + 1, lambda x: (x + 1).t().contiguous().t(), "stride"),
    (lambda x: x + 1, lambda x: x + 2, "values"),
    (lambda x: x * 0.0, lambda x: x * -0.0, "values"),
    (lambda x: x + 1, lambda x: (x + 1).double(), "dtype"),
    (lambda x: x + 1, lambda x: (x + 1).requires_grad_(), "requires_grad"),
    (lambda x: x + 1, lambda x: torch.nn.Parameter(x + 1, False), "type"),
    (lambda x: 1, lambda x: True, "builtins.bool"),
    (lambda x: 0.0, lambda x: -0.0, "-0.0"),
    (lambda x: [1], lambda x: (1,), "builtins.tuple"),
    (lambda x: {"a": 1, "b": 2}, lambda x: {"b": 2, "a": 1}, "order"),
    (lambda x: x.add_(1).sum(), lambda x: (x + 1).sum(), "args[0]: values"),
    (lambda x: print("hello"), lambda x: print("hallo"), "hallo"),
    (lambda x: warnings.warn("a"), lambda x: warnings.warn("b"), "warnings"),
    (lambda x: torch.rand(1) * 0, lambda x: torch.zeros(1), "torch RNG"),
    (lambda x: random.random() * 0, lambda x: 0.0, "random"),
    (lambda x: torch.set_grad_enabled(False) and None, lambda x: torch.set_grad_enabled(True) and None, "grad enabled"),
])
def test_a_difference_is_found(right, wrong, found: str) -> None:
    assert found in problems(lambda: right, call(ROWS), engine=lambda program: wrong)
    assert problems(lambda: right, call(ROWS), engine=lambda program: right) == ""
    torch.set_grad_enabled(True)


@pytest.mark.parametrize(("right", "wrong", "found"), [
    (lambda s: s.items.append(1), lambda s: s.items.extend([1, 1]), "state.items[2]"),
    (lambda s: s.items, lambda s: list(s.items), "state.items"),
    (lambda s: setattr(s, "new", 1), lambda s: None, "state.new"),
    (lambda s: s.weight.data.mul_(2), lambda s: setattr(s, "weight", s.weight * 2), "state.weight"),
    (lambda s: next(s.iterator), lambda s: 1, "__reduce__"),
])
def test_a_difference_of_the_final_state_is_found(right, wrong, found: str) -> None:
    state = {"items": lambda: [0], "weight": lambda: torch.ones(2), "iterator": lambda: iter([1, 2])}

    def engine(program):
        namespace = program.__closure__[1].cell_contents
        return lambda: wrong(namespace)
    assert found in problems(with_state(right, **state), call(), engine=engine)


def test_an_exception_must_have_the_same_type_arguments_cause_and_user_line() -> None:
    def right():
        raise ValueError(1)

    def wrong():
        raise ValueError(1)

    def with_cause():
        raise ValueError(1) from KeyError(2)
    assert "exception" in problems(lambda: right, call(), engine=lambda program: wrong)
    assert "exception" in problems(lambda: right, call(), engine=lambda program: with_cause)
    assert "exception" in problems(lambda: right, call(), engine=lambda program: lambda: None)
    assert problems(lambda: right, call(), engine=lambda program: right) == ""


def test_gradients_are_compared() -> None:
    def softmax(x):
        return x.softmax(-1)

    def detached(x):
        return (x.softmax(-1).detach() - x.detach()) + x
    found = problems(lambda: softmax, call(ROWS.clone().requires_grad_()), engine=lambda program: detached,
                     backward=True, tolerance=1e-6)
    assert "args[0].grad: values" in found


def test_an_earlier_result_must_not_change_in_a_later_call() -> None:
    def reused_buffer(program):
        buffer = torch.empty(2, 3)

        def wrapper(x):
            return buffer.copy_(program(x))
        return wrapper
    found = problems(lambda: torch.neg, call(ROWS), call(ROWS + 1), engine=reused_buffer)
    assert "call 2" in found and "earlier[0]" in found


def test_each_world_has_its_own_arguments_and_aliasing_among_them_is_kept() -> None:
    seen = []

    def program(a, b, c):
        seen.append((a, b, c))
        a.append(3)
        c.mul_(2)
    view = ROWS[0]
    assert problems(lambda: program, call(SHARED, SHARED, view), engine=lambda p: p) == ""
    assert SHARED == [1, 2] and all(a is b and a is not SHARED for a, b, _ in seen)


def test_state_can_be_passed_as_an_argument() -> None:
    make = with_state(lambda s, items: items is s.items, items=list)
    assert problems(make, call_with(lambda s: (s.items,)), engine=lambda p: p) == ""


def test_tolerance_applies_to_values_only() -> None:
    close = {"engine": lambda program: lambda x: x + 1e-7, "tolerance": 1e-5}
    assert problems(lambda: torch.clone, call(ROWS), **close) == ""
    cast = {"engine": lambda program: lambda x: x.double(), "tolerance": 1e-5}
    assert "dtype" in problems(lambda: torch.clone, call(ROWS), **cast)
