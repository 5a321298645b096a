"""Debuggers in captured functions, and tools that are told of lines: they find the program's own frames, as without capture."""
from __future__ import annotations

import contextlib
import pdb
import re
import sys
from io import StringIO

import pytest
import torch

import capture
from capture.errors import GraphBreakError

COMMANDS = "p x.sum(), y, sorted(locals())\nw\nn\nn\np z\ns\nr\nn\nup\np sorted(locals())\ndown\nc\n"


def debugger(told, commands=COMMANDS):
    made = pdb.Pdb(stdin=StringIO(commands), stdout=told, readrc=False)
    made.use_rawinput = False
    return made


def helper(x):
    doubled = x * 2
    return doubled + 1


def stopped_by_breakpoint(x, told):
    y, dead = 3, "dead"
    x = x + y
    breakpoint()
    z = x * y
    w = helper(z)
    return w - 1


def stopped_by_a_function(x, told):
    y = [1, 2]
    x = x + len(y)
    debugger(told).set_trace()
    z = x * 2
    w = helper(z)
    return w - 1


def stopped_in_a_loop(x, told):
    total = x
    for y in range(2):
        x = x + y
        if y == 1:
            breakpoint()
        z = x * y
        total = total + helper(z)
    return total


def inner(x, told):
    y = x.shape
    try:
        breakpoint()
        z = x * 3
        w = helper(z)
        return w
    finally:
        told.write("finally\n")


def stopped_in_a_callee(x, told):
    before = x + 1
    result = inner(before, told)
    return result - before


PROGRAMS = [stopped_by_breakpoint, stopped_by_a_function, stopped_in_a_loop, stopped_in_a_callee]


def session(program, monkeypatch, grad=False):
    """What a program returns, and what the debugger tells, with the frames of this file alone."""
    told = StringIO()
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger(told).set_trace(sys._getframe().f_back))
    try:
        result = program(torch.arange(3.0), told)
    finally:
        sys.settrace(None)
    lines = re.sub("0x[0-9a-f]+", "", told.getvalue()).splitlines()
    own = [line for line in lines if not re.match(r"(\(Pdb\) )?  (/|<)|-> ", line) or "/test_debuggers.py" in line]
    return result.tolist(), own


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_debugger_stops_in_the_frame_and_steps_through_it(program, monkeypatch):
    compiled = capture.compile(program, backend="eager")
    expected, *found = [session(each, monkeypatch) for each in (program, compiled, compiled, compiled)]     # from one line
    assert len(expected[1]) > 10 and any(__file__ in line for line in expected[1])
    for each in found:
        assert each == expected
    assert "debugger" in {report.reason.id for unit in compiled.capture_unit.family for report in unit.breaks}


@pytest.mark.parametrize("program", [stopped_by_breakpoint, stopped_in_a_loop, stopped_in_a_callee])
def test_where_the_trace_cannot_end_the_local_variables_are_shown(program, monkeypatch):
    def stop():
        frame = sys._getframe().f_back
        while frame.f_code.co_name != "session":
            if frame.f_code.co_filename == __file__:
                seen.append((frame.f_code.co_name, frame.f_lineno, repr(frame.f_locals)))
            frame = frame.f_back

    def session(program):
        x, told = torch.arange(3.0), StringIO()
        seen.clear()
        with contextlib.suppress(GraphBreakError):
            program(x, told)
        return re.sub("0x[0-9a-f]+", "", repr(seen))
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", stop)
    expected, found = session(program), session(capture.compile(program, backend="eager", fullgraph=True))
    assert program.__name__ in expected and found == expected


def asks(x):
    breakpoint()
    return x * 2


def called_with_dead_locals(x):
    dead, y, gone = {"a": 1}, x + 1, 2
    del gone
    return asks(y) - 1


def called_in_a_loop(x):
    for k in range(2):
        note = [k]
        x = asks(x)
    return x


def called_in_a_block(x):
    before = "dead"
    with torch.no_grad():
        return called_with_dead_locals(x) + 1


def called_beside_cells(x):
    c, d, e = 4, x + 1, 9

    def inner():
        return c
    return asks(x) + inner()


def called_in_a_generator(x):
    def rounds(y):
        last = 5
        for i in range(2):
            unused = i + 7
            yield asks(y) + i
    extra = "dead"
    return sum(rounds(x))


@pytest.mark.parametrize("program", [called_with_dead_locals, called_in_a_loop, called_in_a_block, called_beside_cells,
                                     called_in_a_generator], ids=lambda program: program.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_outer_frames_show_all_their_local_variables(program, backend, monkeypatch):
    def stop():
        frame = sys._getframe().f_back
        while frame.f_code.co_name != "session":
            if frame.f_code.co_filename == __file__:
                seen.append((frame.f_code.co_name, frame.f_lineno, frame.f_locals))
            frame = frame.f_back

    def session(program):
        seen.clear()
        result = program(torch.arange(3.0))
        return result.tolist(), re.sub("0x[0-9a-f]+", "", repr(seen))
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", stop)
    expected = session(program)
    compiled = capture.compile(program, backend=backend, options={"background": False} if backend == "native" else None)
    for _ in range(3):
        assert session(compiled) == expected
    assert capture.stats(compiled).native_calls == 0


def test_a_breakpoint_that_is_not_reached_breaks_nothing():
    def program(x, stop):
        if stop:
            breakpoint()
        return x * 2
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2), False)
    assert capture.stats(compiled).hits == 2


def branches(x):
    y = x + 1
    for i in range(2):
        y = helper(y) if i else y - 1
    if y.shape[0] > 5:
        y = y * 3
    return y


def lines_of(program):
    """The lines of this file that a tracer is told of."""
    lines = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename == __file__ and event == "line":
            lines.append((frame.f_code.co_name, frame.f_lineno))
        return trace
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = program(torch.ones(3))
    finally:
        sys.settrace(before)
    return result.tolist(), [line for line in lines if line[0] != "lines_of"]


@pytest.mark.parametrize("calls", [0, 2])
def test_tools_for_coverage_are_told_of_each_line(calls):
    compiled = capture.compile(branches, backend="eager")
    for _ in range(calls):
        compiled(torch.ones(3))
    before = capture.stats(compiled)
    assert lines_of(compiled) == lines_of(branches)
    after = capture.stats(compiled)
    assert (after.captures, after.hits, after.native_calls) == (before.captures, before.hits, 1)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert capture.stats(compiled).hits == before.hits + (2 if calls else 1)
    assert "coverage" in capture.explain(compiled)
