"""Tensor operations together with Python state: modules, attributes, containers, modes, random numbers."""
from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capture
from tests.helpers import call, call_with, check
from tests.programs import NATIVE, Programs, run

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
inference = Programs()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extras: list = dataclasses.field(default_factory=list)


# --- where tensors come from and where they go

@inference.add(X, Y)
def a_namedtuple_result(x, y):
    return Pair(x + y, Pair(x, y))


@inference.add(X, Y)
def a_dataclass_result(x, y):
    return Output(x * y, [x, y])


@inference.add(X)
def nested_containers(x):
    y = x + 1
    return {"a": [y, (y, {"b": y * 2})], "c": (x,), 3: None, "s": {1, 2}}


@inference.add(X)
def an_ordered_dict(x):
    return collections.OrderedDict(logits=x * 2, loss=x.sum())


@inference.add(X)
def an_object_with_tensors(x):
    result = SimpleNamespace(a=x * 2)
    result.b = result.a + 1
    return result


@inference.add({"a": X, "b": [Y, X]}, Pair(X, Y))
def tensors_in_arguments(d, pair):
    return d["a"] + d["b"][0] * pair.first, pair.second is d["b"][1], d["a"] is pair.first


@inference.make(X)
def a_tensor_in_a_closure():
    weight = torch.arange(3.0)
    return lambda x: x * weight + weight.sum()


@inference.make(X)
def a_tensor_as_default():
    def program(x, weight=torch.arange(3.0)):
        return x * weight
    return program


@inference.make(X)
def tensors_in_attributes():
    state = SimpleNamespace(weight=torch.arange(3.0), deep=SimpleNamespace(biases=[torch.ones(3), torch.zeros(3)]))

    def program(x):
        return x * state.weight + state.deep.biases[0] - state.deep.biases[-1]
    return program, state


@inference.make(X)
def an_attribute_replaced_by_a_result():
    state = SimpleNamespace(hidden=torch.zeros(2, 3), steps=0)

    def program(x):
        state.hidden = torch.tanh(state.hidden + x)
        state.steps += 1
        return state.hidden * 2
    return program, state


@inference.make(X)
def an_attribute_updated_in_place():
    state = SimpleNamespace(mean=torch.zeros(3), history=[])

    def program(x):
        state.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - state.mean
    return program, state


@inference.make(X)
def results_appended_to_a_list():
    state = SimpleNamespace(history=[])

    def program(x):
        state.history.append(x.sum())
        return x
    return program, state


@inference.make(X, captures=None)
def a_growing_cache():
    state = SimpleNamespace(keys=torch.empty(0, 3))

    def program(x):
        state.keys = torch.cat([state.keys, x])
        return x @ state.keys.T
    return program, state


@inference.make(X)
def a_preallocated_cache():
    state = SimpleNamespace(cache=torch.zeros(4, 3))

    def program(x):
        state.cache[:2] = x
        state.cache[2:].add_(x)
        return state.cache.sum(0)
    return program, state


@inference.make(X)
def a_tensor_moved_between_containers():
    state = {"new": torch.zeros(2, 3), "old": None}

    def program(x):
        state["old"], state["new"] = state["new"], x * 2
        return state["old"]
    return program, state


@inference.make(X)
def a_counter_tensor():
    state = SimpleNamespace(steps=torch.tensor(0))

    def program(x):
        state.steps += 1
        return x / state.steps
    return program, state


@inference.make(X)
def the_same_tensor_stored_twice():
    state = {}

    def program(x):
        y = x * 2
        state["a"] = y
        state["b"] = y.view(-1)
        state["c"] = x
        return y
    return program, state


@inference.add(X, X)
def one_argument_used_twice(x, y):
    x = x + y
    return x * x, y


@inference.add(*(lambda x: (x, x))(X.clone()))
def aliased_arguments(x, y):
    x.add_(1)
    return y * 2, x is y


@inference.add(*(lambda x: (x, x[0]))(X.clone()))
def overlapping_arguments(x, row):
    x.mul_(2)
    row.add_(1)
    return x.sum()


# --- recurrent layers, whole modules

def lstm():
    model = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    return lambda x: model(x[None]), model


def gru():
    model = nn.GRU(3, 4)
    return lambda x: model(x[:, None], torch.ones(1, 1, 4)), model


def rnn():
    model = nn.RNN(3, 4, nonlinearity="relu")
    return lambda x: model(x[:, None])[0], model


def cells():
    model = nn.ModuleList([nn.LSTMCell(3, 4), nn.GRUCell(4, 4)])

    def program(x):
        h, c = torch.zeros(1, 4), torch.zeros(1, 4)
        for row in x:
            h, c = model[0](row[None], (h, c))
            h = model[1](h)
        return h, c
    return program, model


def norms():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3), nn.GroupNorm(3, 3), nn.RMSNorm(3))
    return lambda x: model(x), model


def convolutions():
    model = nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.ConvTranspose2d(2, 1, 2),
                          nn.Flatten())
    return lambda x: model(x[None, None]), model


def attention():
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    return lambda x: model(*[F.pad(x, (0, 1))[None]] * 3, need_weights=True), model


def transformer():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), 2)
    return lambda x: model(F.pad(x, (0, 1))[None]), model


def embeddings():
    model = nn.ModuleDict({"table": nn.Embedding(5, 3, padding_idx=0), "bag": nn.EmbeddingBag(5, 3)})
    return lambda x: (model["table"](x.long().abs() % 5), model["bag"](x.long().abs() % 5)), model


def losses():
    model = nn.ModuleList([nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)])
    return lambda x: [loss(x, F.softmax(x.detach(), 1)) for loss in model], model


MODULES = [lstm, gru, rnn, cells, norms, convolutions, attention, transformer, embeddings, losses]


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
def test_modules(make, train: bool) -> None:
    def prepared():
        program, model = make()
        model.train(train)
        return program, model
    run(prepared, (LEAF if train else X,), {"backward": train})


@inference.make(X)
def parameters_and_buffers_are_read_anew():
    linear = nn.Linear(3, 3)
    linear.register_buffer("scale", torch.ones(3))

    def program(x):
        linear.scale += 1
        return linear(x) * linear.scale
    return program, linear


def test_changed_weights_are_seen_by_hits() -> None:
    @torch.no_grad()
    def change(model):
        model.weight.add_(1)
        model.bias = nn.Parameter(model.bias + 1)
    check(lambda: (lambda linear: (lambda x: linear(x), linear))(nn.Linear(3, 3)), call(LEAF), call(LEAF), change,
          call(LEAF),
          backward=True)


# --- decorators of torch

@inference.make(LEAF)
def a_no_grad_method():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        @torch.no_grad()
        def features(self, x):
            return self.linear(x), torch.is_grad_enabled()

        @torch.inference_mode()
        def frozen(self, x):
            return self.linear(x)

        @torch.autocast("cpu", dtype=torch.bfloat16)
        def forward(self, x):
            return self.features(x), self.frozen(x), self.linear(x), torch.is_grad_enabled()
    return Model()


@inference.make(X)
def a_decorated_program():
    @torch.no_grad()
    def program(x):
        return x * 2, torch.is_grad_enabled()
    return lambda x: program(x)


@inference.make(X)
def a_generator_under_no_grad():
    @torch.no_grad()
    def rows(x):
        for row in x:
            yield row * 2, torch.is_grad_enabled()
    return lambda x: [(r, g, torch.is_grad_enabled()) for r, g in rows(x)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu",
                                                                                              dtype=torch.bfloat16)],
                         ids=["no_grad", "inference_mode", "autocast"])
def test_a_mode_around_the_call_is_guarded(mode) -> None:
    linear = nn.Linear(3, 3)

    @capture.compile(fullgraph=True)
    def program(x):
        return linear(x)
    for _ in range(2):
        plain = program(X)
        with mode():
            inside, expected = program(X), linear(X)
        assert (plain.dtype, plain.requires_grad, plain.is_inference()) == (torch.float32, True, False)
        assert (inside.dtype, inside.requires_grad, inside.is_inference()) == \
            (expected.dtype, expected.requires_grad, expected.is_inference())
    assert (capture.stats(program).captures, capture.stats(program).hits) == (2, 2)


# --- random numbers

@inference.make(X)
def dropout_twice():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3), nn.Dropout(0.2))
    return lambda x: (model(x), torch.rand(2), F.dropout(x, 0.1)), model


@inference.make(X, **NATIVE)
def a_generator_of_the_program():
    generator = torch.Generator().manual_seed(5)
    return lambda x: x + torch.randn(2, 3, generator=generator), SimpleNamespace(generator=generator)


def test_each_hit_draws_new_numbers() -> None:
    program = capture.compile(lambda x: torch.randn_like(x), fullgraph=True)
    a, b, c = program(X), program(X), program(X)
    assert not torch.equal(a, b) and not torch.equal(b, c)
    torch.manual_seed(0)
    d = program(X)
    torch.manual_seed(0)
    assert torch.equal(d, torch.randn_like(X))


# --- odd places of tensors

@inference.make(LEAF)
def gradients_read_and_written():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 0.5)

    def program(x):
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad.zero_()
        return weight * 2
    return program, SimpleNamespace(weight=weight)


@inference.make(X)
def an_attribute_of_a_tensor():
    def program(x):
        y = x * 2
        y.tag = "scaled"
        y._extra = x
        return y, y.tag
    return program


@inference.make(X)
def a_parameter_made_inside():
    return lambda x: nn.Parameter(x * 2)


@inference.make(X)
def a_module_made_inside():
    def program(x):
        return nn.ReLU()(x) + nn.Identity()(x), nn.Flatten(0).start_dim
    return program


@inference.make(X)
def a_class_attribute():
    class Holder:
        table = torch.arange(3.0)
    return lambda x: x + Holder.table, Holder


@inference.make(X)
def a_shared_parameter():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return lambda x: model(x), model


@inference.make(X, **NATIVE)
def a_numpy_constant():
    import numpy
    table = numpy.arange(3.0, dtype="float32")
    return lambda x: x + torch.from_numpy(table)


test_inference = inference.test()


def test_one_tensor_object_in_and_out() -> None:
    def make():
        state = SimpleNamespace(x=X.clone())
        return (lambda x: (x, [x], state.x)), state
    check(make, call_with(lambda state: (state.x,)), call_with(lambda state: (state.x,)), call(X), captures=None,
          fullgraph=False)
