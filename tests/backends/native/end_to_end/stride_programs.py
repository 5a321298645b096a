"""Random chains of operations on images and the like, which lie in memory in random orders, beside eager mode, with kernels:
where results lie, what shares memory, what writes do. `python -m tests.backends.native.end_to_end.stride_programs [--first K]
[--count N]`."""
from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tests.search_settings  # noqa: F401  # isort: skip
import capture
from capture import config
from tests.backends.native.end_to_end.engine import AT_ONCE

Step = Callable[[Tensor], Tensor]
LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}      # by rank


def of_space(name: str, rank: int) -> Callable[..., Tensor]:
    """A function of `torch.nn.functional` for tensors of this rank: `conv2d` for images."""
    found: Callable[..., Tensor] = getattr(F, name.format(f"{rank - 2}d"))
    return found


def convolved(x: Tensor, *shape: int, name: str = "conv{}", size: int = 1, **options: Any) -> Tensor:
    return of_space(name, x.dim())(x, torch.full((*shape, *[size] * (x.dim() - 2)), 0.3), **options)


STEPS: dict[str, Step] = {      # each takes a tensor of a batch, channels and one to three dimensions of space, and makes one
    "bilinear": lambda x: F.interpolate(x, size=(4, 5, 6)[-(x.dim() - 2):], mode=LINEAR[x.dim()]),
    "bicubic": lambda x: F.interpolate(x, size=(5, 6), mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, size=(2, 3, 4)[-(x.dim() - 2):]),
    "twice": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "convolution": lambda x: convolved(x, 5, x.shape[1]),
    "per channel": lambda x: convolved(x, x.shape[1], 1, groups=x.shape[1]),
    "transposed convolution": lambda x: convolved(x, x.shape[1], 5, name="conv_transpose{}", size=2, stride=2),
    "norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "group norm": lambda x: F.group_norm(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "pool to one": lambda x: of_space("adaptive_avg_pool{}", x.dim())(x, 1),
    "pool to two": lambda x: of_space("adaptive_avg_pool{}", x.dim())(x, 2),
    "largest": lambda x: of_space("adaptive_max_pool{}", x.dim())(x, 1),
    "largest of neighbours": lambda x: of_space("max_pool{}", x.dim())(x, 2, stride=1, padding=1),
    "mean of neighbours": lambda x: of_space("avg_pool{}", x.dim())(x, 2, stride=1, padding=1),
    "means": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "beside itself": lambda x: torch.cat([x, x], 1),
    "below itself": lambda x: torch.cat([x, x * 2], 0),
    "pad": lambda x: F.pad(x, (1, 1) * (x.dim() - 2)),
    "reflect": lambda x: F.pad(x, (0, 0) * (x.dim() - 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="replicate"),
    "clone": lambda x: x.clone(),
    "add": lambda x: x + 1,
    "add a row": lambda x: x + torch.arange(x.shape[-1]),
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "softmax": lambda x: x.softmax(1),
    "log softmax": lambda x: x.log_softmax(-1),
    "log sigmoid": F.logsigmoid,
    "lower triangle": lambda x: x.tril(),
    "sums": lambda x: x.cumsum(2),
    "roll": lambda x: x.roll(1, 0),
    "roll pixels": lambda x: x.roll((1, 2), (-2, -1)),
    "flip": lambda x: x.flip(1),
    "shuffle": lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "transpose": lambda x: x.transpose(-1, -2),
    "other way round": lambda x: x.permute(tuple(reversed(range(x.dim())))),
    "product": lambda x: x @ x.mT,
    "linear": lambda x: F.linear(x, torch.full((3, x.shape[-1]), 0.3)),
    "einsum": lambda x: torch.einsum("nc...,nd...->n...cd", x, x * 2).flatten(1, -3),
    "part": lambda x: x[:, :1],
    "sorted": lambda x: x.sort(1)[0],
    "gather": lambda x: x.index_select(1, torch.tensor([0, 0])),
    "written to": lambda x: (x * 2).relu_(),
    "flat": lambda x: x.reshape(x.shape[0], -1, *[1] * (x.dim() - 2)),
    "flat written to": lambda x: (y := x * 2).reshape(-1).mul_(1.5).sum() * 0 + y}
ENDS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "itself": lambda x: (x,),
    "views": lambda x: (x, x[:, 0:], x.mT, x.detach()),
    "flat": lambda x: (x.reshape(-1), x),
    "flat, written to": lambda x: (x.reshape(-1).mul_(2), x, x + 1),
    "channels behind": lambda x: (x.movedim(1, -1).reshape(-1), x * 2),
    "written to": lambda x: (x.mul_(2), x.sin()),
    "saved": lambda x: ((y := x.exp()), y * y, y.sum(1))}
SHAPES = [(2, 3, 4, 5), (2, 4, 1, 1), (1, 4, 3, 3), (2, 1, 3, 4), (1, 1, 3, 3), (2, 4, 1, 3), (2, 4, 3, 1)]


@dataclass
class Case:
    """A program and what it is called with: a tensor of this shape, whose dimensions lie in memory in this order."""

    steps: tuple[str, ...]
    end: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    requires_grad: bool = False
    varies: bool = False            # the size of the batch
    uncompiled: Sequence[str] = field(default=(), repr=False)       # why graphs are not compiled

    @classmethod
    def drawn(cls, seed: int) -> Case:
        rng = random.Random(seed)
        steps = tuple(rng.choice(list(STEPS)) for _ in range(rng.randint(1, 4)))
        shape, rank = rng.choice(SHAPES), rng.choice([3, 4, 4, 4, 5])
        last = (0, *range(2, rank), 1)
        return cls(steps, rng.choice(list(ENDS)), (*shape[:2], *[2] * (rank - 4), *shape[2:])[:rank],
                   rng.choice([tuple(range(rank)), last, last, tuple(rng.sample(range(rank), rank))]), rng.random() < 0.5,
                   rng.random() < 0.3)

    def program(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x * 1
        for step in self.steps:
            x = STEPS[step](x)
        return ENDS[self.end](x)

    def input(self, call: int) -> Tensor:
        more = call if self.varies and self.shape[0] > 1 else 0
        shape = (self.shape[0] + more, *self.shape[1:])
        ordered = torch.rand([shape[dim] for dim in self.order], generator=torch.Generator().manual_seed(call))
        return ordered.permute([self.order.index(dim) for dim in range(len(self.order))]).requires_grad_(self.requires_grad)

    def seen(self, function: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> tuple[list[Any], list[Tensor]]:
        """What a call gives: what is compared exactly, and values."""
        try:
            results = function(x)
            facts = [(t.shape, t.stride(), t.storage_offset(), t._is_view(), t._version, t.requires_grad,
                      t._base is not None and t._base.stride(), [t.data_ptr() == one.data_ptr() for one in results])
                     for t in results]
            values = [t.detach().clone() for t in results]
            if any(t.requires_grad for t in results):
                loss = sum((t * torch.arange(t.numel()).reshape(t.shape)).sum() for t in results if t.requires_grad)
                values.append(torch.autograd.grad(loss, x)[0])
        except (RuntimeError, IndexError, ValueError) as error:
            return [type(error)], []
        return facts, values

    def difference(self) -> str | None:
        """In what the compiled program differs from eager mode; None if in nothing."""
        compiled = capture.compile(self.program, **AT_ONCE)
        with config.TRIAL_CALLS.set(0):
            for call in range(4):
                (theirs, expected), (ours, found) = (self.seen(function, self.input(call)) for function in (self.program, compiled))
                if ours != theirs:
                    return f"call {call}: {ours}, in eager mode {theirs}"
                for one, other in zip(found, expected, strict=True):
                    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * max(1.0, float(other.abs().max())), equal_nan=True):
                        return f"call {call}: other values"
        self.uncompiled = capture.stats(compiled).compile_errors
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    failed = uncompiled = 0
    for seed in range(options.first, options.first + options.count):
        case = Case.drawn(seed)
        if (difference := case.difference()) is not None:
            failed += 1
            print(f"{seed}: {case}\n    {difference}", flush=True)
        elif case.uncompiled:
            uncompiled += 1
            print(f"{seed}: {case}\n    not compiled: {case.uncompiled}", flush=True)
    print(f"{options.count} programs, {failed} differ, {uncompiled} are not compiled")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
