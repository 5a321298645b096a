"""Programs whose inputs have other sizes from call to call: name -> (what makes the program, its inputs by `b`, `t` and `n`)."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """A layer of a transformer with a causal mask, written out."""

    def __init__(self, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(width, 3 * width)
        self.norm, self.outer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.inner(self.norm(x)).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        mask = torch.tril(torch.ones(t, t, dtype=torch.bool))
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return x + self.outer((weights @ v).transpose(1, 2).contiguous().view(b, t, c))


class Fused(Attention):
    """The same by torch's own function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.inner(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(y.transpose(1, 2).reshape(b, t, -1))


class Convolutions(nn.Module):
    """A small network for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.two(F.relu(self.one(x)))))
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1).flatten(1))


class Language(nn.Module):
    """Embeddings of tokens and positions, a layer, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.layer = nn.Embedding(11, 8), nn.Embedding(64, 8), Fused()

    def forward(self, tokens: torch.Tensor) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.layer(self.tokens(tokens) + self.places(places)[None])
        logits = hidden @ self.tokens.weight.t()
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))
        return logits[:, -1], loss


class Cache:
    """Keys and values of one layer, as they grow."""

    def __init__(self) -> None:
        self.keys, self.values = torch.zeros(2, 2, 3, 4), torch.ones(2, 2, 3, 4)


def step(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    """One step of decoding."""
    cache.keys = torch.cat([cache.keys, x[:, :, None, :]], 2)
    cache.values = torch.cat([cache.values, x[:, :, None, :] * 2], 2)
    return F.scaled_dot_product_attention(x[:, :, None, :], cache.keys, cache.values)


def padded(xs: list[torch.Tensor]) -> torch.Tensor:
    """A batch of sequences of the lengths that there are."""
    longest = max(x.shape[0] for x in xs)
    return torch.stack([F.pad(x, (0, 0, 0, longest - x.shape[0])) for x in xs])


def messages(nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """A round of messages along the edges of a graph."""
    source, target = edges[0], edges[1]
    gathered = torch.zeros_like(nodes).index_add(0, target, nodes[source])
    degree = torch.zeros(nodes.size(0)).index_add(0, target, torch.ones(target.size(0)))
    return gathered / degree.clamp(min=1)[:, None] + nodes.mean(0)


def by_size(x: torch.Tensor) -> torch.Tensor:
    """What the program itself decides by a size."""
    if x.shape[0] % 2 == 0:
        x = x.view(x.shape[0] // 2, 2, -1).sum(1)
    return x * x.shape[0] if len(x) > 4 else x / x.numel()


class Heads(nn.Module):
    """Sizes that are multiplied by a number of the module's, and taken apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.weight = 2, nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        apart = (x @ self.weight).reshape(b * self.heads, t, -1)
        scores = torch.zeros(b * self.heads, 1, t).baddbmm(batch1=apart, batch2=apart.mT, beta=0.5, alpha=2.0)
        return (scores.view(b, self.heads, t, t).softmax(-1).reshape(-1, t, t) @ apart).view(b, t, -1)


def named(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Arguments by the names that torch gives them."""
    return (torch.mm(input=x, mat2=y), torch.addmm(x[:, :1], mat1=x, mat2=y), x.mv(vec=y[:, 0]),
            torch.swapaxes(x, axis0=0, axis1=1), x.split(split_size=x.shape[0] - 1, dim=0), torch.isin(elements=x, test_elements=y))


def tensors(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Tensors of these shapes, of values that depend on the shapes alone."""
    return tuple(torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=True) for shape in shapes)


def whole(high: int, *shape: int) -> torch.Tensor:
    """Integers below `high`."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(sum(shape)))


Inputs = Callable[[int, int, int], tuple[Any, ...]]
# The most captures that a program may cost, whatever the sizes are (each at least 2): two, and one for each way that it takes.
PROGRAMS: dict[str, tuple[Callable[[], Any], Inputs, int]] = {
    "pointwise": (lambda: lambda x, y: (x * 2 + y).relu() / (1 + x.abs()), lambda b, t, n: tensors((b, t), (b, t)), 2),
    "broadcast": (lambda: lambda x, y: x[:, None] * y[None] + y, lambda b, t, n: tensors((b, n), (t, n)), 2),
    "joined with nothing": (lambda: lambda x: (torch.cat([torch.tensor([]), x], -2), torch.cat([x, x.new_empty(0), x])),
                            lambda b, t, n: tensors((b, t, 4)), 2),
    "attention": (Attention, lambda b, t, n: tensors((b, t, 8)), 2),
    "fused attention": (Fused, lambda b, t, n: tensors((b, t, 8)), 2),
    "images": (Convolutions, lambda b, t, n: tensors((b, 3, t + 6, n + 6)), 2),
    "language": (Language, lambda b, t, n: (whole(11, b, t),), 2),
    "views": (lambda: lambda x: (x.flatten(1), x.transpose(0, 1).reshape(-1), x.permute(2, 0, 1)[..., None], x.mT @ x),
              lambda b, t, n: tensors((b, t, n)), 2),
    "slices": (lambda: lambda x: (x[:, :-1] + x[:, 1:], x[1:], x[:, x.size(1) // 2:], x[-1], x[..., :1]),
               lambda b, t, n: tensors((b, t)), 2),
    "reductions": (lambda: lambda x: (x.sum(), x.mean(1), x.amax(0), x.max(-1), x.argmax(1), x.norm()),
                   lambda b, t, n: tensors((b, t)), 2),
    "moments": (lambda: lambda x: (x.var(-1), x.std(), *torch.var_mean(x, 0)), lambda b, t, n: tensors((b, t)), 2),
    "joins": (lambda: lambda x, y: (torch.cat([x, y, x], 1), torch.stack([x, x], 1), torch.cat([x[:, :1], y], -1)),
              lambda b, t, n: tensors((b, t), (b, n)), 2),
    "made": (lambda: lambda x: (torch.arange(len(x)) + x.sum(), x.new_zeros(x.shape), torch.full((x.size(1), 2), 1.5)),
             lambda b, t, n: tensors((b, t)), 2),
    "halves": (lambda: lambda x: x.view(x.shape[0], 2, x.shape[1] // 2).sum(1) * x.shape[1] ** -0.5,
               lambda b, t, n: tensors((b, 2 * t)), 2),
    "rounded up": (lambda: lambda x: x[: -(-x.size(0) // 4) * 2].relu() + x.sum() / -(-x.size(1) // 3),
                   lambda b, t, n: tensors((b, t)), 2),
    "pieces": (lambda: lambda x: [part.sum() for part in x.split([1, x.shape[0] - 1])], lambda b, t, n: tensors((b, t)), 2),
    "texts": (lambda: lambda x: (x + 1, f"{x.shape[1]}x{x.shape[0]:>4}", {"rows": x.shape[0], "all": x.numel()}),
              lambda b, t, n: tensors((b, t)), 2),
    "losses": (lambda: lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y, reduction="none"), F.kl_div(x, y, reduction="sum")),
               lambda b, t, n: tensors((b, t), (b, t)), 2),
    "graph": (lambda: messages, lambda b, t, n: (*tensors((b, 3)), whole(max(b, 1), 2, t)), 2),
    "in place": (lambda: lambda x: (x := x * 3) is not None and (x.mul_(2), x[:, 0].zero_(), x.unsqueeze_(0), x.shape),
                 lambda b, t, n: tensors((b, t)), 2),
    "decided": (lambda: by_size, lambda b, t, n: tensors((b, t)), 6),
    "padded": (lambda: padded, lambda b, t, n: ([*tensors((b, 2), (t, 2), (n, 2))],), 9),
    "numbers": (lambda: lambda x, n: (torch.zeros(n, 2) + x[:, :2].sum(), x.repeat(1, n), x[:, :n], [x] * 2, n + 1),
                lambda b, t, n: (*tensors((b, 40)), n), 2),
    "differences": (lambda: lambda x: (x.diff(), torch.diff(x, n=2, dim=0), x.diff(prepend=x[:, :1], append=x, dim=1)),
                    lambda b, t, n: tensors((b + 1, t)), 2),
    "strides": (lambda: lambda x: (x[::2], x[1::3, ::2] + 1, torch.arange(len(x), -1, -1.0), torch.arange(0, x.numel(), 3)),
                lambda b, t, n: tensors((b, t)), 2),
    "indexed by lists": (lambda: lambda x: (x[..., [1, 0]], x[:, [-1]], x[[0], :, None], x[:, 0, [1, 1], None], x[[[0, 1]], :, 1]),
                         lambda b, t, n: tensors((b + 2, t + 1, n + 2)), 2),
    "bags": (lambda: lambda x, y: (F.embedding_bag(x, y), F.embedding_bag(x[0], y, torch.tensor([0, 1]), mode="sum")),
             lambda b, t, n: (whole(n + 1, max(b, 1), max(t, 2)), *tensors((n + 1, 3))), 2),
    "counted": (lambda: lambda x: (torch.histc(x.detach(), bins=4, min=-1, max=1), x + 1), lambda b, t, n: tensors((b, t)), 2),
    "heads": (Heads, lambda b, t, n: tensors((b, t, 8)), 2),
    "named": (lambda: named, lambda b, t, n: tensors((b, t), (t, n)), 2),
    "resampled": (lambda: lambda x, y: (F.interpolate(x, size=y.shape[-2:], mode="bilinear"), F.interpolate(x, scale_factor=0.5),
                                        F.adaptive_max_pool2d(x, 2)),
                  lambda b, t, n: tensors((b, 3, t + 1, n + 1), (2, n + 3, t + 2)), 2),
    "patches": (lambda: lambda x: (F.unfold(x, 3, padding=1, stride=2), F.fold(F.unfold(x, 2), x.shape[2:], 2)),
                lambda b, t, n: tensors((b, 2, t + 1, n + 1)), 2),
    "rounded": (lambda: lambda x: (x[:int(x.shape[0] * 0.5)] * 2, F.pad(x, (0, math.ceil(x.shape[2] / 4) * 4 - x.shape[2])) + 1,
                                   x.new_ones(round(x.shape[1] * 1.5)) * x.sum(), x * (x.shape[0] - round(x.shape[1] * 0.4))),
                lambda b, t, n: tensors((b, t, n)), 2),
    "grids": (lambda: lambda x, y: F.grid_sample(x, y.tanh(), align_corners=False),
              lambda b, t, n: tensors((b, 3, t + 1, n + 1), (b, n, t, 2)), 2),
    "a bag": (lambda: torch.nn.EmbeddingBag(9, 3), lambda b, t, n: (whole(9, b, t),), 2),
    "contracted": (lambda: lambda x, y: (torch.tensordot(x, y, 1), torch.tensordot(x, x, ([0, 1], [0, 1])),
                                         torch.linalg.solve(x.mT @ x + torch.eye(x.size(1)) * 9, y), torch.vdot(x[0], y[:, 0])),
                   lambda b, t, n: tensors((b, t), (t, n)), 2),
    "noise": (lambda: lambda x: F.dropout(x, 0.5) + torch.rand(x.shape) + torch.randn_like(x), lambda b, t, n: tensors((b, t)), 2),
}
