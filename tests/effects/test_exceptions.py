"""Exceptions of the program: type, arguments, cause, context and the user's own lines, on capture and on a hit."""
from __future__ import annotations

import contextlib
import linecache
import sys
import traceback
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from tests.helpers import CAPTURE_FOLDER, call, check

X = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
BAD = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])
GOOD_INDEX, BAD_INDEX = torch.tensor([0, 1]), torch.tensor([0, 7])


class Custom(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


def raises_in_a_call(x):
    def inner(t):
        raise Custom("from inside", t.ndim)
    y = x * 2
    return inner(y)


def raises_from(x):
    try:
        {}["missing"]
    except KeyError as error:
        raise Custom("with a cause", 1) from error


def raises_from_none(x):
    try:
        int("a")
    except ValueError:
        raise RuntimeError("hidden") from None


def raises_from_a_class_that_makes_nothing(x):
    class Made(Exception):
        def __new__(cls):
            return None
    raise Custom("from 3.13 on a TypeError", 1) from Made


def raises_while_handling(x):
    try:
        [][0]
    except IndexError:
        {}["second"]


def raises_in_finally(x):
    try:
        raise ValueError("first")
    finally:
        raise TypeError("second")


def raises_in_a_generator(x):
    def rows():
        for row in x:
            yield row
            raise Custom("in a generator", 2)
    return [row * 2 for row in rows()]


def raises_in_a_comprehension(x):
    return [1 // n for n in (1, 0)]


def raises_in_with(x):
    with torch.no_grad(), contextlib.ExitStack():
        y = x + 1
        raise Custom("in with", y.ndim)


def raises_in_a_property(x):
    class_ = Properties()
    return class_.broken * x


class Properties:
    @property
    def broken(self):
        raise LookupError("in a property")

    def __getitem__(self, key):
        raise KeyError(key)

    def __add__(self, other):
        raise ArithmeticError("in an operator")


def raises_in_special_methods(x):
    try:
        return Properties()[3]
    except KeyError:
        return Properties() + x


def raises_a_group(x):
    raise ExceptionGroup("group", [ValueError(1), ExceptionGroup("inner", [TypeError(2)])])


def raises_what_except_star_leaves(x):
    try:
        raise ExceptionGroup("group", [ValueError(1), TypeError(2)])
    except* ValueError:
        pass


def raises_again(x):
    try:
        raise Custom("again", 3)
    except Custom as error:
        error.add_note("seen")
        raise


def raises_an_old_exception(x):
    error = ValueError("made before")
    try:
        raise error
    except ValueError:
        raise error


def raises_a_class(x):
    raise NotImplementedError


def raises_an_assertion(x):
    assert x.ndim == 3, f"expected three dimensions, got {x.ndim}"


def raises_attribute_error(x):
    return x.no_such_attribute


def raises_type_error_of_a_call(x):
    return raises_a_class(x, 1)


def raises_shape_error(x):
    y = x + 1
    return torch.matmul(y, torch.ones(3, 3))


def raises_in_functional(x):
    return F.linear(x, torch.ones(5, 7))


def raises_dtype_error(x):
    return x & x


def raises_by_unpacking(x):
    a, b, c = x
    return a


def raises_stop_iteration(x):
    return next(iter(()))


def raises_through_map(x):
    return list(map(lambda n: [0][n], (0, 1)))


def raises_in_a_constructor(x):
    class_ = nn.Linear("a", 3)
    return class_(x)


RAISING = [value for name, value in globals().items() if name.startswith("raises_")]


@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_an_exception_is_the_programs_own(program) -> None:
    check(lambda: program, call(X), call(X), call(X + 1), captures=None, fullgraph=True)


@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_a_traceback_shows_no_frame_of_capture(program) -> None:
    compiled = capture.compile(program)
    for _ in range(3):
        with pytest.raises(BaseException) as eager:
            program(X)
        with pytest.raises(BaseException) as captured:
            compiled(X)
        files = [entry.filename for entry in traceback.extract_tb(captured.value.__traceback__)]
        assert not [file for file in files if file.startswith((CAPTURE_FOLDER, "<capture"))], files
        assert own_lines(captured.value) == own_lines(eager.value)
        text = "".join(traceback.format_exception(captured.value))
        assert all(line in text for line in source_lines(eager.value)), text


def own_lines(error: BaseException) -> list[tuple[str, int | None]]:
    """Function and line of each frame of this file below the test itself."""
    return [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)
            if entry.filename == __file__ and not entry.name.startswith("test_")]


def source_lines(error: BaseException) -> list[str]:
    return [linecache.getline(__file__, line).strip() for _, line in own_lines(error)]


# --- tensor operations that raise on some data only

def cholesky(x):
    y = x * 1
    return torch.linalg.cholesky(y) + 1


def nested_cholesky(x):
    def factor(t):
        return torch.linalg.cholesky(t)

    def twice(t):
        return factor(t) * 2
    return [twice(t) for t in (x, x + 0)]


class Factor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x):
        y = self.linear(x)
        return torch.linalg.cholesky(y)


@pytest.mark.parametrize("make", [lambda: cholesky, lambda: nested_cholesky, Factor],
                         ids=["function", "nested", "module"])
@pytest.mark.parametrize("backend", ["eager", lambda gm, inputs: gm.forward], ids=["eager", "callable"])
def test_a_tensor_operation_that_raises_on_a_hit_shows_the_users_line(make, backend) -> None:
    check(make, call(X), call(X), call(BAD), call(X), hits=3 if backend else None, backend=backend)


def test_an_index_out_of_range_on_a_hit() -> None:
    def make():
        table = torch.arange(6.0).reshape(2, 3)

        def lookup(index):
            return F.embedding(index, table)
        return lambda index: lookup(index) + table[index]
    check(make, call(GOOD_INDEX), call(GOOD_INDEX), call(BAD_INDEX), call(GOOD_INDEX), hits=3)


def test_a_call_that_raised_on_its_data_does_not_spoil_later_ones() -> None:
    """The first call raises; calls with other data do not, and become captures and hits."""
    compiled = capture.compile(cholesky)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(BAD)
    for _ in range(3):
        assert torch.equal(compiled(X), cholesky(X))
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 2)


def test_an_exception_that_depends_on_an_argument() -> None:
    def program(x, strict):
        if strict:
            raise Custom("strict", 1)
        return x * 2
    check(lambda: program, call(X, False), call(X, True), call(X, False), call(X, True), call(X, False), captures=1,
          hits=2)


def test_a_tensor_operation_that_raises_and_is_caught() -> None:
    def program(x):
        try:
            return torch.linalg.cholesky(x)
        except torch.linalg.LinAlgError:
            return x
    check(lambda: program, call(X), call(BAD), call(X), call(BAD), captures=None, fullgraph=False)


# --- what happened before

def test_what_was_changed_before_the_exception_stays_changed() -> None:
    def make():
        state = SimpleNamespace(log=[], total=torch.zeros(2, 2), steps=0)

        def program(x, fail):
            state.steps += 1
            state.log.append(state.steps)
            state.total.add_(x)
            try:
                if fail:
                    raise Custom("fail", state.steps)
            finally:
                state.log.append("finally")
            return state.total * 2
        return program, state
    check(make, call(X, True), call(X, False), call(X, True), call(X, False), captures=None)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_was_changed_before_a_tensor_operation_raises_on_a_hit_stays_changed(in_place: bool) -> None:
    def make():
        state = SimpleNamespace(before=0, after=0, total=torch.zeros(2, 2), log=[])

        def program(x):
            state.before += 1
            if in_place:
                state.total.add_(x)
            y = torch.linalg.cholesky(x)
            state.after += 1
            state.log.append(y)
            return y
        return program, state
    check(make, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)


def test_what_was_printed_and_stored_before_a_tensor_operation_raises_on_a_hit_and_what_was_not() -> None:
    def make():
        state = SimpleNamespace(step=0, total=torch.zeros(2, 2), log=[], last=None)

        def program(x, name):
            state.step += 1
            state.log.append((name, state.step))
            print("step", state.step, name)
            state.last = x
            state.total.add_(x)
            y = torch.linalg.cholesky(x)
            state.step += 1
            state.log.append(y)
            print("done", state.step)
            return y
        return program, state
    check(make, call(X, "a"), call(X, "b"), call(BAD, "c"), call(X, "d"), captures=None, fullgraph=False)


def test_what_follows_an_earlier_operation_that_may_raise_is_not_done_before_it() -> None:
    def make():
        state = SimpleNamespace(log=[], total=torch.zeros(2, 2))

        def program(x):
            state.total.add_(x)
            state.log.append("first")
            y = torch.linalg.cholesky(x)
            state.log.append("second")
            return y + torch.linalg.inv(x)
        return program, state
    check(make, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)


def test_modes_are_as_before_after_an_exception_on_a_hit() -> None:
    def program(x):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.linalg.cholesky(x)
        return y
    check(lambda: program, call(X), call(X), call(BAD), call(X), hits=3)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


# --- the exception being handled

def handled_inside(x):
    seen = []
    try:
        raise ValueError("a")
    except ValueError as error:
        seen.append(sys.exc_info()[1] is error)
        try:
            raise KeyError("b")
        except KeyError:
            seen.append(sys.exception().args)
        seen.append(sys.exception() is error)
    seen.append(sys.exception())
    return x, seen


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_exception_being_handled(fullgraph: bool) -> None:
    check(lambda: handled_inside, call(X), call(X), captures=None, fullgraph=fullgraph)


def test_whether_an_exception_is_being_handled_is_guarded() -> None:
    compiled = capture.compile(lambda x: (x * 2, sys.exception() is None, sys.exc_info()[0]))
    for _ in range(2):
        assert compiled(X)[1:] == (True, None)
        try:
            raise ValueError
        except ValueError:
            assert compiled(X)[1:] == (False, ValueError)


def test_a_call_inside_of_a_handler() -> None:
    compiled = capture.compile(raises_in_a_call)
    for function in (raises_in_a_call, compiled, compiled):
        try:
            raise ValueError("outer")
        except ValueError as outer:
            with pytest.raises(Custom) as caught:
                function(X)
            assert caught.value.__context__ is outer and sys.exception() is outer
    assert sys.exception() is None


def test_the_locals_of_a_failed_call_are_let_go() -> None:
    import gc
    import weakref

    class Marker:
        pass

    def program(x):
        marker = Marker()
        alive.append(weakref.ref(marker))
        raise ValueError
    alive: list = []
    compiled = capture.compile(program)
    for _ in range(2):
        with pytest.raises(ValueError):
            compiled(X)
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError])
def test_exceptions_that_are_not_errors_pass_through(kind: type[BaseException]) -> None:
    fail = [kind]

    @capture.compile
    def program(x):
        try:
            if fail:
                raise fail[0]("stop")
        except ValueError:
            return None
        return x * 2
    for _ in range(2):
        with pytest.raises(kind, match="stop"):
            program(X)
    fail.clear()
    assert torch.equal(program(X), X * 2) and torch.equal(program(X), X * 2)
    assert capture.stats(program).captures == 1


def test_unbounded_recursion_is_the_users_error() -> None:
    def endless(n):
        return endless(n + 1)

    @capture.compile
    def program(x):
        return endless(0)
    with pytest.raises(RecursionError):
        program(X)
    assert torch.equal(capture.compile(lambda x: x + 1)(X), X + 1)


def test_the_debugger_sees_the_users_file() -> None:
    compiled = capture.compile(cholesky)
    compiled(X)
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        compiled(BAD)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert any(frame.f_code is cholesky.__code__ for frame in frames)
