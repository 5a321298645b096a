"""What operators are decomposed into lies in memory as their own results do, however their arguments lie."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import capture
from capture.backends.decompositions import LAID_OUT, decompositions

aten = torch.ops.aten
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "first dimension last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
}
X, GRAD, LABELS = torch.rand(2, 4, 4, 6), torch.rand(2, 4, 4, 6), torch.arange(48).reshape(2, 4, 6) % 4
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "_log_softmax_backward_data": (GRAD, X, 1, torch.float32),
    "channel_shuffle": (X, 2),
    "glu_backward": (GRAD[..., :3], X, 3),
    "huber_loss_backward": (GRAD, X, X * 2, 0, 1.0),
    "log_sigmoid_forward": (X,),
    "mse_loss_backward": (GRAD, X, X * 2, 0),
    "nll_loss2d_forward": (X, LABELS, None, 0, -100),
    "reflection_pad2d_backward": (torch.rand(2, 4, 6, 8), X, (1, 1, 1, 1)),
    "reflection_pad3d_backward": (
        torch.rand(2, 6, 6, 8), X, (1, 1, 1, 1, 1, 1)),
    "smooth_l1_loss_backward": (GRAD, X, X * 2, 0, 1.0),
}


def laid(value: Any, layout: str) -> Any:
    return LAYOUTS[layout](value) if isinstance(value, Tensor) and (value.dim() == 4 or layout != "channels last") else value


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAID_OUT)
def test_results_lie_as_those_of_the_operator(name: str, layout: str) -> None:
    operator = getattr(aten, name).default
    args = [laid(value, layout) for value in ARGUMENTS[name]]
    expected, found = operator(*args), decompositions()[operator](*args)
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (expected, found)), strict=True):
        assert other.stride() == one.stride()
        torch.testing.assert_close(other, one)


def gradient_of(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def program(x):
        y = x * 1
        return torch.autograd.grad(loss(y).sum(), y)[0]
    return program


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "log_sigmoid": F.logsigmoid, "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "nll_loss": lambda x: F.nll_loss(x, LABELS, reduction="none"), "mse_loss": gradient_of(lambda y: F.mse_loss(y, y.detach() * 2)),
    "reflection_pad": gradient_of(lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_kernels(name: str) -> None:
    program = PROGRAMS[name]
    for layout in ("transposed", "channels last"):
        compiled = capture.compile(program, backend="native", options={"background": False})
        x = laid(X, layout).requires_grad_()
        for _ in range(3):
            expected, found = program(x), compiled(x)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
        assert capture.stats(compiled).compiled == 1
