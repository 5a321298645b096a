"""Modules whose state is frozen: what is compiled of them, and what is left of their graphs."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import capture
from capture.backends import aot
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.freezing import Prologue, freeze
from capture.backends.native.job import Job, Modes
from capture.backends.native.tiers import specs

Recorded = tuple[torch.fx.GraphModule, list[Tensor]]


def recorded(module: nn.Module, *inputs: Tensor) -> Recorded:
    """The only graph of a module, as a backend gets it."""
    graphs: list[Recorded] = []

    def backend(gm: torch.fx.GraphModule, tensors: list[Tensor]) -> Callable:
        graphs.append((gm, tensors))
        return gm.forward
    with torch.no_grad():
        capture.compile(module, backend=backend)(*inputs)
    (only,) = graphs
    return only


def frozen(module: nn.Module, *inputs: Tensor) -> tuple[Callable, list[Tensor]]:
    """The compiled callable of a module's graph, and its inputs."""
    gm, tensors = recorded(module, *inputs)
    with torch.no_grad():
        job = Job(gm, specs(gm, tensors), Modes.current(), {"freezing": True})
    return load(compile_job(job), gm), tensors


def split(module: nn.Module, *inputs: Tensor) -> tuple[torch.fx.GraphModule, Prologue | None]:
    """What is left of a module's ATen graph, and its prologue."""
    gm, tensors = recorded(module, *inputs)
    with torch.no_grad():
        traced = aot.trace(gm, specs(gm, tensors))
    return traced.forward, freeze(traced.forward, specs(gm, tensors), traced.signature.written)


def targets(gm: torch.fx.GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}


def statistics(module: nn.Module) -> nn.Module:
    """The module in evaluation mode, with running statistics as after some training."""
    torch.manual_seed(1)
    for child in module.modules():
        if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(child.running_mean, -1, 1)
            nn.init.uniform_(child.running_var, 0.5, 2)
            nn.init.uniform_(child.weight, 0.5, 2)
            nn.init.uniform_(child.bias, -1, 1)
    return module.eval()
