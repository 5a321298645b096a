"""Autograd functions of the program's whose passes are compiled with the rest of the graph, and what leaves one to torch."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests import helpers
from tests.backends.native.end_to_end.autograd_functions import (
    Calling,
    Doubled,
    Kept,
    Masked,
    Normalised,
    Once,
    Reversed,
    Row,
    Same,
    Swish,
    W,
    WithIndices,
    WithSetup,
    X,
    differentiable,
)
from tests.backends.native.end_to_end.engine import AT_ONCE, check, compile, no_trial, tiers  # noqa: F401
from tests.helpers import call

PROGRAMS: dict[str, Callable[..., Any]] = {
    "swish": lambda x: Swish.apply((x * 2).sin()) + 1,
    "of an input": lambda x: Swish.apply(x),
    "twice": lambda x: Swish.apply(Swish.apply(x) * 2),
    "a number": lambda x: Doubled.apply(x.exp(), 0.5).sum(0),
    "a default": lambda x: Doubled.apply(x),
    "several arguments": lambda x: Normalised.apply(x * 2, W * 1, W + 1, 1e-3).cos(),
    "an attribute": lambda x: Kept.apply(x * 3) + 1,
    "zeros in a gradient": lambda x: Masked.apply(x * 3) + 1,
    "once": lambda x: Once.apply(x * 3) * 2,
    "setup_context": lambda x: WithSetup.apply(x * 2, W.expand(3, 4) * 1) + 1,
    "indices": lambda x: [part * 2 for part in WithIndices.apply(x * 2)],
    "calling": lambda x: Calling.apply(x * 2) + 1,
    "an inner result": lambda x: (y := Swish.apply(x * 2), y.sum()),
    "a result that is saved and written to": lambda x: Swish.apply(x * 2).mul_(3),
    "a view": lambda x: Swish.apply(x * 2)[0] * 2,
    "a view inside": lambda x: Reversed.apply((x * 2).sin(), 0.5) + 1,
    "a view of an input": lambda x: Reversed.apply(x, 0.5) + 1,
    "a view of an input, returned": lambda x: Reversed.apply(x, 0.5),
    "a view of a result": lambda x: (y := x * 2, Reversed.apply(y, 0.5)),
    "a view, returned": lambda x: Reversed.apply(x * 2, 0.5),
    "the same inside": lambda x: Same.apply((x * 2).sin()) + 1,
    "the same, returned": lambda x: Same.apply(x),
    "the same, of a result": lambda x: (y := x * 2, Same.apply(y), Same.apply(y) * 2),
    "a row inside": lambda x: Row.apply((x * 2).sin()) + 1,
    "a row, returned": lambda x: Row.apply((x * 2).sin()),
    "without gradients": lambda x: Swish.apply(x.detach() * 2) + x,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("trained", [True, False])
def test_compiled(name: str, trained: bool) -> None:
    program = PROGRAMS[name]
    calls = [call(differentiable(X + n) if trained else X + n) for n in range(4)]
    check(lambda: program, *calls, backward=trained)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_gradients(name: str) -> None:
    """Values, errors and texts; a second pass, and one after writes that are counted or not."""
    program = PROGRAMS[name]

    def outcomes(function: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []

        def first(x: Tensor) -> Tensor:
            y = function(x)
            return next(part for part in (y if isinstance(y, (tuple, list)) else [y]) if part.requires_grad)

        def again(x: Tensor) -> Any:
            gradient, = torch.autograd.grad(first(x).sin().sum(), x, create_graph=True)
            return gradient, torch.autograd.grad(gradient.pow(2).sum(), x)

        def second_pass(x: Tensor) -> Any:
            loss = first(x).sum()
            loss.backward()
            loss.backward()
            return x.grad

        def written(x: Tensor) -> Any:
            loss = first(x).sum()
            with torch.no_grad():
                x.mul_(2)
            loss.backward()
            return x.grad

        def edited(x: Tensor) -> Any:
            y = first(x)
            x.data.mul_(2)
            y.data.add_(1)
            y.sum().backward()
            return x.grad
        for way in (again, second_pass, written, edited):
            try:
                found.append(way(differentiable()))
            except RuntimeError as error:
                found.append(str(error))
        return found
    function = compile(program)
    for _ in range(3):
        function(differentiable())
    assert [tier.stage.name for tier in tiers(function)] == ["COMPILED"]
    for ours, theirs in zip(outcomes(function), outcomes(program), strict=True):
        if isinstance(theirs, str) or isinstance(ours, str):
            assert ours == theirs
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_in_an_activation_checkpoint() -> None:
    def make() -> Any:
        weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))
        return (lambda x: checkpoint(lambda x: Swish.apply(x @ weight).sin(), x, use_reentrant=False) * 2), weight
    check(make, *[call(differentiable(X + n)) for n in range(4)], backward=True)


def test_in_a_whole_step() -> None:
    """Its backward pass is a part of the graph."""
    def make() -> Any:
        weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = Swish.apply(Doubled.apply(x @ weight)).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step, weight
    stats = helpers.check(make, *[call(X + n) for n in range(5)], captures=None, tolerance=2e-5, **AT_ONCE)
    assert stats.compiled and not stats.compile_errors


def test_under_autocast_it_is_left_to_torch() -> None:
    """What is around it is compiled."""
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Swish.apply(x @ x.T) * 2
    function = compile(program)
    for n in range(4):
        torch.testing.assert_close(function(differentiable(X + n)), program(differentiable(X + n)), rtol=0.05, atol=0.05)
    assert any("calls the autograd function Swish" in reason for reason in tiers(function)[0].uncompiled())


def test_numbers_that_change() -> None:
    """Each factor is guarded; a later call with the first one is a hit."""
    for program in (lambda x, a: Reversed.apply((x * 2).sin(), a) + 1, lambda x, a: Doubled.apply(x * 2, a) + 1):
        calls = [call(differentiable(X + n), 0.5 + n % 3 / 10) for n in range(9)]
        helpers.check(lambda: program, *calls, captures=3, backward=True, tolerance=2e-5, **AT_ONCE)


def test_a_warning_is_shown_once() -> None:
    """Recording a function neither warns again nor has other warnings be shown again."""
    class Warns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.t() * 2 + torch.arange(0, 3)[:, None].T.T.expand(3, 3).T.sum()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.t() * 2
    x = torch.randn(3, 3, requires_grad=True)
    function = compile(lambda x: Warns.apply(x * 2) + 1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn("a warning", stacklevel=1)
            function(x)
    assert [str(each.message) for each in told] == ["a warning"]
