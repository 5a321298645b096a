"""What `nn.Module` and the modules of the library can do: captured, hit, and trained, in comparison with eager."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import capture
from tests.helpers import call, check

X = torch.linspace(-1, 1, 12).reshape(4, 3)
EVAL: list = []     # programs without random numbers or statistics of their own


def model(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Registers a factory of modules that map (4, 3) to something."""
    EVAL.append(pytest.param(make, id=make.__name__))
    return make


# --- containers, hooks and attributes: captured, hit, and in training

@model
def sequential():
    return nn.Sequential(OrderedDict(a=nn.Linear(3, 5), b=nn.GELU(), c=nn.Linear(5, 2)))


@model
def nested_sequential():
    return nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Identity(), nn.Sequential())


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))])
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.zeros(3))})

    def forward(self, x):
        for index, layer in enumerate(self.layers[:2]):
            x = layer(x) * self.scales[index] + self.shifts["ab"[index]]
        x = self.layers[-1](x) + sum(p.sum() for p in self.shifts.values()) + len(self.scales)
        return {name: head(x) for name, head in self.heads.items()}, len(self.layers), "a" in self.heads


@model
def containers():
    return Containers()


@model
def shared_parameters():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))
    return Tied()


@model
def module_called_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.same = self.layer

        def forward(self, x):
            return self.same(self.layer(x).relu())
    return Twice()


@model
def recursive_modules():
    class Tree(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.children_ = nn.ModuleList(Tree(depth - 1) for _ in range(2)) if depth else None

        def forward(self, x):
            x = self.layer(x)
            return x if self.children_ is None else sum(child(x) for child in self.children_)
    return Tree(2)


@model
def foreign_getattr():
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) + self.weight.sum() + self.in_features
    return Wrapper(nn.Linear(3, 3))


@model
def inherited_forward():
    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x)

    class Derived(Base):
        def forward(self, x):
            return super().forward(x).relu()
    return Derived()


@model
def properties_and_methods():
    class Rich(nn.Module):
        factor = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]))
            self.register_buffer("hidden", torch.ones(3), persistent=False)
            self.layer = nn.Linear(3, 3)

        @property
        def size(self) -> int:
            return self.layer.out_features

        @property
        def dtype(self) -> torch.dtype:
            return next(self.parameters()).dtype

        @staticmethod
        def activation(x):
            return x.tanh()

        @classmethod
        def scaled(cls, x):
            return x * cls.factor

        def forward(self, x):
            x = self.scaled(self.activation(self.layer(x.to(self.dtype)))) * self.mask + self.hidden
            return x / self.size, len(list(self.parameters())), [n for n, _ in self.named_children()]
    return Rich()


@model
def keyword_arguments_and_nested_outputs():
    class Inner(nn.Module):
        def forward(self, x, *rest, scale=1.0, **others):
            return {"x": x * scale, "rest": [r + 1 for r in rest], **others}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layer = Inner(), nn.Linear(3, 3)

        def forward(self, x):
            out = self.inner(self.layer(x), x, x, scale=2.0, name="a")
            return out["x"] + sum(out["rest"]), out
    return Outer()


def hooked(register: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        register(net)
        return net
    return make


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda net: net[0].register_forward_hook(lambda m, args, out: out * 2),
    "forward_none": lambda net: net[0].register_forward_hook(lambda m, args, out: None),
    "forward_on_root": lambda net: net.register_forward_hook(lambda m, args, out: (out, args[0])),
    "forward_kwargs": lambda net: net[0].register_forward_hook(lambda m, args, kwargs, out: out + len(kwargs),
                                                               with_kwargs=True),
    "forward_always": lambda net: net[0].register_forward_hook(lambda m, args, out: out * 2, always_call=True),
    "forward_two": lambda net: [net[0].register_forward_hook(lambda m, args, out, k=k: out * k) for k in (2, 3)],
    "forward_prepended": lambda net: [net[0].register_forward_hook(lambda m, args, out, k=k: out * k + k, prepend=True)
                                      for k in (2, 3)],
    "pre": lambda net: net[0].register_forward_pre_hook(lambda m, args: args[0] + 1),
    "pre_tuple": lambda net: net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "pre_kwargs": lambda net: net[0].register_forward_pre_hook(lambda m, args, kwargs: ((args[0] + 1,), kwargs),
                                                               with_kwargs=True),
    "full_backward": lambda net: net[0].register_full_backward_hook(
        lambda m, gi, go: (gi[0] * 2,) if gi[0] is not None else None),
    "full_backward_pre": lambda net: net[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "stores_activation": lambda net: net[1].register_forward_hook(
        lambda m, args, out: setattr(m, "activation", out.detach())),
    "counts": lambda net: (setattr(net, "count", 0), net.register_forward_hook(
        lambda m, args, out: setattr(m, "count", m.count + 1))),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_hooks(name: str, training: bool) -> None:
    is_backward = "backward" in name
    fullgraph = not (is_backward and training)      # autograd.Function of torch's own; may be a break
    x = X.clone().requires_grad_(training)
    with torch.set_grad_enabled(training):
        check(hooked(HOOKS[name]), call(x), call(x), call(x), captures=1 if fullgraph else None, fullgraph=fullgraph,
              backward=training)


@pytest.mark.parametrize("register", [
    lambda: nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2),
    lambda: nn.modules.module.register_module_forward_pre_hook(lambda m, args: (args[0] + 1,)),
], ids=["forward", "forward_pre"])
def test_global_hooks(register: Callable) -> None:
    handle = register()
    try:
        check(sequential, call(X), call(X), call(X))
    finally:
        handle.remove()


@pytest.mark.parametrize("make", EVAL)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_model(make: Callable, training: bool) -> None:
    with torch.set_grad_enabled(training):
        check(make, call(X), call(X), call(X * 2), backward=training)


# --- normalised and parametrised weights, lazy modules, statistics, random numbers

class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def weighted(change: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        change(net[0])
        return net
    return make


WEIGHTS: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": weighted(parametrizations.weight_norm),
    "spectral_norm": weighted(parametrizations.spectral_norm),
    "orthogonal": weighted(parametrizations.orthogonal),
    "symmetric": weighted(lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric())),
    "two_parametrizations": weighted(lambda layer: [parametrize.register_parametrization(layer, "weight", Symmetric())
                                                    for _ in range(2)]),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [*WEIGHTS, "old_weight_norm", "old_spectral_norm"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_parametrized_weight(name: str, mode: str) -> None:
    make = WEIGHTS.get(name) or weighted(getattr(nn.utils, name.removeprefix("old_")))

    def build() -> nn.Module:
        return make().train(mode == "train")
    check(build, call(X), call(X), call(X), backward=True)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("make", [
    lambda: nn.BatchNorm1d(3),
    lambda: nn.BatchNorm1d(3, track_running_stats=False), lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)),
    lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.BatchNorm1d(3)), lambda: nn.RReLU(),
    lambda: nn.Sequential(nn.LayerNorm(3), nn.AlphaDropout(0.2)), lambda: nn.GroupNorm(3, 3),
], ids=["batch_norm", "untracked", "dropout", "mixed", "rrelu", "alpha_dropout", "group_norm"])
def test_statistics_and_random_numbers(make: Callable, mode: str) -> None:
    def build() -> nn.Module:
        return make().train(mode == "train")
    x = X.clone().requires_grad_()
    check(build, *[call(x)] * 4, backward=True, captures=1)


def test_a_cumulative_average_asks_for_the_value_of_a_counter() -> None:
    check(lambda: nn.BatchNorm1d(3, momentum=None), *[call(X)] * 4, captures=None, fullgraph=False)


def test_train_and_eval_alternate() -> None:
    check(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), call(X), call(X), lambda net: net.eval(), call(X),
          call(X), lambda net: net.train(), call(X), lambda net: net[1].eval(), call(X), captures=2)


@pytest.mark.parametrize("make", [
    lambda: nn.LazyLinear(2), lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2)),
], ids=["linear", "sequence"])
def test_lazy_modules(make: Callable) -> None:
    """The first call initialises the parameters, and may run natively."""
    check(make, call(X), call(X), call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("make", [
    lambda: nn.LazyLinear(2), lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2)),
    lambda: nn.LazyConv1d(2, 1)], ids=["linear", "sequence", "convolution"])
def test_lazy_modules_made_by_the_program(make: Callable) -> None:
    """The continuation of the break in the first module is given parameters without a shape."""
    def program(x):
        net = make()
        return net(x.sin()).cos(), [p.shape for p in net.parameters()]
    check(lambda: program, call(X), call(X), call(X), captures=None, fullgraph=False, backward=True)


SEQUENCE = torch.linspace(-1, 1, 24).reshape(2, 4, 3)
RECURRENT: dict[str, tuple[Callable[[], nn.Module], tuple]] = {
    "lstm": (lambda: nn.LSTM(3, 5, batch_first=True), (SEQUENCE,)),
    "lstm_two_layers_both_ways": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), (SEQUENCE,)),
    "lstm_with_state": (lambda: nn.LSTM(3, 5), (SEQUENCE, (torch.zeros(1, 4, 5), torch.zeros(1, 4, 5)))),
    "gru": (lambda: nn.GRU(3, 5, batch_first=True), (SEQUENCE,)),
    "rnn": (lambda: nn.RNN(3, 5, nonlinearity="relu"), (SEQUENCE,)),
    "lstm_cell": (lambda: nn.LSTMCell(3, 5), (X,)),
    "attention": (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (torch.ones(2, 4, 6),) * 3),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
                      (torch.ones(2, 4, 6).cumsum(2),)),
    "transformer": (lambda: nn.Transformer(6, 2, 1, 1, 8, dropout=0.1, batch_first=True),
                    (torch.ones(2, 4, 6).cumsum(2), torch.ones(2, 3, 6).cumsum(1))),
    "embedding": (lambda: nn.Embedding(10, 4, padding_idx=0), (torch.tensor([[0, 1], [2, 9]]),)),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, 4, mode="sum"), (torch.tensor([[0, 1], [2, 9]]),)),
    "conv": (lambda: nn.Sequential(nn.Conv1d(4, 2, 2, padding="same"), nn.MaxPool1d(2)), (SEQUENCE,)),
    "bilinear": (lambda: nn.Bilinear(3, 3, 2), (X, X)),
}


@pytest.mark.parametrize("mode", ["eval", "no_grad", "train"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_library_module(name: str, mode: str) -> None:
    make, arguments = RECURRENT[name]
    with torch.set_grad_enabled(mode != "no_grad"):
        check(lambda: make().train(mode == "train"), *[call(*arguments)] * 3, backward=mode != "no_grad")


# --- state that a forward changes

class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.history: list = []


def stateful(forward: Callable) -> Callable[[], nn.Module]:
    """A factory of modules whose forward is the function."""
    def make() -> nn.Module:
        return type("Custom", (Stateful,), {"forward": forward, "__qualname__": "stateful.<locals>.Custom"})()
    return make


def buffer_reassigned(self, x):
    self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
    return self.layer(x) + self.average


def buffer_written(self, x):
    self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    self.count += 1
    return self.layer(x) + self.average / self.count


def attribute_kept(self, x):
    self.last = self.layer(x)
    return self.last * 2


def lazily_created(self, x):
    if not hasattr(self, "cache"):
        self.cache = torch.arange(3.0)
    return self.layer(x) + self.cache


def lazily_created_by_none(self, x):
    if getattr(self, "table", None) is None:
        self.table = {"scale": torch.full((3,), 2.0)}
    return self.layer(x) * self.table["scale"]


def keyed_cache(self, x):
    caches = self.__dict__.setdefault("caches", {})
    if x.shape[0] not in caches:
        caches[x.shape[0]] = torch.ones(x.shape[0], 1)
    return self.layer(x) * caches[x.shape[0]]


def submodule_replaced(self, x):
    out = self.layer(x)
    self.layer = self.layer if self.training else nn.Identity()
    return out


def submodule_swapped(self, x):
    self.other, self.layer = self.layer, getattr(self, "other", self.layer)
    return self.layer(x)


def parameter_shared_in_forward(self, x):
    self.alias = self.layer.weight
    return x @ self.alias


def flag_toggled(self, x):
    self.flag = not getattr(self, "flag", False)
    return self.layer(x) if self.flag else -self.layer(x)


@pytest.mark.parametrize(("forward", "captures"), [
    (buffer_reassigned, 1), (buffer_written, 1), (attribute_kept, 2), (lazily_created, 2), (lazily_created_by_none, 2),
    (keyed_cache, 2), (submodule_swapped, 2), (parameter_shared_in_forward, 2), (submodule_replaced, 1),
    (flag_toggled, 3),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_forward_that_changes_its_module(forward: Callable, captures: int) -> None:
    """Each call counts; where the first call changes what the second one meets, that takes a second capture."""
    stats = check(stateful(forward), *[call(X)] * 5, captures=None)
    assert stats.captures <= captures and stats.hits == 5 - stats.captures and stats.breaks == stats.bailouts == 0


def test_a_new_module_made_in_forward() -> None:
    def forward(self, x):
        return nn.ReLU()(self.layer(x))
    check(stateful(forward), call(X), call(X), call(X), captures=None, fullgraph=False)


def test_modules_passed_as_arguments() -> None:
    layers = nn.Linear(3, 3), nn.Linear(3, 3)
    check(lambda: (lambda x, layer: layer(x)), *[call(X, layer) for layer in layers * 2])


# --- modules that the forward pass moves to where they are

class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x):
        y = self.first(x).relu()
        self.second = self.second.to(x.device)
        return self.second.to(x.dtype)(y).sin()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_module_is_moved_to_where_it_is(backend: str) -> None:
    """Each parameter's data is assigned to itself, which is no change; another dtype is one."""
    def make():
        net = Moving()
        return net, net

    def as_doubles(net):
        net.second.double()
    options = {"options": {"background": False}} if backend == "native" else {}
    check(make, *[call(X)] * 4, captures=2, backward=True, backend=backend, tolerance=1e-5, **options)
    check(make, *[call(X)] * 3, as_doubles, *[call(X)] * 3, captures=None, fullgraph=False, backward=True, backend=backend,
          tolerance=1e-5, **options)


def test_a_graph_with_a_module_that_stays_where_it_is_is_compiled() -> None:
    net = Moving()
    compiled = capture.compile(net, backend="native", options={"background": False})
    for _ in range(4):
        net.zero_grad()
        compiled(X).sum().backward()
    assert capture.wait(60)
    entry, = capture.report(compiled).frames[0].entries
    assert entry.graph.compiled == entry.graph.operations, entry.graph.state
