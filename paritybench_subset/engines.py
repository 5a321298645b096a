"""The engines: what makes graphs of a module's calls, and what it tells about them."""
from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn

import capture
from capture import _C
from capture.api import unit_of
from capture.backends import registry
from capture.backends.native.tiers import Stage
from capture.errors import user_frames
from paritybench_subset.operators import Graphs
from paritybench_subset.results import Reason


class Engine:
    """One engine on one module; a new one for each run. The base is eager, which makes no graphs.

    `counts`: whether its graphs run by torch's own operators, so that these can be counted.
    """

    counts = False

    def __init__(self, backend: str = "eager") -> None:
        self.backend = backend
        self.graphs = Graphs(lambda gm, inputs: gm.forward)

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        """What is called in place of the module. May raise whatever the engine raises on a module that it does not take."""
        return module

    def obstacles(self, calls: int) -> list[Reason]:
        """Why `calls` calls were not one graph each, empty when they were."""
        return [Reason("no-graph", "eager makes no graphs")]

    def operations(self) -> list[tuple[int, int]]:
        """Of each graph that a backend may compile: how many operations run in compiled code, and how many there are."""
        return []

    def uncompiled(self) -> dict[str, int]:
        """Why operations do not run in compiled code, and of how many each reason holds."""
        return {}

    def again(self, error: Exception) -> Engine | None:
        """The engine in which a program may still run that this one refused with an error; None if there is none."""
        return None

    def count_into(self, counter: Counter[str]) -> None:
        """From now on the operators of graphs are counted there."""
        if self.counts and self.backend == "eager":
            self.graphs.counter = counter


class Capture(Engine):
    """`capture.compile`, in its default mode. The native backend is waited for: hits run what it has compiled."""

    counts = True

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        options = {"background": False} if self.backend == "native" else None
        self.graphs = Graphs(registry.lookup(self.backend, options=options))
        self.compiled = capture.compile(module, backend=self.graphs)
        return self.compiled

    def obstacles(self, calls: int) -> list[Reason]:
        stats = capture.stats(self.compiled)
        family = unit_of(self.compiled).family
        found = [Reason(report.reason.id, report.context, str(user_frames(report.stack)[-1]) if report.stack else "")
                 for unit in family for report in (*unit.bailouts, *unit.breaks)]
        if found:
            return found
        if stats.native_calls:
            return [Reason("native-call", f"{stats.native_calls} calls ran natively: {'; '.join(stats.misses)[:300]}")]
        if self.graphs.calls == 0 or stats.captures + self.graphs.calls < calls:
            return [Reason("no-hit", f"{stats.captures} captures and {self.graphs.calls} runs of graphs in {calls} calls: "
                                     f"{'; '.join(stats.misses)[:300]}")]
        return [Reason("uncompiled", graph.tier.describe().splitlines()[0]) for graph in self.graphs.callables
                if isinstance(graph, _C.Switch) and graph.tier.stage in (Stage.UNSUPPORTED, Stage.FAILED)]

    def operations(self) -> list[tuple[int, int]]:
        found = [graph.tier.operations() for graph in self.graphs.callables if isinstance(graph, _C.Switch)]
        return [(graph.compiled, sum(graph)) for graph in found if sum(graph)]

    def uncompiled(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for graph in self.graphs.callables:
            if isinstance(graph, _C.Switch):
                counts.update(graph.tier.uncompiled())
        return dict(counts)


class TorchCompile(Engine):
    """`torch.compile(fullgraph=True)`; what it refuses is run without `fullgraph`."""

    counts = True

    def __init__(self, backend: str = "eager", refusal: Reason | None = None) -> None:
        super().__init__(backend)
        self.refusal = refusal

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        torch._dynamo.reset()
        self.graphs = Graphs(torch._dynamo.lookup_backend(self.backend))
        return torch.compile(module, fullgraph=self.refusal is None, backend=self.graphs)

    def obstacles(self, calls: int) -> list[Reason]:
        if self.refusal is not None:
            return [self.refusal]
        if self.graphs.calls < calls or len(self.graphs.callables) == calls:
            return [Reason("no-hit", f"{len(self.graphs.callables)} compiled graphs and {self.graphs.calls} runs of graphs in "
                                     f"{calls} calls")]
        return []

    def again(self, error: Exception) -> Engine | None:
        if self.refusal is not None:
            return None
        text = str(error).strip().splitlines() or [""]
        return TorchCompile(self.backend, Reason(type(error).__name__, text[0][:200]))


class TorchScript(Engine):
    """`torch.jit.script`, which makes one graph of everything or raises."""

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(module)

    def obstacles(self, calls: int) -> list[Reason]:
        return []


ENGINES: dict[str, type[Engine]] = {
    "capture": Capture, "torch.compile": TorchCompile, "torch.jit.script": TorchScript, "eager": Engine}
