"""`pow(a, b, modulus)`, of which Python code may tell what it is."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.helpers import call_with, check


@pytest.mark.parametrize("base", [object, int, bytes])
@pytest.mark.parametrize("answer", [3, NotImplemented, None], ids=["number", "declined", "missing"])
@pytest.mark.parametrize("modulus", [7, 7.5, True])
def test_pow_asks_its_first_operand(base, answer, modulus):
    def make():
        state = SimpleNamespace(answer=answer, asked=0)

        class Own(base):
            pass

        def power(self, *others):
            state.asked += 1
            return state.answer
        state.cls, state.power = Own, power

        def f(x):
            try:
                return pow(x, 2, modulus)
            except TypeError as error:
                return str(error)
        return f, state

    def change(state):
        if answer is not None:
            state.cls.__pow__ = state.power

    def another(state):
        state.answer = 5
    one = call_with(lambda state: (state.cls(),))
    check(make, one, change, one, one, another, one, one, captures=None)
