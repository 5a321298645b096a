"""Autograd functions of the program's whose passes are compiled with the rest of the graph, and what leaves one to torch."""
from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, compile, no_trial, tiers  # noqa: F401
from tests.helpers import call

SCALE = 0.5


def double(x: Tensor) -> Tensor:
    return x * 2


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class Doubled(torch.autograd.Function):
    """Saves its result and a number; its gradient is not the true one."""

    @staticmethod
    def forward(ctx, x, factor=2.0):
        y = (x * factor).tanh()
        ctx.factor = factor
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        y, = ctx.saved_tensors
        return gradient * (1 - y * y) * ctx.factor * 3, None


class Normalised(torch.autograd.Function):
    """Saves what it has computed, and one of several arguments."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (var + eps).sqrt()
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1) * y + bias

    @staticmethod
    def backward(ctx, gradient):
        y, var, weight = ctx.saved_tensors
        g = gradient * weight.view(1, -1)
        mean, means = g.mean(dim=1, keepdim=True), (g * y).mean(dim=1, keepdim=True)
        gx = 1.0 / torch.sqrt(var + ctx.eps) * (g - y * means - mean)
        return gx, (gradient * y).sum(0), gradient.sum(0), None


class Kept(torch.autograd.Function):
    """Keeps what it has computed as an attribute: it is not checked for writes, nor freed."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        result = x.clone()
        result[~ctx.mask] = 0
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask


class Masked(torch.autograd.Function):
    """Puts zeros into its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + len(ctx.saved_tensors)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        found = gradient.clone()
        found[x < 0] = 0
        found[0].fill_(0.0)
        return found


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x.cos()


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y if ctx.needs_input_grad[0] else None, gradient * x if ctx.needs_input_grad[1] else None


class WithIndices(torch.autograd.Function):
    """One of its results has no gradient; another one is marked so."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.max(1)
        rounded = values.round()
        ctx.mark_non_differentiable(rounded)
        ctx.save_for_backward(x, places)
        return values, places, rounded

    @staticmethod
    def backward(ctx, gradient, _, other):
        x, places = ctx.saved_tensors
        return torch.zeros_like(x).scatter(1, places[:, None], gradient[:, None]) + other.sum()


class Calling(torch.autograd.Function):
    """Calls a function of the program's, a module's functions, and reads a number."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.no_grad():
            return nn.functional.softplus(double(x)) * SCALE + math.pi

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * torch.sigmoid(double(x))


class Reversed(torch.autograd.Function):
    """Returns a view of what it is given."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.factor, None


class Same(torch.autograd.Function):
    """Returns what it is given."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Row(torch.autograd.Function):
    """Returns a view of a part of what it is given, and saves that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[0]

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x


X = torch.linspace(-2, 2, 12).reshape(3, 4)
W = torch.linspace(1, 3, 4)


def differentiable(x: Tensor = X) -> Tensor:
    return x.clone().requires_grad_()


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


# -- what the passes name is guarded ------------------------------------------------------------------------------------

def tripled(x: Tensor) -> Tensor:
    return x * 3


def another_scale(state: Any) -> None:
    global SCALE
    SCALE = 2.0


def another_function(state: Any) -> None:
    global double
    double = tripled


def another_forward(state: Any) -> None:
    Calling.forward = staticmethod(lambda ctx, x: Doubled.forward(ctx, x, 1.0))


def another_backward(state: Any) -> None:
    Calling.backward = staticmethod(lambda ctx, gradient: gradient * 7)


def another_code(state: Any) -> None:
    Calling.backward.__code__ = (lambda ctx, gradient: gradient * 5).__code__


def another_function_of_torch(state: Any) -> None:
    torch.sigmoid = torch.tanh


def another_method(state: Any) -> None:
    Tensor.new_ones = Tensor.new_zeros


class Method(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x.new_ones(4)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.new_ones(4)


def another_operator(state: Any) -> None:
    Tensor.__mul__ = Tensor.__add__


def another_context(state: Any) -> None:
    torch.autograd.function.FunctionCtx.save_for_backward = lambda ctx, x: SAVE(ctx, x * 2)


SAVE, MULTIPLY = torch.autograd.function.FunctionCtx.save_for_backward, Tensor.__mul__
CHANGES = [another_operator, another_context,
           another_scale, another_function, another_forward, another_backward, another_code, another_function_of_torch]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_named_changes(change: Callable[[Any], None]) -> None:
    names = {name: globals()[name] for name in ("SCALE", "double")}
    passes, code, sigmoid = dict(vars(Calling)), Calling.backward.__code__, torch.sigmoid

    def restore(state: Any) -> None:
        globals().update(names)
        Calling.forward, Calling.backward = passes["forward"], passes["backward"]
        Calling.backward.__code__ = code
        torch.sigmoid = sigmoid
        torch.autograd.function.FunctionCtx.save_for_backward, Tensor.__mul__ = SAVE, MULTIPLY
    calls = [call(differentiable(X + n)) for n in range(3)]
    try:
        helpers.check(lambda: PROGRAMS["calling"], *calls, change, *calls, restore, *calls, captures=None, fullgraph=False,
                      backward=True, tolerance=2e-5, **AT_ONCE)
    finally:
        restore(None)


def test_an_operator_of_parameters_changes() -> None:
    def make() -> Any:
        weight = nn.Parameter(W.clone())
        return (lambda x: Swish.apply(weight) + x), weight
    calls = [call(X + n) for n in range(3)]

    def restore(state: Any) -> None:
        if "__mul__" in vars(nn.Parameter):
            del nn.Parameter.__mul__
    try:
        helpers.check(make, *calls, lambda state: setattr(nn.Parameter, "__mul__", Tensor.__add__), *calls, restore, *calls,
                      captures=None, fullgraph=False, backward=True, tolerance=2e-5, **AT_ONCE)
    finally:
        restore(None)


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


def test_a_method_of_tensors_changes() -> None:
    new_ones = Tensor.new_ones

    def restore(state: Any) -> None:
        del Tensor.new_ones
    calls = [call(differentiable(X + n)) for n in range(3)]
    try:
        helpers.check(lambda: lambda x: Method.apply(x * 2) + 1, *calls, another_method, *calls, restore, *calls, captures=None,
                      fullgraph=False, backward=True, tolerance=2e-5, **AT_ONCE)
    finally:
        if Tensor.new_ones is not new_ones:
            del Tensor.new_ones
