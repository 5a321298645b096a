"""Data parallel, sharded and distributed tensors: compiled inside and around, training as eager mode does.

One process that is a group of its own: what wrappers do to modules.
"""
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import capture

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
if dist.is_available():
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    from tests.distributed.programs import mesh

STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


Compile = Callable[[nn.Module], nn.Module]


def compiled(module: nn.Module) -> nn.Module:
    return capture.compile(module, backend="eager")


def data_parallel_around(compile: Compile) -> nn.Module:
    return DistributedDataParallel(compile(Net()))


def data_parallel_inside(compile: Compile) -> nn.Module:
    return compile(DistributedDataParallel(Net()))


def sharded_inside(compile: Compile) -> nn.Module:
    return compile(FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True))


def sharded_around(compile: Compile) -> nn.Module:
    net = Net()
    for index, block in enumerate(net.blocks):
        net.blocks[index] = compile(block)
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)


def fully_sharded_inside(compile: Compile) -> nn.Module:
    net = Net()
    for block in net.blocks:
        fully_shard(block, mesh=mesh())
    return compile(fully_shard(net, mesh=mesh()))


def fully_sharded_around(compile: Compile) -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.forward = compile(block.forward)
        fully_shard(block, mesh=mesh())
    return fully_shard(net, mesh=mesh())


def tensor_parallel(compile: Compile) -> nn.Module:
    net = Net()
    for block in net.blocks:
        parallelize_module(block, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return compile(net)


BUILDERS = [data_parallel_around, data_parallel_inside, sharded_inside, sharded_around, fully_sharded_inside, fully_sharded_around,
            tensor_parallel]


def train(build: Callable[[Compile], nn.Module], compile: Compile) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and the parameters in the end: of a sharded model, this rank's part."""
    torch.manual_seed(0)
    model = build(compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(STEPS):
        x, y = torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return losses, [p.detach().clone() for p in parameters]


def same(left: tuple[list[float], list[torch.Tensor]], right: tuple[list[float], list[torch.Tensor]]) -> bool:
    return left[0] == right[0] and len(left[1]) == len(right[1]) and all(map(torch.equal, left[1], right[1]))


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """This process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_training_is_the_same(group: None, build: Callable) -> None:
    assert same(train(build, compiled), train(build, lambda module: module))


def test_a_wrapper_is_captured_once(group: None) -> None:
    """Its loggers and reducers are objects of pybind11, whose methods are bound anew each time. One that looks for unused
    parameters breaks at these."""
    module = compiled(DistributedDataParallel(Net(), find_unused_parameters=True))
    for _ in range(6):
        module(torch.randn(4, 6)).sum().backward()
    stats = capture.stats(module)
    assert len(stats.misses) <= 2 and stats.native_calls == 0, stats
    assert "pybind11" not in str(capture.report(module)) and "_c10d.Reducer.prepare_for_backward()" in str(capture.report(module))


def test_distributed_tensors_are_passed_on(group: None) -> None:
    """A compiled function is given tensors of an unknown kind: it runs natively; one that makes some inside breaks."""
    def program(x, w):
        return (x @ w).relu() * 2
    function = capture.compile(program, backend="eager")
    x, w = torch.randn(4, 6), torch.randn(6, 2)
    sharded, replicated = distribute_tensor(x, mesh(), [Shard(0)]), distribute_tensor(w, mesh(), [Replicate()])
    for _ in range(3):
        y = function(sharded, replicated)
        assert type(y) is DTensor and torch.equal(y.full_tensor(), program(x, w)) and torch.equal(function(x, w), program(x, w))
    assert (capture.stats(function).captures, capture.stats(function).native_calls) == (1, 3)

    def makes(x):
        return program(distribute_tensor(x, mesh(), [Shard(0)]), replicated).to_local() + 1
    inside = capture.compile(makes, backend="eager")
    for _ in range(3):
        assert torch.equal(inside(x), program(x, w) + 1)


def test_a_collective_inside(group: None) -> None:
    def program(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1
    function = capture.compile(program, backend="eager")
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(function(x), x * 2 + 1)


@pytest.mark.parametrize("handled", [False, True])
def test_no_collective_is_made_twice(group: None, handled: bool) -> None:
    """Not where an operation raises after it on a hit: other ranks would take the second one for their next."""
    name = dist.group.WORLD.group_name

    def program(x, index):
        total = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x * 2, "sum", name))
        if not handled:
            return total[index] + 1
        try:
            return total[index] + 1
        except IndexError:
            return total
    function = capture.compile(program, backend="eager")
    counts = []
    for index in (0, 1, 7):
        for run in (program, function):
            with torch.profiler.profile() as profile, contextlib.suppress(IndexError):
                run(torch.ones(3), torch.tensor([index]))
            counts.append(sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce"))
    assert counts == [1] * 6


def test_a_group_tells_its_rank_and_size(group: None) -> None:
    def program(x):
        if dist.get_rank() == 0:
            x = x + 1
        return x / dist.get_world_size()
    function = capture.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(function(x), x + 1)
    assert capture.stats(function).captures == 1
