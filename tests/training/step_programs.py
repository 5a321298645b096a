"""Programs that make training steps, for `test_whole_steps.py`. Each is a function that makes a step, and what is to be compared
after each call."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Makes a step, and lists the tensors and modules that it changes.
Make = Callable[[], tuple[Callable[..., Any], list[Any]]]
PROGRAMS: dict[str, Make] = {}


def program(make: Make) -> Make:
    PROGRAMS[make.__name__] = make
    return make


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3))


def inputs(call: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(call)
    return torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)


@program
def returns_the_loss() -> Any:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    return step, [model, optimizer]


@program
def returns_results_and_loss() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Any:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return logits, {"loss": loss, "number": loss.item(), "right": (logits.argmax(1) == y).float().mean()}
    return step, [model, optimizer]


@program
def draws_after_the_backward_pass() -> Any:
    """Noise like a gradient, and then noise like nothing that the backward pass computes."""
    w, v = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)

    def step(x: Tensor, y: Tensor) -> Any:
        w.grad = v.grad = None
        loss = ((x @ w).sin() * (x @ v).cos()).sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad + torch.randn_like(w.grad) * 0.1)
            v.sub_(v.grad + torch.randn(6, 3) * 0.1)
        return loss.detach(), torch.rand(3) + 1
    return step, [w, v]


@program
def drops_out_in_two_passes() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        losses = []
        for part in (x, F.dropout(x, 0.5)):
            losses.append(F.cross_entropy(model(part), y))
            losses[-1].backward()
        optimizer.step()
        return losses[0].detach() + losses[1].detach() * torch.rand(())
    return step, [model, optimizer]


@program
def clips_gradients() -> Any:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return norm
    return step, [model, optimizer]


@program
def accumulates() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        for part, target in ((x[:2], y[:2]), (x[2:], y[2:])):
            (F.cross_entropy(model(part), target) / 2).backward()
        optimizer.step()
    return step, [model, optimizer]


@program
def adds_to_gradients_of_earlier_calls() -> Any:
    model = network()

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()
    return step, [model]


@program
def zeroes_gradients() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return step, [model, optimizer]


@program
def two_optimizers() -> Any:
    generator, critic = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))
    first = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9))
    second = torch.optim.RMSprop(critic.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Any:
        made = generator(x)
        second.zero_grad()
        loss = F.softplus(critic(made.detach())).mean() + F.softplus(-critic(x)).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = F.softplus(-critic(made)).mean()
        other.backward()
        first.step()
        return loss.item(), other.detach()
    return step, [generator, critic, first, second]


@program
def two_losses() -> Any:
    model, a, b = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 1)

    def step(x: Tensor, y: Tensor) -> Any:
        hidden = model(x).tanh()
        F.cross_entropy(a(hidden), y).backward(retain_graph=True)
        b(hidden).square().sum().backward(retain_graph=False, create_graph=False)
    return step, [model, a, b]


@program
def frozen_layers() -> Any:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)
    return step, [model, optimizer]


@program
def moving_average() -> Any:
    model, average = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(average.parameters(), model.parameters()):
                own.lerp_(other, 0.1)
            for own, other in zip(average.buffers(), model.buffers()):
                own.copy_(other)
    return step, [model, average, optimizer]


@program
def scheduled() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        return scheduler.get_last_lr()
    return step, [model, optimizer]


@program
def gradient_of_an_input() -> Any:
    model = nn.Linear(6, 3)
    leaf = torch.randn(5, 6, requires_grad=True)

    def step(x: Tensor, y: Tensor) -> Any:
        F.cross_entropy(model(leaf + x), y).backward()
        sign = leaf.grad.sign()
        leaf.grad = None
        return sign
    return step, [model, leaf]


@program
def explicit_gradient() -> Any:
    model = nn.Linear(6, 3)

    def step(x: Tensor, y: Tensor) -> Any:
        result = model(x)
        result.backward(torch.full_like(result, 0.5))
        model.weight.grad.mul_(2)
        return model.weight.grad.sum()
    return step, [model]


@program
def from_several_results() -> Any:
    a, b = nn.Linear(6, 3), nn.Linear(6, 3)

    def step(x: Tensor, y: Tensor) -> Any:
        left, right = a(x).exp(), b(x).sin()
        torch.autograd.backward([left.sum(), (left * right).sum()])
    return step, [a, b]


@program
def shared_weights() -> Any:
    table = nn.Embedding(7, 6)

    def step(x: Tensor, y: Tensor) -> Any:
        logits = (table(y) + x) @ table.weight.t()
        loss = F.cross_entropy(logits, y)
        loss.backward()
        with torch.no_grad():
            table.weight -= 0.1 * table.weight.grad
        table.weight.grad = None
        return loss
    return step, [table]


@program
def leaves_of_other_layouts() -> Any:
    a = torch.randn(6, 4).t().requires_grad_()
    b = torch.randn(4, 12)[:, ::2].requires_grad_()
    c, d = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)

    def step(x: Tensor, y: Tensor) -> Any:
        ((a + b) * x[:4] + (c + d).expand(2, 4, 6).sum(0)).square().sum().backward()
    return step, [a, b, c, d]


@program
def parts_of_one_gradient() -> Any:
    a, b = torch.randn(2, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)

    def step(x: Tensor, y: Tensor) -> Any:
        (torch.cat([a, b]) * x).square().sum().backward()
        a.grad.add_(1)
    return step, [a, b]


@program
def nothing_saved() -> Any:
    a = torch.randn(5, 6, requires_grad=True)

    def step(x: Tensor, y: Tensor) -> Any:
        loss = (a + x).sum()
        loss.backward()
        return loss
    return step, [a]


@program
def own_leaves() -> Any:
    """Leaves that the step makes itself."""
    total = torch.zeros(6)

    def step(x: Tensor, y: Tensor) -> Any:
        weight = torch.ones(6, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()
        total.add_(weight.grad)
        return weight.detach()
    return step, [total]


@program
def autocast() -> Any:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    return step, [model, optimizer]


@program
def scaled() -> Any:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return step, [model, optimizer]


@program
def checkpointed() -> Any:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False), y)
        loss.backward()
        return loss
    return step, [model]


@program
def checkpointed_statistics() -> Any:
    """Recomputing the body counts its statistics once more."""
    model, head = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.GELU()), nn.Linear(8, 3)

    def step(x: Tensor, y: Tensor) -> Any:
        hidden = torch.utils.checkpoint.checkpoint(model, x * 2 + 1, use_reentrant=False)
        loss = F.cross_entropy(head(hidden).tanh() * 3, y)
        loss.backward()
        return loss
    return step, [model, head]


@program
def unused_parameters() -> Any:
    model, other = nn.Linear(6, 3), nn.Linear(6, 3)

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(model(x) + other(x).detach(), y)
        loss.backward()
        return loss, other.weight.grad
    return step, [model, other]


@program
def a_write_between() -> Any:
    model = nn.Linear(6, 3)
    total = torch.zeros(3)

    def step(x: Tensor, y: Tensor) -> Any:
        logits = model(x)
        total.add_(logits.detach().sum(0))
        loss = F.cross_entropy(logits, y) + total.sum()
        loss.backward()
        total.mul_(0.5)
        return loss
    return step, [model, total]


@program
def a_handler_in_the_forward_pass() -> Any:
    table, head = nn.Embedding(5, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

    def forward(y: Tensor) -> Tensor:
        try:
            return table(y)
        finally:
            table.calls = getattr(table, "calls", 0) + 1

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(head(forward(y)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, table.calls
    return step, [table, head, optimizer]


@program
def goes_on_with_a_result() -> Any:
    """What the pass has freed, and what it has not."""
    model, other = nn.Linear(6, 3), nn.Linear(3, 3)

    def step(x: Tensor, y: Tensor) -> Any:
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        return other(logits.detach()), logits * 2
    return step, [model, other]
