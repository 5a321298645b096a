"""What may go apart between ranks, each a function that a rank calls."""
from __future__ import annotations

import copy
import random

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import capture
from tests.distributed import ranks
from tests.distributed.programs import Net, Normed


def data(generator: torch.Generator, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def soak(rank: int, folder: str, steps: int, compiled_ranks: int, buffers: bool) -> None:
    """Random sizes on each rank, with kernels that come when they are ready: parameters stay eager mode's. compiled_ranks: so many,
    the first ones, are compiled; others run in eager mode. buffers: the model has some, and not all steps reduce gradients; else
    parameters are unused in some steps."""
    ranks.join(rank, folder, 2)
    torch.manual_seed(0)
    net = Normed() if buffers else Net(second=True)
    models = [DistributedDataParallel(copy.deepcopy(net), find_unused_parameters=not buffers) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
    ours = capture.compile(models[1], backend="native") if rank < compiled_ranks else models[1]
    chance, generator = random.Random(rank), torch.Generator().manual_seed(rank)
    for step in range(steps):
        x, y = data(generator, chance.randint(2, 9))
        more = () if buffers else (chance.random() < 0.3,)
        for model, inner, optimizer in zip((models[0], ours), models, optimizers, strict=True):
            optimizer.zero_grad()
            if buffers and step % 3 == 1:
                with inner.no_sync():
                    F.cross_entropy(model(x * 2), y).backward()
            F.cross_entropy(model(x, *more), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0 and step == steps // 2 and ours is not models[1]:
            capture.wait(60)            # this rank has kernels now, whatever others have
    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
    if ours is not models[1]:
        stats = capture.stats(ours)
        assert stats.hits > stats.captures, stats
    ranks.leave()


class Refused(Exception):
    """Of the program."""


def raising(rank: int, folder: str, when: int) -> None:
    """One rank raises in a step: it ends with its error, and the other, which waits for it, with torch's."""
    ranks.join(rank, folder, 2, seconds=20)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())

    def step(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        if number == when and rank == 1:
            raise Refused(f"rank {rank} does not like step {number}")
        model.zero_grad()
        loss.backward()
        return loss.detach()
    step = capture.compile(step, backend="eager")
    generator = torch.Generator().manual_seed(rank)
    for number in range(6):
        step(*data(generator, 4), number)
