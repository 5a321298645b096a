"""A training step compiled as one function: forward, backward, clipping, the optimizer."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01)}
STEPS = 8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def step_with_zeros(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return 0.0


def train(run: Callable[..., float], make: Callable[[Any], torch.optim.Optimizer],
          steps: int = STEPS) -> tuple[list[float], list[torch.Tensor]]:
    """The losses, and all state that there is afterwards."""
    model = network()
    optimizer = make(model.parameters())
    torch.manual_seed(1)
    losses = [run(model, optimizer, torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(steps)]
    moments = [value for p in model.parameters() for value in optimizer.state[p].values() if isinstance(value, torch.Tensor)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return losses, [*(t.detach().clone() for t in model.state_dict().values()), *moments, *grads, torch.get_rng_state()]


def identical(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("program", [step, step_with_zeros])
def test_equal_to_eager(name: str, program: Callable[..., float]) -> None:
    losses, state = train(program, OPTIMIZERS[name])
    compiled = capture.compile(program, backend="eager")
    found, after = train(compiled, OPTIMIZERS[name])
    assert found == losses and identical(state, after)
    assert capture.stats(compiled).native_calls == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_graph(name: str) -> None:
    compiled = capture.compile(step, backend="eager")
    train(compiled, OPTIMIZERS[name])
    stats = capture.stats(compiled)
    assert stats.breaks == 0 and stats.captures <= 2                    # the first two steps differ: no gradients, no moments yet


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_the_backward_pass_is_outside_of_graphs(name: str) -> None:
    """Where what compiles the graphs takes no backward passes."""
    compiled = capture.compile(step, backend=lambda gm, inputs: gm.forward)
    losses, state = train(step, OPTIMIZERS[name])
    found, after = train(compiled, OPTIMIZERS[name])
    assert found == losses and identical(state, after)
    stats = capture.stats(compiled)
    units = compiled.capture_unit.family
    assert {report.context for unit in units for report in unit.breaks} == {"Tensor.backward()"}
    graphs = stats.graphs + sum(unit.departed.graphs for unit in units)     # of the continuations, some are gone with the model
    assert stats.captures <= 6 and graphs == stats.captures


@pytest.mark.parametrize("name", ["SGD", "AdamW", "AdamW, fused"])
def test_compiled_by_the_native_backend(name: str) -> None:
    """Gradients must not pile up: dropping them is not left to a compiled graph, which would know nothing of it."""
    losses, state = train(step, OPTIMIZERS[name])
    compiled = capture.compile(step, backend="native", options={"background": False})
    stats = []

    def run(*args: Any) -> float:
        loss = compiled(*args)
        stats.append(capture.stats(compiled))       # the model keeps the entries
        return loss
    found, after = train(run, OPTIMIZERS[name])
    assert stats[-1].compiled >= 1
    torch.testing.assert_close(found, losses)
    for a, b in zip(state, after, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_the_number_of_steps_is_a_number_of_the_graph(name: str) -> None:
    """And not read out of a tensor in its midst: such graphs run uncompiled."""
    compiled, model = capture.compile(step, backend="eager"), network()
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(4):
        compiled(model, optimizer, torch.randn(4, 8), torch.randint(0, 3, (4,)))
    used = [entry.payload.graph_module for unit in compiled.capture_unit.family for entry in unit.tree.entries if entry.hits]
    assert len(used) == 1 and not any(node.target is torch.Tensor.item for gm in used for node in gm.graph.nodes)


def test_the_learning_rate_changes() -> None:
    def scheduled(run: Callable[..., float]) -> tuple[list[float], list[torch.Tensor]]:
        def with_schedule(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
            optimizer.param_groups[0]["lr"] *= 0.9
            return run(model, optimizer, x, y)
        return train(with_schedule, OPTIMIZERS["SGD"], 5)
    losses, state = scheduled(step)
    found, after = scheduled(capture.compile(step, backend="eager"))
    assert found == losses and identical(state, after)


def test_a_gradient_is_read_after_it_was_dropped() -> None:
    def program(p: torch.Tensor, x: torch.Tensor) -> Any:
        y = p * x
        before = p.grad
        p.grad = None
        return y * 2, before, p.grad
    compiled = capture.compile(program, backend="native", options={"background": False})
    for _ in range(4):
        p, x = torch.ones(3, requires_grad=True), torch.randn(3)
        gradient = p.grad = torch.full((3,), 7.0)
        y, before, now = compiled(p, x)
        assert torch.equal(y, p * x * 2) and before is gradient and now is None and p.grad is None


def test_a_gradient_is_shown_before_it_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    def program(p: torch.Tensor) -> torch.Tensor:
        print(p.grad)
        p.grad = None
        return p * 2
    compiled = capture.compile(program, backend="eager")
    for run in (program, compiled, compiled, compiled):
        p = torch.ones(2, requires_grad=True)
        p.grad = torch.full((2,), 3.0)
        run(p)
        assert p.grad is None
    assert capsys.readouterr().out == "tensor([3., 3.])\n" * 4


def test_optimizers_that_dynamo_has_wrapped() -> None:
    """Loading torch._dynamo wraps the methods of optimizers in its own `disable`."""
    import torch._dynamo
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    compiled = capture.compile(step, backend="eager")
    losses, state = train(step, OPTIMIZERS["SGD"])
    found, after = train(compiled, OPTIMIZERS["SGD"])
    assert found == losses and identical(state, after)
    assert capture.stats(compiled).breaks == 0


def test_a_function_that_is_excluded_from_torch_compile() -> None:
    calls = []

    @torch.compiler.disable
    def excluded(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return excluded(x * 2).relu()
    compiled = capture.compile(program, backend="eager")
    for number in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(x), (x * 2 + 1).relu()) and len(calls) == number + 1
    stats = capture.stats(compiled)
    assert (stats.breaks, stats.graphs, stats.native_calls) == (1, 2, 0)


def new_data(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = p * 2
    p.data = x * 3
    return y + p


def decayed(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = p.data * 0.5 + x
    return p.sum()


def own_leaf(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    q = x * 2
    q.requires_grad = True
    return (q * p).sum()


def outside_leaf(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.requires_grad = True
    return (p * x).sum()


def test_a_leaf_of_the_graphs_own_alone_requires_gradients() -> None:
    compiled = capture.compile(lambda x: own_leaf(torch.ones(4), x), backend="native", options={"background": False})
    for _ in range(4):
        x = torch.randn(4)
        y = compiled(x)
        assert y.requires_grad and torch.equal(y, (x * 2).sum())


@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
@pytest.mark.parametrize("program", [new_data, decayed, own_leaf, outside_leaf])
def test_attributes_of_tensors_are_assigned(program: Callable[..., torch.Tensor], backend: str) -> None:
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(program, backend=backend, options=options)
    for _ in range(4):
        ours, theirs = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        x = torch.randn(4)
        y = x.clone()
        expected, found = program(theirs, y), compiled(ours, x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, theirs)
        assert found.requires_grad == expected.requires_grad and x.requires_grad == y.requires_grad
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        torch.testing.assert_close(x.grad, y.grad)
