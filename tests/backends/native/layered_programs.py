"""Random models of equal layers, and how a graph compiled in layers is compared with the same graph compiled as a whole.

`python -m tests.backends.native.layered_programs SEEDS` (such as 0-500) runs many of them, and tells how many could be repeated.
"""
from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, fx, nn

import capture
from capture.backends.native import artifact, transport
from capture.backends.native.artifact import Artifact
from capture.backends.native.compiler import compile_in_layers, compile_whole
from capture.backends.native.job import Job, Modes
from capture.backends.native.repetition import NotAlike
from capture.backends.native.signature import Unsupported
from tests.backends.native.traced import specs

WIDTH, LENGTH, BATCH = 8, 4, 2
LARGE = 1e6         # values that may have exploded, with all that was rounded off on the way
BESIDE = 4          # steps beside the layers that may be more or less, where other kernels are fused there

# What a layer may do with its state `h`, a second one `c`, and what all layers are given: `mask` and `bias`.
STEPS = {
    "h = h + self.linear(h)": ("linear",),
    "h = self.norm(h)": ("norm",),
    "h = F.layer_norm(h, (8,))": (),
    "h = h + self.second(F.gelu(self.first(h)))": ("first", "second"),
    "c = torch.tanh(self.gate(h)) * c": ("gate",),
    "h = h + c": (),
    "c = h": (),
    "h, c = c + h, h": (),
    "h = h + bias": (),
    "h = F.dropout(h, 0.25, self.training)": (),
    "h = h * self.scale": ("scale",),
    "h = torch.softmax(h @ h.transpose(1, 2) + mask, -1) @ h": (),
    "q, k = self.both(h).chunk(2, -1); h = h + q * torch.sigmoid(k)": ("both",),
    "h = F.scaled_dot_product_attention(h, self.key(h), h, mask)": ("key",),
    "h = self.mixer(h.transpose(1, 2).contiguous()).transpose(1, 2)": ("mixer",),
    "h = self.batch_norm(h)": ("batch_norm",),
    "h = h - h.mean(-1, keepdim=True)": (),
    "h = torch.where(mask[0, :, :1] > -1, h.sin(), h)": (),
    "h = torch.cat([h[..., 4:], h[..., :4].relu()], -1)": (),
    "h = h.clone(); h.mul_(0.5).add_(1)": (),
    "h = h.roll(1, 1)": (),
    "h = h.cumsum(1) / 4": (),
    "self.calls.add_(1)": ("calls",),
    "c = c.detach() + h": (),
    "h = h + self.both(h)[..., :8] @ self.both.weight[:8]": ("both",),
    "self.running.lerp_(h.detach().mean((0, 1)), 0.1); h = h - self.running": ("running",),
    "rotary = seen[0] if seen else bias.cos(); seen[:] = [rotary]; h = h * rotary": (),
    "h, c = F.layer_norm(h.detach(), (8,)) + self.linear(h), h": ("linear",),
    "c = c * 0.5 + self.scale.square().sum()": ("scale",),
    "seen.append(h)": (),
    "seen.append(h[:, 1:].transpose(0, 1))": (),
}
BEFORE = ("h = x", "h = x * 2", "h = torch.tanh(x)", "h = x + bias")
SECOND = ("c = h", "c = torch.ones_like(h)", "c = x.cos()")
AFTER = ("return h", "return h.sum()", "return h, (h * c).mean()", "return h.sin().sum() + c.sum(), h.detach()", "return h[:, 0]",
         "return h, c, seen", "loss = h.square().mean(); return loss, h", "return sum(one.sum() for one in [h, *seen]), c.sum()")

AROUND = ("if True:", "if True:", "with torch.autocast('cpu', torch.bfloat16):")
FROZEN = ("", "", "", "True", "number % 2", "number < layers // 2")


class Parts(nn.Module):
    """What a layer may have of its own, by name."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, self.made(name))

    @staticmethod
    def made(name: str) -> Any:
        match name:
            case "norm":
                return nn.LayerNorm(WIDTH)
            case "scale":
                return nn.Parameter(torch.rand(WIDTH) + 0.5)
            case "both":
                return nn.Linear(WIDTH, 2 * WIDTH, bias=False)
            case "first":
                return nn.Linear(WIDTH, 2 * WIDTH)
            case "second":
                return nn.Linear(2 * WIDTH, WIDTH)
            case "mixer":
                return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
            case "batch_norm":
                return nn.BatchNorm1d(LENGTH)
            case "calls":
                return nn.Buffer(torch.zeros(()))
            case "running":
                return nn.Buffer(torch.zeros(WIDTH))
        return nn.Linear(WIDTH, WIDTH)


@dataclass
class Model:
    """A model's text, which defines `forward(layers, x, mask, bias)`, and what its layers have."""

    text: str
    parts: tuple[str, ...]
    layers: int
    frozen: str = ""        # of which layers the parts get no gradients: an expression of `number` and `layers`

    def build(self) -> nn.Module:
        names: dict[str, Any] = {"torch": torch, "F": nn.functional}
        exec(self.text, names)
        layer = type("Layer", (Parts,), {"forward": names["layer"]})
        net = type("Net", (nn.Module,), {"forward": names["forward"]})()
        net.layers = nn.ModuleList(layer(self.parts) for _ in range(self.layers))
        for number, one in enumerate(net.layers):
            if self.frozen and eval(self.frozen, {"number": number, "layers": self.layers}):
                one.requires_grad_(False)
        return net


def drawn(random: Random) -> Model:
    steps = random.sample(list(STEPS), random.randint(2, 6))
    if random.random() < 0.8:           # else most layers would have no weights
        steps.append("h = h + self.linear(h)")
    parts = tuple(dict.fromkeys(name for step in steps for name in STEPS[step]))
    layer = ["def layer(self, h, c, mask, bias, seen):", *(f"    {step}" for step in steps), "    return h, c"]
    forward = ["def forward(self, x, mask, bias):", f"    {random.choice(BEFORE)}", f"    {random.choice(SECOND)}; seen = []",
               f"    {random.choice(AROUND)}", "        for layer in self.layers:",
               "            h, c = layer(h, c, mask, bias, seen)", f"    {random.choice(AFTER)}"]
    return Model("\n".join([*layer, *forward]), parts, random.randint(9, 16), random.choice(FROZEN))


def inputs(random: Random) -> list[Tensor]:
    mask = torch.zeros(1, LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
    return [torch.randn(BATCH, LENGTH, WIDTH).requires_grad_(random.random() < 0.3), mask,
            torch.randn(WIDTH).requires_grad_(random.random() < 0.5)]


def captured(net: nn.Module, given: Sequence[Any], mode: str) -> tuple[fx.GraphModule, list[Tensor], Job]:
    """The one graph of a call, with what it takes, and the job to compile it. mode: "infer", "eval" or "train"."""
    graphs: list[tuple[fx.GraphModule, list[Tensor]]] = []

    def backend(gm: fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        graphs.append((gm, list(examples)))
        return gm.forward
    net.train(mode == "train")
    with torch.set_grad_enabled(mode != "infer"):
        capture.compile(net, backend=backend)(*given)
        (gm, examples), = graphs
        job = Job(gm, tuple(specs(examples)), Modes.current(), {})
        return gm, examples, transport.decode(transport.encode(job))


def behaviour(call: Callable[..., Any], examples: Sequence[Tensor], grad: bool) -> list[Tensor | None]:
    """All that a call computes: results, gradients, what it writes to its inputs, and how often, and how results lie in memory."""
    torch.manual_seed(1)
    given = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in examples]
    versions = [tensor._version for tensor in given]
    with torch.set_grad_enabled(grad):
        results = call(*given)
        roots = [result for result in results if result.requires_grad]
        if roots:
            sum((result * (number + 1)).sum() for number, result in enumerate(roots)).backward()
    layouts = [torch.tensor([*result.stride(), result.storage_offset(), result.requires_grad]) for result in results]
    return [*(result.detach().clone() for result in results), *(tensor.grad for tensor in given),
            *(tensor.detach() for tensor in given), *layouts,
            torch.tensor([tensor._version - version for tensor, version in zip(given, versions, strict=True)])]


def compared(gm: fx.GraphModule, examples: Sequence[Tensor], layered: Artifact, whole: Artifact, grad: bool) -> None:
    """Asserts that both artifacts do the same, bit for bit, in about as many steps, and what the graph does."""
    expected = behaviour(gm.forward, examples, grad)
    one, other = (behaviour(artifact.load(found, gm), examples, grad) for found in (layered, whole))
    size = max(float(value.abs().max()) for value in expected if value is not None and value.numel())
    for number, values in enumerate(zip(expected, one, other, strict=True)):
        eager, ours, theirs = values
        assert (eager is None) == (ours is None) == (theirs is None), f"value {number}: {eager}, {ours}, {theirs}"
        if ours is not None:
            assert torch.equal(ours, theirs) or bool(ours.isnan().any()), f"value {number}: {(ours - theirs).abs().max()}"
            if size < LARGE:
                torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2 * max(1, size), equal_nan=True)
    for ours, theirs in zip((layered.forward, *layered.backward), (whole.forward, *whole.backward), strict=True):
        assert abs(len(ours.plan.steps) - len(theirs.plan.steps)) <= BESIDE, (len(ours.plan.steps), len(theirs.plan.steps))
    assert [(check.text, check.is_input, check.makes_result) for check in layered.signature.checks] == [
        (check.text, check.is_input, check.makes_result) for check in whole.signature.checks]


def check(net: nn.Module, given: Sequence[Any], mode: str) -> str:
    """Compiles a model in layers and as a whole, and compares both. Returns "layers", or why it is not compiled in layers."""
    gm, examples, job = captured(net, given, mode)
    try:
        layered = compile_in_layers(job)
    except (NotAlike, Unsupported) as error:
        return str(error)
    if layered is None:
        return "no layers"
    compared(gm, examples, layered, compile_whole(job), mode != "infer")
    return "layers"


def check_seed(seed: int) -> tuple[str, str]:
    """Checks one random model; returns its text and what `check` does."""
    random = Random(seed)
    torch.manual_seed(seed)
    model = drawn(random)
    mode = random.choice(("infer", "eval", "train", "train"))
    net, given = model.build().train(mode == "train"), inputs(random)
    try:
        copy.deepcopy(net)(*given)
    except RuntimeError:
        return model.text, "eager mode raises"
    try:
        return model.text, check(net, given, mode)
    except Exception as error:
        raise AssertionError(f"seed {seed}, {mode}, {model.layers} layers:\n{model.text}") from error


def main(seeds: str) -> None:
    first, _, last = seeds.partition("-")
    outcomes: Counter[str] = Counter()
    for seed in range(int(first), int(last or first) + 1):
        try:
            _, outcome = check_seed(seed)
        except AssertionError as error:
            outcome = f"FAILED: {error.__cause__}"
            print(error, error.__cause__, sep="\n", flush=True)
        outcomes[outcome] += 1
    for outcome, count in outcomes.most_common():
        print(count, outcome)


if __name__ == "__main__":
    main(sys.argv[1])
