"""Loops in bytecode: which instructions belong to them, where they end, and how deep the stack is."""
from __future__ import annotations

import dis
import types

import pytest

from capture import pipeline  # noqa: F401  registers the opcodes
from capture.interp.breaks.idle_loops import exits, loop_around, stack_depths
from capture.interp.core.instructions import decode


def call(n):
    return n


def simple(n):
    for i in range(n):
        call(i)
    return n + 1


def branches(n):
    while n:
        if call(n):
            continue
        n -= 1
        if n == 3:
            break
    return n + 1


def handled(n):
    for i in range(n):
        try:
            call(i)
        except KeyError:
            continue
    return n + 1


def broken_off(n):
    for i in range(n):
        try:
            call(i)
        except KeyError:
            break
    return n + 1


def nested(n):
    for i in range(n):
        n += 1
        for j in range(i):
            call(j)
        n -= 1
    return n + 1


def returns(n):
    while True:
        if call(n):
            return n - 1


def lines_of(code: types.CodeType, indices) -> set[int]:
    return {line - code.co_firstlineno for i in indices if (line := decode(code)[i].line) is not None}


@pytest.mark.parametrize(("function", "loop", "after"), [
    (simple, {1, 2}, {3}), (handled, {1, 3, 4, 5}, {6}), (broken_off, {1, 3}, {6}), (nested, {3, 4}, {5}), (returns, {1, 2}, {3})])
def test_the_lines_of_a_loop_and_what_follows_it(function, loop, after) -> None:
    code = function.__code__
    at = next(i for i, instruction in enumerate(decode(code)) if instruction.opname == "CALL" and instruction.line is not None
              and "call" in [before.value for before in decode(code)[i - 3:i]])
    assert lines_of(code, loop_around(code, at)[1]) == loop and lines_of(code, exits(code, at)) == after


def test_there_is_no_loop_around_other_code() -> None:
    assert not loop_around(call.__code__, 1)[1] and not exits(call.__code__, 1)


@pytest.mark.parametrize("function",
                         [simple, branches, handled, nested, returns, dis.findlabels, test_the_lines_of_a_loop_and_what_follows_it])
def test_the_stack_is_as_deep_as_the_compiler_says(function) -> None:
    code = function.__code__
    depths = stack_depths(code)
    assert min(depths.values()) == 0 and max(depths.values()) <= code.co_stacksize
    returning = [i for i, instruction in enumerate(decode(code)) if instruction.opname == "RETURN_VALUE"]
    assert {depths[i] for i in returning if i in depths} <= {1, 2, 3}
