"""Changes after which `torch.compile` is known to go on with a stale graph, or to lose what eager mode reports."""
from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import capture
from tests.helpers import call, call_with, check
from tests.stale.cases import Table, X, edits, exchange, run, user_module

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_a_change_is_seen(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act, self.linear = nn.ReLU(), nn.Linear(3, 3)

    def forward(self, x):
        return self.act(self.linear(x))


# --- hooks

@CHANGES.add()
def a_forward_hook_on_the_class_of_submodules():
    net, handles = Net(), []

    def hook(module, args, output):
        return output + 1 if isinstance(module, nn.ReLU) else None
    return (net, lambda: handles.append(nn.modules.module.register_module_forward_hook(hook)), lambda: handles.pop().remove())


@CHANGES.add()
def a_forward_hook_in_the_dictionary_itself():
    net = Net()
    return net, lambda: net.act._forward_hooks.__setitem__(0, lambda m, args, out: out * 3), lambda: net.act._forward_hooks.clear()


BACKWARD_HOOKS = {
    "full_backward_pre_hook": lambda net: net.linear.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "full_backward_hook": lambda net: net.linear.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)),
    "full_backward_pre_hook_of_the_root": lambda net: net.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "global_full_backward_hook": lambda net: nn.modules.module.register_module_full_backward_hook(
        lambda m, gi, go: (gi[0] * 2,) if gi[0] is not None else None),
    "global_full_backward_pre_hook": lambda net: nn.modules.module.register_module_full_backward_pre_hook(
        lambda m, go: (go[0] * 2,)),
    "post_accumulate_hook": lambda net: net.linear.weight.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(3), None)[1]),
    "hook_on_a_parameter": lambda net: net.linear.weight.register_hook(lambda g: g * 3),
    "hook_on_a_frozen_parameter_that_is_none": lambda net: net.linear.bias.register_hook(lambda g: None),
}


@pytest.mark.parametrize("name", BACKWARD_HOOKS)
def test_a_late_hook_of_the_backward_pass(name: str) -> None:
    handles = []

    def undo(net):
        while handles:
            handles.pop().remove()
    once = call(X.clone().requires_grad_())
    try:
        check(Net, once, once, lambda net: handles.append(BACKWARD_HOOKS[name](net)), once, once, undo, once, captures=None,
              fullgraph=False, backward=True)
    finally:
        undo(None)


# --- look-ups that change

@CHANGES.add()
def the_dictionary_of_a_module_shadows_a_submodule():
    net = Net()
    return net, lambda: vars(net).__setitem__("act", torch.sigmoid), lambda: vars(net).pop("act")


@CHANGES.add()
def the_dictionary_of_a_module_shadows_a_parameter():
    net = Net()
    return net, lambda: vars(net.linear).__setitem__("bias", torch.zeros(3)), lambda: vars(net.linear).pop("bias")


@CHANGES.add()
def a_method_is_patched_on_a_base_class():
    class Base:
        def scale(self):
            return 2

    class Derived(Base):
        pass
    thing = Derived()
    return lambda x: x * thing.scale(), *exchange(Base, "scale", lambda self: 5)


@CHANGES.add()
def a_fallback_for_attributes_is_shadowed():
    class Config:
        def __getattr__(self, name):
            return 2.0
    config = Config()
    return lambda x: x * config.factor, *edits(config, "factor", 7.0)


@CHANGES.add()
def a_fallback_for_attributes_is_shadowed_by_the_class():
    class Config:
        def __getattr__(self, name):
            return 2.0
    config = Config()
    return lambda x: x * config.factor, *edits(Config, "factor", 7.0)


@CHANGES.add()
def a_fallback_of_a_module_is_shadowed():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.act(x)
    wrapper = Wrapper()
    return wrapper, lambda: setattr(wrapper, "act", nn.Tanh()), lambda: delattr(wrapper, "act")


@CHANGES.add()
def a_builtin_is_shadowed_by_a_global():
    module = user_module("def program(x): return x * max(1, 2)")
    return module.program, *edits(module, "max", min)


@CHANGES.add()
def a_call_of_a_metaclass():
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.factor *= 2
            return made

    class Thing(metaclass=Meta):
        def __init__(self, factor):
            self.factor = factor
    return lambda x: x * Thing(3).factor, *exchange(Meta, "__call__", type.__call__)


# --- writes that reach the outside

def test_a_list_of_a_closure_is_changed_through_a_created_object() -> None:
    """An object made inside holds the list, and writes to it."""
    class Recorder:
        def __init__(self, log):
            self.log = log

        def note(self, item):
            self.log.append(item)
            self.log[0] += 1

    def make():
        log = [0]

        def program(x):
            recorder = Recorder(log)
            recorder.note(float(x.shape[0]))
            return x * len(log) + log[0]
        return program, log
    check(make, call(X), call(X), call(X), lambda log: log.clear() or log.append(5), call(X), captures=None)


def test_a_dict_of_a_closure_is_changed_through_a_bound_method() -> None:
    def make():
        seen = {}

        def program(x):
            note = seen.setdefault
            note("calls", []).append(x.shape)
            return x + len(seen["calls"])
        return program, seen
    check(make, call(X), call(X), call(X), captures=None)


# --- arguments that equality does not tell apart

@pytest.mark.parametrize("program", [
    lambda x, v: x + 1 if math.copysign(1.0, v) < 0 else x * 2, lambda x, v: x + 1 if v != v else x * 2,
    lambda x, v: torch.full((2,), v), lambda x, v: x / v, lambda x, v: (x, str(v)), lambda x, v: x * {0.0: 2}.get(v, 3)],
    ids=["sign", "nan", "filled", "divided", "text", "key"])
def test_numbers_that_are_hard_to_compare(program) -> None:
    values = (0.0, -0.0, math.nan, math.inf, -math.inf, 0.0, -0.0, math.nan, 0, False)
    check(lambda: program, *(call(X, v) for v in values), captures=None)


# --- what autograd must report

def saved_and_changed(x, w):
    y = x * w
    return y.exp()


@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
@pytest.mark.parametrize("what", ["input", "output", "parameter"])
def test_a_saved_tensor_is_changed_before_the_backward_pass(what: str, backend: str) -> None:
    """What autograd saved must be as it was: else the backward pass raises, as in eager mode."""
    w = torch.linspace(1, 2, 3).requires_grad_()
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(saved_and_changed, fullgraph=True, backend=backend, options=options)
    for _ in range(4):
        x = X.clone().requires_grad_()
        held = x * 1
        y = compiled(held, w)
        with torch.no_grad():
            {"input": held, "output": y, "parameter": w}[what].mul_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_forward_mode(backend: str) -> None:
    """Tangents are carried by the arguments; plain calls in between have none."""
    program = lambda x: (x * x).sin() * WEIGHT
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(program, backend=backend, options=options)

    def tangent(f):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X.clone(), torch.linspace(-1, 1, 6).view(2, 3))
            return forward_ad.unpack_dual(f(dual))
    for way in (lambda f: f(X), lambda f: f(X), tangent, lambda f: f(X), tangent, tangent):
        torch.testing.assert_close(way(compiled), way(program))


WEIGHT = torch.tensor([1.0, 2.0, 3.0])


def test_forward_mode_of_a_parameter_of_a_closure() -> None:
    def make():
        holder = {"w": WEIGHT}
        return (lambda x: x * holder["w"]), holder
    program, holder = make()
    compiled = capture.compile(program)
    compiled(X), compiled(X)
    with forward_ad.dual_level():
        holder["w"] = forward_ad.make_dual(WEIGHT.clone(), torch.ones(3))
        for _ in range(3):
            torch.testing.assert_close(forward_ad.unpack_dual(compiled(X)).tangent, X)
    holder["w"] = WEIGHT
    assert torch.equal(compiled(X), X * WEIGHT)


# --- tensors of inference mode have no version

@pytest.mark.parametrize("write", [lambda y: y.add_(1), lambda y: y.__setitem__(0, 5.0), lambda y: torch.mul(y, 2, out=y),
                                   lambda y: torch.relu_(y), lambda y: y.view(-1).zero_()],
                         ids=["add", "item", "out", "relu", "view"])
def test_writes_in_inference_mode_are_seen(write) -> None:
    """What was printed or read before a write is what it was then."""
    def program(x):
        y = x * 2
        before = y.sum().item()
        text = f"{y}"
        write(y)
        return y + 1, before, text

    def inside(x):
        with torch.inference_mode():
            return program(x)
    check(lambda: inside, call(X), call(X), call(X * 3))


def test_arguments_of_inference_mode_that_come_to_overlap() -> None:
    def program(x, y):
        with torch.inference_mode():
            x.add_(1)
            return y * 2

    def arguments(shared):
        def build(state):
            with torch.inference_mode():
                x = X.clone()
                return x, x if shared else X.clone()
        return call_with(build)
    check(lambda: program, arguments(False), arguments(False), arguments(True), arguments(True), captures=2)
