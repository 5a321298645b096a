"""`super()` behind a cut, in methods whose first parameter inner functions share: there a continuation finds it in its closure, and
not, as `super()` does, in its first variable."""
from __future__ import annotations

import pytest

from tests.breaks.cuts import Cuts, X, outside, run
from tests.helpers import call, check

CUTS = Cuts()


class Base:
    scale = 2

    def __init__(self, scale=2):
        self.scale = scale

    def method(self, x):
        return x * self.scale

    @classmethod
    def made(cls, scale):
        return cls(scale)


class Derived(Base):
    def __init__(self, scale):
        self.later = lambda: self.scale
        super().__init__(outside(scale))
        self.other = [self.scale for _ in range(outside(2))]

    def method(self, x):
        def inner():
            return self.scale
        x = outside(x) + 1
        y = super().method(x)
        outside()
        return y + super().method(y) + inner()

    def rebound(this, x):
        def inner():
            nonlocal this
            return this
        this, before = Derived(5), inner()
        outside()
        return super().method(x) + before.scale

    def in_a_loop(self, x):
        for i in range(3):
            x = super().method(x) + outside(i)
        return x + sum(self.scale for _ in range(2))

    @classmethod
    def made(cls, scale):
        found = [cls for _ in range(2)]
        outside(found)
        return super().made(scale)

    def caught(self, x):
        try:
            outside()
            raise ValueError((lambda: self)().scale)
        except ValueError:
            return super().method(outside(x))


@CUTS.natively
def a_method(x):
    return Derived(3).method(x)


@CUTS.natively
def a_rebound_parameter(x):
    return Derived(3).rebound(x)


@CUTS.natively
def a_loop(x):
    return Derived(3).in_a_loop(x)


@CUTS.natively
def a_class_method(x):
    made = Derived.made(4)
    return x * made.scale, type(made) is Derived


@CUTS.natively
def a_handler(x):
    return Derived(3).caught(x)


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_program(program, options) -> None:
    run(program, options)


@pytest.mark.parametrize("rounds", [10, 1000])
def test_a_loop_that_goes_on_for_long(rounds: int) -> None:
    """CPython runs its continuation."""
    class Long(Base):
        def __init__(self, value):
            value = self.taken(value)
            super().__init__(value)
            self.later = lambda: self.scale

        def taken(self, value):
            return [v + 1 for v in (value, value)][0]

    def program(x):
        total = 0
        for i in range(rounds):
            total += Long(i).scale
        return x + total
    check(lambda: program, *[call(X)] * 3, captures=None, fullgraph=False)
