"""What surrounds a cut: tensors and torch's modes, values that decide, loops, limits, threads."""
from __future__ import annotations

import random
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from capture.config import RECAPTURE_LIMIT
from capture.errors import GraphBreakError
from tests.breaks.cuts import Cuts, X, compared, outside, raises, run
from tests.helpers import call, call_with, check
from tests.threads import in_threads

CUTS = Cuts()


# -- tensors -----------------------------------------------------------------------------------------------------------

@CUTS.add()
def written_to_before_and_after(x):
    x.add_(1)
    view = x[0]
    outside(None, x, view)
    view.mul_(2)
    return x, view, x.sum()


@CUTS.add()
def a_view_made_before(x):
    y = x * 2
    rows = y.unbind()
    outside(None, *rows)
    rows[0].zero_()
    return y, rows


@CUTS.add()
def written_to_outside(x):
    y = x * 2
    scale(y)
    return y + 1, y


@capture.disable
def scale(t):
    t.mul_(10)


@CUTS.add()
def identity_is_kept(x):
    y = x * 2
    items = [y, y, x]
    same = outside(items)
    return same is items, same[0] is y, items[2] is x, items, y


@CUTS.add()
def gradients_through_a_cut(x):
    w = torch.ones(2, 2, requires_grad=True)
    y = (w * x).exp()
    z = outside(y) * 2
    gradient, = torch.autograd.grad(z.sum(), w) if x.ndim == 3 else (None,)
    return z, gradient


@CUTS.add(2)
def random_numbers_in_order(x):
    a = torch.rand(2)
    outside(None, torch.rand(1))
    b = random.random()
    outside(b)
    return a, b, torch.rand(2), x


# -- values that decide ------------------------------------------------------------------------------------------------

@CUTS.add()
def a_branch_on_a_tensor(x):
    y = x * 2
    if (y > 0).any():
        return y + 1
    return y - 1


@CUTS.add(1)
def a_mask_that_is_iterated_over(x):
    return [row * 2 for row in x[x[:, 1] != 0]]


@CUTS.add(0)
def values_passed_on(x):
    return x.sum().item(), int(x[0, 0]), x.tolist(), float(x[1, 1]) * 2, x[x > 0]


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_program(program, options) -> None:
    run(program, options)


def test_both_outcomes_of_a_branch_are_captured_once() -> None:
    def program(x):
        if x.sum() > 0:
            return x * 2
        return x - 1
    compared(program, call(X), call(-X), call(X), call(-X), call(X * 3), call(-X * 3), captures=3, hits=9, breaks=1)


def test_a_value_that_is_passed_on_is_never_captured_anew() -> None:
    def program(x):
        k = x.sum().item()
        outside(None, k)
        return x * 2, k
    compared(program, *(call(X * k) for k in range(6)), captures=2, hits=10, breaks=1)


def test_while_on_a_tensor() -> None:
    def program(x):
        rounds = 0
        while x.abs().sum() > 1:
            x = x / 2
            rounds += outside(1)
        return x, rounds
    stats = compared(program, *(call(X * k) for k in (1, 8, 0.01, 300, 20)), captures=None)
    assert stats.native_calls == 0 and stats.captures <= 6, stats


def test_a_loop_of_many_rounds_is_captured_once() -> None:
    def program(x, n):
        total = 0.0
        for i in range(n):
            x = x + outside(1.0, i)
            total += 0.5
        return x, total
    stats = compared(program, call(X, 200), call(X, 200), call(X, 30), call(X, 0), call(X, 1), captures=None)
    assert stats.native_calls == 0 and stats.captures <= 7, stats


def test_a_while_loop_of_many_rounds_is_captured_once() -> None:
    def program(x):
        n = 0
        while n < 200:
            x = x + outside(1.0)
            n += 1
        return x
    stats = compared(program, call(X), call(X), captures=None)
    assert stats.native_calls == 0 and stats.captures <= 4, stats


# -- iterators from outside --------------------------------------------------------------------------------------------

def batches(n, fails=False):
    for i in range(n):
        yield X * i
    if fails:
        raise KeyError("no more")


@pytest.mark.parametrize("fails", [False, True])
def test_a_loop_over_a_generator_from_outside(fails) -> None:
    def program(x, generator):
        total, seen = x.clone(), 0
        try:
            for batch in generator:
                total += batch
                seen += 1
            else:
                total = total * 2
        except KeyError as error:
            return total, seen, str(error)
        return total, seen, next(generator, "end")
    stats = compared(program, *(call_with(lambda state, n=n: (X, batches(n, fails))) for n in (3, 3, 0, 20, 1)), captures=None)
    assert stats.native_calls == 0, stats


def test_a_loop_over_a_loader() -> None:
    def program(loader, model):
        losses = []
        for features, in loader:
            losses.append(model(features).sum())
        return losses
    data = torch.utils.data.TensorDataset(torch.arange(24.0).view(12, 2))
    model = nn.Linear(2, 1)
    compiled = capture.compile(program, backend="eager")
    for _ in range(2):
        expected = program(torch.utils.data.DataLoader(data, batch_size=3), model)
        got = compiled(torch.utils.data.DataLoader(data, batch_size=3), model)
        assert len(got) == 4 and all(map(torch.equal, got, expected))


# -- the world around --------------------------------------------------------------------------------------------------

def test_state_that_changes_between_calls() -> None:
    def make():
        state = SimpleNamespace(scale=2.0, items=[1, 2], module=nn.Linear(2, 2))

        def program(x):
            y = state.module(x) * state.scale
            state.items.append(outside(len(state.items)))
            return y.sum() * len(state.items), state.items[-1]
        return program, state
    check(make, call(X), call(X), lambda s: setattr(s, "scale", 3.0), call(X), lambda s: s.items.clear(), call(X),
          lambda s: s.module.requires_grad_(False), call(X), captures=None, fullgraph=False)


def test_what_the_call_outside_changes_is_seen() -> None:
    def make():
        state = SimpleNamespace(scale=1, table={"k": 1})

        @capture.disable
        def change():
            state.scale += 1
            state.table["k"] += 1
            state.table[f"new{state.scale}"] = 0

        def program(x):
            before = state.scale, state.table["k"]
            change()
            return x * state.scale + state.table["k"], before, list(state.table)
        return program, state
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)],
                         ids=["no_grad", "enable_grad", "autocast"])
def test_modes_of_the_caller(mode) -> None:
    def program(x, w):
        y = x @ w
        outside(None, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        return y @ w, torch.is_grad_enabled()

    def within(x, w):
        with mode():
            return program(x, w)
    w = torch.ones(2, 2, requires_grad=True)
    compared(program, call(X, w), call(X, w), captures=2, hits=2, breaks=1)
    compared(within, call(X, w), call(X, w), captures=2, hits=2, breaks=1)
    inner = capture.compile(program, backend="eager")
    for _ in range(2):
        with mode():
            expected = program(X, w)
            got = inner(X, w)
        assert torch.equal(expected[0], got[0]) and expected[0].dtype == got[0].dtype and expected[1] == got[1]


def test_the_call_outside_changes_a_mode() -> None:
    @capture.disable
    def switch(on):
        torch.set_grad_enabled(on)

    def program(x):
        w = x.clone().requires_grad_()
        switch(False)
        y = w * 2
        switch(True)
        return y, w * 3
    compared(program, call(X), call(X), captures=3, hits=3, breaks=2)


# -- exceptions that leave ---------------------------------------------------------------------------------------------

def test_an_exception_leaves_from_outside() -> None:
    def program(x, error):
        def inner(t):
            if error:
                raises(LookupError, "deep")
            return t
        y = x + 1
        return inner(y) * 2
    compared(program, call(X, True), call(X, True), call(X, False), call(X, True), captures=None)


def test_an_exception_leaves_behind_a_cut() -> None:
    def program(x):
        y = outside(x + 1)
        if y.ndim == 2:
            raise ValueError(
                "own")
        return y
    compared(program, call(X), call(X), call(X[0]), call(X), captures=None)


def test_an_exception_leaves_a_handler_behind_a_cut() -> None:
    def inner(x):
        raise ValueError("first")

    def program(x):
        try:
            inner(x)
        except ValueError as error:
            outside()
            if x.ndim == 2:
                raise
            raise KeyError("second") from error
    compared(program, call(X), call(X), call(X[0]), call(X[0]), call(X), captures=None)


def test_exceptions_that_are_kept() -> None:
    def make():
        errors = []

        def program(x):
            try:
                raises(ValueError)
            except ValueError as error:
                errors.append(error)
                x = x * 2
            try:
                raise KeyError("own")
            except KeyError as error:
                errors.append(error)
                outside()
            return x, errors[-1].__context__

        def lines():
            found = []
            for error in errors:
                entry = error.__traceback__
                while entry is not None:
                    found.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
                    entry = entry.tb_next
            return found
        kept.append(lines)
        return program
    kept = []
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)
    eager, captured = kept
    assert eager() == captured()


# -- limits, refusals, threads -----------------------------------------------------------------------------------------

def test_the_limit_of_a_continuation() -> None:
    def program(x, k):
        k = outside(k)
        return x * 2 if k == 1 else x * 3 if k == 2 else x * k if k > 0 else x
    compiled = capture.compile(program)
    with RECAPTURE_LIMIT.set(3), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for k in range(1, 9):
                assert torch.equal(compiled(X, k), program(X, k))
    assert sum("RECAPTURE_LIMIT" in str(w.message) for w in caught) == 1, [str(w.message) for w in caught]
    assert capture.stats(compiled).native_calls > 0


def test_the_limit_of_a_continuation_is_for_each_variant_of_the_function() -> None:
    def program(x, flag):
        y = x + 1
        if outside(flag):
            return y * 2
        return y * 3
    compiled = capture.compile(program)
    with RECAPTURE_LIMIT.set(2):
        for x in (X, X[0], X, X[0]):
            for flag in (True, False):
                assert torch.equal(compiled(x, flag), program(x, flag))
    stats = capture.stats(compiled)
    assert (stats.captures, stats.native_calls) == (6, 0), stats


def test_fullgraph_still_refuses() -> None:
    def program(x):
        return outside(x) + 1
    compiled = capture.compile(program, fullgraph=True)
    for _ in range(2):
        with pytest.raises(GraphBreakError, match="disabled-call"):
            compiled(X)
    assert capture.stats(compiled).captures == 0


def test_threads_share_continuations() -> None:
    def program(x):
        for _ in range(3):
            x = outside(x) + 1
        return x
    compiled = capture.compile(program, backend="eager")

    def work(k):
        return all([torch.equal(compiled(X * k), X * k + 3) for _ in range(20)])
    assert in_threads(work, 4) == [True] * 4


def test_reset_forgets_continuations() -> None:
    def program(x):
        return outside(x) + 1
    compiled = capture.compile(program)
    compiled(X)
    capture.reset()
    assert capture.stats(compiled).captures == 0
    assert torch.equal(compiled(X), X + 1) and torch.equal(compiled(X), X + 1)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (2, 2)
