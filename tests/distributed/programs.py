"""Training in several processes, as users write it: each program returns what a rank has in the end, in eager mode and compiled."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import capture
from tests.distributed import ranks

Compile = Callable[[Any], Any]
Program = Callable[[Compile], list[Tensor]]
PROGRAMS: dict[str, Program] = {}
STEPS = 5


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """recompute: the blocks under checkpoints. second: a branch that only some calls take."""

    def __init__(self, recompute: bool = False, second: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head, self.recompute = nn.Linear(8, 3), recompute
        self.second = Block() if second else None

    def forward(self, x: Tensor, both: bool = False) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        if self.second is not None and both:
            x = self.second(x)
        return self.head(x)


class Normed(nn.Module):
    """Has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.up(x))))


def batches(steps: int = STEPS, sizes: Callable[[int, int], int] = lambda step, rank: 4) -> Iterator[tuple[Tensor, Tensor]]:
    """Others on each rank. sizes: how many rows, by step and rank."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        rows = sizes(step, rank)
        yield torch.randn(rows, 8, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state(model: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    """Losses, parameters, gradients and buffers; of what is sharded, this rank's part."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*losses, *map(local, (*model.parameters(), *gradients, *model.buffers()))]


def loss_of(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def steps(model: Any, data: Iterable[tuple[Any, ...]], optimizer: torch.optim.Optimizer | None = None,
          loss: Callable[..., Tensor] = loss_of) -> list[Tensor]:
    """Makes a step for each batch, and returns the losses. loss: is given the model and a batch."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in data:
        value = loss(model, *batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return losses


def train(model: Any, data: Iterable[tuple[Any, ...]] | None = None, optimizer: torch.optim.Optimizer | None = None,
          loss: Callable[..., Tensor] = loss_of) -> list[Tensor]:
    """The same with AdamW, unless another optimizer is said, and `batches()`; returns the model's state, too."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    return state(model, steps(model, batches() if data is None else data, optimizer, loss))


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


# -- DistributedDataParallel -------------------------------------------------------------------------------------------

@program
def wrapped(compile: Compile) -> list[Tensor]:
    return train(DistributedDataParallel(compile(Net())))


@program
def wrapper_compiled(compile: Compile) -> list[Tensor]:
    return train(compile(DistributedDataParallel(Net())))


@program
def many_buckets(compile: Compile) -> list[Tensor]:
    return train(DistributedDataParallel(compile(Net()), bucket_cap_mb=0.0005, gradient_as_bucket_view=True))


@program
def many_buckets_wrapper_compiled(compile: Compile) -> list[Tensor]:
    return train(compile(DistributedDataParallel(Net(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True)))


@program
def static_graph(compile: Compile) -> list[Tensor]:
    return train(DistributedDataParallel(compile(Net(recompute=True)), static_graph=True))


@program
def recomputed(compile: Compile) -> list[Tensor]:
    return train(compile(DistributedDataParallel(Net(recompute=True))))


def with_unused(model: Any) -> list[Tensor]:
    """Each rank takes the second branch in other steps; in some none does."""
    data = ((x, y, (step + dist.get_rank()) % 3 == 0) for step, (x, y) in enumerate(batches(8)))
    return state(model, steps(model, data, loss=lambda model, x, y, both: F.cross_entropy(model(x, both), y)))


@program
def unused_parameters(compile: Compile) -> list[Tensor]:
    return with_unused(DistributedDataParallel(compile(Net(second=True)), find_unused_parameters=True))


@program
def unused_parameters_wrapper_compiled(compile: Compile) -> list[Tensor]:
    return with_unused(compile(DistributedDataParallel(Net(second=True), find_unused_parameters=True)))


def accumulate(model: Any, every: int, before: Callable[[bool], contextlib.AbstractContextManager[None]]) -> list[Tensor]:
    """Three steps of so many batches each. before: is told whether a batch is the last one of its step, and gives the context for
    its two passes."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for number, batch in enumerate(batches(3 * every), 1):
        last = number % every == 0
        with before(last):
            loss = loss_of(model, *batch) / every
            loss.backward()
        losses.append(loss.detach())
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return state(model, losses)


def unless_last(wrapper: DistributedDataParallel) -> Callable[[bool], contextlib.AbstractContextManager[None]]:
    return lambda last: contextlib.nullcontext() if last else wrapper.no_sync()


@program
def accumulated(compile: Compile) -> list[Tensor]:
    model = DistributedDataParallel(compile(Net()))
    return accumulate(model, 3, unless_last(model))


@program
def accumulated_wrapper_compiled(compile: Compile) -> list[Tensor]:
    model = DistributedDataParallel(Net())
    return accumulate(compile(model), 3, unless_last(model))


@program
def hook_of_ours(compile: Compile) -> list[Tensor]:
    """A hook on the buckets that sums in half precision, and one that counts them."""
    model = DistributedDataParallel(compile(Net()), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


@program
def hook_of_the_program(compile: Compile) -> list[Tensor]:
    seen = []

    def hook(state, bucket):        # annotated by a string, it would be refused
        seen.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, hook)
    return [*train(compile(model)), torch.tensor(seen)]


@program
def uneven(compile: Compile) -> list[Tensor]:
    """One rank has more batches than the other."""
    model = DistributedDataParallel(compile(Net()))
    with Join([model]):
        losses = steps(model, batches(4 + 3 * dist.get_rank()))
    return state(model, losses)


@program
def other_sizes_on_each_rank(compile: Compile) -> list[Tensor]:
    return train(compile(DistributedDataParallel(Net())), batches(8, lambda step, rank: 2 + (3 * step + 2 * rank) % 5))


@program
def buffers(compile: Compile) -> list[Tensor]:
    model = compile(DistributedDataParallel(Normed()))
    # The gradient of a bias before a normalization is noise, which Adam would scale up.
    return state(model, steps(model, batches(sizes=lambda step, rank: 4 + rank)))


@program
def autocast(compile: Compile) -> list[Tensor]:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, x, y)
    return train(compile(DistributedDataParallel(Net())), loss=loss)


@program
def whole_step(compile: Compile) -> list[Tensor]:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss.detach()
    step = compile(step)
    return state(model, [step(x, y) for x, y in batches(7)])


@program
def sharded_optimizer(compile: Compile) -> list[Tensor]:
    model = DistributedDataParallel(compile(Net()))
    return train(model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))


@program
def gradients_read_in_between(compile: Compile) -> list[Tensor]:
    """Twice forward, then backward through both; a parameter's hook."""
    net = Net()
    model, norms = compile(DistributedDataParallel(net)), []
    net.head.weight.register_hook(lambda gradient: norms.append(gradient.norm()))
    steps(model, batches(), loss=lambda model, x, y: loss_of(model, x, y) + model(x * 2).square().mean())
    return state(model, norms)


# -- fully_shard -------------------------------------------------------------------------------------------------------

def fully_sharded(net: nn.Module, **options: Any) -> nn.Module:
    for block in net.blocks:
        fully_shard(block, mesh=mesh(), **options)
    return fully_shard(net, mesh=mesh(), **options)


@program
def shards(compile: Compile) -> list[Tensor]:
    return train(compile(fully_sharded(Net())))


@program
def shards_of_compiled(compile: Compile) -> list[Tensor]:
    net = Net()
    for block in net.blocks:
        block.forward = compile(block.forward)
    return train(fully_sharded(net))


@program
def shards_kept(compile: Compile) -> list[Tensor]:
    return train(compile(fully_sharded(Net(), reshard_after_forward=False)))


@program
def shards_in_two_precisions(compile: Compile) -> list[Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(compile(fully_sharded(Net(), mp_policy=policy)))


@program
def shards_recomputed(compile: Compile) -> list[Tensor]:
    return train(compile(fully_sharded(Net(recompute=True))))


@program
def shards_clipped_and_saved(compile: Compile) -> list[Tensor]:
    model = compile(fully_sharded(Net()))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step, (x, y) in enumerate(batches(6)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        losses += [loss.detach(), nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()]
        optimizer.step()
        if step == 2:
            saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if step == 4:
            model.load_state_dict(saved)
    return state(model, losses)


@program
def shards_accumulated(compile: Compile) -> list[Tensor]:
    sharded = fully_sharded(Net())

    def before(last: bool) -> contextlib.AbstractContextManager[None]:
        sharded.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return accumulate(compile(sharded), 2, before)


@program
def shards_whole_step(compile: Compile) -> list[Tensor]:
    model = fully_sharded(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    step = compile(step)
    return state(model, [step(x, y) for x, y in batches()])


# -- distributed tensors, collectives ----------------------------------------------------------------------------------

def same_on_all(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def in_parallel(net: Any, compile: Compile) -> list[Tensor]:
    model = compile(net)
    return state(model, steps(model, same_on_all()))


@program
def tensor_parallel(compile: Compile) -> list[Tensor]:
    net = Net()
    for block in net.blocks:
        parallelize_module(block, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return in_parallel(net, compile)


@program
def sequence_parallel(compile: Compile) -> list[Tensor]:
    net = Net()
    for block in net.blocks:
        parallelize_module(block, mesh(), {"norm": SequenceParallel(sequence_dim=0, use_local_output=True), "up": ColwiseParallel(),
                                           "down": RowwiseParallel()})
    parallelize_module(net, mesh(), {"head": ColwiseParallel(output_layouts=Replicate())})
    return in_parallel(net, compile)


@program
def tensors_in_parts(compile: Compile) -> list[Tensor]:
    def function(x: Tensor, w: Tensor) -> Tensor:
        part = distribute_tensor(x, mesh(), [Shard(0)]) @ distribute_tensor(w, mesh(), [Replicate()])
        return part.relu().redistribute(placements=[Replicate()]).to_local() + x.sum()
    function = compile(function)
    return [function(x, torch.ones(8, 2)) for x, _ in same_on_all()]


@program
def collectives(compile: Compile) -> list[Tensor]:
    def function(x: Tensor) -> list[Tensor]:
        total = x * 2
        dist.all_reduce(total)
        work = dist.all_reduce(most := x.clone(), op=dist.ReduceOp.MAX, async_op=True)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x + 1)
        first = x.clone()
        dist.broadcast(first, 0)
        whole = x.new_empty(x.size(0) * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(whole, total)
        work.wait()
        return [total + 1, most * 2, torch.stack(parts).sum(0), first - x, whole.mean(0)]
    function = compile(function)
    return [part for x, _ in batches() for part in function(x)]


@program
def collectives_on_parts(compile: Compile) -> list[Tensor]:
    """Of a tensor that is used as a whole, too; and of one that autograd has saved, which torch does not notice."""
    weight = torch.randn(8, 8, requires_grad=True)

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = x * 3
        dist.all_reduce(rows[0])
        rows += 1
        dist.broadcast(rows.view(-1)[8:12], 1)
        saved = (x @ weight).sigmoid()
        dist.all_reduce(saved.detach())
        return rows, rows[0].relu() * 2, saved * 2
    function, found = compile(function), []
    for x, _ in batches():
        *results, last = function(x)
        last.sum().backward()
        found += [*results, last.detach(), weight.grad.clone()]
    return found


@program
def functional_collectives(compile: Compile) -> list[Tensor]:
    def function(x: Tensor) -> list[Tensor]:
        group = list(range(dist.get_world_size()))
        total = functional.all_reduce(x * 2, "sum", group)
        whole = functional.all_gather_tensor(x.sin(), 0, group)
        mine = functional.reduce_scatter_tensor(whole, "sum", 0, group)
        return [total.relu() + 1, whole.cos(), mine * 2]
    function = compile(function)
    return [part for x, _ in batches() for part in function(x)]


@program
def gradients_through_collectives(compile: Compile) -> list[Tensor]:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (functional.all_gather_tensor_autograd(x @ w, 0, list(range(dist.get_world_size()))).sin() * 2).sum()
    function, results = compile(function), []
    for x, _ in batches():
        w = torch.ones(8, 2, requires_grad=True)
        loss = function(x, w)
        loss.backward()
        results += [loss.detach(), w.grad]
    return results


@program
def to_and_fro(compile: Compile) -> list[Tensor]:
    """Sent from rank to rank, in pairs."""
    def function(x: Tensor) -> Tensor:
        rank, other = dist.get_rank(), dist.get_rank() ^ 1
        received = torch.empty_like(x)
        if rank < other:
            dist.send(x * 2, other)
            dist.recv(received, other)
        else:
            dist.recv(received, other)
            dist.send(received + x, other)
        dist.barrier()
        return received.cos()
    function = compile(function)
    return [function(x) for x, _ in batches()]


# -- in eager mode and compiled ----------------------------------------------------------------------------------------

def compare(rank: int, folder: str, backend: str, names: tuple[str, ...]) -> None:
    """On one rank: runs these programs in eager mode and compiled."""
    ranks.join(rank, folder, 2)
    options: dict[str, Any] = {"options": {"background": False}} if backend == "native" else {}
    for name in names:
        results, captures = [], 0

        def compiled(function: Any) -> Any:
            made.append(capture.compile(function, backend=backend, **options))
            return made[-1]
        for compile in (lambda function: function, compiled):
            made: list[Any] = []
            torch.manual_seed(0)
            results.append(PROGRAMS[name](compile))
            captures = sum(capture.stats(each).captures for each in made)
        expected, found = results
        assert len(expected) == len(found) and captures, name
        for one, other in zip(expected, found, strict=True):
            tolerance = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-3, "atol": 1e-5}
            torch.testing.assert_close(other, one, equal_nan=True, msg=lambda text: f"{name}: {text}", **tolerance)
    ranks.leave()
