"""A compiled module is that model, for every purpose; compiled methods belong to their class."""
from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check, seed

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Net(nn.Module):
    """At module level, so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.calls = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        x = self.norm(self.linear(x)) * scale
        for layer in self.layers:
            x = layer(x)
        return x


# --- a compiled module is that model

def test_class_names_and_registry_are_those_of_the_model() -> None:
    module = Net()
    compiled = capture.compile(module)
    assert isinstance(compiled, Net) and repr(compiled) == repr(module) and str(compiled) == str(module)
    assert list(compiled.state_dict()) == list(module.state_dict())
    for listing in ("named_parameters", "named_buffers", "named_children", "named_modules"):
        ours, theirs = dict(getattr(compiled, listing)()), dict(getattr(module, listing)())
        assert list(ours) == list(theirs)
        assert all(ours[name] is theirs[name] for name in ours if name)
    parent = nn.ModuleDict({"a": compiled})
    assert [n for n, _ in parent.named_parameters()] == [f"a.{n}" for n, _ in module.named_parameters()]


@pytest.mark.parametrize("change", [
    lambda m: m.eval(), lambda m: m.train(), lambda m: m.double(), lambda m: m.to(torch.float64),
    lambda m: m.requires_grad_(False),
    lambda m: m.apply(lambda child: setattr(child, "seen", True)), lambda m: m.register_buffer("extra", torch.ones(1)),
    lambda m: m.register_parameter("extra", nn.Parameter(torch.ones(1))), lambda m: m.add_module("extra", nn.ReLU()),
    lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    lambda m: setattr(m, "linear", nn.Linear(3, 3)),
    lambda m: setattr(m, "flag", 3), lambda m: delattr(m, "calls"), lambda m: delattr(m, "norm"),
    lambda m: m.layers.append(nn.Tanh()), lambda m: m.register_forward_hook(lambda m, args, out: out * 2),
    lambda m: m.register_state_dict_pre_hook(lambda m, prefix, keep: None), lambda m: m.zero_grad(),
], ids=["eval", "train", "double", "to", "requires_grad_", "apply", "register_buffer", "register_parameter",
        "add_module", "load_state_dict", "set submodule", "set attribute", "delete attribute", "delete submodule",
        "append", "hook", "state_dict hook", "zero_grad"])
@pytest.mark.parametrize("on_compiled", [False, True], ids=["on the module", "on the compiled"])
def test_a_change_acts_on_both(change: Callable, on_compiled: bool) -> None:
    module = Net()
    compiled = capture.compile(module)
    compiled(X)
    change(compiled if on_compiled else module)
    assert vars(module) == vars(compiled)
    assert vars(module) is vars(compiled)


def test_the_original_stays_eager_and_both_count() -> None:
    module = Net()
    compiled = capture.compile(module)
    for _ in range(3):
        compiled(X)
        module(X)
    assert module.calls == compiled.calls == 6
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits) == (1, 2)


def test_copies_are_compiled_and_independent() -> None:
    module = Net().eval()
    compiled = capture.compile(module)
    expected = compiled(X)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), torch.load(buffer, weights_only=False)):
        assert isinstance(twin, Net) and vars(twin) is not vars(module)
        with torch.no_grad():
            assert torch.equal(twin(X), expected) and torch.equal(twin(X), expected)
            twin.linear.weight.zero_()
        assert capture.stats(twin).captures == 1 and capture.stats(twin).hits == 1
    assert torch.equal(compiled(X), expected) and not torch.equal(twin(X), expected)


def test_a_shallow_copy_is_the_model_too() -> None:
    compiled = capture.compile(Net().eval())
    twin = copy.copy(compiled)
    assert isinstance(twin, Net) and torch.equal(twin(X), compiled(X))


def test_what_was_compiled_is_at_hand_as_in_torch_compile() -> None:
    module = Net().eval()
    compiled = capture.compile(module)
    assert compiled._orig_mod is module and capture.compile(compiled)._orig_mod is module
    assert not any("_orig_mod" in name for name in compiled.state_dict())
    both = copy.deepcopy({"plain": module, "compiled": compiled})
    assert vars(both["compiled"]) is vars(both["plain"]) and both["compiled"]._orig_mod is both["plain"]
    del module
    assert type(compiled._orig_mod) is Net and vars(compiled._orig_mod) is vars(compiled)
    assert torch.equal(compiled._orig_mod(X), compiled(X)) and capture.stats(compiled).captures == 1


def test_compiling_twice_is_compiling_once() -> None:
    module = Net().eval()
    once = capture.compile(module)
    twice = capture.compile(once)
    assert vars(twice) is vars(module) and type(twice).__mro__[-4:] == type(once).__mro__[-4:]
    assert torch.equal(twice(X), module(X)) and torch.equal(twice(X), module(X))
    assert (capture.stats(twice).captures, capture.stats(twice).hits) == (1, 1)


def test_compiled_children_are_inlined() -> None:
    def make():
        return nn.Sequential(capture.compile(Net().eval(), fullgraph=True), nn.ReLU(), capture.compile(nn.Linear(3, 2)))
    check(make, call(X), call(X), call(X))


def test_a_compiled_child_of_an_eager_model() -> None:
    net = Net().eval()
    outer, expected = nn.Sequential(capture.compile(net), nn.ReLU()), net(X).relu()
    for _ in range(3):
        assert torch.equal(outer(X), expected)
    assert capture.stats(outer[0]).hits == 2


def test_two_compilations_of_one_module_have_caches_of_their_own() -> None:
    module = Net().eval()
    first, second = capture.compile(module), capture.compile(module, backend=lambda gm, inputs: gm.forward)
    first(X), first(X), second(X)
    assert (capture.stats(first).hits, capture.stats(second).hits) == (1, 0)


def test_two_instances_of_one_class_are_told_apart() -> None:
    first, second = Net().eval(), Net().eval()
    second.layers.append(nn.Tanh())
    ours = capture.compile(first), capture.compile(second)
    for _ in range(2):
        for compiled, module in zip(ours, (first, second)):
            assert torch.equal(compiled(X), module(X))


def test_training_updates_are_seen_by_hits() -> None:
    def losses(compiled: bool) -> list[float]:
        seed()
        net = Net()
        program = capture.compile(net, fullgraph=True) if compiled else net
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        values = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = program(X).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        if compiled:
            assert (capture.stats(program).captures, capture.stats(program).hits) == (1, 4)
        return values
    assert losses(True) == losses(False)


# --- decorated methods

def test_a_decorated_forward() -> None:
    def make():
        class Decorated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 3)

            @capture.compile(fullgraph=True)
            def forward(self, x):
                return self.linear(x).relu()
        return Decorated()
    net = make()
    expected = net.linear(X).relu()
    handle = net.register_forward_hook(lambda m, args, out: out * 2)
    for _ in range(3):
        assert torch.equal(net(X), expected * 2)
    handle.remove()
    assert torch.equal(net(X), expected)
    assert (capture.stats(type(net).forward).captures, capture.stats(type(net).forward).hits) == (1, 3)


@pytest.mark.parametrize("kind", ["method", "staticmethod", "classmethod"])
def test_a_decorated_method(kind: str) -> None:
    class Owner:
        factor = 2.0

        def method(self, x):
            return x * self.factor

    function = Owner.method
    compiled = capture.compile(function, fullgraph=True)
    if kind == "method":
        Owner.method = compiled
        use = Owner().method
    elif kind == "staticmethod":
        Owner.method = staticmethod(compiled)
        use = lambda x: Owner.method(Owner, x)
    else:
        Owner.method = classmethod(compiled)
        use = Owner.method
    for _ in range(3):
        assert torch.equal(use(X), X * 2)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 2)


def test_a_decorated_method_calls_another() -> None:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        @capture.compile(fullgraph=True)
        def features(self, x):
            return self.linear(x)

        @capture.compile(fullgraph=True)
        def forward(self, x):
            return self.features(x).relu()
    net = Decorated()
    for _ in range(3):
        assert torch.equal(net(X), net.linear(X).relu())
    assert capture.stats(Decorated.forward).hits == 2
    assert torch.equal(net.features(X), net.linear(X))
