"""Training steps with the backward pass inside of the graph, compiled as one, beside eager mode.

Steps are run natively, captured, hit uncompiled and hit compiled; all must leave the same parameters, gradients (values, strides,
whether they are there), buffers, moments and random numbers, and return the same.
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
from tests.training.step_programs import PROGRAMS, inputs

STEPS = 7


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
         "draws_after_the_backward_pass", "drops_out_in_two_passes", "frozen_layers", "moving_average", "shared_weights",
         "from_several_results", "autocast", "gradient_of_an_input"]


@pytest.mark.parametrize("name", WHOLE)
def test_one_plan(name: str) -> None:
    """What is hit is one graph, compiled as a whole. (The first step of some optimizers reads numbers that it has made.)"""
    step, _ = PROGRAMS[name]()
    compiled = capture.compile(step, backend="native", options={"background": False})
    for call in range(STEPS):
        compiled(*inputs(call))
    assert capture.stats(compiled).breaks == 0
    assert re.search(r"\(\d+ kernels?[;)]", str(capture.explain(compiled)))      # not "forward" and "backward"


@pytest.mark.parametrize("seed", range(2))
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


def noise_after_the_pass(x: Tensor, w: Tensor) -> Any:
    (x @ w).sin().sum().backward()
    with torch.no_grad():
        x.sub_(x.grad + torch.randn_like(x.grad) * 0.1)
        w.sub_(w.grad + torch.randn(4, 4) * 0.1)
    return torch.rand(3) + x.grad.sum()


def two_passes_that_drop_out(x: Tensor, w: Tensor) -> Any:
    losses = []
    for _ in range(2):
        losses.append((F.dropout(x, 0.3) @ w).tanh().sum())
        losses[-1].backward()
    return losses[0].detach(), losses[1].detach() * torch.rand(())


@pytest.mark.parametrize("step", [noise_after_the_pass, two_passes_that_drop_out], ids=lambda step: step.__name__)
def test_numbers_are_drawn_in_order(step: Callable[..., Any]) -> None:
    """Also those that no gradient is needed for, after a backward pass has begun."""
    compiled = capture.compile(step, backend="native", options={"background": False})
    for call in range(STEPS):
        seen = []
        for run in step, compiled:
            torch.manual_seed(call)
            x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
            seen.append([*leaves(run(x, w)), x, w, x.grad, w.grad, torch.rand(2)])
        torch.testing.assert_close(*seen)
    stats = capture.stats(compiled)
    assert stats.compiled == stats.graphs == 1 and not stats.compile_errors
