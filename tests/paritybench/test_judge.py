"""Verdicts: each of them is given, to a program or an engine that deserves it, and to no other."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from capture.backends.native.tiers import Stage
from capture.config import CACHE_DIR, TRIAL_CALLS
from paritybench_subset import show, standins
from paritybench_subset.cases import Case, inputs
from paritybench_subset.compare import differences
from paritybench_subset.engines import ENGINES, Capture, Engine
from paritybench_subset.judge import Judge
from paritybench_subset.results import Result, Verdict


def judge(build: Callable[[], nn.Module], engine: Callable[[], Engine] | str = "capture", mode: str = "eval",
          arguments: Callable[[], Any] = lambda: inputs(torch.randn(2, 3)), calls: int = 3) -> Result:
    make = ENGINES[engine] if isinstance(engine, str) else engine
    results = list(Judge(calls).judge("project", Case("case", build, arguments), mode, {"engine": make}))
    assert len(results) == 1
    return results[0]


class Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


class Breaks(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


class Train(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.bn = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return {"out": self.bn(self.linear(x))}


def test_one_graph() -> None:
    result = judge(Relu)
    assert (result.verdict, result.reasons, result.operators, result.missing) == (Verdict.ONE_GRAPH, [], 2, {})


def test_what_computes_nothing_is_no_part_of_a_graph() -> None:
    class Profiled(nn.Module):
        def forward(self, x):
            with torch.profiler.record_function("range"):
                return torch.relu(x)
    result = judge(Profiled)
    assert (result.verdict, result.operators, result.missing) == (Verdict.ONE_GRAPH, 3, {})


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("engine", ["capture", "torch.compile", "torch.jit.script"])
def test_every_engine_trains_in_one_graph(engine: str, mode: str) -> None:
    assert judge(Train, engine, mode).verdict is Verdict.ONE_GRAPH


def native() -> Engine:
    return Capture("native")


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_compiled_kernels_are_what_is_judged(mode: str, tmp_path: Path) -> None:
    engine = native()
    with CACHE_DIR.set(str(tmp_path)), TRIAL_CALLS.set(0):
        assert judge(Train, lambda: engine, mode).verdict is Verdict.ONE_GRAPH
    graph, = engine.graphs.callables
    assert graph.tier.stage is Stage.COMPILED
    assert engine.graphs.calls == 2


def test_a_graph_that_cannot_be_compiled_is_told() -> None:
    class Doubles(nn.Module):
        def forward(self, x):
            return Double.apply(x)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)        # this is left to torch
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2
    result = judge(Doubles, native)
    assert (result.verdict, [reason.id for reason in result.reasons]) == (Verdict.BREAKS, ["uncompiled"])
    (reason, number), = result.uncompiled.items()
    assert "calls the autograd function Double" in reason and number == 1
    assert judge(Doubles).verdict is Verdict.ONE_GRAPH


def test_a_break_has_its_reason_and_line() -> None:
    result = judge(Breaks)
    assert result.verdict is Verdict.BREAKS
    assert result.reasons[0].id == "data-dependent"
    assert "test_judge.py" in result.reasons[0].place


def test_what_torch_compile_refuses_is_run_without_fullgraph() -> None:
    result = judge(Breaks, "torch.compile")
    assert result.verdict is Verdict.BREAKS
    assert "branching" in result.reasons[0].detail


def test_a_program_that_is_captured_on_every_call_is_not_one_graph() -> None:
    class Counts(nn.Module):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return x.relu() if self.steps == 1 else x.exp() if self.steps == 2 else x.sin()
    for calls, expected in ((2, "no-hit"), (3, "native-call")):         # after two captures for nothing calls run natively
        assert [reason.id for reason in judge(Counts, calls=calls).reasons] == [expected]


def test_eager_makes_no_graph() -> None:
    assert judge(Relu, "eager").verdict is Verdict.BREAKS


class Fake(Engine):
    """Claims one graph of anything."""

    def __init__(self, change: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.change = change

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        return self.change(module)

    def obstacles(self, calls: int) -> list[Any]:
        return []


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.history = []
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.total += x.detach().sum(0)
        self.history.append(x.shape[0])
        x.mul_(1.0)
        return x * self.weight, torch.rand(2)


def forget_buffer(module):
    def call(x):
        result = module(x)
        module.total.zero_()
        return result
    return call


def forget_attribute(module):
    def call(x):
        result = module(x)
        module.history.pop()
        return result
    return call


def change_argument(module):
    def call(x):
        result = module(x.clone())
        x.add_(1)
        return result
    return call


def detach_result(module):
    return lambda x: tuple(t.detach() for t in module(x))


def draw_once_more(module):
    def call(x):
        result = module(x)
        torch.rand(1)
        return result
    return call


def share_result(module):
    def call(x):
        first = module(x)[0]
        return first, first
    return call


def be_wrong_on_the_last_call(module):
    calls = []

    def call(x):
        calls.append(x)
        y, noise = module(x)
        return y + (0.01 if len(calls) == 3 else 0), noise
    return call


@pytest.mark.parametrize("change", [forget_buffer, forget_attribute, change_argument, detach_result, draw_once_more, share_result,
                                    be_wrong_on_the_last_call])
def test_wrong(change: Callable[[nn.Module], Any]) -> None:
    assert judge(Stateful, lambda: Fake(change)).verdict is Verdict.WRONG
    assert judge(Stateful, lambda: Fake(lambda module: module)).verdict is Verdict.ONE_GRAPH


def test_a_module_that_returns_itself_returns_what_was_called() -> None:
    class Node(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x), {self: 1.0}
    assert judge(Node).verdict is Verdict.ONE_GRAPH
    other = Node().eval()
    assert judge(Node, lambda: Fake(lambda module: lambda x: (module(x)[0], {other: 1.0}))).verdict is Verdict.WRONG


def test_wrong_gradients() -> None:
    def scale(module):
        module.weight.register_hook(lambda gradient: gradient * 1.01)
        return module
    assert judge(Stateful, lambda: Fake(scale), "eval").verdict is Verdict.ONE_GRAPH
    result = judge(Stateful, lambda: Fake(scale), "train")
    assert result.verdict is Verdict.WRONG
    assert ".grad" in result.reasons[0].detail


def test_a_graph_without_what_the_program_computes_is_not_one_graph() -> None:
    class Outside(Engine):
        counts = True

        def __init__(self, within: int) -> None:
            super().__init__()
            self.within = within

        def compile(self, module):
            graph = self.graphs(torch.fx.symbolic_trace(module), ())
            calls = []

            def call(x):
                calls.append(x)
                return graph(x) if len(calls) > self.within else module(x)
            return call

        def obstacles(self, calls):
            return []
    assert judge(Relu, lambda: Outside(2)).verdict is Verdict.ONE_GRAPH
    result = judge(Relu, lambda: Outside(3))
    assert (result.verdict, result.reasons[0].id) == (Verdict.BREAKS, "missing-operators")
    assert result.missing == {"aten.relu.default": 1, "aten.mul.Tensor": 1}


def test_error() -> None:
    def refuse(module):
        raise RuntimeError("not today\nnor ever")
    result = judge(Relu, lambda: Fake(refuse))
    assert result.verdict is Verdict.ERROR
    assert (result.reasons[0].id, result.reasons[0].detail) == ("RuntimeError", "not today")


def test_a_program_that_fails_in_eager_is_not_runnable() -> None:
    class Fails(nn.Module):
        def forward(self, x):
            return x @ x
    result = judge(Fails)
    assert (result.verdict, result.engine) == (Verdict.NOT_RUNNABLE, "")


def test_a_program_that_leaves_the_process_is_not_runnable() -> None:
    class Leaves(nn.Module):
        def forward(self, x):
            raise SystemExit(3)
    assert judge(Leaves).verdict is Verdict.NOT_RUNNABLE


def test_using_a_stand_in_is_not_runnable_even_where_the_program_catches_the_error() -> None:
    missing = standins.StandIn("torchvision")

    class Catches(nn.Module):
        def forward(self, x):
            try:
                return missing.ops.nms(x)
            except Exception:
                return x * 2
    result = judge(Catches)
    assert result.verdict is Verdict.NOT_RUNNABLE
    assert (result.reasons[0].id, result.reasons[0].detail) == ("not-installed", "torchvision")


def test_a_program_with_a_will_of_its_own_is_not_deterministic() -> None:
    counter = iter(range(100))

    class Drifts(nn.Module):
        def forward(self, x):
            return x + next(counter)
    assert judge(Drifts).verdict is Verdict.NOT_DETERMINISTIC


def test_a_program_that_leaves_memory_as_it_finds_it_is_not_deterministic() -> None:
    class Garbage(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), float(next(found))))

        def forward(self, x):
            return x * self.weight

    found = iter([1, 1, 2])                 # what the third run finds there
    assert judge(Garbage).verdict is Verdict.NOT_DETERMINISTIC
    found = iter([1, 1, 1])
    assert judge(Garbage, lambda: Fake(lambda module: lambda x: module(x) + 1)).verdict is Verdict.WRONG


def test_a_lazy_module_is_judged_like_others() -> None:
    assert judge(lambda: nn.LazyLinear(2)).verdict is Verdict.BREAKS


def test_random_numbers_are_deterministic() -> None:
    assert judge(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)), mode="train").verdict is Verdict.ONE_GRAPH


def test_a_program_without_operators_is_empty() -> None:
    assert judge(nn.Identity).verdict is Verdict.EMPTY


@pytest.mark.parametrize("left, right", [
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)), (torch.zeros(2), torch.zeros(1, 2)), ([1], (1,)), ([1, 2], [1]),
    ({"a": 1}, {"b": 1}), (1.0, 1.1), (1, True), (None, 0), (torch.tensor([0.0]), torch.tensor([float("nan")])), ({1, 2}, {1, 3}),
])
def test_differences(left: Any, right: Any) -> None:
    assert differences(left, right, 1e-4)
    assert not differences(left, left, 1e-4)


def test_objects_are_compared_by_what_they_hold() -> None:
    assert not differences(Train().eval(), Train().eval().requires_grad_(True), 10.0)
    assert differences(Train().eval(), Train().train(), 10.0) == [".training: False in eager, True here",
                                                                 "._modules['linear'].training: False in eager, True here",
                                                                 "._modules['bn'].training: False in eager, True here"]


def test_what_runs_in_compiled_code_is_counted() -> None:
    class Masked(nn.Module):
        def forward(self, x):
            return (x.sin() * 2)[x > 0].exp() + 1
    with TRIAL_CALLS.set(0):
        results = [judge(module, lambda: Capture("native"), calls=5) for module in (Relu, Masked)]
    assert [result.compiled for result in results] == [[(2, 2)], [(5, 6)]]
    console = Console(width=200)
    with console.capture() as shown:
        console.print(show.compiled(results))
    assert "│ 2     │ 100.0" in shown.get() and "│ 87.5 " in shown.get()
    assert show.compiled([judge(Relu)]) is None
