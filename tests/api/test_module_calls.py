"""A compiled module's class, or a base of it, gets another `__call__` than it had when the module was compiled."""
from __future__ import annotations

import copy
import weakref
from unittest import mock

import pytest
import torch
from torch import fx, nn

import capture

X = torch.tensor([[1.0, -2.0, 3.0]])


class Base(nn.Module):
    pass


class Net(Base):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x):
        return x * self.scale


def negated(self, *args, **kwargs):
    return -nn.Module.__call__(self, *args, **kwargs)


@pytest.mark.parametrize("cls", [Net, Base])
@pytest.mark.parametrize("call", [negated, mock.Mock(return_value=X)], ids=["function", "object"])
def test_a_class_gets_another_call_for_a_while(cls, call, monkeypatch) -> None:
    net = Net()
    compiled, expected = capture.compile(net, backend="eager", fullgraph=True), net(X)
    for _ in range(2):
        assert torch.equal(compiled(X), expected)
    with monkeypatch.context() as patch:
        patch.setattr(cls, "__call__", call, raising=False)
        for _ in range(2):
            assert torch.equal(compiled(X), net(X)) and not torch.equal(compiled(X), expected)
    assert torch.equal(compiled(X), expected)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls) == (1, 2, 4)
    assert "by another __call__" in capture.explain(compiled)


def test_inside_of_a_compiled_function(monkeypatch) -> None:
    inner = capture.compile(Net(), backend="eager")
    outer = capture.compile(lambda x: inner(x) + 1, backend="eager", fullgraph=True)
    expected = outer(X)
    assert torch.equal(outer(X), expected) and capture.stats(outer).hits == 1
    with monkeypatch.context() as patch:
        patch.setattr(Base, "__call__", negated, raising=False)
        for _ in range(2):
            assert torch.equal(outer(X), 2 - expected)
    assert torch.equal(outer(X), expected)
    assert (capture.stats(outer).captures, capture.stats(outer).hits) == (2, 3)


def test_a_tracer_sees_the_calls_of_compiled_modules() -> None:
    class Leaves(fx.Tracer):
        def is_leaf_module(self, module, name):
            return name == "0"
    model = nn.Sequential(Net(), nn.ReLU())
    compiled = nn.Sequential(capture.compile(model[0], backend="eager"), model[1])
    compiled(X)
    graphs = [[(node.op, str(node.target)) for node in Leaves().trace(module).nodes] for module in (model, compiled)]
    assert graphs[0] == graphs[1]
    assert torch.equal(compiled(X), model(X))


class Typed(nn.Module):
    """Which looks at its own class, as programs do that forbid or replace subclasses."""

    def __init__(self, scale=2.0):
        super().__init__()
        self.scale, self.seen = scale, []

    def forward(self, x):
        own = type(self) is Typed and self.__class__ is Typed and type(self).__mro__[1] is nn.Module
        self.seen.append(own)
        return x * self.scale if own else x * type(self)(5.0).scale


def test_a_program_sees_its_own_class() -> None:
    compiled = capture.compile(Typed(), backend="eager", fullgraph=True)
    hooked = []
    compiled.register_forward_hook(lambda module, args, output: hooked.append(module))
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2)
    assert all(compiled.seen) and all(module is compiled._orig_mod for module in hooked) and len(hooked) == 3
    outer = capture.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(outer(X), X * 2 + 1) and torch.equal(outer(X), X * 2 + 1) and all(compiled.seen)


def test_a_model_made_by_the_class_of_a_compiled_one_is_one_of_its_own() -> None:
    compiled = capture.compile(Typed(), backend="eager")
    other = type(compiled)(3.0)
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2) and torch.equal(other(X), X * 3)
    twin = copy.deepcopy(other)
    assert torch.equal(twin(X), X * 3) and compiled._orig_mod is not other._orig_mod


def test_what_was_compiled_lives_as_long_as_the_compiled_module() -> None:
    gone = []
    compiled = capture.compile(Typed(), backend="eager")
    weakref.finalize(compiled._orig_mod, gone.append, 1)
    compiled(X)
    compiled(X)
    assert not gone
    del compiled
    assert gone


def test_a_lazy_module_becomes_another() -> None:
    lazy = nn.LazyLinear(2)
    compiled = capture.compile(lazy, backend="eager")
    results = [compiled(X) for _ in range(3)]
    assert all(torch.equal(result, lazy(X)) for result in results)
    assert type(lazy) is nn.Linear and isinstance(compiled, nn.Linear) and not isinstance(compiled, nn.LazyLinear)
    assert capture.stats(compiled).hits == 1
