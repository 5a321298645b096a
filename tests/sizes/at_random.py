"""Random programs over shapes, each called with sizes at random: what is made of them, decided by them and shown of them."""
from __future__ import annotations

import linecache
import math
import random
import re
import textwrap
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from torch.nn import functional as F

import capture
from tests.helpers import Call, check, run

SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 11, 13, 24, 40)
FIRST = (2, 3, 4, 5, 6, 7, 8, 11)

# {T} a tensor of floats, {N} an integer, {D} a dimension, {B} a tensor of the program's own, which it may write to.
TENSORS = """
{T} + {T}|{T} * {N}|{T}.relu()|{T} / ({N} + 1)|{T}.sum({D})|{T}.mean({D}, keepdim=True)|{T} @ {T}|{T}.view({N}, -1)
{T}.reshape(-1)|{T}.reshape(-1, {N})|{T}.reshape({N}, {N})|{T}.view(-1, 2)|{T}.view({T}.shape[0], -1)|{T}.t()|{T}.mT
{T}.transpose(0, -1)|{T}[:{N}]|{T}[{N}:]|{T}[-{N}:]|{T}[:-{N}]|{T}[:, :{N}]|{T}[..., {N} // 2:]|{T}[{N} - 1]|{T}[None]
{T}[:, None]|{T}[::2]|{T}[1:, :-1]|{T}[{N}:{N}]|torch.cat([{T}, {T}], {D})|torch.cat([{T}, {T}[:{N}]])|torch.stack([{T}, {T}])
torch.stack([{T}, {T}], -1)|{T}.split({N})[0]|{T}.split({N}, -1)[-1]|{T}.chunk(2)[-1]|{T}.chunk(3, -1)[0]
torch.arange({N}) * 1.0|torch.arange({N}, {N} * 2).float()|torch.zeros({N}, 2)|torch.full(({N},), 1.5)
torch.ones({N}, {N}).tril()|torch.eye({N})|{T}.topk(min({N}, {T}.size(-1))).values|F.pad({T}, (0, {N}))
F.pad({T}, (1, 1), value={N})|{T}.expand({N}, *{T}.shape)|{T}.expand(-1, {N})|{T}.repeat({N}, 1)|torch.stack([{T}] * {N})
sum([row * 2 for row in {T}], torch.zeros(()))|F.softmax({T}, {D})|F.conv1d({T}, torch.ones(2, {T}.shape[-2], 2))
{T}.unfold(0, 2, 1)|F.max_pool1d({T}[None], 2)|F.avg_pool1d({T}[None], 2, 1)|F.adaptive_avg_pool1d({T}[None], 2)
{T}.unsqueeze({D})|{T}.squeeze()|{T}.squeeze({D})|{T}.new_zeros({T}.shape)|{T}.new_ones({N}, 3)|{T}.flatten()|{T}.flatten(1)
{T}.narrow(0, 0, {N})|{T}.narrow(-1, {N}, 1)|{T}.index_select(0, torch.arange({N}))|{T}[torch.arange({N})]
{T}[:, torch.arange({N}) // 2]|{T}.roll({N}, 0)|{T}.diagonal()|torch.einsum("ij,jk->ik", {T}, {T})
torch.einsum("i...->...", {T})|torch.where({T} > 0, {T}, {T})|{T}.cumsum({D})|{T}.var({D})|{T}.sort(-1).values|{T}.max(0).values
{T}.argmax(-1) * 1.0|{T}.flip(0)|{T}.masked_fill({T} > 0, 1.0)|F.layer_norm({T}, {T}.shape[-1:])|F.layer_norm({T}, (4,))
F.linear({T}, torch.ones(3, {T}.shape[-1]))|{T}.unbind(0)[0]|{T}.expand_as({T})|{T}.view_as({T})|torch.linspace(0, 1, {N})
{T}.contiguous()|{T}.clone()|{T}.norm()|{T}.norm(dim={D})|{T}.amax({D})|{T}.std()|{T}.prod({D})
torch.outer({T}.flatten(), {T}.flatten())|{T}.tril()|{T}.triu({N})|F.one_hot(torch.arange({N})).float()
F.one_hot(torch.arange({N}), {N}).float()|{T}.repeat_interleave({N}, 0)|{T}.repeat_interleave(2)|torch.bmm({T}, {T})
torch.matmul({T}, {T}.mT)|torch.addmm({T}, {T}, {T})|{T}.movedim(0, -1)|{T}.permute(*range({T}.dim())[::-1])|{T}.swapaxes(0, 1)
torch.broadcast_to({T}, ({N}, {T}.shape[-1]))|{T}.unflatten(0, (-1, {N}))|{T}.unflatten(-1, (2, -1))|{T}.T|{T}.ravel()
{T}.tile(2)|{T}.select(0, {N})|F.interpolate({T}[None, None], scale_factor=2)[0, 0]|F.interpolate({T}[None], size={N})[0]
F.normalize({T}, dim=-1)|F.cosine_similarity({T}, {T}, dim=-1)|F.mse_loss({T}, {T})
F.cross_entropy({T}, torch.zeros({T}.shape[0], dtype=torch.long))|torch.cdist({T}, {T})
{T}.scatter(0, torch.zeros(1, {T}.shape[-1], dtype=torch.long), 1.0)
{T}.gather(-1, torch.zeros(*{T}.shape[:-1], 1, dtype=torch.long))|{T}.index_add(0, torch.zeros(len({T}), dtype=torch.long), {T})
torch.vstack([{T}, {T}])|torch.hstack([{T}, {T}])|torch.tensor([{N}, 2.0])|torch.tensor({T}.shape).float()
torch.triu_indices({N}, {N}).float()|F.glu({T})|F.dropout({T}, 0.5)|torch.rand({N})|torch.randn({T}.shape)|torch.rand_like({T})
torch.meshgrid(torch.arange({N}), torch.arange(2), indexing="ij")[0] * 1.0
F.scaled_dot_product_attention({T}[None], {T}[None], {T}[None])|F.embedding(torch.arange({N}), torch.ones(9, 3))
{T}.tensor_split(2)[0]|{T}.tensor_split({N})[-1]|torch.block_diag({T}, {T})|{T}.mean()|{T}.sum() * {T}.numel()|{T}.abs().max()
{T}.count_nonzero(0).float()|torch.nn.Linear({T}.shape[-1], 2)({T})|NET({T})|NORM({T})|torch.cumsum({T}, 0)[{N}]|{T}[..., -1]
{T}[..., :1] * {T}|{T}.sum(0).expand({N}, -1)|torch.empty({N}, 2).fill_(3.0)|{T}.as_strided(({N}, 1), (1, 1))|{T}.logsumexp({D})
{T}.median()|{T}.kthvalue({N}, -1).values|{T}.cummax(0).values|torch.zeros({T}.shape)|torch.zeros(*{T}.shape[:1], {N})
torch.zeros_like({T})|{T}.new_full(({N},), {N})|{T}.reshape({T}.shape[::-1])|{T}.reshape(*{T}.shape, 1)
{T}.reshape(({T}.shape[0] * {T}.shape[1],) + {T}.shape[2:])|torch.cat([{T}.sum(0, keepdim=True), {T}])
F.pad({T}, (0, 8 - {T}.shape[-1]))|F.pad({T}, [0, -{T}.shape[-1] % 4])|{T} * torch.arange({T}.shape[-1])
{T} + torch.ones({T}.shape[0], 1)|{T}[{T}.shape[0] // 2:]|{T}[:{T}.size(0) - 1]
""".replace("\n", "|").strip("|").split("|")
NUMBERS = """
{T}.shape[0]|{T}.size(-1)|len({T})|{T}.numel()|{T}.shape[0] // 2|{N} + {N}|{N} - 1|{N} * 2|{N} // {N}|{N} % 2|max({N}, {N})
min({N}, 3)|-(-{N} // 2)|abs({N} - {N})|{T}.dim()|{T}.stride(0)|sum({T}.shape)|math.prod({T}.shape)|int({N} ** 0.5)
math.ceil({N} / 2)|{N} << 1|{N} if {N} > 3 else {N} + 1|round({N} * 0.5)|divmod({N}, 2)[1]|len([*{T}])|{N} & 3|int({N} == {N})
{T}.shape.numel()|{T}.nelement()|len({T}.shape)|{T}.storage_offset()|{T}.element_size() * {N}|max({T}.shape)
{T}.shape.index(max({T}.shape))|[*{T}.shape][0]|{N} - -{N}|len({T}.split(2))|len(str({N}))|(lambda n: n + 1)({N})
sorted([{N}, {N}])[0]|int(f"{{N}}")|math.gcd({N}, 4)|{N}.bit_length()|{N} ^ 1
""".replace("\n", "|").strip("|").split("|")
STATEMENTS = """
if {N} > {N}: {t} = {T} + 1|if {T}.shape[0] % 2: {t} = {T} * 2|if {T}.shape == {T}.shape: {t} = {T} - {N}
if len({T}): {t} = {T} * 3|for i in range({N} % 5): {t} = {T} + i|for i in range(min({N}, 9)): {t} = {T} * 0.5|{B}.mul_(2)
{B}[0] = 1.0|{B}[:{N}] = 0.0|{B}[{N}] = 2.0|{B}[..., {N}:] += 1|{B} += 1|{B}.add_({T})|{B}.copy_({T})|{B}.zero_()
{B}.unsqueeze_(0)|{B}.squeeze_()|{B}.t_()|{B}.fill_({N})|{B}[:, {N}] = {T}[0]|{B}.reshape(-1)[0] = 5.0|{B}.view(-1).mul_(3)
{B}.narrow(0, 0, {N}).zero_()|{B}.clamp_(max={N})|{B}.masked_fill_({B} > 0, 2.0)|state.count.add_(1)
state.count[0] += {T}.sum().detach()|state.count.mul_({N} + 1)
state.last = {T}|state.sizes.append({N})|state.sizes.append({T}.shape)|print({T}.shape)
print({N}, len({T}))|print(f"{{T}.shape} {{N}}")|state.table[{N}] = {N}|state.table[{T}.shape] = {N}
state.cache = torch.cat([state.cache, {T}.reshape(-1)[:3]])|{t} = state.cache * {N}
assert {T}.shape[0] == {T}.shape[0], "differs"|{n}, {m} = {T}.shape[0], {T}.shape[-1]|{n} = [{T}.shape[0], {N}].count({N})
outside()|{t} = state.last * 1.0|if state.last is not None: {t} = state.last|{t} = [{T}, {T}][{N} % 2]
{n} = state.sizes[-1] if state.sizes else 0|with torch.no_grad(): {t} = {T} * 2
with torch.autocast("cpu", torch.bfloat16): {t} = {T} @ {T}.mT|torch._check({N} >= 0)|{t} = next(make({T}))
{t} = [row for row in {T}][-1]|{t}, {u} = {T}.split([{N}, {T}.shape[0] - {N}])|{t}, *rest = {T}
{t} = torch.stack([{T}[i] for i in range({T}.shape[0])])|{t} = torch.cat([part * 2 for part in {T}.split(2)])
{t} = torch.stack([x.sum() for x in {T}.unbind(0)])|{t} = twice({T})|{t} = checked({T}, {N})|while t0.shape[0] > 4: t0 = t0[::2]
{t} = {T}; {t} = {t} if {t}.dim() > 1 else {t}[None]|{t} = Scale.apply({T}, {N})|state.shape = {T}.shape; {n} = state.shape[0]
{t} = {T}.reshape(state.shape)|del state.sizes[:]|state.sizes = [*{T}.shape]|{t} = {T}.view(state.sizes)
{n} = sum(state.sizes[:2]) if state.sizes else 1
""".replace("\n", "|").strip("|").split("|")


class Scale(torch.autograd.Function):
    """An autograd function that keeps a size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: int) -> torch.Tensor:
        ctx.n = n
        return x * n

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.n, None


@capture.disable
def outside() -> None:
    """What no trace can hold."""


def make(x: torch.Tensor) -> Any:
    for row in range(x.shape[0]):
        yield x[row] * x.shape[0]


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])[: 2 * x.shape[0]]


def checked(x: torch.Tensor, n: int) -> torch.Tensor:
    if x.shape[0] < n:
        raise ValueError(f"{x.shape[0]} is less than {n}")
    return x[:n]


@dataclass
class State:
    """What a program keeps from call to call."""

    last: Any = None
    sizes: list[Any] = field(default_factory=list)
    table: dict[Any, Any] = field(default_factory=dict)
    cache: torch.Tensor = field(default_factory=lambda: torch.zeros(2))
    shape: Any = (-1,)
    count: torch.Tensor = field(default_factory=lambda: torch.zeros(2))


def scope_of() -> dict[str, Any]:
    """The globals of a program."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.LayerNorm(3))
    return {"torch": torch, "F": F, "math": math, "outside": outside, "make": make, "twice": twice, "checked": checked,
            "Scale": Scale, "NET": net, "NORM": torch.nn.BatchNorm1d(4)}


def arguments(sizes: tuple[int, ...], grad: bool, kind: Callable[[int], Any] = int) -> tuple[Any, ...]:
    """Tensors of these sizes, and a number of this kind."""
    a, b, c, n = sizes
    generator = torch.Generator().manual_seed(a + 7 * b + 49 * c)
    shapes = (a, b), (b, c), (a, b, c), (c,)
    return (*(torch.randn(shape, generator=generator).requires_grad_(grad) for shape in shapes), kind(n))


PARAMETERS = "x, y, z, v, n"


@dataclass(frozen=True)
class Program:
    """Lines, and the sizes of its calls."""

    lines: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    grad: bool
    number: int

    @property
    def text(self) -> str:
        """Its source. What it returns tells all that it has made, and how large that is."""
        found = dict.fromkeys(re.findall(r"\b[tk]\d+\b", "\n".join(self.lines)))
        start = ["anchor = x.sum() + y.sum() + z.sum() + v.sum()", "b0, b1 = x * 1, z * 1", "t0 = t1 = x", "k0 = k1 = 2"]
        end = [f"made = [{', '.join(dict.fromkeys(['b0', 'b1', *found]))}]", "return anchor * 1, made, "
               "[(m.shape, m.stride()) for m in made if isinstance(m, torch.Tensor)], n"]
        body = textwrap.indent("\n".join([*start, *self.lines, *end]), "    ")
        return f"def program(state, {PARAMETERS}):\n{body}\n"

    def make(self) -> Any:
        """The function and its state, anew."""
        scope, file = scope_of(), f"<program {self.number}>"
        linecache.cache[file] = len(self.text), None, self.text.splitlines(True), file
        exec(compile(self.text, file, "exec"), scope)
        state = State()
        return types.MethodType(scope["program"], state), (state, scope["NORM"], scope["NET"])


def generate(seed: int, length: int, calls: int) -> Program:
    """A program whose lines run for at least one of two kinds of sizes."""
    chance = random.Random(seed)
    scopes = [scope_of() | {"state": State()} for _ in range(2)]
    for scope, sizes in zip(scopes, ((3, 4, 5, 2), (4, 4, 4, 3))):
        x, y, z, v, n = arguments(sizes, False)
        scope |= {"x": x, "y": y, "z": z, "v": v, "n": n, "b0": x * 1, "b1": z * 1, "t0": x, "t1": x, "k0": 2, "k1": 2}
    tensors, numbers, lines = ["x", "y", "z", "v", "b0", "b1"], ["n", "1", "2"], []
    for _ in range(length * 12):
        if len(lines) == length:
            break
        line, made = _line(chance, tensors, numbers, len(lines) + 2)
        fine = [_runs(line, scope) for scope in scopes]
        if not any(fine) or not all(fine) and chance.random() < 0.7:
            continue
        lines.append(line if chance.random() < 0.85 else f"try:\n    {line}\nexcept (RuntimeError, IndexError, ValueError):\n"
                     f"    state.sizes.append({len(lines)})")
        for name in made:
            (tensors if isinstance(scopes[fine.index(True)].get(name), torch.Tensor) else numbers).append(name)
    first = [tuple(chance.choice(FIRST) for _ in range(4)) for _ in range(3)]
    rest = [tuple(chance.choice(SIZES) for _ in range(4)) for _ in range(calls - 3)]
    each = first + rest if chance.random() < 0.7 else rest + first
    return Program(tuple(lines), tuple(each), chance.random() < 0.5, seed)


def _line(chance: random.Random, tensors: list[str], numbers: list[str], count: int) -> tuple[str, list[str]]:
    kind = chance.random()
    if kind < 0.5:
        template, made = f"t{count} = {chance.choice(TENSORS)}", [f"t{count}"]
    elif kind < 0.72:
        template, made = f"k{count} = {chance.choice(NUMBERS)}", [f"k{count}"]
    else:
        template, made = chance.choice(STATEMENTS), []
    choices: dict[str, Callable[[], str]] = {
        "{T}": lambda: chance.choice(tensors[-4:] if chance.random() < 0.5 else tensors),
        "{N}": lambda: _number(chance, tensors, numbers), "{D}": lambda: chance.choice(("0", "-1", "1")),
        "{B}": lambda: chance.choice(("b0", "b1")), "{t}": lambda: chance.choice(("t0", "t1")),
        "{u}": lambda: "t1", "{n}": lambda: "k0", "{m}": lambda: "k1"}
    return re.sub(r"\{[TNDBtunm]\}", lambda match: choices[match.group()](), template), made


def _number(chance: random.Random, tensors: list[str], numbers: list[str]) -> str:
    return chance.choice(numbers) if chance.random() < 0.6 else f"{chance.choice(tensors)}.shape[{chance.choice((0, -1))}]"


def _runs(line: str, scope: dict[str, Any]) -> bool:
    try:
        exec(line.replace("print(", "str("), scope)
    except Exception:
        return False
    return True


def examine(program: Program, **options: Any) -> Any:
    """Compares a program with eager mode. Raises AssertionError, or an error of capture's, where they differ."""
    kind = numpy.int64 if program.number % 5 == 4 else int
    steps = [Call(lambda _, sizes=sizes: (arguments(sizes, program.grad, kind), {})) for sizes in program.sizes]
    backward = program.grad
    if backward:
        try:
            run(program.make, tuple(steps), backward=True)
        except RuntimeError:                # of a tensor that was written to after it was saved
            backward = False
    return check(program.make, *steps, captures=None, backward=backward, fullgraph=False, recompile_limit=60, **options)


def shrunk(program: Any, fails: Callable[[Any], bool], names: Sequence[str] = ("lines", "sizes")) -> Any:
    """A program with fewer lines and calls that fails still."""
    smaller = True
    while smaller:
        smaller = False
        for kept in names:
            for place in range(len(getattr(program, kept)) - 1, -1, -1):
                parts = getattr(program, kept)
                made = replace(program, **{kept: parts[:place] + parts[place + 1:]})
                if fails(made):
                    program, smaller = made, True
    return program
