"""Learning rates with a schedule: known to change before a call has shown it, so that one capture serves all steps."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import capture

LOSS = nn.functional.mse_loss
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "a function": lambda optimizer: optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "by factors": lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "one after another": lambda optimizer: optim.lr_scheduler.SequentialLR(optimizer, [
        optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]),
}
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
    "SGD": lambda parameters: optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "groups": lambda parameters: optim.AdamW([{"params": parameters[:2], "lr": 1e-3}, {"params": parameters[2:]}], lr=1e-2),
}


class Training:
    """A model with an optimizer and its schedule, after one step: the optimizer's state is there. inside: the step moves the
    schedule on."""

    def __init__(self, optimizer: str, schedule: str, inside: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.scheduler, self.inside = SCHEDULES[schedule](self.optimizer), inside
        self.step(torch.ones(2, 4))

    def step(self, x: Tensor) -> Tensor:
        loss = LOSS(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.inside:
            self.scheduler.step()
        return loss


@pytest.mark.parametrize(("schedule", "backend"), [*((schedule, "eager") for schedule in SCHEDULES), ("a function", "native")])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_capture(optimizer: str, inside: bool, schedule: str, backend: str) -> None:
    ours, theirs = Training(optimizer, schedule, inside), Training(optimizer, schedule, inside)
    step = capture.compile(ours.step, backend=backend, options={"background": False} if backend == "native" else None)
    torch.manual_seed(1)
    for _ in range(4):
        x = torch.randn(2, 4)
        torch.testing.assert_close(step(x), theirs.step(x))
        if not inside:
            ours.scheduler.step(), theirs.scheduler.step()
        for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
            torch.testing.assert_close(mine, other)
        assert [group["lr"] for group in ours.optimizer.param_groups] == [group["lr"] for group in theirs.optimizer.param_groups]
    if schedule == "a function" or not inside:
        assert (capture.stats(step).captures, capture.stats(step).hits) == (1, 3)


def test_without_a_schedule_the_rate_is_a_constant() -> None:
    """Until it is seen to change."""
    model = nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    step(torch.ones(2, 4))
    compiled = capture.compile(step, backend="eager")
    for rate in (0.1, 0.1, 0.2, 0.3, 0.4):
        optimizer.param_groups[0]["lr"] = rate
        compiled(torch.ones(2, 4))
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (2, 3)


def test_a_backend_that_takes_no_numbers_compiles_with_the_constant() -> None:
    """Such a graph would not be given to it."""
    given: list[torch.fx.GraphModule] = []
    training = Training("SGD", "a function", False)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        given.append(gm)
        return gm.forward
    compiled = capture.compile(training.step, backend=backend)
    for _ in range(2):
        compiled(torch.ones(2, 4))
    assert len(given) == capture.stats(compiled).graphs > 1
