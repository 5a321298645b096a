"""Compiled programs of whose results only some are passed back, or one after the other."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from capture.backends.native.partial_backward import PartialBackward
from tests.aliasing.hunt import differences
from tests.aliasing.programs import Case
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401
from tests.helpers import seed

OPTIONS = {"background": False}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 3)

    def forward(self, x):
        h = F.gelu(self.body(x))
        return self.first(h), self.second(h).log_softmax(-1)


def test_a_head_that_is_not_trained_has_no_gradient():
    """Zeros in place of none would let weight decay and momentum change it."""
    found = []
    for compile in (lambda module: module, lambda module: capture.compile(module, backend="native", options=OPTIONS)):
        seed()
        net = Heads()
        call, optimizer = compile(net), torch.optim.AdamW(net.parameters(), lr=0.1)
        for step in range(12):
            call(torch.randn(3, 4))[step // 6].square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(list(net.parameters()))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_two_passes_of_a_step_of_a_gan():
    found = []
    for compile in (lambda step: step, lambda step: capture.compile(step, backend="native", options=OPTIONS)):
        seed()
        generator, discriminator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (generator, discriminator)]

        @compile
        def step(real, noise):
            fake = generator(noise)
            loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            other = F.softplus(-discriminator(fake)).mean()
            optimizers[0].zero_grad()
            other.backward()
            optimizers[0].step()
            return loss.detach(), other.detach()

        losses = [loss for _ in range(8) for loss in step(torch.randn(5, 4), torch.randn(5, 3))]
        found.append([*losses, *generator.parameters(), *discriminator.parameters()])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


GRAD = "torch.randn(4, 4, requires_grad=True)"
JOINED = {
    "where": "t = x.clamp(min=0).square().add(1).sqrt()\nreturn torch.where(t > 0, t, x) * y, y / x, t.cos() - y",
    "sub": "t = x.sin()\nreturn t * y, y - y / x, t - x * y",
    "cat": "t = x * y\nreturn torch.cat([t[:2], t[2:].sin()]), torch.stack([t / x, x]), t.cos()",
    "split": "a, b = (x * y).split(2)\nreturn a.sin(), b / x[2:], b.cos()",
    "layer_norm": "t = F.layer_norm(x, (4,))\nreturn t.sin() + y, y * t / x, y * t",
    "mm": "t = x @ y\nreturn t.sin(), t / x, y.sum(0) + t",
    "max": "a, b = x.max(0)\nreturn a.square(), a / x, x * a"}


@pytest.mark.parametrize("body", JOINED)
def test_zeros_that_are_none_after_inputs_were_changed_unseen(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero times infinity is no zero; and what is computed again would be computed of what the inputs are by now."""
    passes = []
    exact = PartialBackward.__call__
    monkeypatch.setattr(PartialBackward, "__call__", lambda self, *args: (passes.append(1), exact(self, *args))[1])
    for edited in ("a[0].data.zero_()", "a[0].data[1] = 0", "a[1].data.zero_()"):
        for one in range(2):
            case = Case((GRAD, GRAD), tuple(JOINED[body].split("\n")), (edited, f"r[{one}].sum().backward()"))
            found = differences(case, backend="native", options=OPTIONS)
            assert not found, "\n".join(found)
    assert passes


@pytest.mark.parametrize("edit", ["a[0].data.mul_(3)", "r[0].data.mul_(2)", "pass"])
@pytest.mark.parametrize("body", ["(x * S).exp(), x.log() * S", "(x / S).exp(), S / x, x.sqrt()",
                                  "(x + S).tanh(), x.sum() / (x * 0 - S + S)", "torch.lerp(x.exp(), y, S), (x * N).log()"])
def test_zeros_that_would_make_nan_where_numbers_change(body, edit):
    case = Case(("torch.tensor([0., 1., 2.], requires_grad=True)", "torch.ones(3, requires_grad=True)"), (f"return {body},",),
                (edit, "r[0].sum().backward()"))
    assert not differences(case, backend="native", options=OPTIONS)
