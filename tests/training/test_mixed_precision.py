"""A training step under autocast with a scaled loss, compiled as one function. What of it skips a step is a value on the device."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture import config

STEPS = 8
OVERFLOWS = 3       # the step whose gradients are infinite


def train(compiled: Callable[[Callable[..., Any]], Callable[..., Any]], dtype: torch.dtype) -> tuple[list[Any], list[torch.Tensor]]:
    """What each step returned, and all state that there is in the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, float, torch.dtype]:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale(), out.dtype

    run, results = compiled(step), []
    for i in range(STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) * (float("inf") if i == OVERFLOWS else 1.0)
        results.append(run(x, torch.tensor([0, 1, 2, 1])))
    moments = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return results, [*model.state_dict().values(), *moments, *(p.grad for p in model.parameters())]


def compiling(functions: list[Any], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What compiles a step and notes the compiled function."""
    def compiled(step: Callable[..., Any]) -> Callable[..., Any]:
        functions.append(capture.compile(step, **options))
        return functions[-1]
    return compiled


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scaled_step(dtype: torch.dtype) -> None:
    functions: list[Any] = []
    expected, state = train(lambda step: step, dtype)
    found, after = train(compiling(functions, backend="eager"), dtype)
    assert [(loss.nan_to_num(), *rest) for loss, *rest in found] == [(loss.nan_to_num(), *rest) for loss, *rest in expected]
    assert len(state) == len(after) and all(torch.equal(a, b) for a, b in zip(state, after))
    scales = [scale for _, scale, _ in expected]
    assert max(scales) > scales[0] and scales[OVERFLOWS] < scales[OVERFLOWS - 1]
    stats = capture.stats(functions[0])
    assert stats.native_calls == 0 and stats.hits > stats.captures


def test_compiled_by_the_native_backend() -> None:
    functions: list[Any] = []
    expected, state = train(lambda step: step, torch.bfloat16)
    with config.TRIAL_CALLS.set(0):
        found, after = train(compiling(functions, backend="native", options={"background": False}), torch.bfloat16)
    losses, expected_losses = ([loss for loss, *_ in results] for results in (found, expected))
    torch.testing.assert_close(losses, expected_losses, equal_nan=True, rtol=1e-2, atol=1e-2)
    assert [rest for _, *rest in found] == [rest for _, *rest in expected]
    torch.testing.assert_close(after, state, rtol=1e-2, atol=1e-2)
    assert capture.stats(functions[0]).compiled >= 2
