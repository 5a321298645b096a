"""Features of torch.nn beyond layers: packed sequences, reparametrised weights, gradients that are clipped, subclasses, masks."""
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from tests.helpers import call, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
LEAF = X.clone().requires_grad_()
BATCH = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(2))        # (batch, time, features)
LENGTHS = torch.tensor([4, 2, 3])
plain, trained = Programs(), Programs()


# --- recurrent layers and packed sequences

def recurrent(name, layer):
    def make():
        model = layer()
        return lambda x: model(x), model
    make.__name__ = name
    trained.make(BATCH)(make)


recurrent("an_lstm", lambda: nn.LSTM(5, 4, batch_first=True))
recurrent("a_gru", lambda: nn.GRU(5, 4, num_layers=2, bidirectional=True))
recurrent("an_rnn", lambda: nn.RNN(5, 4, batch_first=True, dropout=0.2, num_layers=2))
recurrent("an_lstm_with_projections", lambda: nn.LSTM(5, 4, proj_size=2))


@trained.make(BATCH)
def sequences_are_packed():
    model = nn.LSTM(5, 4, batch_first=True)

    def program(x):
        packed = pack_padded_sequence(x, [4, 3, 2], batch_first=True)
        out, (h, c) = model(packed)
        out, lengths = pad_packed_sequence(out, batch_first=True, total_length=4)
        return out, h, c, lengths
    return program, model


@trained.make(BATCH)
def sequences_are_packed_in_any_order():
    model = nn.GRU(5, 4, batch_first=True, bidirectional=True)

    def program(x):
        packed = pack_padded_sequence(x, [2, 4, 3], batch_first=True, enforce_sorted=False)
        out, h = model(packed)
        return pad_packed_sequence(out, batch_first=True)[0], h
    return program, model


@plain.add([torch.ones(3, 2), torch.ones(2, 2), torch.ones(1, 2)])
def sequences_are_padded(sequences):
    return pad_sequence(sequences, batch_first=True), pad_sequence(sequences, padding_value=-1.0)


@plain.add([torch.ones(3, 2), torch.ones(2, 2), torch.ones(1, 2)])
def sequences_of_a_list_are_packed(sequences):
    packed = pack_sequence(sequences)
    return packed.data * 2, packed.batch_sizes


# --- weights

@trained.make(X)
def weight_norm():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    return model


@trained.make(X)
def weight_norm_by_a_hook():
    return nn.utils.weight_norm(nn.Linear(3, 2))


@trained.make(X)
def spectral_norm():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))


@trained.make(X)
def spectral_norm_by_a_hook():
    return nn.utils.spectral_norm(nn.Linear(3, 2))


@trained.make(X)
def a_parametrization():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()
    model = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(model, "weight", Symmetric())
    return lambda x: model(x) + model.weight.sum(), model


@trained.make(X)
def an_orthogonal_weight():
    return nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))


@trained.make(X)
def a_cached_parametrization():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

    def program(x):
        with nn.utils.parametrize.cached():
            return model(x) + model(x * 2)
    return program, model


@trained.make(X)
def a_pruned_weight():
    model = nn.Linear(3, 3)
    prune.l1_unstructured(model, "weight", amount=0.3)
    return model


@plain.make(X)
def parameters_as_one_vector():
    model = nn.Linear(3, 3)

    def program(x):
        vector = nn.utils.parameters_to_vector(model.parameters())
        return vector * 2, model(x)
    return program, model


def with_gradients():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    for p in model.parameters():
        p.grad = torch.linspace(-3, 3, p.numel()).view(p.shape)
    return model


@plain.make(X)
def gradients_are_clipped_by_their_norm():
    model = with_gradients()

    def program(x):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return norm, model(x)
    return program, model


@plain.make(X)
def gradients_are_clipped_by_value():
    model = with_gradients()

    def program(x):
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        return model(x)
    return program, model


@plain.make(X)
def gradients_are_clipped_one_by_one():
    model = with_gradients()

    def program(x):
        nn.utils.clip_grad_norm_(model[0].weight, 0.5, norm_type=float("inf"), foreach=False)
        return model(x)
    return program, model


# --- averages of weights

@plain.make(X)
def a_moving_average_of_weights():
    model, average = nn.Linear(3, 3), nn.Linear(3, 3)

    @torch.no_grad()
    def program(x):
        for a, p in zip(average.parameters(), model.parameters()):
            a.data.mul_(0.9).add_(p.data, alpha=0.1)
        return average(x)
    return program, nn.ModuleList([model, average])


@plain.make(X)
def state_is_loaded_inside():
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)

    def program(x):
        other.load_state_dict(model.state_dict())
        return other(x)
    return program, nn.ModuleList([model, other])


test_values = plain.test()
test_gradients = trained.test(backward=True)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("make", [weight_norm, weight_norm_by_a_hook, spectral_norm, spectral_norm_by_a_hook],
                         ids=lambda m: m.__name__)
def test_a_normed_weight_changes(make, train: bool) -> None:
    def change(model):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)
    check(lambda: make().train(train), call(X), call(X), change, call(X), backward=True)


def test_lengths_in_a_tensor_are_a_local_break() -> None:
    """How many sequences are as long is a value, which decides the shape of what is packed."""
    def make():
        model = nn.LSTM(5, 4, batch_first=True)

        def program(x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(model(packed)[0], batch_first=True)[0]
        return program, model
    check(make, call(BATCH, LENGTHS), call(BATCH, LENGTHS), call(BATCH, torch.tensor([1, 4, 4])), captures=None, fullgraph=False)


def test_a_mask_that_decides_is_a_local_break() -> None:
    def program(x, mask):
        return x.sum(0) if mask.all() else (x * mask[:, None]).sum(0)
    ones, some = torch.ones(2, dtype=torch.bool), torch.tensor([True, False])
    stats = check(lambda: program, call(X, ones), call(X, ones), call(X, some), call(X, some), captures=None, fullgraph=False)
    assert stats.native_calls == 0
