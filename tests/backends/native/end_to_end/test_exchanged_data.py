"""Backward passes after `.data` of what they need was exchanged: an input, a weight, a result."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4), (4, 5, 6, 7, 4)])
@pytest.mark.parametrize("data", [torch.ones(4, 4).t(), torch.arange(16.0).view(4, 4).t() / 16, torch.ones(4, 1).expand(4, 4),
                                  torch.ones(3, 3), torch.ones(5, 4), torch.ones(3), torch.ones(1), torch.tensor(2.0)])
def test_passes_after_a_saved_input_got_other_data(engine: dict[str, Any], data: Tensor, sizes: tuple[int, ...]) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x).exp()

    def outcomes(call: Callable[[Tensor], Tensor]) -> list[Any]:
        found: list[Any] = []
        for number, size in enumerate(sizes):
            x = torch.full((size, 4), 0.5, requires_grad=True)
            result = call(x)
            if number >= 2:
                x.data = data.clone(memory_format=torch.preserve_format)
            try:
                result.sum().backward()
                assert x.grad is not None
                found.append((x.grad.stride(), [round(value, 3) for value in x.grad.flatten().tolist()]))
            except Exception as error:
                found.append(type(error))
        return found

    assert outcomes(capture.compile(f, **engine)) == outcomes(f)


@pytest.mark.parametrize("use", [
    lambda x, w: F.linear(x, w), lambda x, w: F.linear(x.expand(2, 4, 4), w), lambda x, w: x * w[0], lambda x, w: (x / w.t()).sin(),
    lambda x, w: x @ w, lambda x, w: F.linear(F.linear(x, w).tanh(), w)],
    ids=["linear", "linear of a batch", "row", "transposed", "itself", "twice"])
def test_passes_after_a_weight_got_other_data_take_what_eager_mode_has_saved_a_view_of(engine: dict[str, Any], use: Any) -> None:
    def gradients(call: Callable[[Tensor, Tensor], Tensor], edited: bool) -> Any:
        x, w = torch.arange(16.0).view(4, 4).div(16).requires_grad_(), torch.arange(1.0, 17.0).view(4, 4).sin().requires_grad_()
        result = call(x, w)
        if edited:
            w.data = w.data * 10
        result.sum().backward()
        return x.grad, w.grad
    compiled = capture.compile(use, **engine)
    for edited in (False, False, False, True, True, False):
        torch.testing.assert_close(gradients(compiled, edited), gradients(use, edited))


def test_a_pass_that_needs_a_weight_as_it_was_and_as_it_is_raises() -> None:
    compiled = capture.compile(lambda x, w: (x @ w) * w[:, 1:2], options={"background": False}, backend="native")
    x, w = torch.ones(4, 4, requires_grad=True), torch.full((4, 4), 0.5, requires_grad=True)
    for _ in range(3):
        compiled(x, w).sum().backward()
    result = compiled(x, w)
    w.data = w.data * 10
    with pytest.raises(RuntimeError, match="`.data`"):
        result.sum().backward()


@pytest.mark.parametrize("data", [lambda data: data * 2 + 1, lambda data: torch.ones(4, 4).t(), lambda data: torch.ones(3, 3)])
@pytest.mark.parametrize("saved", [lambda h: (h * h).sin(), torch.exp, lambda h: h.t() @ h, lambda h: (h[0] * h).tanh() * h])
@pytest.mark.parametrize("made", [lambda x: x * 2, torch.exp, lambda x: (x @ x).relu()])
def test_passes_after_a_saved_result_got_other_data(engine: dict[str, Any], made: Any, saved: Any, data: Any) -> None:
    """They are eager mode's, or there is an error."""
    def f(x: Tensor) -> Any:
        h = made(x)
        return h, saved(h)

    def outcome(call: Callable[[Tensor], Any], edited: bool) -> Any:
        x = torch.full((4, 4), 0.5, requires_grad=True)
        results = call(x)
        if edited:
            results[0].data = data(results[0].data)
        try:
            results[1].sum().backward()
        except RuntimeError as error:
            return str(error)
        return x.grad
    compiled = capture.compile(f, **engine)
    for edited in (False, False, False, True, False):
        found, expected = outcome(compiled, edited), outcome(f, edited)
        if edited and isinstance(found, str):
            assert isinstance(expected, str) or "`.data`" in found
        else:
            torch.testing.assert_close(found, expected)


def test_a_pass_frees_a_saved_result(engine: dict[str, Any]) -> None:
    """Also where what was computed from it lives on."""
    def f(x: Tensor) -> Any:
        h = x.exp() * 2
        return h, (h * h).sin()
    compiled = capture.compile(f, **engine)
    for _ in range(4):
        h, last = compiled(torch.ones(4, 4, requires_grad=True))
        memory = StorageWeakRef(h.untyped_storage())
        del h
        last.sum().backward()
        assert memory.expired()
