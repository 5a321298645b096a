"""Programs on a GPU, compiled and in eager mode: values, layouts, random numbers, gradients."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

import capture
from capture import config

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.complex64: 2e-5}
HITS = 3


def x(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, grad: bool = False) -> Tensor:
    """The same numbers each time, on the GPU."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_(grad)


def ints(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).cuda()


def fresh(arguments: Any) -> Any:
    """Tensors of their own memory with the same layout, parameters and modules copied."""
    def copied(tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)
    return [copy.deepcopy(value) if isinstance(value, nn.Module) else tree_map_only(Tensor, copied, value) for value in arguments]


def run(program: Callable[..., Any], arguments: list[Any], backward: bool) -> tuple[Any, Tensor]:
    """All that a call leaves behind: results, arguments, gradients; and the state of the GPU's random numbers."""
    torch.manual_seed(7)
    results = program(*arguments)
    leaves = [value for value in tree_leaves(results) if isinstance(value, Tensor)]
    inputs = [value for argument in arguments for value in
              ([*argument.parameters(), *argument.buffers()] if isinstance(argument, nn.Module) else tree_leaves(argument))
              if isinstance(value, Tensor)]
    if backward:
        with torch.autocast("cuda", enabled=False):
            sum((value * (1 + torch.arange(value.numel(), device=value.device).view(value.shape) % 7)).sum()
                for value in leaves if value.requires_grad).backward()
    grads = [value.grad for value in inputs]
    return (results, inputs, grads), torch.cuda.get_rng_state()


def same(found: Any, expected: Any, exact: bool = False) -> None:
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        if not isinstance(b, Tensor):
            assert a == b
            continue
        assert (a.dtype, a.device, a.shape, a.requires_grad) == (b.dtype, b.device, b.shape, b.requires_grad)
        assert [s for s, n in zip(a.stride(), a.shape) if n > 1] == [s for s, n in zip(b.stride(), b.shape) if n > 1]
        tolerance = 0 if exact else TOLERANCE.get(b.dtype, 0)
        scale = b.detach().abs().max().item() if b.numel() and tolerance else 1
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance * max(1, scale), equal_nan=True)


def check(program: Callable[..., Any], *calls: list[Any], backward: bool = False, compiled: int = 1) -> Any:
    """Each call in eager mode, then compiled several times: the first is captured, the next have kernels. Returns what the
    compiled function's statistics say."""
    function = capture.compile(program, backend="native", options={"background": False})
    with config.TRIAL_CALLS.set(0), config.CACHE.set(0):
        for arguments in calls:
            expected, state = run(program, fresh(arguments), backward)
            for _ in range(HITS):
                found, after = run(function, fresh(arguments), backward)
                same(found, expected)
                assert torch.equal(after, state)
        stats = capture.stats(function)
        assert not stats.compile_errors, stats.compile_errors
        assert stats.compiled >= compiled, capture.explain(function)
        assert not stats.breaks, capture.explain(function)
    return stats


@pytest.fixture(autouse=True)
def float32_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN rounds float32 to fewer digits unless it is told not to, and we compute recurrent networks in full."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.inner, self.outer, self.dropout = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64), dropout

    def forward(self, value: Tensor) -> Tensor:
        hidden = F.gelu(self.inner(self.norm(value)))
        return value + F.dropout(self.outer(hidden), self.dropout, self.training)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2), nn.GroupNorm(4, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.causal = nn.Linear(64, 192), nn.Linear(64, 64), causal

    def forward(self, value: Tensor) -> Tensor:
        query, key, values = self.inner(value).view(*value.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, values, is_causal=self.causal)
        return self.outer(attended.transpose(1, 2).flatten(2))


def module(cls: Callable[..., nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(1)
    return cls(*args).cuda()


def called(model: nn.Module, *args: Any) -> Any:
    return model(*args)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) / 8.0
    scores = scores.masked_fill(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def rms(value: Tensor, weight: Tensor) -> Tensor:
    return weight * (value.float() * torch.rsqrt(value.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(value.dtype)


FORWARD: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "pointwise": (lambda a, b: torch.sigmoid(a) * b.tanh() + a.exp().clamp(max=3.0), lambda: [x(33, 127), x(33, 127, seed=1)]),
    "broadcast": (lambda a, b: (a + b).relu(), lambda: [x(17, 1, 40), x(9, 40)]),
    "transposed": (lambda a: (a.t() * 2).contiguous(), lambda: [x(130, 70)]),
    "softmax": (lambda a: a.softmax(-1), lambda: [x(50, 1000)]),
    "long softmax": (lambda a: a.log_softmax(-1), lambda: [x(4, 50257)]),
    "columns": (lambda a: (a.sum(0), a.amax(0), a.mean(0)), lambda: [x(3000, 130)]),
    "everything": (lambda a: (a.sum(), a.var(), a.abs().max()), lambda: [x(1000, 513)]),
    "places": (lambda a: (a.argmax(-1), a.argmin(0), a.cumsum(-1)), lambda: [x(37, 290)]),
    "concatenation": (lambda a, b: torch.cat([a * 2, b + 1], 1), lambda: [x(20, 30), x(20, 44)]),
    "padding": (lambda a: F.pad(a, (1, 2, 3, 4)) * 2, lambda: [x(5, 30, 31)]),
    "gather": (lambda a, i: (a[i] * 2, a.gather(0, i[:, None].expand(-1, 5))), lambda: [x(40, 5), ints(40, 61)]),
    "scatter": (lambda a, i, b: a.index_add(0, i, b * 2), lambda: [x(10, 33), ints(10, 200), x(200, 33)]),
    "sorting": (lambda a: (a * 2).sort(-1)[0] + a.topk(3)[0].sum(), lambda: [x(15, 100)]),
    "integers": (lambda i: (i * 3 % 7 + (i >> 1), i.float().sqrt()), lambda: [ints(1000, 333)]),
    "booleans": (lambda a, i: (a > 0) & (i > 5), lambda: [x(300), ints(10, 300)]),
    "complex": (lambda a: ((a + 1j) * (2 - 1j)).abs(), lambda: [x(50, 20)]),
    "double": (lambda a: a.softmax(0) * a.norm(), lambda: [x(90, 20, dtype=torch.float64)]),
    "half": (lambda a, b: F.layer_norm(a + b, (96,)).relu(), lambda: [x(40, 96, dtype=torch.half), x(40, 96, dtype=torch.half)]),
    "bfloat16": (rms, lambda: [x(40, 96, dtype=torch.bfloat16), x(96, dtype=torch.bfloat16)]),
    "empty": (lambda a: (a * 2, a.sum(0)), lambda: [x(0, 7)]),
    "scalar on the processor": (lambda a, s: (a * s + 1).relu(), lambda: [x(60), torch.tensor(2.5)]),
    "written out attention": (written_out, lambda: [x(2, 4, 50, 64), x(2, 4, 50, 64, seed=1), x(2, 4, 50, 64, seed=2)]),
    "dropout": (lambda a: F.dropout(a, 0.3) * 2, lambda: [x(100, 64)]),
    "random": (lambda a: a + torch.rand_like(a) + torch.randn(a.shape, device=a.device), lambda: [x(100, 64)]),
    "products": (lambda a, b, c: torch.baddbmm(c, a, b) @ b[0].t(), lambda: [x(4, 20, 30), x(4, 30, 25), x(4, 20, 25)]),
    "interpolated": (lambda a: F.interpolate(a, scale_factor=2) * 2, lambda: [x(2, 3, 8, 9)]),
    "strided": (lambda a: a[:, ::2] * 2 + a[:, 1::2], lambda: [x(30, 40)]),
    "long rows": (lambda a: (a - a.mean(-1, keepdim=True)) * a.var(-1, keepdim=True).rsqrt(), lambda: [x(3, 70001)]),
}
TRAINING: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "block": (called, lambda: [module(Block), x(3, 20, 64, grad=True)]),
    "block with dropout": (called, lambda: [module(Block, 0.2), x(3, 20, 64, grad=True)]),
    "convolutions": (called, lambda: [module(Convolutions), x(4, 3, 20, 20, grad=True)]),
    "attention": (called, lambda: [module(Attention, True), x(2, 40, 64, grad=True)]),
    "embedding": (lambda table, i: F.embedding(i, table).tanh().sum(1), lambda: [x(50, 16, grad=True), ints(50, 9, 30)]),
    "cross entropy": (lambda a, i: F.cross_entropy(a * 2, i), lambda: [x(30, 5003, grad=True), ints(5003, 30)]),
    "rms": (rms, lambda: [x(30, 64, grad=True), x(64, grad=True)]),
    "bias": (lambda a, b: F.gelu(a + b, approximate="tanh"), lambda: [x(500, 48, grad=True), x(48, grad=True)]),
    "gather": (lambda a, i: a.gather(1, i).exp(), lambda: [x(20, 30, grad=True), ints(30, 20, 12)]),
    "lstm": (lambda m, a: m(a)[0], lambda: [module(nn.LSTM, 16, 24), x(7, 3, 16, grad=True)]),
    "multihead": (lambda m, a: m(a, a, a, need_weights=False)[0],
                  lambda: [module(nn.MultiheadAttention, 32, 4), x(7, 3, 32, grad=True)]),
}


@pytest.mark.parametrize("name", FORWARD)
def test_inference(name: str) -> None:
    program, make = FORWARD[name]
    check(program, make())


@pytest.mark.parametrize("name", TRAINING)
def test_training(name: str) -> None:
    program, make = TRAINING[name]
    check(program, make(), backward=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cls", [Block, lambda: Attention(True), Convolutions], ids=["block", "attention", "convolutions"])
def test_autocast(cls: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    def program(model: nn.Module, value: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype):
            return model(value)
    made = module(cls)
    value = x(4, 3, 20, 20) if isinstance(made, Convolutions) else x(3, 20, 64)
    function = capture.compile(program, backend="native", options={"background": False})
    with config.TRIAL_CALLS.set(0), config.CACHE.set(0):
        expected, _ = run(program, fresh([made, value]), True)
        for _ in range(HITS):
            found, _ = run(function, fresh([made, value]), True)
            for a, b in zip(tree_leaves(found), tree_leaves(expected)):
                if isinstance(b, Tensor):
                    assert a.dtype == b.dtype
                    error = (a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-6)
                    assert error < (2e-2 if dtype == torch.bfloat16 else 4e-3)
        stats = capture.stats(function)
        assert not stats.compile_errors and stats.compiled, capture.explain(function)


def test_numbers_and_sizes_that_change() -> None:
    def program(value: Tensor, scale: float) -> Tensor:
        return (value * scale).softmax(-1) + scale
    calls = [[x(rows, 65), scale] for rows, scale in ((8, 1.5), (8, 2.5), (13, 3.5), (40, 0.5), (7, -1.0))]
    stats = check(program, *calls)
    assert stats.captures <= 4


def test_a_batch_that_changes() -> None:
    def program(model: nn.Module, value: Tensor) -> Tensor:
        return model(value)
    made = module(Block)
    stats = check(program, *([made, x(batch, 20, 64, grad=True)] for batch in (3, 5, 2, 9, 1, 17)), backward=True)
    assert stats.captures <= 4


def test_writes_to_inputs() -> None:
    def program(value: Tensor, state: Tensor) -> Tensor:
        state.mul_(0.9).add_(value.mean(0), alpha=0.1)
        return value - state
    check(program, [x(30, 12), x(12, seed=3)], [x(30, 12, seed=5), x(12, seed=4)])


@pytest.mark.parametrize("cls, kwargs", [
    (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (torch.optim.Adam, {"foreach": False})])
def test_training_steps(cls: Any, kwargs: dict[str, Any]) -> None:
    def losses(compile: bool) -> list[Tensor]:
        model = module(lambda: nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 20)))
        optimizer = cls(model.parameters(), lr=1e-2, **kwargs)

        def step(value: Tensor, wanted: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(value), wanted)
            loss.backward()
            optimizer.step()
            return loss.detach()
        function = capture.compile(step, backend="native", options={"background": False}) if compile else step
        with config.TRIAL_CALLS.set(0), config.CACHE.set(0):
            return [*(function(x(16, 20, seed=n), x(16, 20, seed=n + 50)) for n in range(6)), *model.parameters()]
    for found, expected in zip(losses(True), losses(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_lists_of_tensors() -> None:
    """In a few launches: other sizes, other dtypes, memory that begins anywhere, views of one memory."""
    def program(weights: list[Tensor], gradients: list[Tensor], factor: float) -> Tensor:
        norm = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum().sqrt()
        torch._foreach_mul_(gradients, (1 / (norm + 1e-6)).clamp(max=1.0))
        for weight, gradient in zip(weights, gradients):
            weight.mul_(0.99).add_(gradient, alpha=-factor)
        return norm
    sizes = [40, 41, 1, 4096, 100000, 7] * 50
    for dtype in (torch.float32, torch.bfloat16):
        flat = x(sum(sizes), dtype=dtype)
        check(program, [[x(size, dtype=dtype) for size in sizes], [x(size, dtype=dtype, seed=1) for size in sizes], 0.1])
        check(lambda values, factor: torch._foreach_mul(values.split(sizes), factor), [flat, 3.0])


def test_rows_whose_size_varies() -> None:
    """In both forms, for sizes that are multiples of what is read at a time and others."""
    def program(value: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(value.softmax(-1) * weight, value.shape[-1:], weight)
    for dtype in (torch.float32, torch.half):
        check(program, *([x(30, size, dtype=dtype), x(size, dtype=dtype)] for size in (64, 65, 2048, 66, 68, 50257)))


def test_what_comes_from_the_processor_and_goes_there() -> None:
    def program(value: Tensor, batch: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        moved = (batch * 2).to("cuda")
        return (value * moved).sum(0).cpu(), moved.exp() * scale
    check(program, [x(30, 12), torch.randn(12), torch.tensor(1.5)], [x(30, 12, seed=2), torch.randn(12), torch.tensor(-2.0)])


def test_which_kernels_of_attention_are_allowed() -> None:
    """A change of that is another program."""
    query = x(2, 4, 64, 32, dtype=torch.half)
    function = capture.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend="native", options={"background": False})
    with config.TRIAL_CALLS.set(0), config.CACHE.set(0):
        for _ in range(3):
            function(query)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            expected = F.scaled_dot_product_attention(query, query, query)
            for _ in range(3):
                assert torch.equal(function(query), expected)


def test_other_streams() -> None:
    function = capture.compile(lambda a, b: (a @ b).relu().sum(-1), backend="native", options={"background": False})
    with config.TRIAL_CALLS.set(0):
        for _ in range(3):
            function(x(300, 300), x(300, 300, seed=1))
        streams = [torch.cuda.Stream() for _ in range(4)]
        for turn in range(20):
            for number, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    a, b = torch.randn(300, 300, device="cuda"), torch.randn(300, 300, device="cuda")
                    found = function(a, b)
                    torch.testing.assert_close(found, (a @ b).relu().sum(-1), rtol=1e-4, atol=1e-3)


def test_the_compiling_process_takes_no_memory_of_the_gpu() -> None:
    before = torch.cuda.mem_get_info()[0]
    check(called, [module(Block), x(3, 20, 64, grad=True)], backward=True)
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] < 200 << 20
