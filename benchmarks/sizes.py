"""Programs whose sizes change from call to call, from their first call on, compiling included: each engine beside eager mode.

    python -m benchmarks.sizes [--calls 200] [--engines capture torch torch-dynamic] [--json FILE] [workload …]

Each pair of workload and engine runs in a process of its own with empty caches. There each call is made twice in turn, by eager
mode and by the engine, with the same inputs. Engines: capture; torch.compile, which makes sizes dynamic when it has seen two; the
same with `dynamic=True`. Columns: the whole run and its last quarter, divided by eager mode's; the seconds by which calls of the
engine were slower than eager mode's, all added up; the slowest call but one in a hundred, of those after the first ten, divided by
eager mode's of the same inputs; how often a program was captured, or a graph compiled.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import capture
from benchmarks.common import in_empty_caches

TEXT = {"vocab_size": 2000, "n_positions": 512, "n_embd": 256, "n_layer": 4, "n_head": 8}
Step = Callable[[Callable[..., Any], Any], object]
LENGTHS = sorted(random.Random(7).sample(range(16, 128), 20))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(**TEXT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).eval()


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for width, following in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(width, following, 3, stride=2, padding=1), nn.BatchNorm2d(following), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def tokens(*sizes: int) -> Tensor:
    return torch.randint(0, TEXT["vocab_size"], sizes)


def lengths(calls: int) -> Iterator[Any]:
    """A batch of four sequences, of one of twenty lengths."""
    for _ in range(calls):
        yield {"input_ids": (ids := tokens(4, random.choice(LENGTHS))), "labels": ids, "use_cache": False}


def last_smaller(calls: int) -> Iterator[Any]:
    """Epochs of ten batches of images, of which the last one is smaller."""
    for call in range(calls):
        yield {"input": torch.randn(9 if call % 10 == 9 else 16, 3, 64, 64)}


def infer(program: Callable[..., Any], inputs: Any) -> object:
    with torch.no_grad():
        return program(**inputs)


def train(program: Callable[..., Any], inputs: Any) -> object:
    result = program(**inputs)
    loss = result.loss if hasattr(result, "loss") else result.square().mean()
    return loss.backward()


class Decoding:
    """One token after another, with a cache of its own for each program that is asked. room: how many places a cache of one size
    has; None: one that grows."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.caches: dict[Any, Any] = {}

    def inputs(self, calls: int) -> Iterator[Any]:
        yield {"input_ids": tokens(1, 12), "use_cache": True}
        for _ in range(calls - 1):
            yield {"input_ids": tokens(1, 1), "use_cache": True}

    def step(self, program: Callable[..., Any], inputs: Any) -> object:
        if self.room is not None and program not in self.caches:
            from transformers import GPT2Config, StaticCache
            self.caches[program] = StaticCache(GPT2Config(**TEXT), max_cache_len=self.room)
        with torch.no_grad():
            result = program(**inputs, past_key_values=self.caches.get(program))
        self.caches[program] = result.past_key_values
        return result


DECODING, STATIC = Decoding(), Decoding(room=1100)      # more than the megabyte that a hit copies to undo what it does
WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Iterator[Any]], Step]] = {
    "lengths, inference": (gpt2, lengths, infer), "lengths, training": (gpt2, lengths, train),
    "last batch smaller, training": (convolutions, last_smaller, train), "decoding": (gpt2, DECODING.inputs, DECODING.step),
    "decoding, static cache": (gpt2, STATIC.inputs, STATIC.step)}
ENGINES: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "capture": lambda module: capture.compile(module, backend="native"),
    "torch": torch.compile, "torch-dynamic": lambda module: torch.compile(module, dynamic=True)}


def compiled_frames(engine: str, program: Any) -> int:
    if engine == "capture":
        return capture.stats(program).captures
    from torch._dynamo.utils import counters
    return counters["stats"]["unique_graphs"]


def run(workload: str, engine: str, calls: int) -> dict[str, float]:
    """One workload with one engine, in this process."""
    torch.manual_seed(0)
    random.seed(0)
    make, inputs, step = WORKLOADS[workload]
    module = make()
    program = ENGINES[engine](module)
    eager, ours = [], []
    for call, example in enumerate(inputs(calls)):
        for side in (0, 1) if call % 2 else (1, 0):
            start = time.perf_counter()
            step(program if side else module, example)
            (ours if side else eager).append(time.perf_counter() - start)
            module.zero_grad()
    last = calls * 3 // 4
    slower = sorted(b / a for a, b in zip(eager[10:], ours[10:], strict=True))
    return {"whole": sum(ours) / sum(eager), "warm": statistics.median(ours[last:]) / statistics.median(eager[last:]),
            "lost": sum(max(0.0, b - a) for a, b in zip(eager, ours, strict=True)), "slowest": slower[-1 - len(slower) // 100],
            "captures": compiled_frames(engine, program)}


def in_process(workload: str, engine: str, calls: int) -> dict[str, float]:
    """The same in a process of its own. Raises CalledProcessError."""
    return in_empty_caches([sys.executable, "-m", "benchmarks.sizes", "--calls", str(calls), "--one", engine, workload])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--one", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="workload", help=f"some of: {', '.join(WORKLOADS)}")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - WORKLOADS.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(WORKLOADS)}")
    if options.one:
        print(json.dumps(run(options.names[0], options.one, options.calls)))
        return
    table = Table("workload", "engine", "whole run", "last quarter", "seconds lost", "slowest", "captures",
                  title=f"Sizes that change, {options.calls} calls: the engine / eager mode")
    figures: dict[str, dict[str, Any]] = {}
    for name in options.names:
        for engine in options.engines:
            try:
                found = figures.setdefault(name, {})[engine] = in_process(name, engine, options.calls)
            except subprocess.CalledProcessError as error:
                table.add_row(name, engine, f"failed: {error}")
                continue
            table.add_row(name, engine, f"{found['whole']:.2f}", f"{found['warm']:.2f}", f"{found['lost']:.1f}",
                          f"{found['slowest']:.2f}", f"{found['captures']:.0f}")
    Console().print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
