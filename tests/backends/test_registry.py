"""Every form of `backend`, `mode` and `options`, and one clear sentence for what cannot be used."""
from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import fx

import capture
from capture.backends import registry
from capture.errors import ArgumentError, BackendError
from tests.helpers import call, check


def graph() -> fx.GraphModule:
    def f(x, w):
        return (torch.relu(x @ w), x.sum())
    return fx.symbolic_trace(f)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
def test_named_backends_compile_and_agree(name: str) -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True)
    compiled = registry.lookup(name)(graph(), [x, w])
    for ours, expected in zip(compiled(x, w), graph()(x, w), strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_callable_is_used_as_it_is() -> None:
    def backend(gm, example_inputs):
        return gm.forward
    assert registry.lookup(backend) is backend
    assert registry.lookup(backend, mode="default") is backend


def test_mode_and_options_reach_a_callable_as_for_torch_compile() -> None:
    def backend(gm, example_inputs, **keywords):
        return keywords
    assert registry.lookup(backend, mode="max-autotune")(None, []) == {"mode": "max-autotune"}
    assert registry.lookup(backend, options={"a": 1})(None, []) == {"options": {"a": 1}}


def test_mode_becomes_inductors_configuration() -> None:
    assert registry.lookup("inductor", mode="max-autotune-no-cudagraphs").config["max_autotune"] is True
    assert registry.lookup("inductor", options={"max_autotune": True}).config == {"max_autotune": True}


def test_torchs_names_are_all_known() -> None:
    known = torch._dynamo.list_backends(exclude_tags=())
    assert {*known, *registry.OWN} - {registry.FOR_DYNAMO} == set(registry.names())


@pytest.mark.parametrize(("arguments", "error", "sentence"), [
    ({"backend": "inducter"}, BackendError, "unknown backend 'inducter'; did you mean 'inductor'?"),
    ({"backend": 3}, ArgumentError, "backend must be a name or a callable"),
    ({"backend": None}, ArgumentError, "got NoneType"),
    ({"backend": "eager", "mode": "max-autotun"}, ArgumentError, "did you mean 'max-autotune'"),
    ({"backend": "eager", "mode": 1}, ArgumentError, "mode must be one of default, reduce-overhead"),
    ({"backend": "eager", "options": 1}, ArgumentError, "options must be a dict, got int"),
    ({"backend": "eager", "options": {"x": 1}}, ArgumentError, "backend 'eager' has no options, got 'x'"),
    ({"backend": "eager", "dynamic": "yes"}, ArgumentError, "dynamic must be True, False or None"),
    ({"backend": "inductor", "mode": "default", "options": {}}, ArgumentError, "either mode or options"),
    ({"backend": "inductor", "options": {"max_autotun": True}}, ArgumentError, "did you mean 'max_autotune'"),
    ({"backend": "inductor", "options": {"max_autotune": "x"}}, ArgumentError, "cannot use these options"),
])
def test_what_cannot_be_used_is_refused_in_one_sentence(arguments: dict, error: type, sentence: str) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        registry.lookup(**arguments)


def test_dynamo_is_imported_only_for_its_own_backends() -> None:
    program = ("import sys; from capture.backends import registry; registry.lookup('eager', mode='max-autotune'); "
               "assert 'torch._dynamo' not in sys.modules")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_example_inputs_that_have_died_are_made_anew() -> None:
    seen = []

    def backend(gm, example_inputs):
        seen.append(example_inputs)
        return gm.forward

    def f(x):
        leaf = torch.ones(3, 4, requires_grad=True)
        return torch.autograd.grad((leaf.t() * leaf.t()).sum(), leaf, create_graph=True)[0] * x     # ends a trace: `x` goes on

    x = torch.ones(3, 4)
    compiled = capture.compile(f, backend=backend)
    assert torch.equal(compiled(x), f(x)) and torch.equal(compiled(x), f(x))
    gradient, last = seen[-1]
    assert last is x and (gradient.shape, gradient.requires_grad, gradient.is_leaf) == ((3, 4), True, False)


def test_a_parameter_made_in_a_graph_leaves_it_uncompiled() -> None:
    def f(x):
        return torch.nn.Linear(4, 3)(x)

    compiled = capture.compile(f, backend="aot_eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = f(torch.ones(4))
        torch.manual_seed(seed)
        assert torch.equal(compiled(torch.ones(4)), expected)
    assert capture.stats(compiled).hits == 2


def _assigns_data(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.data = torch.zeros(0)
    return y


def _drops_grad(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.grad = None
    return y


def _requires_grad(x: torch.Tensor) -> torch.Tensor:
    y = (x.detach() * 2).requires_grad_()
    return y


def _makes_parameter(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(3)) * x.detach()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("program", [_assigns_data, _drops_grad, _requires_grad, _makes_parameter])
def test_assignments_to_tensors_reach_backends_that_use_aotautograd(program, named: bool) -> None:
    def backend(gm, example_inputs):
        return aot_module_simplified(gm, example_inputs, lambda graph, inputs: make_boxed_func(graph.forward))

    compiled = capture.compile(program, backend="aot_eager" if named else backend)
    for _ in range(3):
        worlds = []
        for run in program, compiled:
            x = torch.ones(3, requires_grad=True)
            x.grad = torch.ones(3)
            y = run(x)
            worlds.append((x.shape, x.grad is None, y.requires_grad, y.is_leaf, y.tolist()))
        assert worlds[0] == worlds[1]
    assert capture.stats(compiled).hits == 2


@pytest.mark.parametrize("change", [
    lambda x: x.squeeze_(0) if x.dim() == 2 else x.unsqueeze_(0), lambda x: x.t_() if x.dim() == 2 else x.unsqueeze_(1),
    lambda x: x.transpose_(0, -1).unsqueeze_(0) if x.dim() < 3 else x.squeeze_(0).squeeze_(0)])
def test_graphs_that_change_the_shape_of_inputs_run_uncompiled_with_torchs_backends(change):
    """When they are compiled, the call itself has given one of the inputs another shape: a squeeze_ would then do nothing."""
    def make():
        buffer = torch.zeros(3)
        rest = buffer[1:]

        def program(x):
            y = x + 1
            capture.disable(lambda: None)()
            change(buffer)
            buffer.add_(1)
            return y + rest
        return program, SimpleNamespace(buffer=buffer, rest=rest)
    check(make, *[call(torch.ones(2))] * 6, backend="aot_eager", captures=None, fullgraph=False)


def test_graphs_that_switch_the_inference_mode_are_given_to_none_of_torchs_backends() -> None:
    """Where one fails, what the graph had entered would end with the exception, and leave torch in the modes of the trace."""
    weight = torch.nn.Parameter(torch.eye(4))

    def program(x):
        with torch.inference_mode(False):
            y = x + x[x > 0].sum()
        return torch.nn.functional.linear(y, weight)
    for name in ("aot_eager", "inductor"):
        compiled = capture.compile(program, backend=name, fullgraph=True)
        for n in range(3):
            x = torch.arange(8.0).reshape(2, 4) - n
            assert torch.equal(compiled(x), program(x))
            assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
        assert capture.stats(compiled).hits == 2


class Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layers):
        return x.repeat(len(layers))

    @staticmethod
    def backward(ctx, grad):
        return grad.view(-1, 4).sum(0), None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_autograd_functions_whose_results_are_checked_are_given_to_none_of_torchs_backends(backend) -> None:
    """Their form may depend on more than the graph's inputs: where it is traced, the results are others, and the check is gone."""
    def make():
        layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        return lambda x: Layers.apply(x, layers), layers
    x = torch.ones(4, requires_grad=True)
    check(make, call(x), call(x), lambda layers: layers.append(torch.nn.Linear(2, 2)), call(x), call(x), captures=2,
          backend=backend, backward=True)
