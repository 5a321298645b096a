"""Operations that fail only on a hit, in programs that also change something: all that came before stays, and handlers run."""
from __future__ import annotations

import contextlib
import io
import random
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from capture.interp.recording.undo_log import MOST_BYTES
from tests.helpers import call, check
from tests.interp.recording.failing import BAD, Block, FailingPrograms, X, name_of

PROGRAMS = FailingPrograms()


@PROGRAMS.add
def a_write_before(state, x):
    state.total.add_(x)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return state.total * 2


@PROGRAMS.add
def a_write_after(state, x):
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 3
    state.total.add_(y)
    return y


@PROGRAMS.add
def writes_on_both_sides(state, x):
    state.total.add_(x)
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 3
    state.total.add_(y)
    return y + 1


@PROGRAMS.add
def an_operation_that_writes_itself(state, x):
    try:
        state.total.index_add_(0, x[0].long().abs(), x)
    except (RuntimeError, IndexError) as error:
        state.log.append(type(error).__name__)
    return state.total * 2


@PROGRAMS.add
def random_numbers_before(state, x):
    noise = torch.rand(2, 2)
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 3
    return y + noise, torch.rand(1)


@PROGRAMS.add
def random_numbers_after(state, x):
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 3
    return F.dropout(y, 0.5), torch.rand(1)


@PROGRAMS.add
def effects_of_python_before(state, x):
    state.count += 1
    print("before", state.count)
    noise = torch.rand(2, 2)
    y = torch.linalg.cholesky(x) + noise
    state.count += 10
    return y


@PROGRAMS.add
def in_finally(state, x):
    state.total.add_(1)
    try:
        return torch.linalg.cholesky(x)
    finally:
        state.log.append("finally")


@PROGRAMS.add
def in_a_with_block(state, x):
    state.total.add_(1)
    with Block(state.log, ends=True):
        x = torch.linalg.cholesky(x)
    return x + 1


@PROGRAMS.add
def one_call_deep(state, x):
    def inner(t):
        state.total.add_(t)
        return torch.linalg.cholesky(t)
    try:
        return inner(x)
    except RuntimeError:
        return state.total + 1


@PROGRAMS.add
def under_torchs_own_blocks_in_a_handler(state, x):
    state.total.add_(1)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return torch.linalg.cholesky(x)
    except RuntimeError:
        return state.total, torch.is_grad_enabled()


@pytest.mark.parametrize("function", PROGRAMS, ids=name_of)
def test_what_came_before_stays_and_handlers_run(function) -> None:
    def make():
        state = SimpleNamespace(count=0, total=torch.zeros(2, 2), log=[])
        return (lambda x: function(state, x)), state
    stats = check(make, call(X), call(X), call(BAD), call(X), call(BAD), call(X), captures=None, fullgraph=False)
    assert stats.hits > 0 and stats.operations > 0, stats


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear, self.steps = nn.Embedding(10, 4), nn.Linear(4, 3), 0

    def forward(self, tokens, targets):
        self.steps += 1
        with torch.autocast("cpu", enabled=False):
            y = F.dropout(self.linear(self.embedding(tokens)), 0.1)
            return F.cross_entropy(y, targets)


def test_a_training_step_with_a_counter_is_one_graph() -> None:
    good, bad = torch.tensor([1, 2]), torch.tensor([1, 12])
    stats = check(Net, call(good, good.clone()), call(good, good.clone()), call(bad, good), call(good, bad),
                  call(good, good.clone()), hits=4)
    assert stats.graphs == 1


def test_writes_without_anyone_to_tell_are_one_graph() -> None:
    def function(x, index):
        with torch.no_grad():
            total = torch.zeros(2, 2)
            total.add_(x)
            y = total[index]
            x.mul_(2)
        return y
    index = torch.tensor([0, 1])
    stats = check(lambda: function, call(X, index), call(X, index), call(X + 1, index), hits=2)
    assert stats.graphs == 1


def test_the_report_says_why() -> None:
    def function(x, large):
        large.add_(1)
        try:
            return torch.linalg.cholesky(x)
        except RuntimeError:
            return x
    compiled = capture.compile(function, backend="eager")
    compiled(X, torch.zeros(1 << 20))
    broken, = capture.report(compiled).frames[0].breaks
    assert broken.reason == "failing-operation" and "cholesky" in broken.context


# -- calls that act on the world ---------------------------------------------------------------------------------------

def test_a_closed_file_is_found_by_its_handler(tmp_path) -> None:
    def make():
        state = SimpleNamespace(file=open(tmp_path / "log", "w"), log=[])

        def function(x):
            state.log.append(1)
            y = x * 2
            try:
                state.file.write("text")
            except ValueError as error:
                state.log.append(str(error))
                return y + 1
            finally:
                state.log.append("finally")
            return y
        return function, state.log
    worlds = []

    def made():
        worlds.append(make())
        return worlds[-1]

    def close(_):
        worlds[-1][0].__closure__[0].cell_contents.file.close()
    check(made, call(X), call(X), close, call(X), call(X), captures=None, fullgraph=False)


def test_a_warning_that_becomes_an_error_is_found_by_its_handler() -> None:
    def function(x):
        y = x * 2
        try:
            warnings.warn("careful", RuntimeWarning)
        except RuntimeWarning as error:
            return y + 1, str(error)
        return y, None
    compiled = capture.compile(function, backend="eager")
    for action in ("ignore", "ignore", "error", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            (left, text), (right, told) = function(X), compiled(X)
        assert torch.equal(left, right) and text == told


def test_a_file_in_its_own_block_does_not_cut(tmp_path) -> None:
    path = str(tmp_path / "log")

    def function(x):
        with open(path, "w") as file:
            file.write("text")
        return x * 2
    stats = check(lambda: function, call(X), call(X), hits=1)
    assert stats.graphs == 1


@pytest.mark.parametrize("named", [True, False], ids=["a file", "standard output"])
def test_a_stream_that_was_closed_is_found_by_the_handler_around_print(named) -> None:
    def function(x, stream):
        y = x * 2
        seen.append(1)
        try:
            print("text", file=stream)
        except ValueError as error:
            return y + 1, str(error)
        return y, None
    seen: list[int] = []
    compiled = capture.compile(function, backend="eager")
    open_, closed = io.StringIO(), io.StringIO()
    closed.close()
    for stream in (open_, open_, closed, open_):
        given = stream if named else None
        with contextlib.redirect_stdout(stream):
            (left, text), (right, told) = function(X, given), compiled(X, given)
        assert torch.equal(left, right) and text == told
    assert open_.getvalue() == "text\n" * 6 and len(seen) == 8
    assert capture.stats(compiled).hits >= 2


def test_a_draw_whose_arguments_change_is_found_by_its_handler() -> None:
    def make():
        state = SimpleNamespace(log=[], top=3)

        def function(x):
            state.log.append("before")
            try:
                number = random.randrange(state.top)
            except ValueError:
                state.log.append("empty")
                return x + 1
            return x * number
        return function, state
    stats = check(make, call(X), call(X), lambda state: setattr(state, "top", 0), call(X), lambda state: setattr(state, "top", 2),
                  call(X), captures=None, fullgraph=False)
    assert stats.breaks > 0


@pytest.fixture
def moody():
    """An operator of another library, and what it looks at beside its argument."""
    mood = SimpleNamespace(bad=False)

    @torch.library.custom_op("may_raise::moody", mutates_args=())
    def moody(x: torch.Tensor) -> torch.Tensor:
        if mood.bad:
            raise ValueError("bad mood")
        return x.clone()
    return moody, mood


CONSTANTS = {
    "what follows from constants": lambda moody: torch.arange(4).gather(0, torch.tensor([3])),
    "an operator of another library": lambda moody: moody(torch.tensor([3])),
    "another operation of that": lambda moody: torch.arange(4).gather(0, moody(torch.tensor([3]))),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_operations_on_constants_before_a_large_write(name, moody) -> None:
    """Those of torch raise on no hit. Others may, and then the handler finds what was there before the write."""
    (operator, mood), may_raise = moody, name != "what follows from constants"
    total, log = torch.zeros(2 * MOST_BYTES // 4), []

    def function(x):
        try:
            y = CONSTANTS[name](operator)
        except ValueError:
            y = torch.tensor([100])
            log.append(total[0].item())
        total.add_(1)
        return x * y
    compiled = capture.compile(function, backend="eager")
    for number, bad in enumerate((False, False, False, True, False, True)):
        mood.bad = bad
        assert torch.equal(compiled(X), X * (100 if bad and may_raise else 3)) and total[0] == number + 1
    assert log == ([3.0, 5.0] if may_raise else [])
    stats = capture.stats(compiled)
    assert stats.hits and bool(stats.breaks) is may_raise
