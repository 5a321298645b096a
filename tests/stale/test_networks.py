"""Networks that change between calls: late hooks, submodules and parameters replaced, modes, patched forwards."""
from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.helpers import call, check
from tests.stale.cases import Table, X, run

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_a_network_changes(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3)
        self.act = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.table = nn.ModuleDict({"tanh": nn.Tanh()})
        self.drop = nn.Dropout(0.5)
        self.register_buffer("offset", torch.ones(3))
        self.register_parameter("bias", None)

    def forward(self, x):
        x = self.act(self.first(x)) + self.offset
        for layer in self.layers:
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) + len(name)
        return self.drop(x) if self.bias is None else self.drop(x) + self.bias


def network(change, undo, captures=2, fullgraph=True):
    """A change of a fresh network, and its undoing; both get the network, and `undo` also what `change` returned."""
    def register(name):
        def make():
            net = Net().eval()
            kept = []
            return net, lambda: kept.append(change(net)), lambda: undo(net, kept.pop())
        make.__name__ = name
        CHANGES.add(captures, fullgraph)(make)
    return register


def setting(path, new, captures=2):
    """`new(net)` is assigned to the attribute at `path`, and later the object that was there before."""
    *owners, name = path.split(".")

    def owner(net):
        return functools.reduce(getattr, owners, net)

    def change(net):
        old = getattr(owner(net), name)
        setattr(owner(net), name, new(net))
        return old
    return network(change, lambda net, old: setattr(owner(net), name, old), captures)


def hook(register, captures=2):
    """`register(net)` gives the handle of a hook, which is removed again."""
    return network(register, lambda net, handle: handle.remove(), captures)


# --- modes and flags

network(lambda net: net.train(), lambda net, _: net.eval())("train")
network(lambda net: net.drop.train(), lambda net, _: net.drop.eval())("train_of_one_submodule")
network(lambda net: net.requires_grad_(False), lambda net, _: net.requires_grad_(True))("requires_grad_of_all")
network(lambda net: net.double().float(), lambda net, _: None, captures=1)("converted_to_and_fro")
network(lambda net: net.zero_grad(), lambda net, _: net.zero_grad(), captures=1)("zero_grad")
network(lambda net: net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}), lambda net, _: None,
        captures=1)("load_state_dict")

# --- hooks, on the module, on a submodule, on all modules

for path in ("", "first", "act", "layers.0"):
    where = path.replace(".", "_") or "net"
    hook(lambda net, path=path: net.get_submodule(path).register_forward_hook(lambda m, args, out: out * 2))(
        f"forward_hook_on_{where}")
    hook(lambda net, path=path: net.get_submodule(path).register_forward_pre_hook(lambda m, args: (args[0] + 1,)))(
        f"forward_pre_hook_on_{where}")
hook(lambda net: net.first.register_forward_hook(lambda m, args, kwargs, out: out * 2, with_kwargs=True))(
    "hook_with_kwargs")
hook(lambda net: net.first.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] + 1,), kwargs),
                                                     with_kwargs=True))("pre_hook_with_kwargs")
hook(lambda net: net.first.register_forward_hook(lambda m, args, out: out * 2, prepend=True))("hook_prepended")
hook(lambda net: net.first.register_forward_hook(lambda m, args, out: out * 2, always_call=True))("hook_always_called")
hook(lambda net: nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2))("global_forward_hook")
hook(lambda net: nn.modules.module.register_module_forward_pre_hook(lambda m, args: (args[0] + 1,)))(
    "global_forward_pre_hook")


@CHANGES.add()
def second_hook_is_registered():
    net = Net().eval()
    net.first.register_forward_hook(lambda m, args, out: out * 2)
    handles = []
    return (net, lambda: handles.append(net.first.register_forward_hook(lambda m, args, out: out + 1)),
            lambda: handles.pop().remove())


@CHANGES.add()
def cell_of_a_hook_changes():
    net, factor = Net().eval(), 2
    net.first.register_forward_hook(lambda m, args, out: out if factor == 2 else out * factor)

    def write(value):
        nonlocal factor
        factor = value
    return net, lambda: write(3), lambda: write(2)


@pytest.mark.parametrize("register", [
    lambda net: net.first.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)),
    lambda net: net.first.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    lambda net: nn.modules.module.register_module_full_backward_hook(lambda m, gi, go: (gi[0] * 2,) if gi[0] is not None
                                                                     else None),
    lambda net: net.first.register_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 2 for g in gi)),
    lambda net: net.first.weight.register_hook(lambda g: g * 2),
], ids=["full_backward_hook", "full_backward_pre_hook", "global_full_backward_hook", "backward_hook", "tensor_hook"])
def test_a_late_backward_hook(register) -> None:
    handles = []

    def make():
        torch.manual_seed(0)
        return Net().eval()

    def remove(net):
        while handles:
            handles.pop().remove()
    once = call(X.clone().requires_grad_())
    try:
        check(make, once, once, lambda net: handles.append(register(net)), once, once, remove, once, captures=None,
              fullgraph=False, backward=True)
    finally:
        remove(None)


# --- submodules

setting("act", lambda net: nn.Tanh())("submodule_replaced_by_another_class")
setting("first", lambda net: nn.Linear(3, 3, bias=False))("submodule_replaced_by_one_without_bias")
setting("first", lambda net: nn.Linear(3, 3), captures=1)("submodule_replaced_by_one_of_the_same_shape")
setting("act", lambda net: nn.Identity())("submodule_replaced_by_identity")
setting("drop.p", lambda net: 0.25)("number_of_a_submodule")
setting("act.inplace", lambda net: True)("flag_of_a_submodule")
network(lambda net: net.layers.append(nn.Linear(3, 3)), lambda net, _: net.layers.__delitem__(-1),
        captures=3)("module_list_grows")     # deletion makes a dict of another type
network(lambda net: net.layers.insert(0, nn.Linear(3, 3)), lambda net, _: net.layers.__delitem__(0),
        captures=None)("module_list_grows_at_the_front")
network(lambda net: net.layers.__setitem__(0, nn.Linear(3, 3, bias=False)),
        lambda net, _: net.layers.__setitem__(0, nn.Linear(3, 3)), captures=2)("module_list_item_replaced")
network(lambda net: net.table.update({"relu": nn.ReLU()}), lambda net, _: net.table.pop("relu"))("module_dict_grows")
network(lambda net: net.add_module("extra", nn.ReLU()), lambda net, _: delattr(net, "extra"), captures=1)(
    "unrelated_submodule_added")
network(lambda net: vars(net).__setitem__("act", torch.tanh), lambda net, _: vars(net).pop("act"))(
    "instance_dictionary_shadows_a_submodule")
network(lambda net: net._modules.pop("act"), lambda net, act: net._modules.__setitem__("act", act), captures=None,
        fullgraph=False)("submodule_deleted")


@CHANGES.add()
def optional_submodule_is_deleted():
    net = nn.Module()
    net.act = act = nn.ReLU()
    return (lambda x: net.act(x) if hasattr(net, "act") else x + 1, lambda: delattr(net, "act"),
            lambda: setattr(net, "act", act))


@CHANGES.add(captures=3)    # deletion makes a dict of another type
def sequential_grows():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    return net, lambda: net.append(nn.Tanh()), lambda: net.pop(-1)


@CHANGES.add()
def class_of_a_submodule_is_replaced():
    net = Net().eval()
    return net, lambda: setattr(net.act, "__class__", nn.Tanh), lambda: setattr(net.act, "__class__", nn.ReLU)


# --- patched forwards

setting("act.forward", lambda net: lambda x: x * 5, captures=None)("forward_patched_on_a_submodule")


@CHANGES.add()
def forward_patched_and_removed():
    net = Net().eval()
    return net, lambda: setattr(net.act, "forward", torch.tanh), lambda: delattr(net.act, "forward")


@CHANGES.add()
def forward_of_the_program_patched():
    net = Net().eval()
    return net, lambda: setattr(net, "forward", lambda x: x * 5), lambda: delattr(net, "forward")


def patched_on_a_class(name, new):
    def make():
        class Act(nn.ReLU):
            pass
        net = Net().eval()
        net.act = Act()
        return net, lambda: setattr(Act, name, new), lambda: delattr(Act, name)
    make.__name__ = f"{name.strip('_')}_patched_on_a_class"
    CHANGES.add()(make)


patched_on_a_class("forward", lambda self, x: x * 5)
patched_on_a_class("__call__", lambda self, x: x * 5)
patched_on_a_class("_call_impl", lambda self, x: x * 5)


@CHANGES.add()
def library_forward_is_patched():
    net, before = Net().eval(), nn.ReLU.forward
    return net, lambda: setattr(nn.ReLU, "forward", lambda self, x: x * 5), lambda: setattr(nn.ReLU, "forward", before)


# --- parameters and buffers

def parameter(*shape, **options):
    shape = shape or (3, 3)
    return nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape), **options)


setting("first.weight", lambda net: parameter(), captures=1)("parameter_replaced")
setting("first.weight", lambda net: parameter(requires_grad=False))("parameter_replaced_by_a_frozen_one")
setting("first.bias", lambda net: parameter(1))("parameter_replaced_by_one_of_another_shape")
setting("first.bias", lambda net: None)("parameter_becomes_none")
setting("bias", lambda net: parameter(3))("parameter_appears")
setting("layers.0.weight", lambda net: net.first.weight, captures=None)("parameter_is_shared")
setting("first.bias.data", lambda net: torch.ones(3), captures=1)("data_replaced")
setting("first.bias.data", lambda net: torch.ones(1))("data_of_another_shape")
setting("first.weight.data", lambda net: torch.ones(3, 3).t(), captures=None)("data_with_other_strides")
setting("first.weight.requires_grad", lambda net: False)("parameter_is_frozen")
setting("offset", lambda net: torch.zeros(3), captures=1)("buffer_replaced")
setting("offset", lambda net: torch.zeros(1))("buffer_replaced_by_one_of_another_shape")
setting("offset", lambda net: torch.zeros(3, dtype=torch.float16))("buffer_of_another_dtype")
network(lambda net: net.first.weight.data.mul_(2), lambda net, _: net.first.weight.data.div_(2), captures=1)(
    "parameter_is_written_in_place")
network(lambda net: setattr(net.first.weight, "grad", torch.ones(3, 3)),
        lambda net, _: setattr(net.first.weight, "grad", None), captures=1)("gradient_appears_and_is_not_read")


@CHANGES.add()
def gradient_appears_and_is_read():
    weight = parameter()
    return (lambda x: x + 1 if weight.grad is None else x, lambda: setattr(weight, "grad", torch.ones(3, 3)),
            lambda: setattr(weight, "grad", None))


@CHANGES.add()
def whole_network_changes_its_dtype():
    net = Net().eval()
    return lambda x: net(x.to(net.offset.dtype)), net.double, net.float


@CHANGES.add(captures=None)
def shared_parameter_is_written():
    net = Net().eval()
    before = net.layers[0].bias

    def program(x):
        with torch.no_grad():
            net.first.bias.add_(1)
        return net(x)
    return (program, lambda: setattr(net.layers[0], "bias", net.first.bias),
            lambda: setattr(net.layers[0], "bias", before))


@CHANGES.add()
def parametrization_is_registered():
    class Doubled(nn.Module):
        def forward(self, weight):
            return weight * 2
    net = Net().eval()
    return (net, lambda: parametrize.register_parametrization(net.first, "weight", Doubled()),
            lambda: parametrize.remove_parametrizations(net.first, "weight", leave_parametrized=False))


@CHANGES.add(captures=None)
def weight_norm_is_added():
    net = Net().eval()
    return (net, lambda: parametrizations.weight_norm(net.first),
            lambda: parametrize.remove_parametrizations(net.first, "weight"))


# --- which network it is

@CHANGES.add(captures=1)
def other_network_of_the_same_kind():
    nets = [Net().eval(), Net().eval()]
    return lambda x: nets[0](x), nets.reverse, nets.reverse


@CHANGES.add()
def other_network_in_another_mode():
    nets = [Net().eval(), Net().train()]
    return lambda x: nets[0](x), nets.reverse, nets.reverse
