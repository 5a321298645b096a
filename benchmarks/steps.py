"""Whole training steps (forward pass, backward pass, AdamW), compiled as one function: time and peak memory, beside eager mode, our
own two graphs (before and after the backward pass), and torch.compile on the model and on the optimizer's step.

    python -m benchmarks.steps [--pairs N] [--json FILE] [model …]      (Linux: reads /proc/self)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

import capture
from benchmarks.common import arguments, paired, peak, report, seconds
from benchmarks.workloads import WORKLOADS, Inputs, build
from capture.backends import registry

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


def step_of_torch_compile(name: str) -> Step:
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


def main() -> None:
    options = arguments(__doc__, NAMES)
    times, memory, failures = [], [], {}
    for name in options.names:
        try:
            ours = warm(step_of(name, capture.compile))
            calls = max(1, int(LEAST_SECONDS / seconds(ours, 3)))
            others = {"eager": (lambda: step_of(name), 1.0), "two graphs": (lambda: step_of(name, two_graphs), 0.95),
                      "torch.compile": (lambda: step_of_torch_compile(name), 1.0)}
            for other, (make, goal) in others.items():
                theirs = warm(make())
                subject = f"{name}, beside {other}"
                times.append(paired(subject, lambda: seconds(ours, calls), lambda theirs=theirs: seconds(theirs, calls),
                                    options.pairs, goal))
                memory.append(paired(subject, lambda: peak(ours), lambda theirs=theirs: peak(theirs), options.pairs,
                                     0.85 if other == "eager" else 1.0))
                torch._dynamo.reset()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    report("Time of a training step: capture / other", times, failures, options.json and options.json.with_suffix(".time.json"))
    report("Peak memory of a training step: capture / other", memory, failures, options.json)


def two_graphs(step: Callable[..., Any]) -> Callable[..., Any]:
    return capture.compile(step, backend=TwoGraphs())


if __name__ == "__main__":
    main()
