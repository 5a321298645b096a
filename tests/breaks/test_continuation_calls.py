"""What a break calls on a hit: the operation, below frames like the program's, and the continuation, with its globals and cells."""
from __future__ import annotations

import gc
import sys
import types
import weakref

import pytest
import torch

import capture
from capture import _C
from tests.breaks.cuts import LOG, X, compared, outside
from tests.helpers import call, check

NAME = "this module"


@capture.disable
def name_of_caller(depth=1):
    """What the globals above say they are, and the line there."""
    frame = sys._getframe(depth)
    LOG.append((frame.f_globals["NAME"], frame.f_code.co_name, frame.f_lineno))
    return frame.f_globals["NAME"]


def over_globals(function, name):
    """The same code in another module."""
    return types.FunctionType(function.__code__, {**globals(), "NAME": name, "__name__": name}, function.__name__, None,
                              function.__closure__)


def asks(x):
    y = x * 2
    name_of_caller()
    name_of_caller(2)
    return y + 1, NAME


ASKING = {name: over_globals(asks, name) for name in ("one", "two", "three")}


def calls_each(x):
    return [function(x + 1) for function in ASKING.values()], ASKING["one"](x), ASKING["two"](x)


def test_one_code_over_several_globals() -> None:
    compared(calls_each, call(X), call(X), call(X + 1), captures=None)


def test_functions_of_one_code_compiled_apart() -> None:
    def make():
        LOG.clear()
        return lambda x: [function(x) for function in ASKING.values()], LOG

    expected = make()[0](X)
    seen = list(LOG)
    compiled = [capture.compile(function, backend="eager") for function in ASKING.values()]
    for _ in range(3):
        LOG.clear()
        results = [function(X) for function in compiled]
        assert [name for _, name in results] == [name for _, name in expected]
        assert [entry[:2] for entry in LOG[::2]] == [entry[:2] for entry in seen[::2]]


def make_counter(start):
    count, log = start, []

    def counter(x):
        nonlocal count
        y = x * count
        count += outside(1)
        log.append(count)
        return y + count, len(log)
    return counter, log


def test_cells_of_the_function_itself() -> None:
    check(lambda: make_counter(3), *[call(X)] * 6, captures=None, fullgraph=False)


def test_functions_over_different_cells_of_one_code() -> None:
    def make():
        counters = [make_counter(start)[0] for start in (1, 5)]

        def program(x):
            return [counter(x) for counter in counters]
        return program, counters

    check(make, *[call(X)] * 4, captures=None, fullgraph=False)


def test_cells_that_a_call_makes() -> None:
    def program(x):
        scale = x.sum()

        def later(y):
            nonlocal scale
            scale = scale + outside(1)
            return y * scale
        first = later(x)
        outside(None, first)
        return first, later, scale

    def use(x):
        first, later, scale = program(x)
        return first, later(x), scale
    compared(use, *[call(X * i) for i in range(4)], captures=None)


def test_cells_of_a_call_die_with_it() -> None:
    def program(x):
        y = x * 2
        outside()
        return (lambda: y)() + 1

    compiled = capture.compile(program, backend="eager")
    for _ in range(3):
        x = X.clone()
        compiled(x)
        gone = weakref.ref(x)
        del x
        gc.collect()
        assert gone() is None


def test_a_function_and_its_continuations_are_collected() -> None:
    class Owner:
        pass

    def make():
        owner = Owner()

        def program(x):
            y = x * 2
            outside(owner)
            return y + 1, owner

        owner.compiled = capture.compile(program, backend="eager")
        for _ in range(3):
            owner.compiled(X)
        return weakref.ref(owner)
    gone = make()
    LOG.clear()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("raises", [False, True])
def test_an_exception_of_the_operation_is_handled_behind_it(raises) -> None:
    @capture.disable
    def fails(x):
        if raises:
            raise KeyError("outside")
        return x

    def inner(x):
        return fails(x * 2) + 1

    def program(x):
        try:
            return inner(x) * 3
        except KeyError as error:
            return x - 1, error.args
    compared(program, call(X), call(X), call(X + 1), captures=None)


VALUES = [0, 1, 2.5, float("nan"), "", "text", None, True, b"", 1j]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_branch_on_what_a_call_returned(value) -> None:
    def program(x):
        return x * 2 if outside(value) else x - 1
    compared(program, call(X), call(X), captures=None)


def test_a_branch_on_a_value_of_a_tensor() -> None:
    def program(x):
        y = x * 2
        while y.sum().item() < 100:
            y = y * 2 if y.sum() > 0 else y + 7
        return y
    compared(program, *[call(X * i + i) for i in range(1, 6)], captures=None)


def test_the_truth_of_several_elements_raises() -> None:
    def program(x):
        y = x * 2
        return y if y > 1 else x
    compared(program, call(X[0, 0]), call(X[0, 0]), call(X), call(X), captures=None)


def test_continuation_makes_functions() -> None:
    cell = types.CellType(3)
    made = _C.continuation((lambda x: (x, cell, NAME)).__code__, {"NAME": "other"}, (types.CellType(cell),))
    assert made(1) == (1, cell, "other") and made.__defaults__ is None
    for arguments in ((), (made, {}, ()), (made.__code__, {}, ()), (asks.__code__, [], ()), (asks.__code__, {}, (cell,)),
                      (asks.__code__, {}, [])):
        with pytest.raises(TypeError):
            _C.continuation(*arguments)


def test_a_tail_call_takes_what_it_needs() -> None:
    for arguments in ((), (len, None, []), (len, None), (len, len, ()), (len, asks, (1,))):
        with pytest.raises(TypeError):
            _C.TailCall(*arguments)
    with pytest.raises(TypeError):
        _C.TailCall(callable=len, function=None, arguments=())


def loops_over(items):
    def program(x):
        seen = []
        for n, item in items():
            x = x + 1
            seen.append((n, item))
            outside(n)
        return x, seen
    return program


TWINS = [torch.ones(2), torch.zeros(2), "text", 3.5]


@pytest.mark.parametrize("items", [
    lambda: enumerate(range(5)), lambda: enumerate(TWINS), lambda: zip(range(3), TWINS), lambda: {"a": 1, "b": X}.items(),
    lambda: zip(range(9), {"k": 1, "l": 2}.items()), lambda: enumerate(reversed(TWINS)), lambda: zip("abc", range(3, 0, -1)),
    lambda: enumerate(iter(TWINS)), lambda: [(1, 2)], lambda: ()],
    ids=["enumerate range", "enumerate list", "zip", "dict", "zip of dict", "reversed", "zip of text", "iterator", "one", "none"])
def test_loops_with_a_break_in_each_round(items) -> None:
    compared(loops_over(items), call(X), call(X), call(X + 1), captures=None)


def test_a_dict_that_changes_in_a_loop() -> None:
    def program(x):
        entries = {"a": 1, "b": 2, "c": 3}
        for key in entries:
            x = x + 1
            if outside(key) == "b":
                entries["d"] = 4
        return x
    compared(program, call(X), call(X), captures=None)


def test_a_list_that_changes_in_a_loop() -> None:
    def program(x):
        items = [1, 2, 3]
        for item in items:
            x = x * item
            if outside(item) == 2 and len(items) < 6:
                items.append(2)
        return x, items
    compared(program, call(X), call(X), captures=None)
