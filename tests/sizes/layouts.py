"""Random chains of views whose sizes change from call to call, and what a program asks of how they lie in memory."""
from __future__ import annotations

import random
import re
import types
from dataclasses import dataclass
from typing import Any

import torch

from tests.helpers import Call, check
from tests.sizes.at_random import SIZES

# {N} an integer; `x` is (a, b, c), `y` (b, c), `n` and `m` integers.
VIEWS = """
[:{N}]|[:, :{N}]|[..., :{N}]|[{N}:]|[:, {N}:]|[..., 1:]|[:, :-1]|[-{N}:]|[:, 0]|[0]|[..., -1]|[..., 0:1]|[::2]|[:, ::2]|[None]
[:, None]|.t()|.mT|.transpose(0, 1)|.transpose(0, -1)|.narrow(0, 0, {N})|.narrow(-1, 0, {N})|.narrow(1, {N}, 1)|.split({N})[0]
.split({N}, -1)[0]|.chunk(2)[0]|.chunk(2, -1)[-1]|.unbind(0)[-1]|.unbind(1)[0]|.unfold(-1, 2, 2)|.unfold(0, 2, 1)|.diagonal()
.select(1, {N})|.detach()|.expand(2, -1, -1)|.expand(-1, {N})|.unsqueeze(-1)|.squeeze()|.squeeze(0)|.movedim(0, -1)|.permute(1, 0)
.permute(2, 0, 1)|.unflatten(0, (-1, 2))|.tensor_split(2)[0]|.hsplit(2)[0]|.view_as(y)|.contiguous()|.swapaxes(-1, -2)|.view(-1)
.reshape(-1)|.reshape({N}, -1)|.flatten(1)|.flatten()|.view({N}, -1)|.reshape(-1, {N})|.expand_as(x)|.as_strided(({N}, 1), (1, 1))
.data|.unfold(1, {N}, {N})|.take_along_dim(y.argsort(0)[:1], 0)
""".replace("\n", "|").strip("|").split("|")
QUESTIONS = """
v.contiguous() is v|v.contiguous()|v.contiguous().add_(1)|v.reshape(-1)|v.reshape(-1).add_(1)|v.flatten()|v.flatten().mul_(2)
v.view(-1)|v.view(-1).add_(1)|v.ravel()|v.ravel().add_(1)|v.is_contiguous()|v.stride()|v.stride(0)|v.storage_offset()
v[1:].storage_offset()|v.clone()|v * 2|v.relu()|torch.empty_like(v).stride()|v.to(torch.float32) is v|v.double()|v.expand_as(v)
v.mT.contiguous()|v.mT.reshape(-1).zero_()|v.t().contiguous().add_(1)|v.view(v.shape)|v.reshape(v.shape)|v.reshape(v.shape[::-1])
v.squeeze()|v.squeeze(0).add_(1)|v._is_view()|v._base is x|v.untyped_storage().nbytes()|v.add_(1)|v.mul_(2); q = x.sum()
v.zero_(); q = v.contiguous()|v.numel()|v.shape|v.is_contiguous(memory_format=torch.channels_last)
v.clone(memory_format=torch.contiguous_format)|torch.atleast_2d(v)|v.view(v.size(0), -1)|v.unflatten(0, (1, -1))|torch.cat([v])
v + v.sum(0)|torch.broadcast_to(v, v.shape)|v.repeat(1, 1)|v.type_as(x)|v.float() is v|v.requires_grad_() is v|v.is_set_to(x)
v.data_ptr() == x.data_ptr()|v.is_non_overlapping_and_dense()|v.numpy().strides|v.numpy().flags.c_contiguous|v.tolist()|v.set_(x)
v.view(torch.int32)|v.view(-1).view(v.shape)|v.t_()|v.unsqueeze_(0)|v.squeeze_()|v.transpose_(0, 1); q = v.contiguous()
v.dim_order()|v.contiguous().view(-1)|v.stride(-1)|(v + 1).stride()|v.flatten().stride(0)|v[None].stride(-1)|v.relu().stride(0) * 2
""".replace("\n", "|").strip("|").split("|")
NUMBERS = "n", "n", "m", "2", "3", "1", "x.size(0)", "x.size(-1)", "x.size(1)", "x.size(1) // 2", "y.size(0)", "n - 1", "n + m"


@dataclass(frozen=True)
class Program:
    """Lines, and the sizes and numbers of its calls."""

    lines: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    number: int

    @property
    def text(self) -> str:
        return "\n    ".join(["def program(state, x, y, n, m):", "v = w = x", "q = None", *self.lines, "return v, w, q, state\n"])

    def make(self) -> Any:
        scope: dict[str, Any] = {"torch": torch}
        exec(self.text, scope)
        state: list[Any] = []
        return types.MethodType(scope["program"], state), state


def arguments(sizes: tuple[int, ...], order: int) -> tuple[Any, ...]:
    """Of these sizes, in this order in memory."""
    a, b, c, n, m = sizes
    c += order == 3
    generator = torch.Generator().manual_seed(sum(sizes))
    if order > 3:               # a part of a larger tensor, of other sizes in each call
        whole = torch.randn(a, b + n, c * m + 1, generator=generator)
        x = whole[:, n:, :c] if order == 4 else whole[:, :b, :c]
        return x, torch.randn(b, c, generator=generator), n, m
    x = torch.randn(c, b, a, generator=generator).permute(2, 1, 0) if order == 1 else torch.randn(
        b, a, c, generator=generator).transpose(0, 1) if order == 2 else torch.randn(a, b, c, generator=generator)
    return x if order < 3 else x[:, :, 0], torch.randn(b, c, generator=generator), n, m


def generate(seed: int, length: int, calls: int) -> Program:
    """A program of so many views, a question after some, and at the end."""
    chance = random.Random(seed)
    lines: list[str] = []
    for place in range(chance.randint(1, length)):
        view = re.sub(r"\{N\}", lambda _: chance.choice(NUMBERS), chance.choice(VIEWS))
        lines.append(f"v = {chance.choice(('v', 'v', 'v', 'x', 'y', 'w'))}{view}")
        if chance.random() < 0.15:
            lines.append("w = v")
        if chance.random() < 0.2 or place == 0 and chance.random() < 0.3:
            lines.append("state.append(len(x))")
    for _ in range(chance.choice((1, 1, 2))):
        lines.append("q = " + chance.choice(QUESTIONS))
        if chance.random() < 0.3:
            lines.append("state.append(q)")
    few = chance.sample((2, 3, 4, 5, 6, 8), 3)
    sizes = [tuple(chance.choice(few) for _ in range(5)) for _ in range(calls - 2)]
    sizes += [tuple(chance.choice(SIZES[:9]) for _ in range(5)) for _ in range(2)]
    if chance.random() < 0.4:           # few elements, or one, come first
        sizes.reverse()
    return Program(tuple(lines), tuple(sizes), seed)


def examine(program: Program, **options: Any) -> Any:
    """Compares a program with eager mode. Raises AssertionError, or an error of capture's, where they differ."""
    steps = [Call(lambda _, sizes=sizes: (arguments(sizes, program.number % 6), {})) for sizes in program.sizes]
    return check(program.make, *steps, captures=None, fullgraph=False, recompile_limit=60, **options)
