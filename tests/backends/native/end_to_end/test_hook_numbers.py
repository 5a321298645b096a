"""Hooks are known by numbers, which a process counts: those of the program have the same as in eager mode."""
from __future__ import annotations

import pytest
import torch
from torch import nn

import capture
from capture import config
from tests.backends.native.end_to_end.engine import AT_ONCE, check, runs_compiled
from tests.helpers import call


def linear() -> nn.Module:
    return nn.Linear(3, 3)


def test_hooks_registered_after_hits() -> None:
    with config.TRIAL_CALLS.set(0):
        check(linear, call(torch.ones(2, 3)), call(torch.ones(2, 3)), call(torch.ones(2, 3)),
              lambda net: net.register_forward_hook(lambda module, args, result: result * 2), call(torch.ones(2, 3)),
              call(torch.ones(2, 3)), captures=2, backward=True)


@pytest.mark.parametrize("trial", [0, 3])
def test_numbers_of_handles(trial: int) -> None:
    """Also while compiled code is timed, in forward and backward passes."""
    with config.TRIAL_CALLS.set(trial):
        step, x, seen = capture.compile(lambda x: (x * 2).sin(), fullgraph=True, **AT_ONCE), torch.ones(3, requires_grad=True), []
        before = x.register_hook(seen.append)
        for _ in range(20):
            step(x).sum().backward()
        after = x.register_hook(seen.append)
    stats = capture.stats(step)     # with a trial, compiled code may have been found to be slower
    assert stats.compiled + bool(trial) and not stats.pending and not stats.compile_errors
    assert after.id == before.id + 1 and len(seen) == 20


def test_the_program_s_hook_on_our_node() -> None:
    """It gets the number that ours gave back."""
    with config.TRIAL_CALLS.set(0):
        step, x, seen = capture.compile(lambda x: (x * 2).sin(), fullgraph=True, **AT_ONCE), torch.ones(3, requires_grad=True), []
        for _ in range(3):
            result = step(x)
            handles = [result.grad_fn.register_prehook(lambda grads: seen.append(grads[0])) for _ in range(2)]
            result.backward(torch.full((3,), 2.0))
            handles[0].remove()
    assert runs_compiled(step) and len(seen) == 6 and all(torch.equal(g, torch.full((3,), 2.0)) for g in seen)
    assert torch.equal(x.grad, 3 * 2 * 2 * torch.tensor(2.0).cos().expand(3))
