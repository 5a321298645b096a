"""Training steps in two processes: each engine beside eager mode, once its kernels are there.

    python -m benchmarks.distributed [--steps 60] [--engines capture torch] [wrapper …]

Two processes of one thread each form a gloo group. In each, a step of the engine and one of eager mode take turns, on the same
batches; both have a small GPT of four layers. Wrappers: `ddp` (DistributedDataParallel around the compiled module), `ddp-compiled`
(the wrapper is compiled), `fsdp` (fully_shard, each block compiled), `fsdp-compiled` (the whole). Columns: the median step of rank
0, divided by eager mode's; the seconds by which steps before these were slower than eager mode's, all added up.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import capture
from benchmarks.common import in_empty_caches

Compile = Callable[[Any], Any]
ENGINES: dict[str, Compile] = {"capture": lambda target: capture.compile(target, backend="native"), "torch": torch.compile}
RANKS, LAYERS, WIDTH, WORDS = 2, 4, 256, 1000


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.mix(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(net: Any) -> Any:
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def of_compiled_blocks(net: Any, compile: Compile) -> Any:
    for block in net.blocks:
        block.forward = compile(block.forward)
    return sharded(net)


WRAPPERS: dict[str, Callable[[Any, Compile], Any]] = {
    "ddp": lambda net, compile: DistributedDataParallel(compile(net)),
    "ddp-compiled": lambda net, compile: compile(DistributedDataParallel(net)),
    "fsdp": of_compiled_blocks, "fsdp-compiled": lambda net, compile: compile(sharded(net))}


def step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    """The seconds of one."""
    start = time.perf_counter()
    optimizer.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    return time.perf_counter() - start


def measured(wrapper: str, engine: str, steps: int) -> dict[str, float]:
    """On one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    models = []
    for compile in (lambda target: target, ENGINES[engine]):
        torch.manual_seed(0)
        models.append(WRAPPERS[wrapper](GPT(), compile))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
    times: list[list[float]] = [[], []]

    def turn(number: int) -> None:
        ids = torch.randint(0, WORDS, (4, 65))
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(step(models[side], optimizers[side], ids))
    for number in range(3):
        turn(number)
    if engine == "capture":
        capture.wait(120)
    for number in range(10):
        turn(number)
    dist.barrier()
    lost = sum(max(ours - eager, 0.0) for eager, ours in zip(*times, strict=True))
    for found in times:
        found.clear()
    for number in range(steps):
        turn(number)
    eager, ours = map(statistics.median, times)
    dist.destroy_process_group()
    return {"ratio": ours / eager, "lost": lost}


def in_processes(wrapper: str, engine: str, steps: int) -> dict[str, float]:
    """The same in processes of their own. Raises CalledProcessError."""
    return in_empty_caches(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "-m", "benchmarks.distributed",
         "--steps", str(steps), "--one", engine, wrapper], OMP_NUM_THREADS="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--one", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=list(WRAPPERS), metavar="wrapper", help=f"some of: {', '.join(WRAPPERS)}")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - WRAPPERS.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(WRAPPERS)}")
    if options.one:
        found = measured(options.names[0], options.one, options.steps)
        if int(os.environ["RANK"]) == 0:
            print(json.dumps(found))
        return
    table = Table("wrapper", "engine", "step", "seconds lost", title=f"Training in {RANKS} processes: the engine / eager mode")
    for name in options.names:
        for engine in options.engines:
            try:
                found = in_processes(name, engine, options.steps)
                table.add_row(name, engine, f"{found['ratio']:.2f}", f"{found['lost']:.1f}")
            except subprocess.CalledProcessError as error:
                table.add_row(name, engine, f"failed: {error}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
