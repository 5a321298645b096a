"""Collectives of `torch.distributed` in a compiled function are operations of its graph."""
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import capture
from tests.distributed.test_wrappers import compiled, group

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
if dist.is_available():
    import torch.distributed.distributed_c10d as c10d

    from tests.distributed import ranks
    from tests.distributed.programs import Net, batches

__all__ = ["group"]         # a fixture


def test_one_graph(group: None) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        dist.all_reduce(y[0], op=dist.ReduceOp.MAX, group=dist.group.WORLD)
        dist.broadcast(y, 0)
        parts = [torch.empty_like(y)]
        dist.all_gather(parts, y)
        dist.reduce(parts[0], dst=0)
        return y / dist.get_world_size() + parts[0]
    function = capture.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, 2)
        assert torch.equal(function(x), program(x))
    assert (capture.stats(function).captures, capture.stats(function).hits) == (1, 2)


def printing(x: Tensor) -> Tensor:
    print("before")
    dist.all_reduce(x)
    return x + 1


def handling(x: Tensor) -> Tensor:
    try:
        dist.all_reduce(x)
    except RuntimeError:
        return x - 1
    return x + 1


def followed(x: Tensor) -> Tensor:
    y = x.clone().requires_grad_() * 2
    dist.all_reduce(y)
    return y.detach() + 1


def waiting(x: Tensor) -> Tensor:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


def with_a_product(x: Tensor) -> Tensor:
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    return x + 1


@pytest.mark.parametrize("program, breaks", [(printing, 1), (handling, 1), (followed, 1), (waiting, 1), (with_a_product, 0)],
                         ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.filterwarnings("ignore")
def test_others_end_the_trace(group: None, program: Callable[[Tensor], Tensor], breaks: int) -> None:
    """After what other ranks may see; where an error of it is handled; where autograd is to follow; where it is not waited for."""
    function = compiled(program)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(function(x.clone()), program(x.clone()))
    assert (capture.stats(function).breaks > 0) == bool(breaks)


class Large(torch.autograd.Function):
    """Refuses numbers that are not small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        if index.max() > 3:
            raise IndexError("large")
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2, None


seen: list[int] = []


def of_an_argument(x: Tensor, index: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x[index] + 1


def of_its_own(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y[index] + 1


def gathered(x: Tensor, index: Tensor) -> Tensor:
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    return parts[0][index] + 1


def before_a_function(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return Large.apply(y, index)


def checked(x: Tensor, index: Tensor) -> Tensor:
    y = x * index
    dist.all_reduce(y)
    if not (y < 5).all():
        raise ValueError("large")
    return y


def checked_before_and_after(x: Tensor, index: Tensor) -> Tensor:
    if not (x * index < 9).all():
        raise ValueError("larger")
    y = x * index
    dist.all_reduce(y)
    if not (y < 5).all():
        raise ValueError("large")
    return y


def drawing(x: Tensor, index: Tensor) -> Tensor:
    y = x * (5 - index)
    dist.all_reduce(y)
    return torch.multinomial(y, 1)


def before_a_handler(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    try:
        return y[index]
    except IndexError:
        return y


def noted(x: Tensor, index: Tensor) -> Tensor:
    """What it has done by then is not lost."""
    y = x * 2
    dist.all_reduce(y)
    seen.append(1)
    return y[index]


@pytest.mark.parametrize("program", [of_an_argument, of_its_own, gathered, before_a_function, checked, checked_before_and_after,
                                     drawing, before_a_handler, noted], ids=lambda program: program.__name__)
def test_none_is_made_twice(group: None, program: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Where something fails, or comes out otherwise, after it on a hit: other ranks would take the second one for their next."""
    function, found = compiled(program), []
    for index in (0, 1, 2, 1, 7, 2, 7):
        for run in (program, function):
            seen.clear()
            torch.manual_seed(0)
            raised = None
            with torch.profiler.profile() as profile:
                try:
                    result = run(torch.ones(3), torch.tensor([index]))
                except (IndexError, RuntimeError, ValueError) as error:
                    raised, result = (type(error), str(error)), torch.empty(0)
            made = sum(event.count for event in profile.key_averages() if event.key in ("gloo:all_reduce", "gloo:all_gather"))
            found.append((made, raised, result.tolist(), len(seen)))
    assert found[::2] == found[1::2] and [made for made, *_ in found[:8]] == [1] * 8
    assert capture.stats(function).hits >= 2


def test_a_time_limit_is_the_programs(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock before it is read before it, and one after it is read after it."""
    options = c10d.AllreduceOptions

    def slowly() -> c10d.AllreduceOptions:
        time.sleep(0.06)
        return options()
    monkeypatch.setattr(c10d, "AllreduceOptions", slowly)      # which torch asks for in each collective

    def program(x: Tensor) -> tuple[Tensor, float]:
        start = time.perf_counter()
        dist.all_reduce(x)
        return x, time.perf_counter() - start
    function = compiled(program)
    for _ in range(3):
        x, seconds = function(torch.ones(2))
        assert torch.equal(x, torch.ones(2)) and seconds > 0.05


def test_a_group_that_is_left(group: None) -> None:
    """It is refused as by torch, also where another one has got its name."""
    mine: list[Any] = []

    def program(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, group=mine[0])
        return y + 1
    function = compiled(program)

    def outcome(run: Callable[[Tensor], Tensor]) -> tuple[Any, int]:
        result: Any
        with torch.profiler.profile() as profile:
            try:
                result = run(torch.ones(2)).tolist()
            except (RuntimeError, ValueError) as error:
                result = type(error), str(error)
        return result, sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")

    def same() -> tuple[Any, int]:
        expected = outcome(program)
        assert [outcome(function) for _ in range(3)] == [expected] * 3
        return expected
    mine[:] = [left] = [dist.new_group([0], use_local_synchronization=True)]
    name = left.group_name
    assert same() == ([3.0, 3.0], 1) and capture.stats(function).hits == 2
    dist.destroy_process_group(left)
    without = same()
    other = dist.new_group([0], use_local_synchronization=True)
    assert other.group_name == name and same() == without
    mine[:] = [other]
    assert same() == ([3.0, 3.0], 1)
    dist.destroy_process_group(other)


def averaged(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """A step that averages gradients by itself, and returns the mean of the losses."""
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()
    return step


def gradients_by_hand(rank: int, folder: str, backend: str) -> None:
    ranks.join(rank, folder, 2)
    options: dict[str, Any] = {"options": {"background": False}} if backend == "native" else {}
    found = []
    for engine in (lambda step: step, lambda step: capture.compile(step, backend=backend, **options)):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = engine(averaged(model, optimizer))
        losses = [step(x, y) for x, y in batches(8)]
        found.append([*losses, *model.parameters(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, **({"rtol": 1e-3, "atol": 1e-5} if backend == "native" else {"rtol": 0, "atol": 0}))
    stats = capture.stats(step)
    assert stats.breaks == 0 and stats.hits >= 4, (stats, capture.explain(step)[:3000])
    ranks.leave()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients_that_the_program_averages(backend: str, tmp_path: Path) -> None:
    ended, outputs = ranks.run(__name__, "gradients_by_hand", tmp_path, backend)
    assert ended == [0, 0], "\n".join(outputs)
