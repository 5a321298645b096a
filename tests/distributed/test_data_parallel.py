"""`DistributedDataParallel` compiled as a whole: one graph for its forward pass, and what its reducer is told on every hit."""
from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import capture
from tests.distributed.test_wrappers import compiled, group

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
if dist.is_available():
    from torch.nn.parallel import DistributedDataParallel

    from tests.distributed import ranks
    from tests.distributed.programs import Net, Normed, batches

__all__ = ["group"]         # a fixture


def trained(model: Any, steps: int = 4, width: int = 8) -> Any:
    """After its reducer has rebuilt its buckets, and some hits."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        model(torch.randn(4, width, generator=generator)).sum().backward()
    return model


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True},
                                     {"forward_sync_buffers": False}], ids=lambda options: next(iter(options), "plain"))
@pytest.mark.parametrize("net", [lambda: Net(), lambda: Normed()], ids=["net", "buffers"])
def test_the_forward_pass_is_one_graph(group: None, net: Callable[[], nn.Module], options: dict[str, bool]) -> None:
    """The first two or three calls, after which the reducer is ready, run natively: under fullgraph, too."""
    model = capture.compile(DistributedDataParallel(net(), **options), backend="eager", fullgraph=True)
    trained(model, 6)
    stats = capture.stats(model)
    assert (stats.captures, stats.graphs, stats.breaks, stats.misses) == (1, 1, 0, []) and stats.hits >= 2, stats
    assert stats.hits + stats.native_calls + 1 == 6
    assert "to prepare what later calls use" in str(capture.report(model))


def test_a_whole_step_ends_at_its_backward_pass_alone(group: None) -> None:
    model = DistributedDataParallel(Normed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture.compile(backend="eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    for x, y in batches(6):
        step(x, y)
    breaks = capture.report(step).frames[0].breaks
    assert [each.reason for each in breaks] == ["autograd-inside"] and capture.stats(step).captures == 2


def test_a_wrapper_that_never_rebuilds_its_buckets_is_compiled(group: None) -> None:
    """Nobody makes a backward pass: after some calls they are no longer waited for."""
    from capture.interp.function_models import data_parallel
    model = compiled(DistributedDataParallel(Net()))
    for _ in range(data_parallel.MOST_PREPARING + 6):
        model(torch.randn(4, 8))
    stats = capture.stats(model)
    assert stats.native_calls == data_parallel.MOST_PREPARING and stats.hits > 2, stats


def test_calls_that_raise_before_that_are_no_breaks(group: None) -> None:
    model = compiled(DistributedDataParallel(Net()))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.randn(4, 5))
    trained(model)
    stats = capture.stats(model)
    assert stats.breaks == 0 and stats.hits >= 1, stats


def test_what_is_not_in_the_loss_is_found(group: None) -> None:
    """By the reducer, as the next forward pass begins, with the same error, on a hit too."""
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(self.norm(x)), self.second(x)
    errors = []
    for compile in (lambda module: module, compiled):
        model = compile(DistributedDataParallel(Two()))
        for _ in range(5):
            sum(each.sum() for each in model(torch.randn(4, 8))).backward()
        model(torch.randn(4, 8))[0].sum().backward()
        with pytest.raises(RuntimeError) as raised:
            model(torch.randn(4, 8))
        errors.append(str(raised.value))
    assert errors[0] == errors[1] and errors[0].startswith("Expected to have finished reduction in the prior iteration")
    assert capture.stats(model).hits >= 3


@pytest.fixture
def records() -> Iterator[list[str]]:
    """What the wrappers log."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())
    logger, handler = logging.getLogger("torch.nn.parallel.distributed"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_copy_rebuilds_its_own_buckets(group: None, records: list[str]) -> None:
    """The copy says that this was done, and its reducer is new."""
    for compile in (lambda module: module, compiled):
        model = compile(copy.deepcopy(trained(DistributedDataParallel(Net()))))
        records.clear()
        trained(model)
        assert records == ["Reducer buckets have been rebuilt in this iteration."]
    assert capture.stats(model).hits == 3


def test_no_buffer_is_sent_twice(group: None) -> None:
    """Not where the graph fails after it: other ranks would take the second time for that of their next call."""
    class Picking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 3))
            self.register_buffer("scale", torch.ones(3))

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return (self.table[index * index] * self.scale).sum()
    counts = []
    for compile in (lambda module: module, compiled):
        model = compile(DistributedDataParallel(Picking()))
        for index in (0, 1, 2, 1, 0, 2, 7, 1):
            with torch.profiler.profile() as profile, contextlib.suppress(IndexError):
                model(torch.tensor([index])).backward()
            counts.append(sum(event.count for event in profile.key_averages() if event.key == "gloo:broadcast"))
    assert counts[:8] == counts[8:] and counts.count(1) == 14, counts      # and in two the reducer rebuilds its buckets


def test_a_method_that_the_program_replaces_is_called(group: None) -> None:
    """Of one wrapper, before it is compiled and after."""
    found = []
    for compile in (lambda module: module, compiled):
        wrapper, calls = DistributedDataParallel(Normed()), []
        model = compile(wrapper)
        for step in range(12):
            if step in (0, 8):
                wrapper._sync_module_buffers = lambda rank, step=step: calls.append(step)
            elif step == 5:
                del wrapper._sync_module_buffers
            model(torch.randn(4, 8)).sum().backward()
        found.append(calls)
    assert found == [[0] * 5 + [8] * 4] * 2 and capture.stats(model).hits >= 2


def buffers_of_two_ranks(rank: int, folder: str, backend: str) -> None:
    """The first rank's buffers are everywhere after a forward pass, their versions are what they were, and reading one is no
    longer reading what it held at entry."""
    ranks.join(rank, folder, 2)
    torch.manual_seed(0)

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.mean.mul_(0.9).add_(x.detach().mean(0) / self.count)
            return self.head(x + self.mean)
    net = Counting()
    nets = [copy.deepcopy(net) for _ in range(2)]
    options = {"options": {"background": False}} if backend == "native" else {}
    eager = DistributedDataParallel(nets[0])
    ours = capture.compile(DistributedDataParallel(nets[1]), backend=backend, **options)
    for step, (x, y) in enumerate(batches(8)):
        for model, net in ((eager, nets[0]), (ours, nets[1])):
            if rank:
                net.count.fill_(100 * step)      # nobody sees it
            F.cross_entropy(model(x), y).backward()
        assert int(nets[0].count) == int(nets[1].count) == step + 1
        assert nets[0].mean._version == nets[1].mean._version
        for one, other in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
            torch.testing.assert_close(other, one)
        for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)
    stats = capture.stats(ours)
    assert stats.captures == 1 and stats.hits >= 4 and stats.breaks == 0, stats
    ranks.leave()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_buffers_are_the_first_ranks(backend: str, tmp_path: Path) -> None:
    ended, outputs = ranks.run(__name__, "buffers_of_two_ranks", tmp_path, backend)
    assert ended == [0, 0], "\n".join(outputs)
