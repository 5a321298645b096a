"""TorchScript: scripted functions are operations; scripted modules run as they are."""
from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check


@torch.jit.script
def scripted(x: torch.Tensor, n: int, scale: float = 2.0):
    first, second = x[:n], x[n:]
    if n > 1:
        first = first * scale
    return first, second.relu(), [x, first]


@torch.jit.script
def scripted_in_place(x: torch.Tensor):
    x.mul_(2)
    return x


@torch.jit.script
def scripted_twice(x: torch.Tensor):
    return x + x


@torch.jit.script
def scripted_decision(x: torch.Tensor):
    if bool(x.sum() > 0):
        return x[:1]
    return x


@torch.jit.script
def scripted_shape(x: torch.Tensor):
    return x.nonzero()


def test_a_scripted_function_is_one_operation() -> None:
    def make():
        return lambda x, n: [t * 2 for t in scripted(x.sin(), n, scale=3.0)[:2]]
    check(make, call(torch.ones(3, requires_grad=True), 1), call(torch.zeros(3, requires_grad=True), 1), captures=1, hits=1,
          backward=True)
    check(make, call(torch.ones(3), 1), call(torch.ones(3), 2), call(torch.zeros(3), 2), captures=2, hits=1)


def test_what_a_scripted_function_returns_may_be_its_argument() -> None:
    check(lambda: lambda x: scripted(x, 2), call(torch.ones(3)), call(torch.zeros(3)))


def test_a_scripted_function_may_write_to_its_arguments() -> None:
    def make():
        def program(x, y):
            z = x + 1
            return scripted_in_place(x) is x, scripted_in_place(z) + y, x * y
        return program
    check(make, call(torch.ones(3), torch.ones(3)), call(torch.ones(3), torch.zeros(3)))
    tensor = torch.ones(3)                      # the two may be one
    check(make, call(torch.ones(3), torch.ones(3)), call(tensor, tensor), call(tensor, tensor), captures=2, hits=1)


@pytest.mark.parametrize("function", [scripted_decision, scripted_shape])
def test_a_scripted_function_that_asks_for_values_breaks(function) -> None:
    check(lambda: lambda x: function(x * 2) + 1, call(torch.ones(3)), call(-torch.ones(3)), call(torch.zeros(3)), captures=None,
          fullgraph=False)


@torch.jit.script
def scripted_grad(x: torch.Tensor):
    grad = x.grad
    return x.detach() if grad is None else x.detach() + grad[:1]


@torch.jit.script
def scripted_data(x: torch.Tensor):
    x.data.mul_(2)
    return x.detach()[:1]


@torch.jit.script
def scripted_offset(x: torch.Tensor):
    return x.detach()[:1] if x.storage_offset() > 0 else x.detach()


@torch.jit.script
def scripted_backward(x: torch.Tensor):
    x.sum().backward()
    return x.detach() * 2


@torch.jit.script
def scripted_seed(x: torch.Tensor):
    torch.manual_seed(3)
    return x.detach() * 2


REACHING = {"grad": scripted_grad, "data": scripted_data, "offset": scripted_offset, "backward": scripted_backward,
            "seed": scripted_seed}


@pytest.mark.parametrize("function", REACHING.values(), ids=REACHING)
def test_a_scripted_function_that_reaches_further_breaks(function) -> None:
    """What no one knows of a step is feared."""
    def make():
        x = nn.Parameter(torch.ones(3))

        def program(shift):
            y = function(x)
            return y + shift, y.shape[0], x.detach().clone(), None if x.grad is None else x.grad.clone(), torch.rand(1)
        return program, x

    def new_grad(x):
        x.grad = torch.full((3,), 2.0)

    def move(x):
        x.data = torch.ones(5)[2:]
    check(make, call(torch.ones(1)), call(torch.zeros(1)), new_grad, call(torch.ones(1)), call(torch.zeros(1)), move,
          call(torch.ones(1)), captures=None, fullgraph=False)


def test_another_scripted_function_is_another_capture() -> None:
    def make():
        state = SimpleNamespace(f=scripted_in_place)
        return lambda x: state.f(x.clone()), state
    check(make, call(torch.ones(3)), call(torch.zeros(3)), lambda s: setattr(s, "f", scripted_twice),
          call(-torch.ones(3)), call(torch.ones(3)), captures=2, hits=2)


class Scripted(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.jit.script_method
    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("make", [Scripted, lambda: torch.jit.script(nn.Linear(3, 3)),
                                  lambda: torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))])
def test_a_scripted_module_runs_as_it_is(make: Callable[[], nn.Module]) -> None:
    module = make()
    compiled = capture.compile(module, backend="eager")
    assert isinstance(compiled, torch.jit.ScriptModule)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert torch.equal(compiled(x), module(x))
    with torch.no_grad():
        next(compiled.parameters()).zero_()
    assert torch.equal(compiled(x), module(x))
    assert not compiled.eval().training and not module.training
    assert capture.stats(compiled).bailouts == 0


class Block(nn.Module):
    def __init__(self, scale: float = 2.0):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
        self.norm = nn.BatchNorm1d(3)
        self.scale = scale
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x, twice: bool = False):
        y = self.norm(self.inner(x)) * self.scale + self.shift
        if twice:
            y = y + y
        return y


class Around(nn.Module):
    def __init__(self, make, training: bool):
        super().__init__()
        self.scripted = make()
        self.train(training)

    def forward(self, x):
        return self.scripted(x.relu()) * 2


SCRIPTED = {"script": lambda: torch.jit.script(Block()),
            "trace": lambda: torch.jit.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.ones(2, 3)), "class": Scripted,
            "frozen": lambda: torch.jit.freeze(torch.jit.script(Block().eval()))}
INPUT = torch.arange(6.0).view(2, 3) - 2


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("make", SCRIPTED.values(), ids=SCRIPTED)
def test_a_scripted_module_inside_of_a_model(make, training) -> None:
    if make is SCRIPTED["frozen"] and training:
        return
    check(lambda: Around(make, training), call(INPUT), call(INPUT), call(INPUT + 1), call(INPUT), captures=None,
          backward=make is not SCRIPTED["frozen"])


def shift_in_place(model):
    model.scripted.shift.add_(1)


def other_shift(model):
    model.scripted.shift = torch.ones(1, 3)


def scale(model):
    model.scripted.scale = 3.0


def without_gradients(model):
    model.scripted.inner[0].weight.requires_grad_(False)


def to_eval(model):
    model.eval()


def another(model):
    model.scripted = torch.jit.script(Block(5.0))


@pytest.mark.parametrize("change", [shift_in_place, other_shift, scale, without_gradients, to_eval, another],
                         ids=lambda f: f.__name__)
def test_what_a_scripted_module_holds_changes(change) -> None:
    check(lambda: Around(SCRIPTED["script"], True), call(INPUT), call(INPUT), call(INPUT), change, call(INPUT), call(INPUT),
          captures=None, backward=True)


def test_attributes_of_a_scripted_module() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scripted = torch.jit.script(Block())

        def forward(self, x):
            if self.scripted.training:
                x = x + 1
            inner = self.scripted.inner
            return x * self.scripted.scale + self.scripted.shift + self.scripted.inner(x), inner is self.scripted.inner
    check(Net, call(INPUT), call(INPUT), lambda model: model.eval(), call(INPUT), call(INPUT), captures=None)


class Deciding(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            return x[:1]
        return x


def test_a_scripted_module_that_asks_for_values_breaks_locally() -> None:
    check(lambda: Around(lambda: torch.jit.script(Deciding()), True), call(INPUT), call(INPUT), call(-INPUT), captures=None,
          fullgraph=False)


def test_a_graph_does_not_keep_a_scripted_module_alive() -> None:
    model = Around(SCRIPTED["script"], True)
    compiled = capture.compile(model, backend="eager")
    for _ in range(3):
        compiled(INPUT)
    dead = weakref.ref(model.scripted)
    model.scripted = nn.Identity()
    gc.collect()
    assert dead() is None
    assert torch.equal(compiled(INPUT), INPUT.relu() * 2)
