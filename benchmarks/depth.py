"""Processor time of compiling a model of n equal layers, divided by that of one with 2, and by that of compiling the whole graph;
or of n steps of a loop over time, beside 8.

    python -m benchmarks.depth [--kind blocks|cells|scan] [--layers N …] [--pairs N] [--mode train|infer]

Measured in this process, without the start of the compiling process and without the C++ compiler, which works beside it.
"""
from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import capture
from capture.backends.native import transport
from capture.backends.native.compiler import compile_job, compile_whole
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.serialization import encode


class Block(nn.Module):
    """A layer of GPT-2's kind."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.both, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.both(self.before(x)).chunk(3, -1))
        found = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.inner(x))))


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x)).square().mean()


class Cells(nn.Module):
    """Steps of a recurrent network, written as a loop."""

    def __init__(self, steps: int, width: int = 64) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.LSTMCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        found = []
        for step in range(self.steps):
            h, c = self.cell(x[:, step], (h, c))
            found.append(h)
        return torch.stack(found, 1).square().mean()


class Scan(nn.Module):
    """A state-space model: products of elements, one step after the other."""

    def __init__(self, steps: int, width: int = 64, state: int = 8) -> None:
        super().__init__()
        self.steps, self.decay = steps, nn.Parameter(-torch.rand(width, state))
        self.time, self.into, self.out_of = nn.Linear(width, width), nn.Linear(width, state), nn.Linear(width, state)

    def forward(self, x: Tensor) -> Tensor:
        time, into, out_of = nn.functional.softplus(self.time(x)), self.into(x), self.out_of(x)
        keep, add = torch.exp(time[..., None] * self.decay), (time * x)[..., None] * into[:, :, None]
        h = x.new_zeros(x.shape[0], *self.decay.shape)
        found = []
        for step in range(self.steps):
            h = keep[:, step] * h + add[:, step]
            found.append((h * out_of[:, step, None]).sum(-1))
        return torch.stack(found, 1).square().mean()


KINDS: dict[str, tuple[Callable[[int], nn.Module], int]] = {"blocks": (Model, 2), "cells": (Cells, 8), "scan": (Scan, 8)}


def job(make: Callable[[int], nn.Module], layers: int, train: bool) -> Job:
    """The graph of a model, as the compiling process gets it."""
    found: list[Job] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        found.append(Job(gm, tuple(map(TensorSpec.of, inputs)), Modes.current(), {}))
        return gm.forward
    with torch.set_grad_enabled(train):
        capture.compile(make(layers), backend=backend)(torch.randn(2, 16 if make is Model else layers, 64))
    return found[0]


def seconds(compile: Callable[[Job], object], data: bytes) -> float:
    """Of this thread's, from the job's bytes on."""
    gc.collect()
    start = time.thread_time()
    compile(transport.decode(data))
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.depth", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="blocks")
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--mode", choices=("train", "infer"), default="train")
    options = parser.parse_args()
    train = options.mode == "train"
    make, least = KINDS[options.kind]
    few = transport.encode(job(make, least, train))
    seconds(compile_job, few)
    print(f"layers  beside {least} layers  beside the whole graph  size of the artifact beside {least} layers")
    for layers in options.layers:
        data = transport.encode(job(make, layers, train))
        pairs = [(seconds(compile_job, few), seconds(compile_job, data), seconds(compile_whole, data))
                 for _ in range(options.pairs)]
        sizes = [len(encode(compile_job(transport.decode(one)))) for one in (few, data)]
        beside, whole = (statistics.median(pair[1] / pair[other] for pair in pairs) for other in (0, 2))
        print(f"{layers:6}  {beside:15.2f}  {whole:22.2f}  {sizes[1] / sizes[0]:37.2f}", flush=True)


if __name__ == "__main__":
    main()
