"""Random programs as users write them, whose sizes change from call to call: models with caches, masks, tables of positions,
padding, statistics and state of their own, called in several modes, with inputs in several layouts and types."""
from __future__ import annotations

import contextlib
import linecache
import math
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import capture
from tests.helpers import Call, compare, run, tensors

WIDTH = 4
SIZES = (0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16, 31)
FIRST = (2, 3, 4, 5, 6, 7, 8, 12)

# {X} floats of (b, t, WIDTH), {P} of (b, WIDTH), {M} a mask of (b, t), {I} images, {N} an integer, {S} any of the float tensors.
HIDDEN = """
self.linear({X})|{X} + {X}|{X} * s|{X} + self.table[:{X}.size(1)]|{X} + self.table[pos:pos + {X}.size(1)]|self.places(ids) + {X}
{X} + self.places(torch.arange({X}.shape[1]))|{X} * {M}[..., None]|{X}.masked_fill(~{M}[..., None], 0.0)|{X} + {P}[:, None]
{X}.flip(1)|torch.cat([{X}[:, {N}:], {X}[:, :{N}]], 1)|F.dropout({X}, 0.3, self.training)|self.norm({X})|self.batch({X}.mT).mT
self.conv({X}.mT).mT|{X} + self.gru({X})[0]|self.attend({X}, *[{X}] * 2)|self.attend({X}, *[{X}] * 2, {M})|self.causal({X})
F.pad({X}, (0, 0, 0, {N}))[:, :{X}.size(1)]|F.pad({X}, (0, 0, {N}, 0))[:, {N}:]|torch.where({M}[..., None], {X}, {X} * 0.5)
{X}.cumsum(1) / torch.arange(1, {X}.size(1) + 1)[None, :, None]|{X} - {X}.mean(1, keepdim=True)|self.rotate({X})
{X}.reshape(-1, 4)[torch.arange({X}.shape[0] * {X}.shape[1])].view({X}.shape)|{X}.view({X}.size(0), -1, 2, 2).flatten(2)
({X} @ {X}.mT).softmax(-1) @ {X}|torch.stack([{X}[:, i] for i in range({X}.size(1))], 1)
{X}.transpose(0, 1).contiguous().transpose(0, 1)|torch.cat([part * 2 for part in {X}.split(2, 1)], 1)
torch.cat({X}.chunk(2, -1), -1)|{X}.clone().mul_(2)|{X}.sort(1).values|{X} * torch.linspace(0, 1, {X}.size(1))[:, None]
{X}.masked_fill(torch.rand({X}.shape) > 0.5, 1.0)|{X} + torch.randn_like({X}) * 0|F.interpolate({X}.mT, size={X}.size(1)).mT
{X}.roll({N}, 1)|{X} * (1 / math.sqrt({X}.size(1) + 1))|{X} ** 2 / {X}.size(0)|self.scaled({X})|self.residual({X})
{X}[torch.arange({X}.size(0)).flip(0)]|torch.einsum("btc,bsc->bts", {X}, {X}) @ {X}|{X}.unfold(1, 1, 1).squeeze(-1)
F.avg_pool1d({X}.mT, 3, 1, 1).mT|F.layer_norm({X}, {X}.shape[2:])|F.normalize({X}, dim=-1)
{X}.gather(1, (torch.arange({X}.size(1)) // 2)[None, :, None].expand({X}.shape))|{X} + self.bias(({X}.size(1), {X}.size(1)))[:, :1]
rnn.pad_sequence([row[:{N} + 1] for row in {X}], batch_first=True)|{X}.to(self.table.dtype)|{X}.float()|{X}.double().to({X}.dtype)
""".replace("\n", "|").strip("|").split("|")
POOLED = """
{X}.mean(1)|{X}.sum(1)|{X}.amax(1)|{X}[:, -1]|{X}[:, 0]|{X}[:, {N}]
({X} * {M}[..., None]).sum(1) / {M}.sum(1, keepdim=True).clamp(min=1)|{X}[torch.arange({X}.size(0)), (lengths - 1).clamp(min=0)]
self.linear({P})|{P} * s|{P} + {P}|{P} / {X}.size(1)|{P}.relu()|{X}.logsumexp(1)|F.adaptive_avg_pool1d({X}.mT, 1)[..., 0]
{X}.var(1, correction=0)|{P} - self.mean|{P}.softmax(-1)|self.gru({X})[1][0]|{I}.mean((2, 3))[:, :1] + {P}
torch.cat([{P}[:, :2], {P}[:, 2:]], 1)|{P}.expand_as({P})|{X}.max(1).values
""".replace("\n", "|").strip("|").split("|")
MASKS = """
torch.arange({X}.size(1))[None] < lengths[:, None]|torch.arange({X}.size(1)) < lengths[:, None]|{X}.sum(-1) > 0|~{M}|{M} & {M}
ids > 2|ids != 0|torch.ones({X}.shape[:2], dtype=torch.bool)|torch.zeros({X}.shape[0], {X}.shape[1], dtype=torch.bool)
torch.rand({X}.shape[:2]) > 0.5
""".replace("\n", "|").strip("|").split("|")
IMAGES = """
self.image({I})|{I} * 2|self.pixels({I})|{I}.relu()|{I}.flip(-1)|F.pad({I}, (1, 1, 1, 1))[..., 1:-1, 1:-1]
F.max_pool2d({I}, 3, 1, 1)|F.interpolate({I}, size={I}.shape[-2:], mode="bilinear")|{I} - {I}.mean((2, 3), keepdim=True)
{I}.contiguous()|{I} + {I}.amax(1, keepdim=True)|{I}.contiguous(memory_format=torch.channels_last)
F.pad({I}, (0, -{I}.shape[-1] % 4, 0, -{I}.shape[-2] % 4))|{I}.mT.mT|F.interpolate({I}, scale_factor=2.0)[..., ::2, ::2]
{I}[..., :{N} + 1, :]|F.pixel_shuffle(torch.cat([{I}, {I}], 1), 2)[:, :, ::2, ::2]
""".replace("\n", "|").strip("|").split("|")
OTHER = """
{S}.sum()|{S}.mean()|{S}.flatten()|{S}[:{N}]|{S}[..., :1]|{S}.t() if {S}.dim() == 2 else {S}|{S}.reshape(-1)[{N}:]|{S}.std()
{X}.view(-1, 4)|{X}.flatten(1)|{X}.permute(2, 0, 1)|{X} @ {X}.mT|{X}[{M}]|{X}[:, ::2]|{X}.unbind(1)[-1]|self.head({X})
F.cross_entropy(self.head({X}).flatten(0, 1), ids.flatten(), ignore_index=0)|F.mse_loss({X}, {X})|rnn.pad_sequence([*{X}])
F.cross_entropy(self.head({X})[:, :-1].reshape(-1, 7), ids[:, 1:].reshape(-1))|{M}.sum(1)|{M}.float().mean()|x|x.view(x.shape)
x[:, 1:]|y.expand_as(x)|y[:1]|ids.view(-1)|torch.cat([x, y], 1)|torch.cat([x.sum(1), y.sum(1)])|torch.zeros({N}, {N})|{S}.view(-1)
x.detach()|rnn.pack_padded_sequence({X}, lengths.clamp(min=1), batch_first=True, enforce_sorted=False).data|{P} @ {P}.mT
{P}.topk(min({N}, 4)).values|F.one_hot(ids, 7).float().mean(1)|torch.bincount(ids.flatten(), minlength=7)|ids.unique()
torch.zeros(7).index_add(0, ids.flatten(), {X}[..., 0].flatten())|{X}.new_zeros({X}.size(1), {N})|torch.full({X}.shape[:2], s)
torch.tensor([s, {N}])|torch.empty(0, 4)|self.cached_mask({X}.size(1))|{X}.numel() * {X}.sum()|{S}.max()|{S}.argmax()
{I}.flatten(2).transpose(1, 2)|{I}.unfold(2, 2, 2)|F.unfold({I}, 2).sum(-1)|{P}.var(0)
""".replace("\n", "|").strip("|").split("|")
NUMBERS = """
{X}.size(1)|{X}.shape[0]|len({X})|pos|pos + {X}.size(1)|{N} // 2|{N} % 3|min({N}, {X}.size(1))|max({N}, 2)|{N} // 4
divmod({N}, 2)[0]|sum(divmod({N}, 3))|{X}.numel() // 4|self.n|self.seen[-1] if self.seen else 1|{I}.shape[-1]
{I}.shape[-1] - {I}.shape[-2]|int({X}.size(1) * 0.5)|math.ceil({N} / 2)|len(self.seen)|self.calls|sum(self.seen[-2:])
int(lengths.max()) if len(lengths) else 0|2 ** {N}.bit_length()|{N} if {N} > 3 else 3|round({N} / 3)|self.table_of.get({N}, 5)
len(f"{{N}}")|-(-{N} // 4) * 4|({N} + 3) & ~3|abs({X}.size(0) - {X}.size(1))|{X}.stride(1)|y.size(1)|ids.size(1) - 1
range({N})[-1] if {N} else 0|int({X}.size(1) > pos)
""".replace("\n", "|").strip("|").split("|")
STATEMENTS = """
self.cache = torch.cat([self.cache, {X}[:1].detach()], 1)|self.cache = torch.cat([self.cache, {X}[:1].detach()], 1)[:, -6:]
h = h + self.attend(h, self.cache.to(h.dtype).expand(h.size(0), -1, -1), self.cache.to(h.dtype).expand(h.size(0), -1, -1))
self.buffer[:{X}.size(0), pos:pos + {X}.size(1)] = {X}.detach()|self.buffer[:, {N}] = 1.0|self.buffer[:, :{N}].mul_(0.5)
self.buffer.zero_()|h = h + self.buffer[:h.size(0), :h.size(1)]|self.buffer[:{X}.shape[0], :{X}.shape[1]].add_({X}.detach())
self.n = {N}|self.n += {N}|self.seen.append({N})|self.seen.append({X}.shape)|self.seen = self.seen[-3:]|self.sums.append({X}.sum())
self.sums.append({X}[:, -1])|h = h + sum(self.sums, torch.zeros(())).sum() * 0.1|del self.sums[:]|self.table_of[{N}] = {N} * 2
self.table_of[{X}.shape] = {N}|self.table_of[f"{{X}.size(1)}"] = {N}|print(f"{{X}.shape} {{N}}")|print({N}, {X}.size(1))
self.calls += 1|self.last = h|self.last = {X}.detach()|self.mean.mul_(0.9).add_({X}.detach().mean((0, 1)), alpha=0.1)
self.mean += {P}.detach().mean(0)|self.count += {X}.size(1)|self.mean.copy_({P}.detach()[0])
self.mean = self.mean * 0.5 + {P}.detach().sum(0)|self.count.add_({N})|self.count.fill_({N})|if {X}.size(1) > {N}: h = h * 2
if {N} % 2: h = h + 1|if {N} // 4: h = h.relu()|if {X}.size(1) > 5: return h.sum(), {N}|if {X}.size(0) == {X}.size(1): h = h - 1
if {X}.shape == h.shape: h = h + {X}|if not {X}.size(1): return {N}|if len({X}) == 1: h = h.tanh()
if self.last is not None and self.last.shape == h.shape: h = h + self.last.to(h.dtype)|if {N} > self.n: self.n = {N}
if self.training: h = h * 1.5|if {X}.size(1) > self.longest: self.longest = {X}.size(1); self.table_of.clear()
b, t, c = {X}.shape; h = h * t|for i in range(min({N}, 3)): h = h + i|for i, row in enumerate({X}): self.table_of[i] = row.shape[0]
h = h[:, :{N}] if {N} > 1 else h|for layer in self.layers[:{N} % 3]: h = layer(h)
for k, v in list(self.table_of.items())[:2]: h = h + (v if isinstance(v, int) else 0)
with torch.no_grad(): self.mean.add_({X}.mean((0, 1)))|with torch.no_grad(): h = h + self.linear({X})|x.mul_(1.0)
h = h.clone(); h[:, {N}] = 0.0|with torch.autocast("cpu", torch.bfloat16): h = h + self.linear({X})
h = h.clone(); h[:, :{N}] += 1.0|h = h.clone(); h[{M}] = 0.5|h = h.clone(); h[torch.arange(h.size(0)), -1] = 2.0|self.stash({X})
h = self.unstash(h)|outside()|h = self.many({X}, {X}, n={N})|try: h = h + {X}[:, {N}:{N} + h.size(1)] + 0
assert {X}.size(1) < 20, f"too long: {{X}.size(1)}"|y.add_(1)|ids.clamp_(max=5)
if {X}.size(1) > 12: raise ValueError(f"{{X}.size(1)} of {{N}}")|h = h * self.factor; self.factor = h.size(1) / 10
h.retain_grad() if h.requires_grad and not h.is_leaf else None|if {M}.any(): h = h + 1|if h.sum() > 0: h = h * 0.5
n = {N}; h = h + torch.arange(n).sum()|h = torch.cat([h, {X}], 1)|h = h[:, :-1]|h = h[:, 1:]|h = h[:, ::2]|h = h[::2]
h = h.mT.contiguous().mT|h = F.pad(h, (0, 0, 0, -h.size(1) % 4))|h = h.expand(2, *h.shape)[1]|h = checked(h, {N})
self.keys[pos % 3] = {X}.detach()|h = h + self.keys[pos % 3].sum() if pos % 3 in self.keys else h
self.register_buffer("extra", {X}.detach().sum(1))|self.extra = {X}.detach()[:, :1]|h = h + self.extra.sum()
self.linear.weight.data.mul_(0.99)|torch._check({N} >= 0)|self.n = h.size(1) // 2
""".replace("\n", "|").strip("|").split("|")
KINDS = {"X": HIDDEN, "P": POOLED, "M": MASKS, "I": IMAGES, "S": OTHER, "N": NUMBERS, "": STATEMENTS}
WEIGHTS = {"X": 6, "P": 3, "M": 2, "I": 2, "S": 3, "N": 3, "": 9}


@capture.disable
def outside() -> None:
    """What no trace can hold."""


def checked(x: torch.Tensor, n: int) -> torch.Tensor:
    """Raises for more rows than there are."""
    if x.shape[1] < n:
        raise ValueError(f"{x.shape[1]} is less than {n}")
    return x[:, :max(n, 1)]


class Base(nn.Module):
    """What the programs use: layers, tables, and state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.head, self.places = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 7), nn.Embedding(7, WIDTH)
        self.norm, self.batch, self.conv = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.gru, self.image = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Conv2d(2, 2, 3, padding=1)
        self.pixels = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2)) for _ in range(3))
        self.register_buffer("table", torch.randn(40, WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("buffer", torch.zeros(16, 24, WIDTH))
        self.register_buffer("extra", torch.zeros(1, WIDTH))
        self.cache, self.masks, self.table_of, self.keys = torch.zeros(1, 2, WIDTH), {}, {3: 2}, {}
        self.n, self.calls, self.longest, self.factor, self.seen, self.sums, self.last = 2, 0, 3, 0.5, [], [], None

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, c = q.shape
        q, k, v = (part.view(b, -1, 2, c // 2).transpose(1, 2) for part in (q, k, v))
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None, :])
        return made.transpose(1, 2).reshape(b, t, c)

    def causal(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.cached_mask(x.size(1))
        scores = (x @ x.transpose(1, 2)) * x.size(-1) ** -0.5
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x

    def cached_mask(self, n: int) -> torch.Tensor:
        if n not in self.masks:
            self.masks[n] = torch.ones(n, n, dtype=torch.bool).tril()
        return self.masks[n]

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.size(-1) // 2
        angles = torch.arange(x.size(1))[:, None] * 0.1 ** torch.arange(half)
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1).to(x.dtype)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(1) > self.longest:
            self.longest = x.size(1)
        return x / self.longest

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x

    def bias(self, shape: tuple[int, int]) -> torch.Tensor:
        distance = (torch.arange(shape[0])[:, None] - torch.arange(shape[1])[None]).abs().clamp(max=6)
        return self.places(distance)[:, 0]

    def stash(self, x: torch.Tensor) -> None:
        self.__dict__["stashed"] = x.detach(), x.shape

    def unstash(self, x: torch.Tensor) -> torch.Tensor:
        found = self.__dict__.get("stashed")
        return x if found is None or found[1][1] < x.size(1) else x + found[0][:1, :x.size(1)]

    def many(self, *xs: torch.Tensor, n: int = 1) -> torch.Tensor:
        return torch.stack(xs).sum(0) * n


@contextlib.contextmanager
def mode(name: str, model: nn.Module) -> Iterator[None]:
    """In what a call is done."""
    model.train(name not in ("no_grad", "inference", "eval"))
    with contextlib.ExitStack() as stack:
        if name == "no_grad":
            stack.enter_context(torch.no_grad())
        if name == "inference":
            stack.enter_context(torch.inference_mode())
        if name == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        yield


MODES = ("train", "eval", "no_grad", "inference", "autocast", "step", "write")
LAYOUTS: dict[str, Callable[[Callable[..., torch.Tensor], int, int], torch.Tensor]] = {
    "plain": lambda make, b, t: make(b, t, WIDTH),
    "transposed": lambda make, b, t: make(t, b, WIDTH).transpose(0, 1),
    "last": lambda make, b, t: make(b, WIDTH, t).mT,
    "expanded": lambda make, b, t: make(1, t, WIDTH).expand(b, t, WIDTH),
    "sliced": lambda make, b, t: make(b, t + 3, WIDTH)[:, 1:t + 1],
    "stepped": lambda make, b, t: make(b, 2 * t, WIDTH)[:, ::2],
    "narrow": lambda make, b, t: make(b, t, WIDTH + 2)[..., 1:WIDTH + 1],
    "flat": lambda make, b, t: make(b * t * WIDTH + 1)[1:].view(b, t, WIDTH),
}
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Inputs:
    """Of one call."""

    b: int
    t: int
    u: int          # the length of `y`
    h: int
    w: int
    pos: int
    s: float
    layout: str
    dtype: torch.dtype
    grad: bool
    channels_last: bool
    mode: str
    width: int = WIDTH

    def arguments(self) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(self.b + 7 * self.t + 49 * self.u)

        def make(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(self.dtype)
        x = LAYOUTS[self.layout](make, self.b, self.t)[..., :self.width]
        y = LAYOUTS[self.layout](make, self.b, self.u)
        image = make(self.b, 2, self.h, self.w)
        if self.channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        ids = torch.randint(7, (self.b, self.t), generator=generator)
        lengths = torch.randint(self.t + 1, (self.b,), generator=generator)
        if self.grad:
            x, y, image = (value.detach().requires_grad_() for value in (x, y, image))
        return self.mode, x, y, image, ids, lengths, self.pos, self.s


PARAMETERS = "x, y, image, ids, lengths, pos, s"


@dataclass(frozen=True)
class Program:
    """Lines, and its calls."""

    lines: tuple[str, ...]
    calls: tuple[Inputs, ...]
    number: int

    @property
    def text(self) -> str:
        found = dict.fromkeys(re.findall(r"\b[XPMISN]\d+\b", "\n".join(self.lines)))
        body = textwrap.indent("\n".join(["h = x", *self.lines, f"return h, [{', '.join(found)}]"]), " " * 8)
        return f"class Model(Base):\n    def forward(self, {PARAMETERS}):\n{body}\n"

    def make(self) -> Any:
        scope, file = scope_of(), f"<users' program {self.number}>"
        linecache.cache[file] = len(self.text), None, self.text.splitlines(True), file
        exec(compile(self.text, file, "exec"), scope)
        model = scope["Model"]().to(self.calls[0].dtype if len({call.dtype for call in self.calls}) == 1 else torch.float32)
        return model, model


def scope_of() -> dict[str, Any]:
    return {"torch": torch, "nn": nn, "F": F, "math": math, "rnn": rnn, "Base": Base, "outside": outside, "checked": checked}


def driver(model: nn.Module, called: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the model in a mode, and does with what it returns what a user does."""
    def call(name: str, *args: Any) -> Any:
        with mode(name, model):
            found = called(*args)
        if name == "step":
            results = [made for made in tensors(found) if made.requires_grad and made.is_floating_point()]
            if results:
                model.zero_grad()
                sum(made.double().mean() for made in results if made.numel()).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter.sub_(parameter.grad.nan_to_num().clamp(-1, 1) * 0.01)
        if name == "write":
            with torch.no_grad():
                for made in tensors(found):
                    if made.is_floating_point():
                        made.mul_(0.5)
        return found
    return call


def examine(program: Program, tolerance: float | None = None, **options: Any) -> Any:
    """Compares a program with eager mode. Raises AssertionError, or an error of capture's, where they differ."""
    if not program.calls:
        return None
    steps = tuple(Call(lambda _, inputs=inputs: (inputs.arguments(), {})) for inputs in program.calls)
    compiled: list[Any] = []
    options.setdefault("backend", "eager")

    def engine(model: Any) -> Any:
        compiled.append(capture.compile(model, recompile_limit=60, **options))
        return driver(model, compiled[0])
    eager = run(program.make, steps, lambda model: driver(model, model))
    found = run(program.make, steps, engine)
    if tolerance is not None and any(call.dtype is torch.bfloat16 or call.mode == "autocast" for call in program.calls):
        tolerance = max(tolerance, 0.08)
    problems = compare(eager, found, tolerance)
    stats = capture.stats(compiled[0])
    assert not problems, "\n".join(["eager and captured differ:", *problems[:12], f"misses: {stats.misses}"])
    return stats


def generate(seed: int, length: int, calls: int) -> Program:
    """A program whose lines run for one of two kinds of sizes at least."""
    chance = random.Random(seed)
    scopes = []
    for b, t in ((3, 5), (4, 4)):
        inputs = Inputs(b, t, t, 6, 5, 1, 0.5, "plain", torch.float32, False, False, "train").arguments()[1:]
        scopes.append(scope_of() | dict(zip(PARAMETERS.split(", "), inputs)) | {"self": Base(), "h": inputs[0]})
    known: dict[str, list[str]] = {"X": ["x", "h", "y"], "P": ["self.mean.expand(len(x), 4)"], "M": ["ids > 1"], "I": ["image"],
                                   "S": ["x", "y"], "N": ["pos", "2", "x.size(1)", "len(x)"]}
    lines: list[str] = []
    for _ in range(length * 12):
        if len(lines) == length:
            break
        kind = chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        line = re.sub(r"\{([XPMISN])\}", lambda match: _chosen(chance, known[match.group(1)]), chance.choice(KINDS[kind]))
        name = f"{kind}{len(lines)}"
        if kind:
            line = f"{name} = {line}"
        if line.startswith("try: "):
            line = f"{line}\nexcept (RuntimeError, IndexError):\n    self.calls += 1"
        elif chance.random() < 0.08:
            line = f"try:\n    {line}\nexcept (RuntimeError, IndexError, ValueError):\n    self.calls -= 1"
        fine = [_runs(line, scope) for scope in scopes]
        if not any(fine) or not all(fine) and chance.random() < 0.7:
            continue
        lines.append(line)
        if kind:
            known[kind].append(name)
            if kind in "XPI":
                known["S"].append(name)
    return Program(tuple(lines), _calls(chance, calls), seed)


def _chosen(chance: random.Random, known: list[str]) -> str:
    return chance.choice(known[-3:] if chance.random() < 0.5 else known)


def _runs(line: str, scope: dict[str, Any]) -> bool:
    if "return " in line:
        line = line.replace("return ", "made = ")
    try:
        exec(line.replace("print(", "str("), scope)
    except Exception:
        return False
    return True


def _calls(chance: random.Random, count: int) -> tuple[Inputs, ...]:
    steady = {"layout": chance.choice([*LAYOUTS]), "dtype": chance.choice(DTYPES), "grad": chance.random() < 0.5,
              "mode": chance.choice(MODES), "channels_last": chance.random() < 0.3}
    varied = [name for name in steady if chance.random() < 0.25]
    fixed = {name: chance.choice(FIRST) for name in "btuhw" if chance.random() < 0.25}
    related = chance.choice(("", "", "square", "double", "same"))
    made: list[Inputs] = []
    for number in range(count):
        sizes = {name: chance.choice(FIRST if number < 4 else SIZES) for name in "btuhw"} | fixed
        if related == "square" and number in (0, 1, 3):
            sizes["t"] = sizes["b"]
        if related == "double" and number < 3:
            sizes["t"] = 2 * sizes["b"]
        if related == "same" or chance.random() < 0.4:
            sizes["u"] = sizes["t"]
        if made and chance.random() < 0.25:
            sizes = {name: getattr(chance.choice(made), name) for name in "btuhw"}
        kinds = steady | {name: chance.choice({"layout": [*LAYOUTS], "dtype": DTYPES, "grad": (True, False), "mode": MODES,
                                               "channels_last": (True, False)}[name]) for name in varied}
        made.append(Inputs(**sizes, pos=chance.choice((number, 0, 1, 3, 7)), s=chance.choice((0.5, 0.1, 2.0)),
                           width=3 if chance.random() < 0.02 else WIDTH, **kinds))  # type: ignore[arg-type]
    return tuple(made)
