"""Objects of torch made, copied and looked into inside of the frame: copies, modules, parameters, legacy constructors, storage."""
from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

from tests.helpers import call, call_with, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
plain, trained = Programs(), Programs()


# --- copies

@plain.add(X)
def a_tensor_is_copied(x):
    y = copy.copy(x)
    y.add_(1)
    return y, x * 2, y is x


@plain.add(X)
def a_tensor_is_copied_deeply(x):
    y = copy.deepcopy(x)
    y.add_(1)
    return y, x * 2


@plain.add(X)
def tensors_in_containers_are_copied_deeply(x):
    kept = {"a": x, "b": [x, 1, "text"], "c": (x, None)}
    new = copy.deepcopy(kept)
    new["a"].mul_(2)
    return new, new["a"] is new["b"][0], new["b"][0] is new["c"][0], x


@plain.make(X)
def a_buffer_is_copied_deeply():
    state = SimpleNamespace(best=torch.zeros(2, 3))

    def program(x):
        state.best = copy.deepcopy(x)
        return state.best + 1
    return program, state


@trained.make(X)
def a_parameter_is_copied_deeply():
    weight = nn.Parameter(torch.ones(3))

    def program(x):
        own = copy.deepcopy(weight)
        return x * own * weight, type(own) is nn.Parameter, own.requires_grad
    return program, SimpleNamespace(weight=weight)


@trained.make(X)
def a_module_is_copied_deeply():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def program(x):
        twin = copy.deepcopy(model)
        return model(x) + twin(x), twin is model, len(twin)
    return program, model


@trained.make(X)
def a_module_is_copied():
    model = nn.Linear(3, 3)

    def program(x):
        twin = copy.copy(model)
        return twin(x), twin.weight is model.weight
    return program, model


# --- modules and parameters made inside

@trained.add(X)
def a_linear_layer_made_inside(x):
    layer = nn.Linear(3, 2)
    return layer(x), layer


@trained.add(X)
def a_network_made_inside(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    return net(x)


@trained.add(X)
def a_list_of_layers_made_inside(x):
    layers = nn.ModuleList(nn.Linear(3, 3, bias=bool(i)) for i in range(2))
    for layer in layers:
        x = torch.relu(layer(x))
    return x, sum(p.numel() for p in layers.parameters())


@trained.make(X, captures=2)
def a_layer_is_added_on_first_use():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = None

        def forward(self, x):
            if self.layer is None:
                self.layer = nn.Linear(x.shape[-1], 2)
            return self.layer(x)
    return Lazy()


@trained.add(X)
def a_parameter_made_inside(x):
    weight = nn.Parameter(torch.full((3,), 2.0))
    return x * weight, weight, isinstance(weight, nn.Parameter)


@plain.add(X)
def a_parameter_without_gradients(x):
    weight = nn.Parameter(x * 2, requires_grad=False)
    return weight, weight.requires_grad


@plain.add(X)
def a_buffer_is_registered_inside(x):
    module = nn.Module()
    module.register_buffer("scale", x.mean(0))
    module.register_parameter("bias", None)
    return x * module.scale, list(dict(module.named_buffers()))


@trained.add(X)
def parameters_are_initialised_inside(x):
    layer = nn.Linear(3, 3)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    nn.init.normal_(layer.weight, std=0.02)
    return layer(x)


@trained.make(LEAF)
def a_custom_module_made_inside():
    class Scale(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))

        def forward(self, x):
            return x * self.weight
    return lambda x: Scale(3)(x).sin()


# --- creation

@trained.add(X)
def leaves_made_inside(x):
    a = torch.zeros(3, requires_grad=True)
    b = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    c = torch.randn(3, requires_grad=True)
    return x * (a + b) + c, a.is_leaf, a.requires_grad


@plain.add(X)
def legacy_constructors(x):
    return (torch.Tensor([1.0, 2.0, 3.0]) + x, torch.FloatTensor([[1, 2]]), torch.LongTensor([1, 2]), torch.Tensor(2, 0),
            torch.Tensor())


@plain.add(X)
def legacy_constructors_of_sizes(x):
    return (torch.Tensor(2, 3).fill_(1) + x, torch.FloatTensor(3).zero_(), torch.ByteTensor(2).fill_(1), x.new(2, 3).zero_(),
            x.new([5.0]))


@plain.add(X)
def legacy_constructors_of_numbers_of_numpy(x):
    halves = [np.exp(-i / 2) for i in range(3)]
    return (torch.Tensor(halves) + x, torch.DoubleTensor([halves, [1, np.float32(0.1), True]]), torch.LongTensor([np.int64(3), 4]),
            torch.FloatTensor([np.int32(2)]))


@plain.add(X)
def volatile_variables(x):
    def is_off():
        return x.volatile
    return Variable(x, volatile=is_off()) + 1, Variable(x, volatile=True), not x.volatile


@plain.add(X)
def conversions_by_name_of_type(x):
    return x.type(torch.LongTensor), x.type("torch.DoubleTensor"), x.type(), x.double().type(torch.FloatTensor)


@trained.add(LEAF)
def a_variable(x):
    v = Variable(x)
    w = Variable(torch.ones(3), requires_grad=True)
    return x * w, v, v.requires_grad, isinstance(x, Variable), isinstance(3, Variable)


@plain.add(X)
def a_variable_of_a_result(x):
    y = Variable((x * 2).data)
    return y + 1, y.grad, y.requires_grad


@plain.add(X)
def a_scalar_from_a_list(x):
    return torch.as_tensor([1, 2, 3]) * x, torch.asarray([1.0]), torch.from_numpy


# --- data, memory, storage

@trained.add(LEAF)
def data_is_read(x):
    y = x.data * 2
    return x * y, y.requires_grad, x.data.data_ptr() == x.data_ptr()


@plain.make(X)
def data_is_assigned():
    weight = nn.Parameter(torch.ones(2, 3))

    def program(x):
        weight.data = weight.data * 0.5 + x
        return weight.detach() + 1
    return program, SimpleNamespace(weight=weight)


@plain.make(X)
def data_is_written_in_place():
    weight = nn.Parameter(torch.ones(2, 3))

    def program(x):
        weight.data.copy_(x)
        weight.data[0] = 0
        return weight.detach() + 1
    return program, SimpleNamespace(weight=weight)


@plain.add(X, Y)
def addresses_of_memory(x, y):
    view, copied = x.view(-1), x.clone()
    return (x * 2 if x.data_ptr() == view.data_ptr() else x, x.data_ptr() == y.data_ptr(), x.data_ptr() != copied.data_ptr(),
            x[1].data_ptr() == x.data_ptr())


@plain.add(X)
def memory_is_shared(x):
    row = x[0]
    same = row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return x * 2 if same else x


@plain.add(X)
def sizes_of_storage(x):
    return x.untyped_storage().nbytes(), x[0].untyped_storage().size(), x.element_size() * x.nelement(), x + 1


@plain.add(X)
def resized(x):
    y = torch.empty(0)
    y.resize_(2, 3).copy_(x)
    z = x.clone().resize_(3)
    return y, z, z.shape


@plain.make(X, captures=2)
def a_buffer_outside_is_resized():
    state = SimpleNamespace(buffer=torch.zeros(0))

    def program(x):
        if state.buffer.numel() != x.numel():
            state.buffer.resize_(x.shape)
        return torch.mul(x, 2, out=state.buffer) + 1
    return program, state


@plain.add(X)
def an_output_is_given(x):
    out = torch.empty(2, 3)
    torch.add(x, 1, out=out)
    return out, torch.sigmoid(x, out=torch.empty(0))


@plain.add(X)
def set_to_another(x):
    y = torch.empty(0)
    y.set_(x.clone())
    return y * 2


test_values = plain.test()
test_gradients = trained.test(backward=True)


def test_addresses_are_guarded() -> None:
    """Which arguments share memory decides, and nothing else of their addresses."""
    def program(x, y):
        return x + 1 if x.data_ptr() == y.data_ptr() else x * y

    def apart(state):
        return X.clone(), X.clone()

    def together(state):
        x = X.clone()
        return x, x.view(2, 3)
    check(lambda: program, call_with(apart), call_with(apart), call_with(together), call_with(together), call_with(apart),
          captures=2)


def test_a_copied_module_follows_its_original() -> None:
    def make():
        model = nn.Linear(3, 3)
        return (lambda x: copy.deepcopy(model)(x)), model

    def change(model):
        with torch.no_grad():
            model.weight.mul_(2)
    check(make, call(X), call(X), change, call(X))


def test_a_copied_tensor_follows_its_properties() -> None:
    check(lambda: lambda x: copy.deepcopy(x) * 2, call(X), call(X), call(X.double()), call(X.t()), call(X), captures=3)


def test_modules_are_made_after_the_first_use_of_torch_compile() -> None:
    """It patches `nn.Module.__init__`, for Dynamo's own records of modules."""
    from torch._dynamo.mutation_guard import install_generation_tagging_init
    install_generation_tagging_init()

    def program(x):
        torch.manual_seed(0)
        return nn.Linear(3, 2)(x)
    check(lambda: program, call(X), call(X), call(Y))
