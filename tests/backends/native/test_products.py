"""Products that oneDNN computes are eager mode's, and only those are replaced that gain by it."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from capture.backends import aot
from capture.backends.native import processor
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.products import Linear, linear_of, use_onednn

ROWS, INNER, OUTER = 96, 384, 640
CALL = "mkldnn._linear_pointwise.default"

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "vendor", lambda: "AuthenticAMD")


def traced(program: Callable, *inputs: Tensor) -> fx.GraphModule:
    with torch.no_grad():
        return aot.trace(recorded(program, len(inputs)), inputs).forward


def recorded(program: Callable, arguments: int) -> fx.GraphModule:
    """The graph of a program, which returns a tuple as captured ones do."""
    names = [f"x{number}" for number in range(arguments)]
    return fx.symbolic_trace(eval(f"lambda {', '.join(names)}: (program({', '.join(names)}),)", {"program": program}))


def targets(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def one_product(program: Callable, *inputs: Tensor) -> Linear | None:
    """What the only product of a program is taken for."""
    (node,) = [n for n in traced(program, *inputs).graph.nodes if str(n.target) in ("aten.mm.default", "aten.addmm.default")]
    return linear_of(node)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def without_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight)


def by_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t().contiguous())


def batched(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear(x.view(2, -1, INNER), weight, bias).transpose(0, 1)


def sliced(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear(x[3:], weight[64:], bias[64:])


def chained(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear(x, weight, bias).relu() @ weight


def in_place(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear(x, weight, bias).mul_(2).add_(bias)


PROGRAMS = [linear, without_bias, by_rows, batched, sliced, chained, in_place]


def tensors() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(OUTER, INNER) / 20, torch.randn(OUTER)]


def compiled(gm: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """What a graph is compiled to, with oneDNN in its forward pass."""
    artifact = compile_job(Job(gm, tuple(map(TensorSpec.of, inputs)), Modes.current(), {}))
    assert any("mkldnn" in str(step) for step in artifact.forward.plan.steps)
    return load(artifact, gm)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_are_eagers(program: Callable) -> None:
    gm, inputs = recorded(program, 3), tensors()
    with torch.no_grad():
        torch.testing.assert_close(compiled(gm, inputs)(*inputs), gm.forward(*inputs), rtol=1e-4, atol=1e-4, check_stride=True)


def test_gradients_are_eagers() -> None:
    gm, inputs = recorded(chained, 3), [tensor.requires_grad_() for tensor in tensors()]
    (actual,), (expected,) = compiled(gm, inputs)(*inputs), gm.forward(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_stride=True)
    grads = [torch.autograd.grad(result.sin().sum(), inputs) for result in (actual, expected)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3, check_stride=True)


def test_a_product_is_one_call_without_copies() -> None:
    forward = traced(linear, *tensors())
    assert use_onednn(forward) == 1
    forward.graph.eliminate_dead_code()
    assert targets(forward) == [CALL]


@pytest.mark.parametrize("maker", ["GenuineIntel", ""])
def test_mkl_keeps_the_processors_where_it_was_not_measured(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "vendor", lambda: maker)
    assert use_onednn(traced(linear, *tensors())) == 0


def test_without_onednn_all_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert use_onednn(traced(linear, *tensors())) == 0


@pytest.mark.parametrize(("program", "inputs"), [
    (lambda x, w, b: torch.addmm(b, x, w, beta=0.5), (torch.randn(4, 3), torch.randn(3, 5), torch.randn(5))),
    (lambda x, w, b: torch.addmm(b, x, w), (torch.randn(4, 3), torch.randn(3, 5), torch.randn(4, 5))),
    (lambda x, w, b: torch.addmm(b, x, w), (torch.randn(4, 3), torch.randn(3, 5), torch.randn(1))),
    (lambda x, w: x @ w, (torch.randn(4, 3).double(), torch.randn(3, 5).double())),
    (lambda x, w: x @ w, (torch.randn(4, 3).half(), torch.randn(3, 5).half())),
    (lambda x, w: x @ w, (torch.ones(4, 3, dtype=torch.int32), torch.ones(3, 5, dtype=torch.int32))),
    (lambda x, w: x.t() @ w, (torch.randn(3, 4), torch.randn(3, 5))),
    (lambda x, w: x @ w[:, ::2], (torch.randn(4, 3), torch.randn(3, 5))),
    (lambda x, w: x @ w, (torch.randn(4, 0), torch.randn(0, 5))),
    (lambda x, w: x @ w, (torch.randn(0, 3), torch.randn(3, 5)))],
    ids=["beta", "matrix", "scalar", "double", "half", "int", "columns", "strided", "no-features", "no-rows"])
def test_what_onednn_does_not_take(program: Callable, inputs: tuple[Tensor, ...]) -> None:
    assert one_product(program, *inputs) is None


@pytest.mark.parametrize(("rows", "inner", "outer", "packed", "plain"), [
    (1, 3072, 3072, False, False), (8, 256, 256, False, False), (32, 256, 256, False, False), (8, 512, 512, True, False),
    (8, 768, 768, True, False), (64, 512, 512, True, True), (16, 512, 512, True, False), (1024, 256, 256, True, True),
    (1024, 16, 16, False, False)])
def test_the_measured_winners(rows: int, inner: int, outer: int, packed: bool, plain: bool) -> None:
    found = one_product(lambda x, w: x @ w, torch.empty(rows, inner), torch.empty(inner, outer))
    assert found is not None and (found.gains_packed(), found.gains_plain()) == (packed, plain)
