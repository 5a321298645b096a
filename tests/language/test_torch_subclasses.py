"""Tensors of classes of the program's own, and parameters that are yet to get their shapes."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from capture.errors import GraphBreakError
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class Named(nn.Parameter):
    """A parameter with a name and a method."""

    def __new__(cls, data, name="none", requires_grad=True):
        made = super().__new__(cls, data, requires_grad)
        made.label = name
        return made

    def scaled(self, factor):
        return self * factor

    def __repr__(self):
        return f"Named({self.label})"


class Embedded(torch.Tensor):
    """Whose operations return more of its kind."""

    def doubled(self):
        return self * 2


class Quiet(torch.Tensor):
    """Whose operations return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Named(torch.tensor([1.0, 2.0, 3.0]), "w")

    def forward(self, x):
        return (x * self.weight).sum() + self.weight.scaled(2.0), self.weight.label, type(self.weight), type(self.weight * 1)


@programs.make(X, change=lambda layer: setattr(layer.weight, "label", "other"), backward=True)
def a_parameter_of_a_class_of_its_own():
    layer = Layer()
    return layer, layer


@programs.add(X)
def parameters_made_inside(x):
    weight = Named(torch.ones(3), "inner")
    return x * weight.scaled(3.0), weight.label, isinstance(weight, nn.Parameter), weight.requires_grad, type(weight.data)


class Redefining(nn.Parameter):
    """A parameter with an operator and a method of its own; it has no `__torch_function__`."""

    def __matmul__(self, other):
        return torch.matmul(self.detach(), other) + 1

    def relu(self):
        return torch.relu(self) * 2


@programs.make(X)
def parameters_that_redefine_operators():
    outside = Redefining(torch.arange(3.0))

    def program(x):
        inside = x.as_subclass(Redefining)
        return (x * (outside * 3.0), outside @ x.T, x @ outside, nn.functional.linear(x, outside[None]), outside.relu(), inside * 2,
                type(inside + 1), torch.cat([inside, x]), torch.relu(inside), -outside, outside.sum())
    return program, SimpleNamespace(outside=outside)


@programs.make(X, change=lambda state: setattr(state, "table", torch.full((3,), 5.0).as_subclass(Embedded)))
def operations_that_keep_the_class():
    state = SimpleNamespace(table=torch.tensor([1.0, 2.0, 3.0]).as_subclass(Embedded))

    def program(x):
        y = torch.relu(x * state.table).doubled()
        return y, type(y), isinstance(y, Embedded), torch.cat([y, x]).shape, type(y.as_subclass(torch.Tensor)), y.detach()
    return program, state


@programs.add(X)
def classes_given_inside(x):
    noted = x.as_subclass(Embedded)
    noted.origin = "input"
    quiet = x.as_subclass(Quiet)
    return type(noted + 1), noted.origin, hasattr(noted + 1, "origin"), type(quiet), type(quiet * 2), quiet.sum() + noted.sum()


@programs.make(X)
def printed():
    state = SimpleNamespace(table=X.clone().as_subclass(Embedded), frozen=nn.Parameter(torch.ones(2), requires_grad=False),
                            loose=nn.Parameter(torch.zeros(2)))

    def program(x):
        state.table.mul_(2)
        print(state.table, state.frozen, [state.loose], f"{state.frozen} {state.table}", x.as_subclass(Embedded))
        state.frozen.add_(1)
        return x + 1, str(state.frozen), repr(state.table)
    return program, state


METHODS = [f"__{name}__" for name in (
    "eq ne lt ge add radd sub rsub mul pow rpow matmul mod floordiv truediv rtruediv neg abs len getitem contains").split()]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("cls", [torch.Tensor, Embedded])
def test_methods_of_operators_called_by_name(cls, name) -> None:
    special = {"__getitem__": (0,), "__contains__": (1.0,), "__neg__": (), "__abs__": (), "__len__": (), "__matmul__": (X.T,)}
    arguments = special.get(name, (X[:, :2] @ X[:2],))

    def make():
        state = SimpleNamespace(x=X.clone().as_subclass(cls))
        return (lambda: (getattr(torch.Tensor, name)(state.x, *arguments), getattr(state.x, name)(*arguments))), state
    check(make, call(), call(), call(), captures=None, fullgraph=name != "__contains__", breaks=None)


test_subclasses = programs.test()


def test_a_class_that_takes_over_operators_breaks() -> None:
    class Dispatching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))
    x = torch.Tensor._make_subclass(Dispatching, X)
    compiled = capture.compile(lambda: x * 2 + 1, fullgraph=True)
    with pytest.raises(GraphBreakError) as caught:
        compiled()
    assert caught.value.reason.id == "unsupported-tensor"


@pytest.mark.parametrize("program", [
    lambda state, x: torch.add(x, 1, out=state.traced), lambda state, x: state.traced + x, lambda state, x: len(state.traced),
    lambda state, x: (state.traced, x * 2), lambda state, x: state.traced.mul_(x), lambda state, x: state.traced[0].shape,
    lambda state, x: x + 1 if state.one else x, lambda state, x: x * int(state.one), lambda state, x: state.one.add_(1)])
def test_a_class_is_asked_for_what_the_program_does_and_no_more(program) -> None:
    def make():
        state = SimpleNamespace(asked=[])

        class Traced(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                state.asked.append(func.__name__)
                return super().__torch_function__(func, types, args, kwargs or {})
        state.traced, state.one = torch.ones(2, 3).as_subclass(Traced), torch.ones(1).as_subclass(Traced)
        return (lambda x: program(state, x)), state
    check(make, *[call(X)] * 4, fullgraph=False, captures=None, breaks=None)


def test_a_class_that_comes_to_redefine_an_operation() -> None:
    class Late(torch.Tensor):
        pass
    x = X.clone().as_subclass(Late)
    compiled = capture.compile(lambda t: t * 2, backend="eager")
    assert torch.equal(compiled(x), X * 2) and torch.equal(compiled(x), X * 2)
    Late.__mul__ = lambda self, other: torch.Tensor.add(self, other)
    assert torch.equal(compiled(x), X + 2)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.LazyConv1d(4, 1), nn.LazyBatchNorm1d(), nn.LazyLinear(2)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu())


def test_lazy_modules() -> None:
    x = X.clone()[:, :, None]

    def make():
        module = Lazy()
        return module, module
    check(make, call(x), call(x), call(x * 2), hits=1)


def test_lazy_modules_without_fullgraph() -> None:
    def make():
        module = Lazy()
        return module, module
    x = X.clone()[:, :, None]
    check(make, call(x), call(x), call(x * 2), fullgraph=False, captures=None)


def refuse(*args, **kwargs):
    raise ValueError("asked")


class Refusing(torch.Tensor):
    """Which answers no question of torch's."""

    __torch_function__ = classmethod(refuse)
    as_subclass = detach = clone = numel = requires_grad_ = refuse
    data = shape = property(refuse)


class Mute(torch.Tensor):
    """Whose methods fail, while torch asks its class nothing."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    as_subclass = detach = clone = numel = refuse


class Hidden(torch.Tensor):
    """Whose methods cannot be found."""

    def __getattribute__(self, name):
        if name in ("as_subclass", "detach", "clone"):
            raise ValueError(name)
        return super().__getattribute__(name)


def caught(x, s):
    try:
        return x * 2, type(s + 1).__name__
    except ValueError as error:
        return x * 3, str(error)


def unasked(x, s):
    with torch._C.DisableTorchFunction():
        return torch.add(s, x), torch.mul(s, 2)


TAKES = {
    "plain": lambda x, s: torch.Tensor.as_subclass(s, torch.Tensor) + x, "plain twice": lambda x, s: torch.Tensor.as_subclass(
        torch.Tensor.as_subclass(s, torch.Tensor) * 2, Quiet), "sibling": lambda x, s: torch.Tensor.as_subclass(s, Quiet),
    "made": lambda x, s: torch.Tensor._make_subclass(Quiet, s), "new": lambda x, s: torch.Tensor.__new__(Quiet, s),
    "operator": caught, "switched off": unasked, "identity": lambda x, s: (x + 1, s is x, hash(s) == id(s)),
    "only looked at": lambda x, s: (x + 1, type(s).__name__, isinstance(s, torch.Tensor)),
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("cls", [Refusing, Mute, Hidden], ids=lambda cls: cls.__name__)
def test_a_class_that_refuses_questions_is_asked_none_of_ours(cls, take) -> None:
    def make():
        tensor = torch.Tensor.as_subclass(torch.ones(2), cls)
        def f(x):
            return TAKES[take](x, tensor)
        return f
    check(make, *[call(torch.ones(2))] * 4, captures=None, fullgraph=False)
