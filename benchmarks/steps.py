"""Whole training steps (forward pass, backward pass, AdamW), compiled as one function: time and peak memory, beside eager mode, our
own two graphs (before and after the backward pass), and torch.compile on the model and on the optimizer's step.

    python -m benchmarks.steps [--pairs N] [--json FILE] [model …]
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds
from benchmarks.workloads import Inputs, build
from capture import _C
from capture.backends import registry
from tests.peak import peak

NAMES = ("mixer", "unet", "vit", "resnet", "convnext", "dlrm", "lstm", "wav2vec2", "gpt", "bert", "gpt2")
LEAST_SECONDS = 0.2     # of one measurement
Step = Callable[[], object]


class TwoGraphs:
    """The native backend, but for graphs with a backward pass in them."""

    takes_numbers = takes_sizes = takes_assignments = True

    def __init__(self) -> None:
        self.backend = registry.lookup("native")

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self.backend(gm, inputs)


def step_of(name: str, compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda step: step) -> Step:
    """A step of a model of its own. compiled: what is done with the function that makes it."""
    module, inputs = build(name, "middle")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5)

    def step(inputs: Inputs) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(module(**inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()
    run = compiled(step)
    return lambda: run(inputs)


def two_graphs(name: str) -> Step:
    """The same, cut before and after the backward pass."""
    return step_of(name, functools.partial(capture.compile, backend=TwoGraphs()))


def torch_compiled(name: str) -> Step:
    """The same with torch.compile, as its documentation has it."""
    module, inputs = build(name, "middle")
    optimizer = torch.optim.AdamW(module.parameters(), lr=torch.tensor(1e-5))
    forward, update = torch.compile(module), torch.compile(optimizer.step)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward(**inputs))
        loss.backward()
        update()
        return loss.detach()
    return step


def loss_of(outputs: Any) -> torch.Tensor:
    return sum(t.float().square().mean() for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad)


def warm(step: Step) -> Step:
    """Calls it until it is compiled, and measured."""
    for _ in range(3):
        step()
    capture.wait()
    for _ in range(30):
        step()
    capture.wait()
    return step


def most_memory(step: Step) -> float:
    """The most bytes of tensors that a step allocates at one time, what plans keep for their next calls among them."""
    _C.release_workspaces()
    return float(peak(step))


def compare(name: str, pairs: int) -> tuple[list[Ratio], list[Ratio]]:
    """Time and peak memory of our step of a model, beside the others'."""
    times, memory = [], []
    ours = warm(step_of(name, capture.compile))
    calls = max(1, int(LEAST_SECONDS / seconds(ours, 3)))
    for other, make, goal, most in (("eager", step_of, 1.0, 0.85), ("two graphs", two_graphs, 0.95, 1.0),
                                    ("torch.compile", torch_compiled, 1.0, 1.0)):
        theirs, subject = warm(make(name)), f"{name}, beside {other}"
        times.append(paired(subject, functools.partial(seconds, ours, calls), functools.partial(seconds, theirs, calls),
                            pairs, goal))
        memory.append(paired(subject, functools.partial(most_memory, ours), functools.partial(most_memory, theirs), 1, most))
    torch._dynamo.reset()
    return times, memory


def main() -> None:
    options = arguments(__doc__, NAMES)
    times: list[Ratio] = []
    memory: list[Ratio] = []
    failures = {}
    for name in options.names:
        try:
            for found, more in zip((times, memory), compare(name, options.pairs)):
                found += more
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    report("Time of a training step: capture / other", times, failures, None)
    report("Peak memory of a training step: capture / other", memory, failures, options.json)


if __name__ == "__main__":
    main()
