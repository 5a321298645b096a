"""Compiled calls whose results are computed from other results: what a program sees of the gradients of the inner ones."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import capture
from tests.backends.aot.test_inner_results import PROGRAMS, USES, outcome, same
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401

NATIVE = {"backend": "native", "options": {"background": False}}


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


def by_a_view(y: Tensor) -> tuple[Tensor, ...]:
    rates = y.sigmoid()
    scaled = y * rates
    with torch.no_grad():
        view = rates.unsqueeze(0)
    return view * scaled[0] + scaled[1], scaled, view


def by_a_view_of_two(y: Tensor) -> tuple[Tensor, ...]:
    first, second = y.exp(), y.sin()
    with torch.no_grad():
        view, other = first.t(), second[1:]
    return (view * second).sin(), first * other[0], first, second, view


@pytest.mark.parametrize("program", [by_a_view, by_a_view_of_two])
@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]], ids=str)
def test_gradients_of_gradients_where_a_result_is_used_without_its_own(program, wanted) -> None:
    compiled, found, expected = capture.compile(program, **NATIVE), [], []
    for seed in range(3):
        for function, seen in ((compiled, found), (program, expected)):
            torch.manual_seed(seed)
            y = torch.randn(4, 4, requires_grad=True)
            results = function(y)
            inputs = [(y, results[-2])[place] for place in wanted]
            first = torch.autograd.grad((results[0].sin() + results[1][0]).sum(), inputs, create_graph=True)
            seen += [*first, *torch.autograd.grad(sum(gradient.square().sum() for gradient in first), y)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert capture.stats(compiled).compiled == 1 and "backward 2" in str(capture.explain(compiled))


def test_of_sizes_that_change():
    """A result that autograd knows as a view of what the operation computed, and a loss that is computed from it."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.head(self.body(x))
            return nn.functional.cross_entropy(logits.view(-1, 5), x.view(-1) % 5), logits

    found = []
    for wrap in (lambda model: model, lambda model: capture.compile(model, **NATIVE)):
        torch.manual_seed(2)
        model = Model()
        run, log = wrap(model), []
        for batch, length in [(2, 7), (2, 7), (3, 9), (3, 9), (4, 11), (2, 7), (5, 3)]:
            loss, logits = run(torch.randint(9, (batch, length)))
            logits.register_hook(lambda g: log.append(g.clone()))
            (loss + logits.cos().sum()).backward()
            log += [loss.detach(), logits.detach(), *(p.grad.clone() for p in model.parameters())]
        found.append(log)
    assert same(*found)
    stats = capture.stats(run)
    assert stats.captures == 2 and not stats.compile_errors and "for all sizes: runs compiled" in str(capture.explain(run))
