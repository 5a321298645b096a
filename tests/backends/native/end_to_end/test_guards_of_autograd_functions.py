"""What the passes of autograd functions name is guarded: calls after a change, and after it was undone, are eager mode's."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from tests import helpers
from tests.backends.native.end_to_end import autograd_functions
from tests.backends.native.end_to_end.autograd_functions import Calling, Doubled, Swish, W, X, differentiable
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial  # noqa: F401
from tests.helpers import call

SAVE = FunctionCtx.save_for_backward
Change = tuple[Any, str, Any]
CHANGES: dict[str, Change] = {
    "operator": (Tensor, "__mul__", Tensor.__add__),
    "context": (FunctionCtx, "save_for_backward", lambda ctx, x: SAVE(ctx, x * 2)),
    "global variable": (autograd_functions, "SCALE", 2.0),
    "function": (autograd_functions, "double", lambda x: x * 3),
    "forward": (Calling, "forward", staticmethod(lambda ctx, x: Doubled.forward(ctx, x, 1.0))),
    "backward": (Calling, "backward", staticmethod(lambda ctx, gradient: gradient * 7)),
    "code": (Calling.backward, "__code__", (lambda ctx, gradient: gradient * 5).__code__),
    "function of torch": (torch, "sigmoid", torch.tanh)}


class Method(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x.new_ones(4)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.new_ones(4)


def check(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, change: Change,
          given: Callable[[Tensor], Tensor] = differentiable) -> None:
    calls = [call(given(X + n)) for n in range(3)]
    helpers.check(make, *calls, lambda state: monkeypatch.setattr(*change), *calls, lambda state: monkeypatch.undo(), *calls,
                  captures=None, fullgraph=False, backward=True, tolerance=2e-5, **AT_ONCE)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_named_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda: lambda x: Calling.apply(x * 2) + 1, monkeypatch, CHANGES[name])


def test_an_operator_of_parameters_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        weight = nn.Parameter(W.clone())
        return (lambda x: Swish.apply(weight) + x), weight
    check(make, monkeypatch, (nn.Parameter, "__mul__", Tensor.__add__), lambda x: x)


def test_a_method_of_tensors_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda: lambda x: Method.apply(x * 2) + 1, monkeypatch, (Tensor, "new_ones", Tensor.new_zeros))
