"""Kernels that do the same with other buffers and sizes are one launch, or a few."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx, nn

from capture import config
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.plan import LaunchStep

Program = Callable[..., Sequence[Tensor]]


def check(program: Program, tensors: Sequence[Tensor]) -> tuple[list[LaunchStep], int]:
    """A program of tensors and what it writes to, compared with eager mode; its launches as planned, and how many there were."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    results = program(*(fx.Proxy(graph.placeholder(f"x{place}"), tracer) for place in range(len(tensors))))
    graph.output(tuple(result.node for result in results))
    gm = fx.GraphModule(nn.Module(), graph)
    with config.CACHE.set(0):
        artifact = compile_job(Job(gm, tuple(map(TensorSpec.of, tensors)), Modes.current(), {"target": "cuda-on-cpu"}))
    steps = [step for step in artifact.forward.plan.steps if isinstance(step, LaunchStep)]
    mine, theirs = ([fresh(tensor) for tensor in tensors] for _ in range(2))
    run = load(artifact, gm)
    with torch.autograd.profiler.profile() as profile:
        found = run(*mine)
    expected = program(*theirs)
    for a, b in zip([*found, *mine], [*expected, *theirs], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    names = {step.name for step in steps}
    return steps, sum(event.name in names for event in profile.function_events)


def fresh(tensor: Tensor) -> Tensor:
    """A copy that begins as many bytes behind a multiple of 16."""
    shift = tensor.data_ptr() % 16 // tensor.element_size()
    memory = torch.empty(tensor.numel() + 16 // tensor.element_size(), dtype=tensor.dtype)
    assert memory.data_ptr() % 16 == 0
    return memory[shift:][:tensor.numel()].view(tensor.shape).copy_(tensor)


def shifted(size: int, elements: int) -> Tensor:
    return torch.randn(size + elements)[elements:]


def adam(*tensors: Tensor) -> list[Tensor]:
    count = len(tensors) // 4
    parameters, gradients, means, squares = (tensors[count * part:count * (part + 1)] for part in range(4))
    for parameter, gradient, mean, square in zip(parameters, gradients, means, squares):
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)
    return []


def state(sizes: Sequence[int], shift: int = 0) -> list[Tensor]:
    lists = [[shifted(size, shift * (number % 2)) for number, size in enumerate(sizes)] for _ in range(4)]
    return [*lists[0], *lists[1], *lists[2], *(square.abs() for square in lists[3])]


def test_an_optimizer_over_150_parameters() -> None:
    steps, launches = check(adam, state([40] * 150))
    step, = steps
    assert len(step.entries) == 150 and launches == -(-150 // step.room) == 2


@pytest.mark.parametrize("order", ["0", "1", "7"])
def test_sizes_and_addresses_differ(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter takes the form that suits it: those of one form share launches."""
    monkeypatch.setenv("CAPTURE_EMULATED_ORDER", order)
    step, = check(adam, state([2, 4, 1000, 4096, 33, 7, 8, 3], shift=1))[0]
    assert len(step.entries) == 8 and len(step.variants) == 2
    divisible = [fit.divisible for fit in (entry.fits[0] for entry in step.entries)]
    assert len(set(divisible)) == 8


def test_few_launches_of_both_forms() -> None:
    assert check(adam, state([64] * 20))[1] == 1
    assert check(adam, state([64, 63] * 10))[1] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_what_foreach_operators_do(dtype: torch.dtype) -> None:
    def program(*tensors: Tensor) -> list[Tensor]:
        for tensor in tensors:
            tensor.zero_()
        return [tensor.clone() for tensor in tensors]
    tensors = [torch.ones(size, dtype=dtype) for size in (3, 40, 5000, 16)]
    steps, launches = check(program, tensors)
    assert len(steps) <= 2 and launches <= 4


def test_norms_of_gradients() -> None:
    """Of each tensor one number, from which one factor comes for all."""
    def program(*tensors: Tensor) -> list[Tensor]:
        norms = torch.stack([tensor.square().sum() for tensor in tensors])
        factor = (1 / (norms.sum().sqrt() + 1e-6)).clamp(max=1.0)
        for tensor in tensors:
            tensor.mul_(factor)
        return [norms]
    steps, launches = check(program, [torch.randn(500) for _ in range(40)])
    assert len(steps) <= 5 and launches <= 5


def test_indices() -> None:
    """Those of any kernel may be out of range."""
    def program(*tensors: Tensor) -> list[Tensor]:
        return [table[index] * 2 for table, index in zip(tensors[::2], tensors[1::2])]
    tensors = [made for number in range(4) for made in (torch.randn(9, 5), torch.randint(9, (7,)))]
    step, = check(program, tensors)[0]
    assert step.checks and len(step.entries) == 4
    tensors[5][2] = 9
    with pytest.raises(IndexError):
        check(program, tensors)


def test_what_depends_on_each_other_stays_in_order() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        b.copy_((a * 2).flip(0))
        c.copy_((b * 2).flip(0))
        a.copy_((c * 2).flip(0))
        return []
    steps, launches = check(program, [torch.randn(70) for _ in range(3)])
    assert len(steps) == launches == 3 and not any(step.room for step in steps)


def test_independent_pairs_of_dependent_kernels() -> None:
    """The first of all pairs run together, then the second ones."""
    def program(*tensors: Tensor) -> list[Tensor]:
        return [((tensor * 2).flip(0).square().sum() * tensor).flip(0) for tensor in tensors]
    steps, launches = check(program, [torch.randn(700) for _ in range(6)])
    assert launches == len(steps) < 6 and all(len(step.entries) in (0, 6) for step in steps)


def test_what_takes_memory_stays_where_it_is() -> None:
    """Large results that another kernel ends would be there all at once."""
    def program(*tensors: Tensor) -> list[Tensor]:
        return [(tensor.t() @ tensor).softmax(0).sum() for tensor in tensors]
    steps, _ = check(program, [torch.randn(20, 80) for _ in range(5)])
    assert sum(not step.room for step in steps) >= 5
