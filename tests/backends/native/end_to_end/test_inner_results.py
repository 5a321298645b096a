"""Compiled calls whose results are computed from other results: what a program sees of the gradients of the inner ones."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import capture
from capture import config
from tests.backends.aot.test_inner_results import PROGRAMS, USES, outcome, same

NATIVE = {"backend": "native", "options": {"background": False}}


@pytest.fixture(autouse=True)
def always_compiled():
    """Kernels, however slow they are here."""
    with config.TRIAL_CALLS.set(0):
        yield


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program):
    compiled = capture.compile(program, **NATIVE)
    for use in (USES[0], *USES):        # the capture, and then hits
        assert same(outcome(compiled, use), outcome(program, use)), use.__name__
    assert capture.stats(compiled).hits == len(USES) and "backward 2" in str(capture.explain(compiled))


def test_outside_state_between_calls():
    """Hooks come and go, weights change, between hits of one entry."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.head(self.body(x).relu())
            return logits, nn.functional.cross_entropy(logits, target)

    found = []
    for wrap in (lambda model: model, lambda model: capture.compile(model, **NATIVE)):
        torch.manual_seed(2)
        model = Model()
        run, log = wrap(model), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            logits, loss = run(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0]))
            if step % 2:
                logits.register_hook(lambda g: log.append(g.clone()))
                logits.register_hook(lambda g, step=step: g * step)
                logits.retain_grad()
            (loss + logits.sum() * (step % 3)).backward()
            log += [logits.grad if step % 2 else None, *(p.grad.clone() for p in model.parameters())]
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        found.append(log)
    assert same(*found)
