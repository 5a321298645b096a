"""Classes with `__torch_function__` as libraries and users write them."""
from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers import call_with, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class TV(torch.Tensor):
    """Like torchvision's."""
    @staticmethod
    def _to_tensor(data, dtype=None, device=None, requires_grad=None):
        if requires_grad is None:
            requires_grad = data.requires_grad if isinstance(data, torch.Tensor) else False
        return torch.as_tensor(data, dtype=dtype, device=device).requires_grad_(requires_grad)
    @classmethod
    def _wrap_output(cls, output, args=(), kwargs=None):
        if isinstance(output, torch.Tensor) and not isinstance(output, cls):
            output = output.as_subclass(cls)
        if isinstance(output, (tuple, list)):
            output = type(output)(cls._wrap_output(part, args, kwargs) for part in output)
        return output
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **kwargs or dict())
        if func in FORCE and isinstance(args[0], cls):
            return cls._wrap_output(output, args, kwargs)
        if isinstance(output, cls):
            return output.as_subclass(torch.Tensor)
        return output
    @property
    def shape(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape
    @property
    def ndim(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().ndim
    @property
    def device(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().device
    @property
    def dtype(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().dtype
    def __repr__(self):
        return f"TV({tuple(self.shape)})"


FORCE = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_}


class Boxes(TV):
    @classmethod
    def _wrap(cls, tensor, *, fmt, size):
        b = tensor.as_subclass(cls)
        b.fmt, b.size_ = fmt, size
        return b
    def __new__(cls, data, *, fmt, size, dtype=None):
        return cls._wrap(cls._to_tensor(data, dtype=dtype), fmt=fmt, size=size)
    @classmethod
    def _wrap_output(cls, output, args=(), kwargs=None):
        flat = [a for a in args if isinstance(a, Boxes)]
        if isinstance(output, torch.Tensor) and not isinstance(output, Boxes):
            output = Boxes._wrap(output, fmt=flat[0].fmt, size=flat[0].size_)
        return output


@programs.make(X)
def tv_tensors():
    state = SimpleNamespace(boxes=Boxes(X[:, :2], fmt="xyxy", size=(3, 4)))
    def program(x):
        b = state.boxes
        c = b.clone()
        y = b + x[:, :2]
        d = Boxes(x, fmt="xywh", size=(1, 2))
        kinds = type(y), type(c), isinstance(d, torch.Tensor)
        return (y, c, kinds, c.fmt, c.size_, b.shape, b.ndim, b.dtype, b.device, d.fmt, d * 2, repr(d), f"{b}",
                d.to(torch.float64).fmt, F.relu(b))
    return program, state


class Param(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


LOG = []


@programs.make(X, backward=True, captures=2)
def a_parameter():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = Param(torch.tensor([1.0, 2.0, 3.0]))
            self.b = nn.Parameter(torch.zeros(3))
        def forward(self, x):
            y = x * self.w + self.b
            return F.dropout(y, 0.5, False).sum(), y.requires_grad, self.w.grad is None
    m = M()
    return m, m


@programs.make(X, captures=2)
def iteration_and_writes():
    class Traced(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})
    asked = []
    state = SimpleNamespace(t=torch.ones(2, 3).as_subclass(Traced), asked=asked, plain=torch.zeros(2, 3))
    def program(x):
        asked.clear()
        for row in state.t:
            row += 1
        state.t.add_(x)
        state.t[0] = 5
        state.t[:, 1] *= 2
        state.plain.copy_(state.t)
        state.plain.add_(state.t)
        a, b = state.t
        out = torch.add(x, 1, out=state.plain)
        m, i = state.t.max(0)
        t = state.t
        told = t.shape, t.dtype, len(t), t.numel()
        return (a, b, out is state.plain, m, i, told, t.new_zeros(3), torch.zeros_like(t), t.detach(), t.data, [*t], sum(t))
    return program, state


@programs.make(X)
def values_read():
    class Traced(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)
    state = SimpleNamespace(t=torch.tensor([2.0]).as_subclass(Traced), n=torch.tensor(3).as_subclass(Traced))
    def program(x):
        v = state.t.item()
        state.seen = v
        print(v, state.n.item())
        traced = x.as_subclass(Traced)
        return (v, x * state.t.item(), state.n.tolist(), x.to(state.t), x.view_as(traced), state.t.is_floating_point(),
                torch.is_tensor(state.t))
    return program, state


@programs.make(X)
def all_not_implemented():
    class No(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented
    n = torch.ones(3).as_subclass(No)
    def program(x):
        texts = []
        for f in (lambda: torch.add(n, x), lambda: n + x, lambda: x * n, lambda: n.sum(), lambda: n.shape, lambda: F.softmax(n, 0),
                  lambda: n == x, lambda: torch.cat([n, n]), lambda: -n, lambda: n[0], lambda: setattr(n, "requires_grad", True),
                  lambda: F.gelu(n), lambda: n.relu_()):
            try:
                f()
            except TypeError as e:
                texts.append(str(e))
        return texts, x + 1
    return program


class Raiser(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            raise ValueError("no products")
        if func is torch.Tensor.add:
            raise TypeError("no sums")
        return super().__torch_function__(func, types, args, kwargs)


@programs.add(X)
def handlers_that_raise(x):
    r = x.as_subclass(Raiser)
    seen = []
    for f in (lambda: r * 2, lambda: r + 1, lambda: 1 + r, lambda: x + r, lambda: r.add(1), lambda: torch.relu(r)):
        try:
            seen.append(f())
        except (ValueError, TypeError) as e:
            seen.append((type(e).__name__, str(e)))
    return seen


class Tagged(torch.Tensor):
    """With an own constructor, attributes and an own repr."""
    def __new__(cls, x, tag, *args, **kwargs):
        return super().__new__(cls, x, *args, **kwargs)
    def __init__(self, x, tag):
        self.tag = tag
    def clone(self, *args, **kwargs):
        return Tagged(super().clone(*args, **kwargs), self.tag)
    def to(self, *args, **kwargs):
        new = Tagged([], self.tag)
        new.data = super().to(*args, **kwargs).data
        return new


@programs.add(X)
def a_class_of_the_tutorial(x):
    t = Tagged(x, "a")
    c = t.clone()
    return t, c.tag, type(c), c + 1, type(c + 1)


class Interp(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            return func(*args, **kwargs) * 2
        return func(*args, **kwargs)


@programs.make(X, backward=True)
def a_mode_around_a_module():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    def program(x):
        with Interp():
            y = net(x)
        return y, y.sum()
    return program, net


@programs.add(X)
def default_devices(x):
    with torch.device("cpu"):
        a = torch.zeros(3)
        t = x.as_subclass(Raiser).abs()
        b = torch.ones(3)
    return a + b + t.as_subclass(torch.Tensor), type(t)


class ScalarTensor:
    def __init__(self, N, value): self._N, self._value = N, value
    def tensor(self): return self._value * torch.eye(self._N)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.tensor() if hasattr(a, 'tensor') else a for a in args]
        return func(*args, **(kwargs or {}))


@programs.add(X)
def scalar_tensors(x):
    s = ScalarTensor(3, 2.0)
    return (torch.mean(s), x @ s, torch.matmul(s, x.t()), torch.cat((x, torch.mul(s, 2))), F.relu(s),
            torch.einsum("ij,jk->ik", x, s))


@programs.make(X, change=lambda s: setattr(s, "t", torch.full((3,), 2.0).as_subclass(torch.nn.Parameter)), captures=2)
def changes_class():
    s = SimpleNamespace(t=torch.ones(3).as_subclass(Raiser))
    return (lambda x: (x - s.t, type(x - s.t))), s


test_programs = programs.test()


def test_arguments():
    class Meta(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            r = super().__torch_function__(func, types, args, kwargs)
            if isinstance(r, torch.Tensor):
                r.note = func.__name__
            return r
    def make():
        state = SimpleNamespace(a=X.clone().as_subclass(Meta), b=(X + 1).as_subclass(Meta))
        return (lambda a, b: (a + b, (a - b).note, a.relu().note)), state
    check(make, call_with(lambda s: (s.a, s.b)), call_with(lambda s: (s.a, s.b)), call_with(lambda s: (s.b, s.a)),
          call_with(lambda s: (s.a, s.a)), captures=None)
