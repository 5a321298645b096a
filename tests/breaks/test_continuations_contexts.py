"""Context variables that are set before a cut, and reset behind it."""
from __future__ import annotations

import contextvars

import pytest

from tests.breaks.cuts import Cuts, outside, run

CUTS = Cuts()

DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)
PLAIN: contextvars.ContextVar[int] = contextvars.ContextVar("plain", default=2)
FOUND: contextvars.ContextVar[list] = contextvars.ContextVar("found")


@CUTS.add()
def a_variable_that_is_reset_behind_a_cut(x):
    token = DEPTH.set(DEPTH.get() + 1)
    try:
        y = x * DEPTH.get()
        outside(None, DEPTH.get(), y)
        return y + DEPTH.get()
    finally:
        DEPTH.reset(token)


@CUTS.add(2)
def a_variable_with_a_default_that_is_reset_behind_a_cut(x):
    token = PLAIN.set(5)
    outside(None, PLAIN.get())
    y = x * PLAIN.get()
    PLAIN.reset(token)
    return y + PLAIN.get()


@CUTS.add()
def a_variable_without_a_value_that_is_reset_behind_a_cut(x):
    found = []
    token = FOUND.set(found)
    FOUND.get().append(x + 1)
    outside(None, FOUND.get())
    FOUND.get().append(x + 2)
    FOUND.reset(token)
    return found, FOUND.get(None), DEPTH.get()


@CUTS.add(2)
def variables_that_are_reset_in_another_order(x):
    first, second = DEPTH.set(1), DEPTH.set(2)
    y = x + outside(DEPTH.get())
    DEPTH.reset(first)
    outside(None, DEPTH.get())
    DEPTH.reset(second)
    third = DEPTH.set(3)
    DEPTH.reset(second.var.set(0))
    DEPTH.reset(third)
    return y, DEPTH.get(), DEPTH.set(0).old_value


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_program(program, options):
    run(program, options)
