"""The public functions: every way to call `compile`, what a compiled module is, and what the others tell."""
from __future__ import annotations

import copy
import functools
import inspect
import io
import operator
import pickle
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from capture.errors import ArgumentError, BackendError, GraphBreakError


class Model(nn.Module):
    """At module level, so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Doc of forward."""
        self.calls += 1
        return self.norm(self.linear(x)) * scale

    def describe(self) -> str:
        return f"{self.calls} calls"


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def double(x: torch.Tensor, bias: float = 0.0) -> torch.Tensor:
    """Doc of double."""
    return x * 2 + bias


# --- functions

def test_as_a_decorator_with_and_without_arguments() -> None:
    @capture.compile
    def plain(x):
        return x + 1

    @capture.compile(fullgraph=True, backend="eager")
    def tuned(x):
        return x + 1
    for function in (plain, tuned):
        assert torch.equal(function(X), X + 1) and torch.equal(function(X), X + 1)
        assert (capture.stats(function).captures, capture.stats(function).hits) == (1, 1)


def test_a_compiled_function_keeps_name_doc_and_signature() -> None:
    compiled = capture.compile(double)
    assert (compiled.__name__, compiled.__doc__) == (double.__name__, double.__doc__)
    assert inspect.signature(compiled) == inspect.signature(double)
    assert torch.equal(compiled(x=X, bias=1.0), X * 2 + 1)


def test_the_original_function_stays_eager() -> None:
    compiled = capture.compile(double)
    double(X)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (0, 0)


def test_methods_and_a_lambda() -> None:
    class Scaler:
        factor = 3

        @capture.compile
        def scale(self, x):
            return x * self.factor
    assert torch.equal(Scaler().scale(X), X * 3)
    assert torch.equal(capture.compile(lambda x: x - 1)(X), X - 1)
    linear = nn.Linear(3, 2)
    assert torch.equal(capture.compile(linear.forward)(X), linear(X))


@pytest.mark.parametrize("target", [torch.sin, F.linear, functools.partial(double, bias=2.0), X.add, operator.itemgetter(0)],
                         ids=["builtin", "function of C", "partial", "method of a tensor", "object of C"])
def test_what_has_no_python_frame(target: Callable) -> None:
    compiled = capture.compile(target, backend="eager")
    arguments = (X, X[:2]) if target is F.linear else (X,)
    for _ in range(3):
        assert torch.equal(compiled(*arguments), target(*arguments))
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 2)


@pytest.mark.parametrize("how", ["method", "bound twice", "callable object", "of a compiled class"])
def test_what_is_compiled_already_is_compiled_anew(how: str) -> None:
    class Scaler:
        factor = 3

        @capture.compile
        def scale(self, x):
            return x * self.factor

        __call__ = scale
    owner = Scaler()
    target = {"method": owner.scale, "bound twice": capture.compile(owner.scale), "callable object": owner,
              "of a compiled class": capture.compile(Scaler)()}[how]
    compiled = capture.compile(target, backend="eager")
    assert torch.equal(compiled(X), X * 3) and torch.equal(compiled(X), X * 3)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 1)
    assert capture.stats(Scaler.scale).captures == 0


def test_a_class_whose_instances_are_called() -> None:
    @capture.compile(backend="eager")
    class Net(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return x * self.factor

    @capture.compile(backend="eager")
    class Twice(Net):
        def __call__(self, x):
            return super().__call__(x) * 2
    for net, expected in ((Net(2.0), X * 2), (Net(3.0), X * 3), (Twice(2.0), X * 4), (capture.compile(Net(5.0)), X * 5)):
        for _ in range(3):
            assert torch.equal(net(X), expected)
    assert isinstance(Net, type) and Net(1.0).__class__ is Net
    stats = capture.stats(Net.__call__)
    assert (stats.captures, stats.hits) == (2, 4)
    assert capture.stats(Twice.__call__).hits == 2

    class Plain:
        pass
    with pytest.raises(ArgumentError, match="no __call__ written in Python"):
        capture.compile(Plain)


def test_a_callable_backend_gets_the_graph_and_its_inputs() -> None:
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward
    compiled = capture.compile(double, backend=backend)
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2)
    (gm, inputs), = seen
    assert isinstance(gm, torch.fx.GraphModule)
    assert len(inputs) == sum(node.op == "placeholder" for node in gm.graph.nodes)
    assert capture.stats(compiled).graphs == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_backends_by_name(backend: str, training: bool) -> None:
    torch.manual_seed(1)        # what is no more than noise, as the gradients before a normalization, is not made large by chance
    module, expected = Model(), Model()
    expected.load_state_dict(module.state_dict())
    compiled = capture.compile(module, backend=backend, fullgraph=True)
    for _ in range(3):
        with torch.set_grad_enabled(training):
            ours, theirs = compiled(X), expected(X)
        torch.testing.assert_close(ours, theirs)
        if training:
            ours.square().sum().backward()
            theirs.square().sum().backward()
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 2)
    for (name, p), q in zip(module.named_parameters(), expected.parameters(), strict=True):
        # Backends sum in another order: what three steps add up to differs in the last digits of its largest terms.
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("arguments", "error", "sentence"), [
    ({"backend": "inducter"}, BackendError, "did you mean 'inductor'"),
    ({"backend": 3}, ArgumentError, "backend must be a name or a callable"),
    ({"mode": "fastest"}, ArgumentError, "mode must be one of"),
    ({"options": 3}, ArgumentError, "options must be a dict"),
    ({"dynamic": "yes"}, ArgumentError, "dynamic must be True, False or None"),
    ({"fullgraph": "yes"}, ArgumentError, "fullgraph must be"),
])
def test_a_wrong_argument_is_refused_at_once(arguments: dict, error: type, sentence: str) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        capture.compile(double, **arguments)


@pytest.mark.parametrize("target", [3, "double", X])
def test_what_cannot_be_called_is_refused(target: object) -> None:
    with pytest.raises(ArgumentError):
        capture.compile(target)


@pytest.mark.parametrize("function", [capture.stats, capture.explain])
def test_statistics_of_something_not_compiled_are_refused(function) -> None:
    with pytest.raises(ArgumentError):
        function(double)


# --- modules

def test_a_compiled_module_is_that_model() -> None:
    module = Model()
    compiled = capture.compile(module)
    assert isinstance(compiled, Model) and isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in module.named_modules()]
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert all(a is b for a, b in zip(compiled.buffers(), module.buffers(), strict=True))
    assert compiled.linear is module.linear and compiled.describe() == "0 calls"


def test_the_original_module_stays_eager_and_state_is_shared() -> None:
    module = Model()
    compiled = capture.compile(module)
    module(X)
    assert (capture.stats(compiled).captures, compiled.calls) == (0, 1)
    compiled(X)
    compiled(X)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits, module.calls) == (1, 1, 3)
    compiled.extra = 5
    assert module.extra == 5
    del module.extra
    assert not hasattr(compiled, "extra")


def test_train_eval_to_and_load_state_dict_act_on_both() -> None:
    module = Model()
    compiled = capture.compile(module)
    assert compiled.eval() is compiled and not module.training and not module.norm.training
    module.train()
    assert compiled.training
    assert compiled.double() is compiled and module.linear.weight.dtype is torch.float64
    module.float()
    state = {k: v + 1 for k, v in module.state_dict().items()}
    compiled.load_state_dict(state)
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize("on_compiled", [True, False])
def test_hooks_act_on_both_even_when_registered_late(on_compiled: bool) -> None:
    module = Model().eval()
    compiled = capture.compile(module)
    before = compiled(X)
    seen = []
    target = compiled if on_compiled else module
    handles = [target.register_forward_hook(lambda m, args, out: out + 1),
               target.register_forward_pre_hook(lambda m, args: seen.append("pre"))]
    assert torch.equal(compiled(X), before + 1) and torch.equal(module(X), before + 1) and seen == ["pre", "pre"]
    for handle in handles:
        handle.remove()
    assert torch.equal(compiled(X), before) and torch.equal(module(X), before)


def test_deepcopy_is_an_independent_model() -> None:
    module = Model().eval()
    compiled = capture.compile(module)
    compiled(X)
    twin = copy.deepcopy(compiled)
    assert isinstance(twin, Model)
    with torch.no_grad():
        twin.linear.weight.zero_()
    torch.testing.assert_close(compiled(X), module(X))
    assert not torch.equal(twin(X), module(X))


def test_pickle_and_torch_save() -> None:
    module = Model().eval()
    compiled = capture.compile(module)
    expected = compiled(X)
    assert torch.equal(pickle.loads(pickle.dumps(compiled))(X), expected)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(X), expected)


def test_a_compiled_module_inside_of_another_model() -> None:
    outer = nn.Sequential(capture.compile(Model().eval()), nn.ReLU())
    assert "0.linear.weight" in outer.state_dict()
    assert torch.equal(outer(X), outer(X))


# --- the others

def test_disable_runs_natively() -> None:
    states = []

    @capture.disable
    def outside(x):
        states.append(capture.is_capturing())
        return x + 1

    @capture.compile
    def program(x):
        states.append(capture.is_capturing())
        return outside(x) * 2
    assert torch.equal(program(X), (X + 1) * 2) and torch.equal(program(X), (X + 1) * 2)
    assert capture.stats(program).breaks >= 1
    assert "disabled-call" in capture.explain(program)
    assert not capture.is_capturing()


def test_reset_forgets_everything() -> None:
    compiled = capture.compile(double)
    compiled(X)
    compiled(X)
    capture.reset()
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (0, 0)
    assert torch.equal(compiled(X), X * 2) and capture.stats(compiled).captures == 1


def test_misses_tell_their_reason() -> None:
    compiled = capture.compile(double)
    compiled(X)
    compiled(X.double())
    reason, = capture.stats(compiled).misses
    assert "x" in reason and "float64" in reason


def test_explain_shows_guards_graph_and_mock_function() -> None:
    compiled = capture.compile(double)
    compiled(X)
    text = capture.explain(compiled)
    for part in ("guards", "graph", "mock", "def ", "mul"):
        assert part in text.lower(), part


def test_a_graph_break_is_right_counted_and_explained() -> None:
    @capture.compile
    def program(x):
        return x * 2 if x.sum().item() > 0 else x
    for _ in range(3):
        assert torch.equal(program(X.abs()), X.abs() * 2)
    assert torch.equal(program(-X.abs()), -X.abs())
    assert capture.stats(program).breaks >= 1
    assert "data-dependent" in capture.explain(program)


def test_fullgraph_raises_with_reason_line_and_remedy() -> None:
    def program(x):
        return x * 2 if x.sum().item() > 0 else x
    with pytest.raises(GraphBreakError, match="data-dependent") as caught:
        capture.compile(program, fullgraph=True)(X)
    assert caught.value.stack[-1].file == __file__
    assert caught.value.stack[-1].line == program.__code__.co_firstlineno + 1
    assert "remedy" in str(caught.value)
