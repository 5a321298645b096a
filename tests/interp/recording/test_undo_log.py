"""Graphs that change something and fail on a hit: what they have changed is taken back, and the call runs again natively.

PYTEST_DONT_REWRITE: assertions are part of what is tested here.
"""
from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from capture.interp.recording.undo_log import MOST_BYTES
from tests.helpers import call, call_with, check
from tests.interp.recording.failing import BAD, CALLS, Block, FailingPrograms, X, name_of

LARGE = MOST_BYTES // 4 + 4
PROGRAMS = FailingPrograms()


@PROGRAMS.add
def effects_that_need_the_graph(state, x):
    state.total.add_(x)
    state.log.append(x * 2)
    state.last = state.total + 1
    y = torch.linalg.cholesky(x)
    state.log.append(y)
    return y + state.total


@PROGRAMS.add
def effects_between_operations_that_may_fail(state, x):
    z = torch.linalg.inv(x)
    state.log.append("inverted")
    state.total.add_(z)
    y = torch.linalg.cholesky(x)
    state.log.append("factored")
    return y


@PROGRAMS.add
def a_tensor_of_the_trace_that_comes_to_require_gradients(state, x):
    z = torch.linalg.inv(x)
    state.log.append("inverted")
    state.total.add_(z)
    y = torch.linalg.cholesky(x)
    state.log.append("factored")
    return y.requires_grad_()


@PROGRAMS.add
def text_of_what_was_written(state, x):
    state.total.add_(x)
    print("total", state.total)
    state.total.mul_(2)
    print(f"twice {state.total.sum().item()}")
    return torch.linalg.cholesky(x)


@PROGRAMS.add
def a_handler(state, x):
    state.total.add_(x)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError as error:
        state.log.append(type(error).__name__)
        return state.total * 2


@PROGRAMS.add
def writes_on_both_sides_of_a_handler(state, x):
    state.total.add_(x)
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 3
        state.total.sub_(1)
    finally:
        state.log.append("finally")
    state.total.add_(y)
    return y + 1


@PROGRAMS.add
def a_with_block_of_the_programs(state, x):
    with Block(state.log):
        state.total.add_(x)
        return torch.linalg.cholesky(x) + state.total


@PROGRAMS.add
def a_call_deep(state, x):
    def inner(t):
        state.total += t
        state.log.append(state.total.clone())
        return torch.linalg.cholesky(t)
    try:
        return inner(x)
    except RuntimeError:
        return state.total + 1


@PROGRAMS.add
def views(state, x):
    state.total[0].add_(1)
    state.total.view(-1)[1:3].mul_(3)
    state.total.t()[1] = 5
    state.total.data.sub_(1)
    state.log.append(state.total.sum())
    return torch.linalg.cholesky(x)


@PROGRAMS.add
def views_that_are_laid_out_anew(state, x):
    z = torch.linalg.inv(x)
    state.log.append("inverted")
    y = torch.linalg.cholesky(x)
    state.log.append("factored")
    row = x[:1]
    row.squeeze_(0)
    return y + z + row + (x * 2).t_() + state.total.view(2, 2, 1).transpose_(0, 2)[0]


@PROGRAMS.add
def a_large_view_that_is_laid_out_anew(state, x):
    state.log.append(torch.linalg.inv(x))
    y = torch.linalg.cholesky(x)
    rows = state.large[1:].unsqueeze_(0)
    state.log.append(rows.shape)
    return y


@PROGRAMS.add
def tensors_that_share_memory(state, x):
    state.part.add_(1)
    state.log.append(state.base * 1)
    state.base.mul_(2)
    return torch.linalg.cholesky(x) + state.part


@PROGRAMS.add
def results_by_the_keyword_out(state, x):
    torch.add(x, 1, out=state.total)
    state.log.append(x + 0)
    return torch.linalg.cholesky(x)


@PROGRAMS.add
def random_numbers_and_writes(state, x):
    state.total.add_(torch.rand(2, 2))
    state.log.append(F.dropout(x, 0.5))
    y = torch.linalg.cholesky(x)
    return y + torch.rand(2, 2)


@PROGRAMS.add
def running_statistics(state, x):
    y = state.norm(x)
    state.log.append(y)
    return torch.linalg.cholesky(x) + y


@PROGRAMS.add
def parameters_in_no_grad(state, x):
    with torch.no_grad():
        state.norm.weight.mul_(0.5)
        state.log.append(state.norm.weight * 1)
        return torch.linalg.cholesky(x) * state.norm.weight


@PROGRAMS.add
def an_operation_that_writes_and_fails(state, x):
    state.log.append(x + 1)
    try:
        state.total.index_add_(0, (x[0].long() - 1).abs(), x)
    except (RuntimeError, IndexError) as error:
        state.log.append(type(error).__name__)
    return state.total * 2


@PROGRAMS.add
def a_quotient_of_integers(state, x):
    state.total.add_(x)
    state.log.append(state.total * 1)
    try:
        return torch.arange(4) // (x.flatten().long() + 1)
    except RuntimeError as error:
        return str(error)


@PROGRAMS.add
def an_inference_mode(state, x):
    state.total.add_(1)
    state.log.append(state.total * 1)
    with torch.no_grad():
        with torch.inference_mode():
            return torch.linalg.cholesky(x)


@PROGRAMS.add
def autograd_follows_the_write(state, x):
    """It cannot be taken back."""
    state.total.copy_(state.norm.weight * 2)
    state.log.append(x * 2)
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x
    state.total = torch.zeros(2, 2)
    return y


@PROGRAMS.add
def a_tensor_gets_another_layout(state, x):
    """So it cannot."""
    state.total.add_(x)
    state.total.t_()
    state.log.append(x * 2)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return state.total + 1


def make_world(function):
    def make():
        base = torch.zeros(4)
        state = SimpleNamespace(total=torch.zeros(2, 2), log=[], last=None, base=base, part=base[1:3], norm=nn.BatchNorm1d(2),
                                large=torch.zeros(LARGE))
        return (lambda x: function(state, x)), state
    return make


@pytest.mark.parametrize("function", PROGRAMS, ids=name_of)
def test_effects_and_handlers_are_the_programs_own(function) -> None:
    stats = check(make_world(function), *CALLS, captures=None, fullgraph=False)
    assert stats.hits > 0 and stats.operations > 0, stats


CUT = {"autograd_follows_the_write", "a_tensor_gets_another_layout"}


@pytest.mark.parametrize("function", [each for each in PROGRAMS if name_of(each) not in CUT], ids=name_of)
def test_in_one_graph(function) -> None:
    stats = check(make_world(function), *CALLS, captures=1, hits=5)
    assert stats.graphs == 1


def test_versions_are_as_in_eager_mode() -> None:
    """What autograd has saved of a tensor before a call that fails is as valid afterwards as it is in eager mode."""
    def function(x, total, alias):
        y = torch.linalg.cholesky(x)
        total.add_(y)
        z = torch.linalg.inv(x - 2)
        alias.mul_(2)
        return z

    def run(function):
        total = torch.zeros(2, 2)
        alias = total.data
        versions = []
        for x in (X, X, BAD, torch.diag(torch.tensor([2.0, 3.0])), X * 2, X):     # the first operation fails, then the second
            try:
                function(x, total, alias)
            except RuntimeError:
                pass
            versions.append((total._version, alias._version))
        return versions
    compiled = capture.compile(function, backend="eager", fullgraph=True)
    assert run(compiled) == run(function)
    assert capture.stats(compiled).captures == 1


def test_what_was_saved_for_a_backward_pass_stays_valid() -> None:
    def function(x, buffer):
        y = torch.linalg.cholesky(x)
        buffer.mul_(2)
        return y
    compiled = capture.compile(function, backend="eager", fullgraph=True)
    compiled(X, torch.ones(2))
    weight, buffer = torch.ones(2, requires_grad=True), torch.tensor([3.0, 4.0])
    product = (weight * buffer).sum()
    with pytest.raises(RuntimeError, match="positive-definite"):
        compiled(BAD, buffer)
    product.backward()
    assert weight.grad.tolist() == [3.0, 4.0]


class Counted(torch.autograd.Function):
    calls: list[int] = []

    @staticmethod
    def forward(ctx, x):
        Counted.calls.append(1)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_code_of_the_programs_in_an_operation_runs_once() -> None:
    """What it does cannot be taken back."""
    def function(x, total):
        total.add_(1)
        y = Counted.apply(total)
        try:
            return torch.linalg.cholesky(x) + y
        except RuntimeError:
            return y
    compiled = capture.compile(function, backend="eager")
    left, right = torch.zeros(2, 2), torch.zeros(2, 2)
    for x in (X, X, BAD, X):
        Counted.calls.clear()
        expected, count = function(x, left), len(Counted.calls)
        assert torch.equal(compiled(x, right), expected) and torch.equal(left, right)
        assert len(Counted.calls) == 2 * count


# -- what is too large to be copied on each hit ------------------------------------------------------------------------

def large(state, x):
    state.total.add_(x[0, 0])
    state.log.append(x * 2)
    y = torch.linalg.cholesky(x)
    state.total.mul_(2)
    return y


def make_large():
    state = SimpleNamespace(total=torch.zeros(LARGE), log=[])
    return (lambda x: large(state, x)), state


def test_a_large_tensor_is_not_copied() -> None:
    """The trace ends between the write and the operation that may fail, where a handler would tell."""
    def make():
        state = SimpleNamespace(total=torch.zeros(LARGE), log=[])

        def function(x):
            try:
                return large(state, x)
            except RuntimeError:
                state.log.append("failed")
                return state.total.sum()
        return function, state
    stats = check(make, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)
    assert stats.breaks > 0 and stats.graphs > 1
    compiled = capture.compile(make()[0], backend="eager")
    compiled(X)
    broken = capture.report(compiled).frames[0].breaks[0]
    assert broken.reason == "failing-operation" and "cholesky" in broken.context


def test_a_large_write_does_not_cut_where_no_handler_tells() -> None:
    stats = check(make_large, call(X), call(X), call(X + 1), captures=1, hits=2, fullgraph=False)
    assert stats.breaks == 0


def test_a_large_tensor_is_copied_where_the_trace_cannot_end() -> None:
    check(make_large, call(X), call(X), call(BAD), call(X), captures=1, hits=3)


def test_a_part_of_a_large_tensor_is_not_large() -> None:
    def make():
        state = SimpleNamespace(table=torch.zeros(LARGE, 2), log=[])

        def function(x, row):
            row.add_(x[0])
            state.log.append(row * 1)
            return torch.linalg.cholesky(x)
        return function, state

    def row(x):
        return call_with(lambda state: (x.clone(), state.table[7]))
    stats = check(make, row(X), row(X), row(BAD), row(X), captures=1, hits=3, fullgraph=False)
    assert stats.breaks == 0


def test_nobody_tells_how_far_a_large_write_came() -> None:
    def make():
        state = SimpleNamespace(total=torch.zeros(LARGE), steps=0)

        def function(x):
            state.steps += 1                        # it comes before the graph
            state.total.add_(x[0, 0])
            return torch.linalg.cholesky(x)
        return function, state
    stats = check(make, call(X), call(X), call(BAD), call(X), captures=1, hits=3, fullgraph=False)
    assert stats.breaks == 0


# -- operations that are not known to fail -----------------------------------------------------------------------------

def test_a_handler_runs_whatever_operation_fails(monkeypatch) -> None:
    """As when memory runs out."""
    library = torch.library.Library("capture_tests_taking_back", "FRAGMENT")
    library.define("relay(Tensor x) -> Tensor")
    memory = SimpleNamespace(full=False)

    def relay(x):
        if memory.full:
            raise MemoryError("full")
        return x.clone()
    library.impl("relay", relay, "CompositeExplicitAutograd")
    operator = torch.ops.capture_tests_taking_back.relay.default
    monkeypatch.setattr("capture.interp.recording.may_raise.may_fail", lambda *args: False)

    def make():
        state = SimpleNamespace(total=torch.zeros(2), log=[])

        def function(x):
            state.total.add_(1)
            try:
                return operator(x)
            except MemoryError:
                state.log.append("full")
                return state.total * 2
        return function, state
    (eager, left), (program, right) = make(), make()
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for memory.full in (False, False, True, False):
        assert torch.equal(compiled(X), eager(X)) and torch.equal(left.total, right.total) and left.log == right.log
    assert capture.stats(compiled).captures == 1 and left.log == ["full"]


# -- checks of values --------------------------------------------------------------------------------------------------

def a_check_after_a_write(state, x):
    state.total.add_(x)
    assert (state.total > 0).all(), "not positive"
    state.log.append("checked")
    return state.total * 2


def a_check_between_writes(state, x):
    state.total.add_(x)
    if (x < -100).any():
        raise ValueError("too small")
    state.norm(x)
    state.total.mul_(2)
    return state.total + torch.rand(2, 2)


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "default"])
@pytest.mark.parametrize("function", [a_check_after_a_write, a_check_between_writes], ids=lambda f: f.__name__)
def test_a_check_of_values_after_a_write(function, fullgraph) -> None:
    stats = check(make_world(function), call(X), call(X), call(BAD * 1000), call(X), captures=1, hits=3, fullgraph=fullgraph)
    assert stats.breaks == 0


def test_a_check_before_a_large_write_copies_nothing() -> None:
    def make():
        state = SimpleNamespace(total=torch.zeros(LARGE))

        def function(x):
            assert (x > 0).all()
            state.total.add_(x[0, 0])
            return x + 1
        return function, state
    check(make, call(X), call(X), call(BAD), call(X), captures=1, hits=3)
    stats = check(make, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)
    assert stats.breaks > 0


def test_numbers_that_cannot_be_computed_are_found_before_anything_is_settled() -> None:
    """The exception comes when the graph has run, but before the first effect."""
    def make():
        state = SimpleNamespace(total=torch.zeros(2, 2), log=[])

        def function(x):
            state.total.add_(torch.rand(2, 2))
            try:
                share = 1 / x[0, 1].item()
            except ZeroDivisionError:
                share = None
            state.log.append(share)
            return torch.linalg.cholesky(x)
        return function, state
    zero = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    check(make, call(X), call(X), call(zero), call(X), captures=None, fullgraph=False)


# -- inference mode ----------------------------------------------------------------------------------------------------

def test_a_block_of_inference_mode_ends_with_the_exception() -> None:
    """And not when its traceback dies, in other modes perhaps."""
    def function(x):
        torch.manual_seed(0)                        # the call does not run again
        with torch.no_grad(), torch.inference_mode():
            return torch.linalg.cholesky(x)
    compiled = capture.compile(function, backend="eager", fullgraph=True)
    compiled(X)
    with pytest.raises(RuntimeError) as caught:
        compiled(BAD)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    with torch.set_grad_enabled(False):
        del caught
        gc.collect()
        assert not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert capture.stats(compiled).hits == 1


def test_the_modes_of_a_call_that_runs_again() -> None:
    """It starts in those at its entry, although the block stands in others."""
    def function(x):
        with torch.no_grad(), torch.inference_mode():
            y = torch.linalg.cholesky(x)
        return y
    seen = []

    def outer(x):
        seen.append(torch.is_grad_enabled())
        try:
            return function(x)
        except RuntimeError:
            return torch.is_grad_enabled(), (x * torch.ones(1, requires_grad=True)).requires_grad
    check(lambda: outer, call(X), call(X), call(BAD), call(X), captures=None, fullgraph=False)
