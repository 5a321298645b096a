"""Transforms of torch.func and gradients as results under autocast: one graph each, with kernels, and results of eager mode."""
from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

import capture
from tests.backends.native.autocast_programs import (
    PROGRAMS,
    SIZE,
    Program,
    gradients_of,
    mapped,
    network,
    of_inputs,
    penalty,
    tensors,
    within,
)
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial  # noqa: F401
from tests.training.left_to_torch import Cubed

NEAR = {torch.float32: 0.04, torch.bfloat16: 0.04, torch.float16: 0.01}
Block = Callable[[], Any]


def block(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Block:
    return lambda: torch.autocast("cpu", dtype, **options)


def outcomes(program: Program, *blocks: Block, change: bool = False) -> list[Any]:
    """Results, then gradients, of a call in each block. change: the weight changes in the midst of it, and there is another one."""
    found: list[Any] = []
    for seed, entered in enumerate(blocks):
        given = tensors(seed)
        with entered():
            results = [program(*given)]
            if change:
                with torch.no_grad():
                    given[1].data.mul_(0.5)
                results.append(program(*given))
        found += pytree.tree_leaves(results)
        found += gradients_of(results, given)
    return found


def same(found: list[Any], expected: list[Any]) -> None:
    """Equal but for what two orders of rounding differ in, and of the same kind."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert (ours.dtype, ours.shape, ours.stride(), ours.requires_grad) == (
                theirs.dtype, theirs.shape, theirs.stride(), theirs.requires_grad)
            assert (ours - theirs).float().norm() <= NEAR[ours.dtype] * theirs.float().norm() + 1e-6


def check(program: Program, *blocks: Block, captures: int = 1, change: bool = False) -> None:
    expected = outcomes(program, *blocks, change=change)        # at first: what torch imports then is imported
    compiled = capture.compile(program, fullgraph=True, **AT_ONCE)
    same(outcomes(compiled, *blocks, change=change), expected)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.graphs, stats.compiled, stats.compile_errors) == (captures, captures, captures, []), stats
    assert stats.hits == len(blocks) * (1 + change) - captures


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_block_in_the_program(program: Program) -> None:
    check(within(program), *[contextlib.nullcontext] * 3)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_block_around_the_call(program: Program) -> None:
    check(program, *[block()] * 3)


@pytest.mark.parametrize("program", [penalty, mapped, of_inputs], ids=lambda program: program.__name__)
def test_a_weight_that_changes_in_a_block(program: Program) -> None:
    """Casts that were kept are used all the same; those made in levels are made of what the weight is now."""
    check(program, *[block()] * 2, change=True)


@pytest.mark.parametrize("program", [penalty, mapped], ids=lambda program: program.__name__)
def test_autocast_that_differs_from_call_to_call(program: Program) -> None:
    other = [block(), contextlib.nullcontext, block(torch.float16), block(enabled=False), block(cache_enabled=False)]
    check(program, *other, *other, captures=5)


def test_float16_in_the_program() -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return penalty(x, w, b) + mapped(x, w, b).float().sum()
    check(program, *[contextlib.nullcontext] * 3)


def test_gradients_outside_of_the_block() -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            total = network(x, w, b).float().square().sum()
        found, = torch.autograd.grad(total, x, create_graph=True)
        return total + (found.norm() - 1).square() + (found @ w).sum()
    check(program, *[contextlib.nullcontext] * 3)


def test_no_gradients() -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            return mapped(x, w, b)
    check(program, *[block()] * 3)


def test_sizes_that_change() -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return penalty(x, w, b) + mapped(x, w, b).float().mean()
    compiled = capture.compile(program, fullgraph=True, **AT_ONCE)
    for rows in (5, 7, 9, 4, 6):
        _, w, b = tensors()
        x = torch.randn(rows, SIZE, requires_grad=True)
        found, expected = ([result, *gradients_of(result, [x, w, b])] for result in (compiled(x, w, b), program(x, w, b)))
        same(found, expected)
    assert (capture.stats(compiled).captures, capture.stats(compiled).compile_errors) == (2, [])
    assert capture.stats(compiled).compiled


def test_a_cast_of_a_weight_by_the_program() -> None:
    """It looks like the one that autocast keeps: the graph is divided around the gradients, or runs as it is."""
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return penalty(x, w, b) + w.to(torch.bfloat16).sum()
    compiled = capture.compile(program, fullgraph=True, **AT_ONCE)
    blocks = [block()] * 3
    same(outcomes(compiled, *blocks, change=True), outcomes(program, *blocks, change=True))


def test_functions_of_the_program() -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        total = Cubed.apply(F.linear(x, w, b).float()).sum()
        return total + torch.autograd.grad(total, x, create_graph=True)[0].square().sum()
    compiled = capture.compile(program, **AT_ONCE)
    same(outcomes(compiled, *[block()] * 3), outcomes(program, *[block()] * 3))


def test_a_whole_step() -> None:
    """A critic with a gradient penalty, its gradients, and the step of the optimizer."""
    def trained(engine: dict[str, Any] | None) -> list[Tensor]:
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9)

        def step(real: Tensor, fake: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                mixed = (0.3 * real + 0.7 * fake).requires_grad_()
                out = critic(mixed)
                found, = torch.autograd.grad(out.sum(), mixed, create_graph=True)
                loss = critic(fake).mean() - critic(real).mean() + 10 * (found.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()
        run = step if engine is None else capture.compile(step, fullgraph=True, **engine)
        losses = [run(torch.randn(6, 4), torch.randn(6, 4)) for _ in range(5)]
        if engine is not None:
            stats = capture.stats(run)
            assert not stats.compile_errors and (stats.captures, stats.hits, stats.compiled) == (2, 3, 1), stats
        return [*losses, *(parameter.detach() for parameter in critic.parameters())]
    same(trained(AT_ONCE), trained(None))


def test_per_sample_gradients_of_a_module() -> None:
    def make(model: nn.Module) -> Callable[..., Any]:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

        def program(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
            with torch.autocast("cpu", torch.bfloat16):
                return vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
        return program
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    plain, compiled = make(model), capture.compile(make(copy.deepcopy(model)), fullgraph=True, **AT_ONCE)
    for _ in range(3):
        given = torch.randn(7, 2, 8), torch.randint(0, 3, (7,))
        same(list(compiled(*given).values()), list(plain(*given).values()))
    assert (capture.stats(compiled).compiled, capture.stats(compiled).compile_errors) == (1, [])
