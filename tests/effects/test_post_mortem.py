"""What a traceback shows of the frames of a captured call: their local variables, which live as long as they do in eager mode."""
from __future__ import annotations

import gc
import pdb
import re
import sys
import traceback
import weakref
from io import StringIO

import pytest
import torch

import capture


class Held:
    pass


def inner(a, n, refs):
    b = a * 2
    held = Held()
    refs.append(weakref.ref(held))

    def closure():
        return b, cell
    cell = 5
    if n:
        return inner(a, n - 1, refs)
    raise ValueError("end")


def through_finally(a, refs):
    steps = [1]
    try:
        inner(a, 2, refs)
    finally:
        steps.append(3)
        late = 4  # noqa: F841


def raised_again(a, refs):
    try:
        through_finally(a, refs)
    except ValueError as error:
        told = 5  # noqa: F841
        raise RuntimeError("again") from error


def of_a_generator(a, refs):
    def generator(a):
        local = 8  # noqa: F841
        yield a
        raise KeyError("generator")
    return list(generator(a))


def of_a_comprehension(a, refs):
    return [1 // number for number in (1, 0)]


def of_a_class(a, refs):
    class Body:
        attribute = 3
        raise ValueError("body")


def called_by_c(a, refs):
    return sorted([3, 1], key=lambda v: through_finally(v, refs))


def caught(a, refs):
    try:
        inner(a, 1, refs)
    except ValueError:
        pass
    alive = [ref() is not None for ref in refs]  # noqa: F841
    raise IndexError


PROGRAMS = [through_finally, raised_again, of_a_generator, of_a_comprehension, of_a_class, called_by_c, caught]


def shown(error):
    """Function, line and local variables of each frame of this file, of an exception and of those that it follows."""
    frames, link = [], traceback.TracebackException.from_exception(error, capture_locals=True)
    while link is not None:
        frames += [(entry.name, entry.lineno, {name: re.sub("0x[0-9a-f]+", "", text) for name, text in entry.locals.items()})
                   for entry in link.stack if entry.filename == __file__ and entry.name != "outcome"]
        link = link.__context__
    return frames


def outcome(program, refs):
    """What is shown, and which objects of the frames live with the exception."""
    try:
        program(torch.ones(2), refs)
    except Exception as error:
        return shown(error), [ref() is not None for ref in refs]


def observed(program):
    """The same, and which live without it."""
    refs = []
    found = outcome(program, refs)
    gc.collect()
    return *found, [ref() is not None for ref in refs]


@pytest.mark.parametrize("program", PROGRAMS)
def test_local_variables_are_shown_and_live_as_long_as_in_eager_mode(program):
    expected = observed(program)
    assert any(entry[2] for entry in expected[0]) and not any(expected[2])
    compiled = capture.compile(program, backend="eager")
    for _ in range(2):
        assert observed(compiled) == expected


def test_a_debugger_finds_them_after_the_exception():
    compiled = capture.compile(through_finally, backend="eager")
    told = StringIO()
    try:
        compiled(torch.ones(2), [])
    except ValueError:
        debugger = pdb.Pdb(stdin=StringIO("p n, cell\nw\nup\np n\nup\nup\np steps, late\nq\n"), stdout=told)
        debugger.use_rawinput = False
        debugger.reset()
        debugger.interaction(None, sys.exc_info()[2])
    assert "(0, 5)" in told.getvalue() and "([1, 3], 4)" in told.getvalue() and told.getvalue().count("inner(") >= 3
