"""Training steps with the backward pass inside of the graph, compiled as one, beside eager mode.

Each program is a function that makes a step, and what is to be compared after each call. Steps are run natively, captured, hit
uncompiled and hit compiled; all must leave the same parameters, gradients (values, strides, whether they are there), buffers,
moments and random numbers, and return the same.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import capture
from capture.errors import GraphBreakError

STEPS = 7
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


def tensors(things: list[Any]) -> Iterator[Tensor | None]:
    for thing in things:
        if isinstance(thing, nn.Module):
            for parameter in thing.parameters():
                yield from (parameter, parameter.grad)
            yield from thing.buffers()
        elif isinstance(thing, torch.optim.Optimizer):
            yield from (value for state in thing.state.values() for value in state.values() if isinstance(value, Tensor))
        else:
            yield from (thing, thing.grad)


def facts(tensor: Any) -> Any:
    """All that is to be equal but the values."""
    if not isinstance(tensor, Tensor):
        return tensor
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None


def leaves(result: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(result)


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, float):
            assert ours == pytest.approx(theirs, rel=1e-4)
            continue
        assert facts(ours) == facts(theirs)
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)


def again(result: Any) -> list[str]:
    """What comes of a further backward pass from each result."""
    outcomes = []
    for tensor in leaves(result):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            try:
                tensor.sum().backward()
                outcomes.append("runs")
            except RuntimeError as error:
                outcomes.append(str(error)[:60])
    return outcomes


# Whether breaks are allowed is asked before a backend is given anything: each of the two is run with one.
@pytest.mark.parametrize(("backend", "fullgraph"), [("eager", True), ("native", False)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_eager(name: str, backend: str, fullgraph: bool) -> None:
    try:
        equal_to_eager(name, backend, fullgraph)
    except GraphBreakError:
        assert fullgraph
        equal_to_eager(name, backend, fullgraph=False)


def equal_to_eager(name: str, backend: str, fullgraph: bool) -> None:
    torch.manual_seed(0)
    step, own = PROGRAMS[name]()
    torch.manual_seed(0)
    other, theirs = PROGRAMS[name]()
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(step, backend=backend, options=options, fullgraph=fullgraph)
    for call in range(STEPS):
        torch.manual_seed(call)
        expected = other(*inputs(call))
        state = torch.get_rng_state()
        torch.manual_seed(call)
        found = compiled(*inputs(call))
        assert torch.equal(state, torch.get_rng_state())
        assert_alike(leaves(found), leaves(expected))
        assert_alike(list(tensors(own)), list(tensors(theirs)))
    assert again(found) == again(expected)
    assert_alike(list(tensors(own)), list(tensors(theirs)))
    stats = capture.stats(compiled)
    assert stats.native_calls == 0 and stats.captures <= 4
    if backend == "native" and name != "own_leaves":
        assert stats.compiled >= 1 and not stats.compile_errors


WHOLE = ["returns_the_loss", "returns_results_and_loss", "accumulates", "zeroes_gradients", "two_optimizers", "two_losses",
         "frozen_layers", "moving_average", "shared_weights", "from_several_results", "autocast", "gradient_of_an_input"]


@pytest.mark.parametrize("name", WHOLE)
def test_one_plan(name: str) -> None:
    """What is hit is one graph, compiled as a whole. (The first step of some optimizers reads numbers that it has made.)"""
    step, _ = PROGRAMS[name]()
    compiled = capture.compile(step, backend="native", options={"background": False})
    for call in range(STEPS):
        compiled(*inputs(call))
    assert capture.stats(compiled).breaks == 0
    assert re.search(r"\(\d+ kernels?[;)]", str(capture.explain(compiled)))      # not "forward" and "backward"


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_sizes(seed: int) -> None:
    """Batches of changing size, and steps with and without gradients before."""
    torch.manual_seed(seed)
    runs = [PROGRAMS["accumulates"](), PROGRAMS["accumulates"]()]
    for ours, theirs in zip(tensors(runs[0][1]), tensors(runs[1][1])):
        if ours is not None:
            with torch.no_grad():
                theirs.copy_(ours)
    compiled = capture.compile(runs[0][0], backend="native", options={"background": False})
    sizes = torch.randint(4, 9, (10,)).tolist()
    for call, size in enumerate(sizes):
        x, y = torch.randn(size, 6), torch.randint(0, 3, (size,))
        for run in (compiled, runs[1][0]):
            torch.manual_seed(call)
            run(x, y)
        assert_alike(list(tensors(runs[0][1])), list(tensors(runs[1][1])))


def test_hooks_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Hooks of parameters and of their nodes, registered after the step was compiled."""
    model = nn.Linear(6, 3)

    def step(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
    compiled = capture.compile(step, backend="native", options={"background": False})
    for call in range(5):
        compiled(*inputs(call))
    called = []
    node = model.weight.expand_as(model.weight).grad_fn.next_functions[0][0]
    for register in (lambda: node.register_hook(lambda *_: called.append("node")),
                     lambda: model.weight.register_hook(lambda grad: grad * 2),
                     lambda: model.bias.register_post_accumulate_grad_hook(lambda p: called.append("after"))):
        handle = register()
        called.clear()
        compiled(*inputs(9))
        grads, seen = [p.grad.clone() for p in model.parameters()], list(called)
        called.clear()
        step(*inputs(9))
        torch.testing.assert_close(grads, [p.grad for p in model.parameters()])
        assert called == seen
        handle.remove()


def test_an_index_out_of_range_changes_nothing() -> None:
    table, head = nn.Embedding(5, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

    def step(index: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = head(table(index)).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    compiled = capture.compile(step, backend="native", options={"background": False})
    for _ in range(5):
        compiled(torch.tensor([0, 4, 2]))
    before = [p.detach().clone() for p in (*table.parameters(), *head.parameters())]
    with pytest.raises(IndexError):
        compiled(torch.tensor([0, 5, 2]))
    assert all(torch.equal(p, q) for p, q in zip((*table.parameters(), *head.parameters()), before))
    assert all(p.grad is None for p in table.parameters())


def test_gradients_are_no_views_of_one_another() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = capture.compile(lambda x: ((a + b) * x).sum().backward(), backend="native", options={"background": False})
    for _ in range(4):
        a.grad = b.grad = None
        compiled(torch.ones(3))
        a.grad.add_(1)
        assert torch.equal(b.grad, torch.ones(3)) and torch.equal(a.grad, torch.full((3,), 2.0))


def test_gradients_are_views_of_nothing() -> None:
    """Programs detach them in place before they set them to zero, which views do not allow."""
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    compiled = capture.compile(lambda: model(x).square().mean().backward(), backend="native", options={"background": False})
    for _ in range(4):
        model.zero_grad()
        compiled()
        assert all(p.grad._base is None and p.grad.detach_() is p.grad for p in model.parameters())
    assert capture.stats(compiled).compiled == 1
