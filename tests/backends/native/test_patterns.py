"""Attention written out becomes the kernel, where that computes the same, and nothing else does."""
from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import capture
from capture.backends.native.patterns import fuse_attention

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 6, 16
LOWEST = torch.finfo(torch.float32).min


def triangle(kind: str) -> Tensor:
    """A mask that follows from the graph alone: tracing leaves it there as an attribute."""
    ones = torch.ones(LENGTH, LENGTH)
    return {"kept": ones.tril() == 0, "added": torch.full((LENGTH, LENGTH), -math.inf).triu(1), "lowest": ones.triu(1) * LOWEST,
            "future": ones.tril(-1) == 0, "mixed": ones.flip(0).tril() == 0}[kind]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) * 0.3


def repeated(x: Tensor) -> Tensor:
    n, heads, length, width = BATCH, HEADS // 2, LENGTH, WIDTH
    return x[:, :, None].expand(n, heads, 2, length, width).reshape(n, 2 * heads, length, width)


def in_place(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    s = torch.matmul(q, k.mT)
    s *= 0.3
    return F.softmax(s.masked_fill_(m, -1e9), -1) @ v


# Of q, k, v, and in part a boolean mask m with one row that is all true.
SAME: dict[str, Callable[..., Tensor]] = {
    "divided": lambda q, k, v: F.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH), dim=-1) @ v,
    "multiplied": lambda q, k, v: ((q @ k.transpose(2, 3)) * 0.25).softmax(-1).matmul(v),
    "plain": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), 3), v),
    "query scaled": lambda q, k, v: F.softmax((q * 0.2) @ k.permute(0, 1, 3, 2), -1) @ v,
    "key scaled": lambda q, k, v: F.softmax(2 * (q @ (k / 3).mT), -1) @ v,
    "scaled by a constant tensor": lambda q, k, v: F.softmax((q @ k.mT) / torch.tensor(4.0), -1) @ v,
    "idle dropout": lambda q, k, v: F.dropout(F.softmax(q @ k.transpose(-2, -1), dim=-1), 0.5, False) @ v,
    "through float": lambda q, k, v: F.softmax(scores(q, k).float(), -1, dtype=torch.float32).type_as(q) @ v,
    "view of the result": lambda q, k, v: (F.softmax(scores(q, k), -1) @ v).view(BATCH, HEADS * LENGTH, WIDTH),
    "heads joined": lambda q, k, v: (F.softmax(scores(q, k), -1) @ v).transpose(1, 2).reshape(BATCH, LENGTH, HEADS * WIDTH),
    "one key head": lambda q, k, v: F.softmax(scores(q, k[:, :1]), -1) @ v[:, :1],
    "grouped": lambda q, k, v: F.softmax(scores(q, repeated(k[:, :2])), -1) @ repeated(v[:, :2]),
    "interleaved": lambda q, k, v: F.softmax(
        scores(q, k[:, :2].repeat_interleave(2, 1)), -1) @ v[:, :2].repeat_interleave(2, dim=1),
    "filled with -inf": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m, -math.inf), -1) @ v,
    "filled with the lowest": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m, LOWEST), -1) @ v,
    "filled before the scale": lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m, -1e9) / 4, -1) @ v,
    "filled in place": in_place,
    "where": lambda q, k, v, m: F.softmax(torch.where(m, scores(q, k), -math.inf), -1) @ v,
    "where, inverted": lambda q, k, v, m: F.softmax(torch.where(m, torch.full((), -1e9), scores(q, k)), -1) @ v,
    "filled and grouped": lambda q, k, v, m: F.softmax(scores(q, repeated(k[:, :2])).masked_fill(m, -1e9), -1) @ repeated(v[:, :2]),
    "expanded mask": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m.expand(BATCH, HEADS, LENGTH, LENGTH), -1e9), -1) @ v,
    "mask of keys": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m[:, :, :1], -1e9), -1) @ v,
    "mask of all queries": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m[0, 0, 0], -1e9), -1) @ v,
    "mixed": lambda q, k, v: F.softmax(scores(q, k).masked_fill(triangle("mixed"), -math.inf), -1) @ v,
    "all masked": lambda q, k, v: F.softmax(scores(q, k).masked_fill(triangle("future"), -math.inf), -1) @ v,
}
CAUSAL: dict[str, Callable[..., Tensor]] = {
    "filled": lambda q, k, v: F.softmax(scores(q, k).masked_fill(triangle("kept"), -math.inf), -1) @ v,
    "where": lambda q, k, v: F.softmax(torch.where(~triangle("kept"), scores(q, k), LOWEST), -1) @ v,
    "added": lambda q, k, v: F.softmax(scores(q, k) + triangle("added"), -1) @ v,
    "added for each batch": lambda q, k, v: F.softmax(triangle("lowest").expand(BATCH, 1, -1, -1) + scores(q, k), -1) @ v,
    "more keys": lambda q, k, v: F.softmax(scores(q[:, :, :4], k) + triangle("added")[:4], -1) @ v,
    "more queries": lambda q, k, v: F.softmax(scores(q, k[:, :, :4]) + triangle("added")[:, :4], -1) @ v[:, :, :4],
}


def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    q.mul_(2)
    return F.softmax(s, -1) @ v


def changed_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    s = scores(q, k).masked_fill(m, -1e9)
    m.logical_not_()
    return F.softmax(s, -1) @ v


def shown(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    return weights @ v + weights.sum()


OTHER: dict[str, Callable[..., Tensor]] = {
    "dropout": lambda q, k, v: F.dropout(F.softmax(q @ k.transpose(-2, -1), dim=-1), 0.5, True) @ v,
    "weights used": shown,
    "other dimension": lambda q, k, v: F.softmax(q @ k.transpose(-2, -1), dim=-2) @ v,
    "small fill": lambda q, k, v, m: F.softmax(scores(q, k).masked_fill(m, -10.0), -1) @ v,
    "small fill, scaled": lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m, -2e4) / 4, -1) @ v,
    "negative scale": lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m, -1e9) * -1, -1) @ v,
    "mask scaled": lambda q, k, v, m: F.softmax((q @ k.mT + m.float()) / 4, -1) @ v,
    "mask enlarges": lambda q, k, v, m: (F.softmax(scores(q, k)[0, 0].masked_fill(m, -1e9), -1) @ v).sum(0),
    "scaled by a tensor": lambda q, k, v: F.softmax(scores(q, k) * q[0, 0, 0, 0], -1) @ v,
    "query changes": changed,
    "mask changes": changed_mask,
    "key in columns": lambda q, k, v: F.softmax(q @ k.mT.contiguous(), -1) @ v,
    "narrow values": lambda q, k, v: F.softmax(scores(q, k), -1) @ v[..., :8],
}


def inputs(program: Callable, dtype: torch.dtype = torch.float32, requires_grad: bool = True) -> list[Tensor]:
    """q, k and v with heads as a linear layer leaves them, and a mask if the program takes one."""
    torch.manual_seed(0)
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH) > 0.5
    mask[:, :, 2], mask[:, :, 4] = True, False
    layers = [torch.randn(BATCH, LENGTH, HEADS, WIDTH, dtype=dtype).transpose(1, 2).requires_grad_(requires_grad) for _ in range(3)]
    return [*layers, mask][:program.__code__.co_argcount]


def fused(program: Callable, arguments: list[Tensor]) -> fx.GraphModule:
    gm = fx.symbolic_trace(program)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(argument) for argument in arguments]
    fuse_attention(gm, fakes)
    gm.graph.lint()
    return gm


def kernels(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.target is F.scaled_dot_product_attention]


def assert_same(gm: Callable, program: Callable, arguments: list[Tensor], tolerance: float = 2e-5) -> None:
    """Values, strides and gradients. Tensors are not written to twice: each run has its own."""
    results = []
    for function in (gm, program):
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in arguments]
        result = function(*given)
        wanted = [a for a in given if a.requires_grad]
        torch.manual_seed(1)
        gradients = torch.autograd.grad(result, wanted, torch.randn_like(result)) if wanted else []
        results.append((result, *gradients))
    assert results[0][0].stride() == results[1][0].stride()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_out_attention_is_one_kernel(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.float64 and name == "through float":
        pytest.skip("float is narrower than double")
    arguments = inputs(SAME[name], dtype)
    gm = fused(SAME[name], arguments)
    assert len(kernels(gm)) == 1
    assert not any(getattr(node.target, "__name__", node.target) == "softmax" for node in gm.graph.nodes)
    assert_same(gm, SAME[name], arguments)
    for mask in arguments[3:]:
        mask[:, :, 2, 2] = False            # each row has a key left
        assert_same(gm, SAME[name], arguments)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_the_kernels_own(name: str) -> None:
    arguments = inputs(CAUSAL[name])
    gm = fused(CAUSAL[name], arguments)
    assert [node.kwargs.get("is_causal") for node in kernels(gm)] == [True]
    assert_same(gm, CAUSAL[name], arguments)


@pytest.mark.parametrize("name", OTHER)
def test_what_would_differ_stays(name: str) -> None:
    assert kernels(fused(OTHER[name], inputs(OTHER[name], requires_grad=False))) == []


@pytest.mark.parametrize("lowest", [LOWEST, -math.inf, -3.0])
def test_an_added_mask_needs_no_gradients(lowest: float) -> None:
    """Backward the kernel loses the logarithm of a row's sum beside a large number."""
    def added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.softmax(scores(q, k) + torch.where(m, lowest, 0.0), -1) @ v
    arguments = inputs(added, requires_grad=False)
    gm = fused(added, arguments)
    assert len(kernels(gm)) == 1
    assert_same(gm, added, arguments)
    assert kernels(fused(added, inputs(added))) == []


def test_a_mask_with_gradients_stays() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.softmax(q @ k.mT + bias, -1) @ v
    arguments = [*inputs(biased, requires_grad=False)[:3], torch.randn(HEADS, LENGTH, LENGTH, requires_grad=True)]
    assert kernels(fused(biased, arguments)) == []
    arguments[3] = arguments[3].detach()
    gm = fused(biased, arguments)
    assert len(kernels(gm)) == 1
    assert_same(gm, biased, arguments)


def test_a_random_mask_is_not_computed_beforehand() -> None:
    def random(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax(scores(q, k).masked_fill(torch.rand(LENGTH, LENGTH, device=q.device) > 0.5, -1e9), -1) @ v
    arguments = inputs(random, requires_grad=False)
    state = torch.get_rng_state()
    gm = fused(random, arguments)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(3)
    ours = gm(*arguments)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, random(*arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_less_accurate(dtype: torch.dtype) -> None:
    def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.softmax(scores(q, k).masked_fill(m, torch.finfo(dtype).min), -1) @ v
    arguments = inputs(filled, dtype, requires_grad=False)
    q, k, v = (a.double() for a in arguments[:3])
    exact = F.softmax(scores(q, k).masked_fill(arguments[3], -1e9), -1) @ v
    gm = fused(filled, arguments)
    assert len(kernels(gm)) == 1
    ours, theirs = ((function(*arguments).double() - exact).abs().max() for function in (gm, filled))
    assert ours <= theirs * 1.5


@pytest.mark.parametrize("shape", [(3, LENGTH, WIDTH), (1, LENGTH, WIDTH)])
def test_attention_of_one_head(shape: tuple[int, ...]) -> None:
    def single(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)).masked_fill(m, -1e9), 2), v)
    mask = torch.rand(shape[0], LENGTH, LENGTH) > 0.5
    mask[:, 1] = True
    arguments = [*(torch.randn(shape, requires_grad=True) for _ in range(3)), mask]
    gm = fused(single, arguments)
    assert len(kernels(gm)) == 1
    assert_same(gm, single, arguments)


def test_attention_whose_products_autocast_rounds_stays() -> None:
    """The kernel would not be cast to the narrow type there, and its result would have another type."""
    def program(q, k, v):
        return F.softmax(q @ k.transpose(-2, -1) * 0.25, -1) @ v
    arguments = inputs(program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not kernels(fused(program, arguments))
        assert len(kernels(fused(program, [argument.bfloat16() for argument in arguments]))) == 1


def test_attention_on_the_result_of_another() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inner = F.softmax(scores(q, k), -1) @ v
        return F.softmax(scores(inner, k), -1) @ inner
    arguments = inputs(twice)
    gm = fused(twice, arguments)
    assert kernels(gm)
    assert_same(gm, twice, arguments)


class Attention(nn.Module):
    """As programs write it: a lower triangle in a buffer, idle dropout, heads of a joint projection."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.drop = nn.Linear(32, 96), nn.Dropout(0.0)
        self.register_buffer("seen", torch.tril(torch.ones(1, 1, 16, 16)))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (part.view(n, length, 4, 8).transpose(1, 2) for part in self.project(x).split(32, 2))
        weights = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(8))
        weights = weights.masked_fill(self.seen[:, :, :length, :length] == 0, -math.inf)
        return (self.drop(F.softmax(weights, -1)) @ v).transpose(1, 2).reshape(n, length, width)


@pytest.mark.parametrize("training", [False, True])
def test_compiled_modules(training: bool) -> None:
    """Also when the buffer changes, and leaves rows without a key."""
    torch.manual_seed(0)
    module = Attention().train(training)
    compiled = capture.compile(module, backend="native", options={"background": False})
    for call in range(3):
        if call == 2:
            module.seen[..., 2, :] = 0
        x, results = torch.randn(2, 12, 32), []
        for program in (compiled, module):
            given = x.clone().requires_grad_(training)
            with torch.set_grad_enabled(training):
                result = program(given)
            gradients = torch.autograd.grad(result.sum(), [given, *module.parameters()]) if training else ()
            results.append((result, *gradients))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4, equal_nan=True)
    assert results[1][0].isnan().any()
    assert capture.stats(compiled).hits == 2
