"""Random programs, as source text: pointwise chains, broadcasts, views, reductions, scans, gathers, several uses, mutations."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

LIMIT = 400         # elements of a value, at most
MAGNITUDE = 1e4     # of floating point values, at most
DTYPES = (*[torch.float32] * 3, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)
SMOOTH = ("torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "torch.exp(-torch.abs({}))", "torch.sqrt(torch.abs({}) + 1)",
          "torch.log1p(torch.abs({}))", "{} / 3")
SIMPLE = ("torch.relu({})", "-{}", "torch.abs({})", "{} * 2", "{} + 1", "torch.clamp({}, -2, 3)", "{}.clone()")
BINARY = ("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})")
TESTS = ("{} > {}", "{} == {}")


@dataclass
class Drawn:
    """A program: `source` defines `program`, to be called with `inputs` (or copies of them, since it may write to these)."""

    source: str
    inputs: list[Tensor]
    mutates: bool

    @property
    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(self.source, names)
        return names["program"]


@dataclass
class Known:
    """A value of the program being drawn, for the inputs drawn. `exact`: without rounding, so that tests on it are stable."""

    name: str
    value: Tensor
    exact: bool


@dataclass
class _Draft:
    random: Random
    known: list[Known] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def pick(self, accept: Callable[[Known], bool]) -> Known | None:
        candidates = [value for value in self.known if accept(value)]
        return self.random.choice(candidates) if candidates else None

    def add(self, text: str, exact: bool) -> None:
        """Adds `v = text`, unless its value is too large."""
        value = eval(text, {"torch": torch, "F": torch.nn.functional}, {known.name: known.value for known in self.known})
        small = not value.is_floating_point() or value.numel() == 0 or bool((value.abs() < MAGNITUDE).all())
        if value.numel() <= LIMIT and small:
            name = f"v{len(self.lines)}"
            self.known.append(Known(name, value, exact))
            self.lines.append(f"{name} = {text}")


def draw(random: Random, mutations: bool = True) -> Drawn:
    """A program of up to a dozen steps."""
    sizes = [random.choice([1, 2, 3, 4, 7]) for _ in range(random.randint(0, 3))]
    inputs = [_input(random, sizes) for _ in range(random.randint(1, 3))]
    names = [f"x{number}" for number in range(len(inputs))]
    draft = _Draft(random, [Known(name, value.clone(), True) for name, value in zip(names, inputs)])
    for _ in range(random.randint(2, 12)):
        random.choice(STEPS)(draft)
    written = []
    if mutations and random.random() < 0.4:
        target = random.randrange(len(inputs))
        source = draft.pick(lambda k: k.value.dtype == inputs[target].dtype and _broadcasts(k.value, inputs[target]))
        if source is not None:
            place = random.choice(["", "[..., :1]", "[..., ::2]"]) if inputs[target].dim() and source.value.numel() == 1 else ""
            written = [f"x{target}{place}.copy_({source.name}.clone())"]
    results = draft.known[len(inputs):][-3:] or draft.known[-1:]
    random.shuffle(results)
    repeated = [any(other.value is known.value for other in results[:n]) for n, known in enumerate(results)]
    texts = [f"{known.name}.clone()" if again else known.name for known, again in zip(results, repeated)]
    after = [f"x{target} + 1"] if written and random.random() < 0.5 and inputs[target].dtype != torch.bool else []
    body = [*draft.lines, *written, f"return {', '.join(texts + after)},"]
    return Drawn(f"def program({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body), inputs, bool(written))


def _input(random: Random, sizes: list[int]) -> Tensor:
    """Small whole numbers, so that sums and products are exact; of sizes that broadcast together; now and then transposed."""
    shape = [1 if random.random() < 0.2 else size for size in sizes][random.choice([0, 0, 0, 1]):]
    dtype = random.choice(DTYPES)
    count = 1
    for size in shape:
        count *= size
    values = torch.tensor([random.randint(-4, 4) for _ in range(count)], dtype=torch.float32)
    if len(shape) > 1 and random.random() < 0.3:
        return values.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).to(dtype)
    return values.reshape(shape).to(dtype)


def _broadcasts(source: Tensor, target: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(source.shape, target.shape) == target.shape
    except RuntimeError:
        return False


def _is_float(known: Known) -> bool:
    return known.value.is_floating_point()


def _is_number(known: Known) -> bool:
    return known.value.dtype != torch.bool


def _smooth(draft: _Draft) -> None:
    if (x := draft.pick(_is_float)) is not None:
        draft.add(draft.random.choice(SMOOTH).format(x.name), False)


def _simple(draft: _Draft) -> None:
    if (x := draft.pick(_is_number)) is not None:
        draft.add(draft.random.choice(SIMPLE).format(x.name), x.exact)


def _binary(draft: _Draft) -> None:
    x = draft.pick(_is_number)
    y = x and draft.pick(lambda k: _is_number(k) and _compatible(k.value, x.value))
    if y:
        exact = x.exact and y.exact
        draft.add(draft.random.choice(BINARY + TESTS * exact).format(x.name, y.name), exact)


def _where(draft: _Draft) -> None:
    condition = draft.pick(lambda k: k.value.dtype == torch.bool)
    x = condition and draft.pick(lambda k: _compatible(k.value, condition.value))
    if x:
        draft.add(f"torch.where({condition.name}, {x.name}, {draft.random.choice([0, 2])})", x.exact)


def _convert(draft: _Draft) -> None:
    x = draft.pick(lambda k: True)
    dtype = draft.random.choice(["float32", "float32", "bfloat16", "float64", "int64", "bool"])
    if x.exact or dtype.startswith(("float", "bfloat")):
        draft.add(f"{x.name}.to(torch.{dtype})", x.exact)


def _view(draft: _Draft) -> None:
    x = draft.pick(lambda k: k.value.dim() > 0)
    if x is None:
        return
    rank, random = x.value.dim(), draft.random
    dim = random.randrange(rank)
    order = random.sample(range(rank), rank)
    size, half = x.value.size(dim), x.value.size(dim) // 2
    texts = [f".permute({', '.join(map(str, order))})", ".reshape(-1)", f".unsqueeze({dim})", f".flip({dim})",
             f".select({dim}, -1)", f".narrow({dim}, {half}, {size - half})", f".transpose(0, {dim}).reshape({x.value.numel()}, 1)",
             f".roll(1, {dim})", f".unsqueeze(0).expand(2, {', '.join(['-1'] * rank)})"]
    if x.value.size(dim) > 1:
        texts += [f".split(1, {dim})[1]", f".unbind({dim})[1]"]
    if x.value.size(dim) % 2 == 0:
        texts.append(f".unflatten({dim}, (2, -1))")
    draft.add(x.name + random.choice(texts), x.exact)


def _reduce(draft: _Draft) -> None:
    x = draft.pick(lambda k: k.value.dim() > 0 and k.value.numel() > 0)
    if x is None:
        return
    dim = draft.random.randrange(x.value.dim())
    keep = draft.random.choice([True, False])
    texts = [f".sum({dim}, keepdim={keep})"]
    if _is_number(x):
        texts += [f".{name}({dim}, keepdim={keep})" for name in ("amax", "amin", "prod")] + [".sum()", f".cumsum({dim})"]
    if x.exact:
        texts += [f".any({dim}, keepdim={keep})", ".all()"]
    if x.exact and _is_number(x):
        texts += [f".argmax({dim}, keepdim={keep})", f".argmin({dim})"]
    draft.add(x.name + draft.random.choice(texts), x.exact and x.value.dtype != torch.bfloat16)


def _normalise(draft: _Draft) -> None:
    x = draft.pick(lambda k: _is_float(k) and k.value.dim() > 0 and k.value.numel() > 0)
    if x is not None:
        dim = draft.random.randrange(x.value.dim())
        draft.add(draft.random.choice([
            f"torch.softmax({x.name}, {dim})", f"torch.log_softmax({x.name}, {dim})",
            f"F.layer_norm({x.name}, ({x.value.size(-1)},))",
            f"({x.name} - {x.name}.mean({dim}, keepdim=True)) / (1 + {x.name}.var({dim}, correction=0, keepdim=True))",
            f"{x.name}.logsumexp({dim})"]), False)


def _join(draft: _Draft) -> None:
    x = draft.pick(lambda k: k.value.dim() > 0)
    y = x and draft.pick(lambda k: k.value.shape == x.value.shape and k.value.dtype == x.value.dtype)
    if y:
        dim = draft.random.randrange(x.value.dim())
        pads = ", ".join(str(draft.random.randint(0, 2)) for _ in range(2))
        texts = [f"torch.cat([{x.name}, {y.name}], {dim})", f"torch.stack([{x.name}, {y.name}], {dim})"]
        if _is_number(x):
            texts.append(f"F.pad({x.name}, ({pads}), value=1)")
        draft.add(draft.random.choice(texts), x.exact and y.exact)


def _gather(draft: _Draft) -> None:
    x = draft.pick(lambda k: k.value.dim() > 0 and k.value.numel() > 0)
    where = draft.pick(lambda k: k.exact and k.value.dtype == torch.int64 and k.value.dim() == 1)
    if x is not None and where is not None:
        size = x.value.size(0)
        texts = [f"{x.name}.index_select(0, {where.name} % {size})", f"{x.name}[{where.name} % {size}]"]
        draft.add(draft.random.choice(texts), x.exact)


def _matmul(draft: _Draft) -> None:
    x = draft.pick(lambda k: k.value.dtype == torch.float32 and k.value.dim() == 2 and k.value.numel() > 0)
    if x is not None:
        draft.add(f"{x.name} @ {x.name}.T", x.exact)


def _compatible(x: Tensor, y: Tensor) -> bool:
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return False
    return True


STEPS = (_smooth, _simple, _simple, _binary, _binary, _where, _convert, _view, _view, _reduce, _reduce, _normalise, _join, _gather,
         _matmul)
