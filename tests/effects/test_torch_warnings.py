"""Warnings that torch gives from C++ and from its own Python: those of eager mode, in its places, and as often."""
from __future__ import annotations

import faulthandler
import tempfile
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from tests.programs import function

X, Y = torch.randn(4, 3), torch.randn(4, 1)


def of_c(x):
    return x[:1].var(0) * 2


def of_a_function_in_python(x):
    return F.mse_loss(x, Y) + F.mse_loss(x + 1, Y)


def of_a_module(x):
    return nn.MSELoss()(x, Y)


def of_its_callers_caller(x):
    return nn.Softmax()(x) + F.softmax(x)


def twice_on_one_line(x):
    return x[:1].std(0), x[:1].std(0)


def of_degrees_of_freedom(x):
    y = x[:1].std(0)
    return y.isnan(), x.new_ones(1).var()


def of_an_attribute(x):
    y = x.clone().requires_grad_() * 2
    return y, y.grad, y.grad


def under_inference_mode(x):
    with torch.inference_mode():
        return (x * 2)[:1].std(0)


PROGRAMS = [of_c, of_a_function_in_python, of_a_module, of_its_callers_caller, twice_on_one_line, of_degrees_of_freedom,
            of_an_attribute, under_inference_mode]


def told(program: Callable, calls: int, action: str) -> list[list[tuple]]:
    """What is warned of in each of a number of calls, as Python's filters of a new program let it through."""
    found = []
    for _ in range(calls):
        with warnings.catch_warnings(record=True) as caught:
            warnings.resetwarnings()        # which also forgets what was told: once in each call
            warnings.simplefilter(action)
            program(X)
        found.append([(w.category, str(w.message), w.filename, w.lineno) for w in caught])
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_capturing_call_warns_as_eager_mode_does(program: Callable) -> None:
    for action in ("default", "always"):
        expected, = told(program, 1, action)
        assert expected, "torch does not warn of that any more"
        compiled = capture.compile(program, backend="eager", fullgraph=True)
        assert told(compiled, 1, action) == [expected]


def test_hits_warn_no_more_in_the_same_place() -> None:
    def over_all(program: Callable) -> list[tuple]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(4):
                program(X)
        return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]
    for program in PROGRAMS:
        expected = over_all(program)
        compiled = capture.compile(program, backend="eager", fullgraph=True)
        assert over_all(compiled) == expected, program.__name__
        assert capture.stats(compiled).hits == 3


def test_a_filter_that_raises_does_so_in_the_users_line() -> None:
    for program in PROGRAMS:
        lines = []
        for run in (program, capture.compile(program, backend="eager")):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(UserWarning) as caught:
                    run(X)
            entry, own = caught.value.__traceback__, []
            while entry is not None:
                own += [(entry.tb_lineno, entry.tb_frame.f_code.co_name)] * (entry.tb_frame.f_code.co_filename == __file__)
                entry = entry.tb_next
            lines.append(own[1:])
        assert lines[0] == lines[1], program.__name__


@pytest.mark.parametrize("action", ["ignore", "always"])
def test_filters_of_the_program(action: str) -> None:
    """What the program silences around an operation is not told on hits either."""
    def program(x):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            y = nn.Softmax()(x) + x[:1].std(0)
        warnings.warn("own", stacklevel=1)
        return y
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    expected, found = told(program, 3, "default"), told(compiled, 3, "default")
    assert found[0] == expected[0] and (action == "always" or found == expected)
    assert capture.stats(compiled).hits == 2


def test_a_dump_of_the_stack_shows_the_users_line() -> None:
    """… while an operation runs in a capturing call: who looks what a program is doing finds its file, function and line."""
    with tempfile.TemporaryFile("w+") as file:
        class Dumps(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                faulthandler.dump_traceback(file, all_threads=False)
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2

        def program(x):
            return Dumps.apply(x) + 1
        capture.compile(program, backend="eager")(X)
        file.seek(0)
        assert f'line {program.__code__.co_firstlineno + 1} in program' in file.read()


def test_a_program_of_text_warns_too() -> None:
    program = function("x[:1].var(0)")
    (warning,), = told(capture.compile(lambda x: program(x, None, 0, None), backend="eager"), 1, "always")
    assert warning[2].startswith("<return x[:1]")
