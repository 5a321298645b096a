"""Frame objects (`sys._getframe`, `inspect.currentframe`): what functions read of the frames that call them."""
import inspect
import sys

import pytest
import torch

import capture

ON_313 = sys.version_info >= (3, 13)


def names_of_caller(depth=1):
    return sorted(sys._getframe(depth).f_locals)


def interpolate(text):
    """What libraries do that fill in templates and queries from their caller's variables."""
    return text.format(**sys._getframe(1).f_locals)


def of_caller_of_caller():
    frame = inspect.currentframe().f_back.f_back
    return frame.f_code.co_name, frame.f_locals["scale"], frame.f_lineno - frame.f_code.co_firstlineno


def returned_frame(x):
    scale = 4
    y = x * scale
    return sys._getframe()


def own_variables(x):
    y = x + 1
    name = "me"
    frame = sys._getframe()
    found = frame.f_locals["name"], sorted(frame.f_locals)
    return y, found, frame.f_lineno - frame.f_code.co_firstlineno, frame.f_code.co_name


def variables_of_the_caller(x):
    y = x + 1
    count = 3
    found = names_of_caller()
    return y * count, found


def template(x):
    y = x + 1
    count = 3
    return y, interpolate("{count} of {y.shape[0]}")


def two_up(x):
    scale = 2.0

    def inner():
        return of_caller_of_caller()
    return x * scale, inner()


def after_a_change(x):
    frame, count = sys._getframe(), 1
    before = frame.f_locals["count"]
    count = 5
    return x + count, before, frame.f_locals["count"], frame is sys._getframe()


def a_number_from_there(x):
    scale = float(x.shape[0]) + 0.5
    return x * eval("scale * 2", None, sys._getframe().f_locals)


def in_a_cell(x):
    scale = 3

    def double():
        nonlocal scale
        scale *= 2
        return scale
    double()
    return x * sys._getframe().f_locals["scale"]


def one_that_has_returned(x):
    frame = returned_frame(x)
    return frame.f_locals["y"] + frame.f_locals["scale"]


def behind_a_break(x):
    count = 3
    y = x + count
    print("a break", file=Stream())
    frame = sys._getframe()
    return y, frame.f_locals["count"]


class Stream:
    """A file whose writes no trace holds."""

    def write(self, text):
        return len(text)

    def flush(self):
        pass


PROGRAMS = [own_variables, variables_of_the_caller, template, two_up, after_a_change, a_number_from_there, in_a_cell,
            one_that_has_returned, behind_a_break]


def equal(found, expected):
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_frames_show(program, backend):
    compiled = capture.compile(program, backend=backend)
    for size in (3, 3, 3, 4, 3):
        x = torch.arange(float(size))
        assert equal(compiled(x), program(x))
        if size == 4:
            capture.wait()


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program is not behind_a_break],
                         ids=lambda program: program.__name__)
def test_reading_frames_breaks_no_graph(program):
    capture.compile(program, backend="eager", fullgraph=True)(torch.ones(3))


def test_a_changed_variable_is_seen():
    def f(x, count):
        return x + 1, interpolate("{count}")
    compiled, x = capture.compile(f, backend="eager"), torch.ones(2)
    assert [compiled(x, count)[1] for count in (1, 1, 2, 2, 1, 3)] == ["1", "1", "2", "2", "1", "3"]
