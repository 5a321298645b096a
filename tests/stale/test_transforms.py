"""Calls under torch's own modes and transforms, before and after plain calls: none of them may use the other's trace."""
from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import capture
from tests.stale.cases import X

WEIGHT = torch.nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))


def program(x):
    return torch.tanh(x @ WEIGHT).sum(-1)


class Doubled(TorchFunctionMode):
    """Doubles the result of tanh."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.tanh else result


class Counted(TorchDispatchMode):
    """Counts operations, and changes one of them."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ops.aten.tanh.default else result


class Tagged(torch.Tensor):
    """A subclass with the default `__torch_function__`."""


class Halved(torch.Tensor):
    """A subclass that changes what functions do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result / 2 if function is torch.tanh else result


def forward_mode(f: Callable) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = f(torch.autograd.forward_ad.make_dual(X.clone(), torch.ones_like(X)))
        return torch.stack(torch.autograd.forward_ad.unpack_dual(dual))


def saved_in_double(f: Callable) -> torch.Tensor:
    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = f(x)
    return torch.autograd.grad(y.sum(), x)[0]


def traced(f: Callable) -> torch.Tensor:
    WEIGHT.requires_grad_(False)        # or the tracer cannot keep it as a constant
    try:
        return torch.jit.trace(lambda x: f(x), X, check_trace=False)(X * 2)
    finally:
        WEIGHT.requires_grad_(True)


def made_fx(f: Callable) -> torch.Tensor:
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(lambda x: f(x))(X)(X * 2)


def entered(mode: Callable[[], contextlib.AbstractContextManager]) -> Callable[[Callable], torch.Tensor]:
    def call(f: Callable) -> torch.Tensor:
        with mode():
            return f(X.clone())
    return call


def fake(f: Callable) -> torch.Tensor:
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shape = f(mode.from_tensor(X)).shape
    return torch.zeros(shape)


WAYS: dict[str, Callable[[Callable], torch.Tensor]] = {
    "function_mode": entered(Doubled), "dispatch_mode": entered(Counted),
    "disabled_torch_function": entered(torch._C.DisableTorchFunctionSubclass),
    "vmap": lambda f: torch.vmap(f)(torch.stack([X, X + 1])), "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X.clone()),
    "jacrev": lambda f: torch.func.jacrev(f)(X.clone()), "jvp": lambda f: torch.func.jvp(f, (X,), (X,))[1],
    "per_sample_grad": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(X.clone()),
    "forward_mode": forward_mode, "saved_tensors_hooks": saved_in_double, "jit_trace": traced, "make_fx": made_fx,
    "subclass": lambda f: f(X.clone().as_subclass(Tagged)), "subclass_with_function": lambda f: f(X.clone().as_subclass(Halved)),
    "anomaly": entered(torch.autograd.detect_anomaly), "fake": fake,
    "hessian": lambda f: torch.autograd.functional.hessian(lambda x: f(x).sum(), X.clone()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", ["plain", "way"])
@pytest.mark.parametrize("name", WAYS)
def test_a_way_of_calling(name: str, first: str) -> None:
    way, plain = WAYS[name], lambda f: f(X.clone())
    ways = [plain, plain, way, way, plain] if first == "plain" else [way, way, plain, plain, way]
    compiled = capture.compile(program)
    for number, call in enumerate(ways):
        ours, theirs = call(compiled), call(program)
        assert type(ours) is type(theirs), (number, type(ours), type(theirs))
        assert torch.equal(ours, theirs), (number, ours, theirs)
        assert ours.requires_grad == theirs.requires_grad, number
