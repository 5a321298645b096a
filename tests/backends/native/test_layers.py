"""Graphs of equal layers are compiled with a few of them; what comes of it is what compiling the whole graph gives."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import capture
from capture.backends.native.layers import KEPT, without_layers
from capture.backends.native.repetition import Lengthening, NotAlike, Place, find_repetition, in_full, in_layer
from tests.backends.native.layered_programs import Model, captured, check, check_seed, inputs

COUNT = 10


def stack(layer: Callable[[], nn.Module], count: int = COUNT) -> nn.ModuleList:
    return nn.ModuleList(layer() for _ in range(count))


class Block(nn.Module):
    """Attention and a network, each after a normalisation. Returns its keys, too."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.both, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        query, key = self.both(self.norm(x)).chunk(2, -1)
        if other is not None:
            _, key = self.both(other).chunk(2, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, x, mask))
        return x + self.down(F.gelu(self.up(self.inner(x)))), key


class Transformer(nn.Module):
    def __init__(self, returns: str, count: int = COUNT) -> None:
        super().__init__()
        self.returns, self.layers, self.norm, self.head = returns, stack(Block, count), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        keys = []
        for layer in self.layers:
            x, key = layer(x, mask)
            keys.append(key.transpose(0, 1)[1:] if self.returns == "views of keys" else key)
        x = self.head(self.norm(x))
        match self.returns:
            case "loss":
                return x.square().mean()
            case "loss and logits":
                return x.square().mean(), x
            case "keys" | "views of keys":
                return x, keys
        return x


class TwoStacks(nn.Module):
    """A decoder, all of whose layers look at what the encoder has made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = stack(Block), stack(Block, COUNT + 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.roll(x, 1, 1)
        for layer in self.encoder:
            x, _ = layer(x)
        for layer in self.decoder:
            y, _ = layer(y, None, x)
        return y, x


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


class Shared(nn.Module):
    """The same layer again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(COUNT):
            x, _ = self.layer(x)
        return x


X, MASK = (2, 4, 8), (4, 4)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], tuple[str, ...]]] = {
    "one result": (lambda: Transformer(""), (X, MASK), ("infer", "eval", "train")),
    "loss": (lambda: Transformer("loss"), (X,), ("eval",)),
    "a result computed from another": (lambda: Transformer("loss and logits"), (X, MASK), ("infer", "eval")),
    "each layer returns a tensor": (lambda: Transformer("keys"), (X,), ("infer",)),
    "each layer returns a view": (lambda: Transformer("views of keys"), (X,), ("infer",)),
    "two stacks": (TwoStacks, (X,), ("infer",)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), *stack(Residual)), ((2, 3, 16, 16),), ("infer", "eval", "train")),
    "shared weights": (Shared, (X,), ()),
    "dropout": (lambda: nn.Sequential(*stack(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3)), 14)), (X,),
                ("train",)),
}
@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, (_, _, modes) in MODELS.items() for mode in modes])
def test_models_are_compiled_in_layers(name, mode):
    torch.manual_seed(0)
    build, shapes, _ = MODELS[name]
    assert check(build(), [torch.randn(shape) for shape in shapes], mode) == "layers"


@pytest.mark.parametrize(("name", "reason"), [
    ("two stacks", "each layer may check the same"),
    ("shared weights", "no layers"),
])
def test_models_that_are_compiled_as_a_whole(name, reason):
    torch.manual_seed(0)
    build, shapes, _ = MODELS[name]
    assert check(build(), [torch.randn(shape) for shape in shapes], "eval") == reason


# Seeds of which all are compiled in layers, but for those with results of each layer that have gradients, and the like.
@pytest.mark.parametrize("seed", range(8))
def test_random_models(seed):
    check_seed(seed)


LAYER = """def layer(self, h, c, mask, bias, seen):
    h = h + F.gelu(self.linear(h))
    return h, c
"""


def model(forward: str, layer: str = LAYER, parts: tuple[str, ...] = ("linear",), layers: int = 20) -> nn.Module:
    torch.manual_seed(0)
    lines = "\n".join(f"    {line}" for line in forward.splitlines())
    return Model(f"{layer}\ndef forward(self, x, mask, bias):\n{lines}", parts, layers).build()


LOOP = """h, c, seen = x, x, []
for layer in self.layers:
    h, c = layer(h, c, mask, bias, seen)
"""


def rounds_left_out(net: nn.Module, mode: str = "eval") -> list[int]:
    _, _, job = captured(net, inputs(Random(0)), mode)
    return [short.left_out for short in without_layers(job)]


def test_most_layers_are_left_out():
    assert rounds_left_out(model(f"{LOOP}return h")) == [20 - 1 - KEPT]       # the first one takes `x` in its places


@pytest.mark.parametrize("change", ["requires_grad", "dtype", "size"])
def test_a_layer_that_differs_divides_the_others(change):
    layer = "def layer(self, h, c, mask, bias, seen):\n    return torch.tanh(self.linear(h) * self.scale.float()), c"
    net = model(f"{LOOP}return h", layer, ("linear", "scale"), 40)
    match change:
        case "requires_grad":
            net.layers[20].scale.requires_grad_(False)
        case "dtype":
            net.layers[20].scale.data = net.layers[20].scale.data.double()
        case "size":
            net.layers[20].scale = nn.Parameter(torch.ones(1, 8))
    left_out = rounds_left_out(net)
    assert left_out and sum(left_out) <= 40 - 1 - 2 * KEPT
    assert check(net, inputs(Random(0)), "eval") == "layers"


@pytest.mark.parametrize("forward", [
    "h = x\nfor number, layer in enumerate(self.layers):\n    h = torch.tanh(layer.linear(h)) * (number + 1.5)\nreturn h",
    f"{LOOP.replace('seen)', 'seen); seen.append(h)')}return sum(seen)",
    f"{LOOP}return h.sum() + sum(layer.linear.weight.sum() for layer in self.layers)",
    "h = x\nfor one, other in zip(self.layers, self.layers[::-1]):\n    h = torch.tanh(other.linear(torch.tanh(one.linear(h))))\n"
    "return h",
])
def test_what_each_layer_does_otherwise_is_not_left_out(forward):
    net = model(forward)
    assert not rounds_left_out(net)
    assert check(net, inputs(Random(0)), "eval") == "no layers"


def test_sizes_that_change_on_the_way_are_seen():
    layer = "def layer(self, h, c, mask, bias, seen):\n    return F.avg_pool1d(torch.tanh(h + self.calls), 2, 1), c"
    net = model(f"{LOOP}return h", layer, ("calls",))
    x = torch.randn(2, 3, 40)
    assert check(net, [x, None, None], "eval") == "no layers are found"


def test_numbers_that_change_are_not_taken_for_alike():
    _, _, job = captured(model(f"{LOOP}return h"), inputs(Random(0)), "eval")
    assert without_layers(job)
    job = replace(job, inputs=tuple(replace(spec, number=spec.state) for spec in job.inputs))
    assert not without_layers(job)


def test_inputs_that_share_memory_are_not_taken_for_alike():
    _, _, job = captured(model(f"{LOOP}return h"), inputs(Random(0)), "eval")
    job = replace(job, inputs=tuple(replace(spec, storage=(0, 0)) for spec in job.inputs))
    assert not without_layers(job)


# --- what users see

def compiled(net: nn.Module, **settings: Any) -> Any:
    return capture.compile(net, **settings)


def settled(call: Callable[..., Any], *given: Any) -> None:
    call(*given)
    call(*given)
    capture.wait()


def test_sizes_that_vary():
    net = Transformer("loss and logits")
    call = compiled(net, dynamic=True)
    for length in (5, 7, 7, 9):
        x = torch.randn(2, length, 8)
        settled(call, x)
        net.zero_grad()
        call(x)[0].backward()
        found = [weight.grad.clone() for weight in net.parameters()]
        net.zero_grad()
        net(x)[0].backward()
        for ours, weight in zip(found, net.parameters(), strict=True):
            torch.testing.assert_close(ours, weight.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("place", [0, COUNT // 2, COUNT - 1])
def test_a_weight_written_to_before_the_backward_pass(place):
    """In each layer autograd's own error, in its words."""
    net = Transformer("loss")
    x = torch.randn(2, 4, 8)
    call = compiled(net)
    settled(call, x)

    def error(function: Callable[..., Any]) -> str:
        loss = function(x)
        with torch.no_grad():
            net.layers[place].down.weight.mul_(1)
        with pytest.raises(RuntimeError) as raised:
            loss.backward()
        return str(raised.value).partition("version")[0]
    assert error(call) == error(net)


def test_a_frozen_layer_is_seen():
    """Captured again, and without a gradient for that layer."""
    net = Transformer("loss")
    x = torch.randn(2, 4, 8)
    call = compiled(net)
    settled(call, x)
    net.layers[COUNT // 2].requires_grad_(False)
    settled(call, x)
    net.zero_grad()
    call(x).backward()
    assert [weight.grad is None for weight in net.parameters()] == [not weight.requires_grad for weight in net.parameters()]


# --- sequences

def lengthening(items: list[tuple[str, ...]], given: dict[str, Place], left_out: int = 2, step: int = 1) -> list[list[Any]]:
    layers = Lengthening([item[0] for item in items], [item[1:] for item in items], given, left_out, step=step)
    return [layers.mentioned(number, copy) for number, copy in layers]


GIVEN = {f"w{layer}": Place("w", layer) for layer in range(3)}
BEGIN = ("mul", "x", "u", "h")          # a layer whose input is none of a layer's: the first one that is found comes after it


def test_layers_are_put_in():
    items = [BEGIN, ("mul", "h", "w0", "a"), ("mul", "a", "w1", "b"), ("mul", "b", "w2", "c"), ("end", "c", "y")]
    w = [Place("w", layer) for layer in range(5)]
    assert lengthening(items, GIVEN)[1:] == [
        [("h", 0), w[0], ("a", 0)], [("a", 0), w[1], ("a", 1)], [("a", 1), w[2], ("a", 2)],
        [("a", 2), w[3], ("b", 0)], [("b", 0), w[4], ("c", 0)], [("c", 0), ("y", 0)]]


def test_layers_are_put_in_from_the_last_to_the_first():
    items = [BEGIN, ("mul", "h", "w2", "a"), ("mul", "a", "w1", "b"), ("mul", "b", "w0", "c")]
    assert [names[1].layer for names in lengthening(items, GIVEN, step=-1)[1:]] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("items", [
    [("mul", "h", "w0", "a"), ("mul", "a", "w1", "b"), ("mul", "b", "w2", "c"), ("end", "c", "a", "y")],    # of the first layer
    [("mul", "h", "w0", "a"), ("mul", "a", "w1", "b"), ("mul", "b", "w2", "c"), ("end", "c", "w0", "y")],
    [("add", "h", "w2", "g"), ("mul", "h", "w0", "a"), ("mul", "a", "w1", "b"), ("mul", "b", "w2", "c")],
    [("mul", "h", "w0", "a"), ("mul", "a", "w2", "b"), ("mul", "b", "w1", "c")],                            # in another order
    [("mul", "h", "w0", "w0", "a"), ("mul", "a", "w1", "w0", "b"), ("mul", "b", "w2", "w0", "c")],
])
def test_layers_that_cannot_be_put_in(items):
    with pytest.raises(NotAlike):
        lengthening([BEGIN, *items], GIVEN)


def test_items_that_take_nothing_of_a_layer():
    items = [BEGIN, ("half", "y", "r"), ("mul", "h", "w0", "a"), ("half", "r", "s"), ("mul", "a", "w1", "b"), ("half", "s", "t"),
             ("mul", "b", "w2", "c"), ("half", "t", "u")]

    def layers(items):
        return Lengthening([item[0] for item in items], [item[1:] for item in items], GIVEN | {"y": Place("y")}, 2)
    with pytest.raises(NotAlike, match="takes nothing"):
        layers(items).check_chains()
    layers([item for item in items if item[0] != "half"]).check_chains()
    layers([("half", "y", item[2]) if item[0] == "half" else item for item in items]).check_chains()    # the same in each layer


def test_repetitions():
    assert find_repetition("abcxyxyxyd", lambda one, length: True) == (3, 2, 3, 9)
    assert find_repetition("abcxyxyxyxd", lambda one, length: True) == (3, 2, 3, 10)
    assert find_repetition("abcxyxyxyd", lambda one, length: one != 3) == (4, 2, 2, 9)
    assert find_repetition("abcd", lambda one, length: True) is None
    assert find_repetition("aab", lambda one, length: True, 2) is None


def test_places_in_full():
    places = [Place("a"), *(Place("w", layer) for layer in (1, 2)), Place("b")]
    assert in_full(places, 2) == [Place("a"), *(Place("w", layer) for layer in (1, 2, 3, 4)), Place("b")]
    with pytest.raises(NotAlike):
        in_full([Place("w", 1), Place("w", 3)], 2)


def test_what_stands_for_a_layer():
    row = {0: Place("first"), 1: Place("made", 0), 2: Place("made", 1), 3: Place("last")}
    assert [in_layer(row, layer, 2, 1) for layer in range(6)] == [
        Place("first"), *(Place("made", layer) for layer in range(4)), Place("last")]
    backwards = {0: Place("last"), 1: Place("made", 1), 2: Place("made", 0), 3: Place("first")}
    assert [in_layer(backwards, layer, 2, -1) for layer in range(6)] == [
        Place("last"), *(Place("made", layer) for layer in (3, 2, 1, 0)), Place("first")]
    with pytest.raises(NotAlike):
        in_layer({0: Place("made", 0), 1: Place("made", 2)}, 1, 2, 1)
