"""Classes and modes that have a say in what functions of torch do: `__torch_function__`."""
from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()
LOG: list[str] = []


class Counting(torch.Tensor):
    """Which has a say in what operations do."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Loud(torch.Tensor):
    """Which redefines an operator, a method and an attribute."""

    def __mul__(self, other):
        return torch.Tensor.add(self, other)

    def relu(self):
        return self.as_subclass(torch.Tensor).abs()

    @property
    def T(self):
        return "transposed"

    def __len__(self):
        return 7


class Logging(torch.Tensor):
    """Which says what is done."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print(func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or {}))
        return super().__torch_function__(func, types, args, {} if kwargs is None else kwargs)


class Unit(torch.Tensor):
    """Which has an attribute of its own, passed on by operations."""

    @staticmethod
    def __new__(cls, data, unit="m"):
        made = torch.as_tensor(data, dtype=torch.float32).as_subclass(cls)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = [a.unit for a in args if isinstance(a, cls)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor):
            return result
        result = result.as_subclass(cls)
        result.unit = "·".join(units) if func in (torch.mul, torch.Tensor.mul) else units[0] if units else "?"
        return result


HANDLED = {}


def implements(*functions):
    def register(implementation):
        HANDLED.update(dict.fromkeys(functions, implementation))
        return implementation
    return register


class Diagonal:
    """No tensor, but something that functions of torch take."""

    def __init__(self, n, value):
        self.n, self.value = n, value

    def dense(self):
        return self.value * torch.eye(self.n)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


@implements(torch.mean)
def mean(x):
    return float(x.value) / x.n


@implements(torch.add, torch.Tensor.add)
def add(x, y):
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        return Diagonal(x.n, x.value + y.value)
    return torch.add(*(part.dense() if isinstance(part, Diagonal) else part for part in (x, y)))


@implements(torch.matmul, torch.Tensor.matmul)
def matmul(x, y):
    return torch.matmul(*(part.dense() if isinstance(part, Diagonal) else part for part in (x, y)))


class Wrapped:
    """A tensor and its history, unwrapped and wrapped around each call."""

    def __init__(self, tensor, history=()):
        self.tensor, self.history = tensor, history

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        history = tuple(name for a in args if isinstance(a, cls) for name in a.history)
        args = [a.tensor if isinstance(a, cls) else a for a in args]
        result = func(*args, **(kwargs or {}))
        return cls(result, (*history, func.__name__))


class Recording(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(torch.overrides.resolve_name(func) or func.__name__)
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


@programs.make(X, backward=False)
def a_class_that_counts():
    Counting.calls = 0
    state = SimpleNamespace(table=X.clone().as_subclass(Counting), counting=Counting)

    def program(x):
        y = torch.relu(x * state.table) + 1
        return y, type(y), y.sum(), y[0], y.shape, len(y), y.mean(dim=1, keepdim=True), -y, 2 - y, y @ x.t(), Counting.calls
    return program, state


@programs.make(X, change=lambda state: setattr(state, "table", torch.full((3,), 5.0).as_subclass(Logging)))
def a_class_that_prints():
    state = SimpleNamespace(table=torch.tensor([1.0, 2.0, 3.0]).as_subclass(Logging))

    def program(x):
        y = torch.stack([state.table * 2, state.table]) + x
        z = F.softmax(F.layer_norm(y, (3,)), dim=-1)
        return z, torch.cat([z, x]), z.view(3, 2), z.unsqueeze(0).size(), z.T, z.grad, z.requires_grad, F.linear(z, x, None)
    return program, state


@programs.add(X)
def a_class_made_inside(x):
    noted = x.as_subclass(Logging)
    noted.origin = "input"
    noted.mul_(2)
    noted[0] = 1.0
    first, *rest = noted
    return noted, noted.origin, first, rest, noted.max(dim=1).values, noted.split(1), torch.max(noted, 1), x


@programs.make(X)
def operations_that_are_redefined():
    state = SimpleNamespace(x=X.clone().as_subclass(Loud))

    def program(x):
        return state.x * x, x * state.x, state.x.relu(), torch.relu(state.x), state.x.T, len(state.x), type(state.x + 1), x - 1
    return program, state


@programs.make(X, change=lambda state: setattr(state.length, "unit", "km"), captures=2)
def attributes_that_are_passed_on():
    state = SimpleNamespace(length=Unit([2.0, 3.0, 4.0]))

    def program(x):
        area = state.length * state.length + 1
        made = Unit(x, "s")
        return area, area.unit, (made * state.length).unit, made.sum().unit, made.unit
    return program, state


@programs.add(X)
def results_that_are_changed(x):
    return x.as_subclass(Doubled).add(1).as_subclass(torch.Tensor) * 3, torch.add(x.as_subclass(Doubled), 1)


class Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function is torch.Tensor.add else result


@programs.add(X)
def objects_that_are_no_tensors(x):
    d = Diagonal(3, 2.0)
    try:
        torch.sub(d, x)
    except TypeError as error:
        text = str(error).replace(f"{__name__}.", "")
    total = torch.add(d, Diagonal(3, 1.0))
    return torch.mean(d), torch.matmul(x, d), torch.add(d, torch.ones(3, 3)), total.value, total.n, text


@programs.add(X)
def wrapped_tensors(x):
    w = torch.add(torch.relu(Wrapped(x)), Wrapped(x, ("made",)))
    return w.tensor, w.history, torch.nn.functional.gelu(w).tensor, torch.stack([x, x]).sum()


@programs.add(X)
def modes(x):
    log = []
    with Recording(log):
        y = torch.relu(x) + torch.zeros(3)
        y = F.softmax(y, dim=0).view(-1)
        with Doubling():
            z = torch.relu(x).sum()
        n = y.shape[0]
    return y, z, n, log, torch.relu(x)


@programs.make(X)
def a_mode_from_outside():
    state = SimpleNamespace(mode=Recording([]))

    def program(x):
        with state.mode:
            y = x.exp()
            state.mode.log.append("between")
        return y * 2
    return program, state


@programs.add(X)
def functions_that_are_not_asked(x):
    t = x.as_subclass(Logging)
    with torch._C.DisableTorchFunctionSubclass():
        y = t * 2
        kind = type(y), type(t)
    return y, kind, type(t * 2), torch.overrides.has_torch_function((t,)), torch.overrides.is_tensor_like(t)


@programs.add(X)
def two_classes(x):
    class_a, class_b = x.as_subclass(First), (x + 1).as_subclass(Second)
    return class_a + class_b, class_b + class_a, torch.cat([class_a, class_b]), type(class_b * class_b)


class First(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print("first", func.__name__, [t.__name__ for t in types])
        if any(issubclass(t, Second) for t in types):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Second(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print("second", func.__name__, [t.__name__ for t in types])
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.as_subclass(func(*args, **(kwargs or {})), cls)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.linear(x)).relu().mean()


@programs.make(X, backward=True)
def a_module_on_a_class():
    torch.manual_seed(0)
    layer = Layer()
    return lambda x: layer(x.as_subclass(Logging)), layer


@programs.make(X)
def a_decorator_that_dispatches():
    def instrument(function):
        @functools.wraps(function)
        def wrapper(x):
            with Recording(LOG):
                return function(x)
        return wrapper
    LOG.clear()
    return instrument(lambda x: (x.sin() + 1, LOG.pop(), LOG.pop())), LOG


test_torch_function = programs.test()


def test_a_function_that_a_class_overrides_differently_later() -> None:
    class Late(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)

    def changed(cls, func, types, args=(), kwargs=None):
        return "changed"
    x = X.clone().as_subclass(Late)
    compiled = capture.compile(lambda t: t * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x).as_subclass(torch.Tensor), X * 2) and type(compiled(x)) is Late
    Late.__torch_function__ = classmethod(changed)
    assert compiled(x) == "changed"


def test_calls_inside_of_a_mode_run_natively() -> None:
    log = []
    compiled = capture.compile(lambda x: torch.relu(x) * 2, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(X)
        with Recording(log):
            compiled(X)
    assert len(log) == 6
    assert capture.stats(compiled).captures == 1


def test_a_break_in_a_handler() -> None:
    class Breaking(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs)
            if func is torch.Tensor.mul:
                print(id(result) > 0, bool(result.as_subclass(torch.Tensor).sum() > 1000))
                torch.save({}, "/dev/null")
            return result

    def make():
        state = SimpleNamespace(x=X.clone().as_subclass(Breaking))
        return (lambda x: (state.x * x + 1, type(state.x))), state
    check(make, call(X), call(X), call(X * 1000), call(X), fullgraph=False, captures=None, breaks=None)


def test_graphs_are_compiled_without_the_classes() -> None:
    def make():
        state = SimpleNamespace(table=X.clone().as_subclass(Doubled), scale=torch.ones(3, requires_grad=True), sums=X.clone())
        kept = torch.zeros(3).as_subclass(Doubled)

        def program(x):
            y = torch.relu(x * state.table * state.scale) + 1
            kept.add_(y.sum(0).detach())
            return y, kept.as_subclass(torch.Tensor), y.as_subclass(torch.Tensor), kept
        return program, state
    stats = check(make, *[call(X)] * 4, backend="native", options={"background": False}, backward=True, tolerance=1e-6)
    assert stats.compiled == 1


def test_graphs_that_tell_classes_apart_run_as_they_are() -> None:
    def make():
        state = SimpleNamespace(table=X.clone().as_subclass(Doubled), out=torch.zeros(2, 3).as_subclass(Logging))

        def program(x):
            state.out.t_()
            torch.add(x, 1, out=state.table)
            return state.table * 2, state.out.shape, state.out.unsqueeze_(0).shape, state.out.squeeze_(0).t_()
        return program, state
    stats = check(make, *[call(X)] * 4, backend="native", options={"background": False}, captures=None)
    assert stats.compiled == 0
