"""Random programs of views, writes and saved tensors, and what is done with their results afterwards.

A program is a function of tensors, `f(x, y, z)`, in text; a plan is a list of statements on its results `r` and arguments `a`.
Both are made step by step on real tensors, so that most steps work.
"""
from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

NAMES = ("x", "y", "z")
INPUTS = ("torch.randn(4, 4, requires_grad=True)", "torch.randn(4, 4, requires_grad=True)", "torch.randn(4, 4)",
          "torch.randn(4, 4, requires_grad=True) * 1", "(torch.randn(5, 4, requires_grad=True) * 1)[1:]", "torch.randn(5, 4)[:4]",
          "torch.randn(4, 4).t()", "torch.randn(2, 4, 4, requires_grad=True)[0]", "torch.nn.Parameter(torch.randn(4, 4))",
          "torch.randn(4, requires_grad=True)", "torch.randn(2, 4, 4, requires_grad=True)")
SIZES = (4, 6, 8, 6)
COMPUTED = ("{a} * 2", "{a} + 1", "{a}.exp()", "{a}.tanh()", "{a}.sigmoid()", "{a}.sin()", "{a}.relu()", "{a}.softmax(-1)",
            "{a} * {b}", "{a} + {b}", "{a} - {b}", "{a} @ {b}", "{a} @ {b}", "F.linear({a}, {b})",
            "F.linear({a}, {b}, {b}.detach()[0])",
            "F.layer_norm({a}, {a}.shape[-1:])", "F.layer_norm({a}, {a}.shape[-1:], {b}[0], {b}[1])", "{a}.sum()", "{a}.clone()",
            "torch.cat([{a}, {b}])", "F.gelu({a})", "{a} / ({b}.exp() + 1)", "torch.where({a} > 0, {a}, {b})", "{a}.clamp(min=0)",
            "{a}.cumsum(0)", "{a}.mean(0)", "({a} * {a} + 1).sqrt()", "F.silu({a})", "torch.einsum('...i,ji->...j', {a}, {b})",
            "torch.stack([{a}, {b}])", "{a}.amax(-1)", "F.elu({a})", "{a}.log_softmax(0)", "{a}[{a}[0] > 0]", "{a}.abs().log1p()")
VIEWS = ("{a}.view(-1)", "{a}.t()", "{a}[1:]", "{a}[0]", "{a}.transpose(0, -1)", "{a}.chunk(2)[0]", "{a}.unbind(0)[1]",
         "{a}.unsqueeze(0)", "{a}.expand(2, *{a}.shape)", "{a}.detach()", "{a}.detach()", "{a}.data", "{a}.reshape(-1)",
         "{a}.contiguous()",
         "{a}.squeeze()", "{a}.diagonal()", "{a}.split(1)[0]", "{a}.narrow(0, 1, 2)", "{a}.mT", "{a}.view_as({a})", "{a}.flatten()",
         "{a}.unfold(0, 2, 1)", "{a}[..., ::2]", "{a}.expand_as({a})", "{a}.float()", "{a}.movedim(0, -1)",
         "{a}.unflatten(0, (2, -1))",
         "{a}.as_strided((2,), (1,))", "torch.atleast_2d({a})", "{a}.swapaxes(0, 1)", "{a}[None, 1]", "{a}.tensor_split(2)[1]")
WRITES = ("{a}.mul_(2)", "{a}.add_(1)", "{a}.zero_()", "{a}[0] = 1", "{a}.copy_({b})", "{a}.add_({b}.detach())", "{a}.data.mul_(2)",
          "{a}.detach().add_(1)", "{a}.relu_()", "{a}.clamp_(min=0)", "{a}[1:].mul_(3)", "{a}.mul_({b})", "{a}.exp_()", "{a}.t_()",
          "{a}.unsqueeze_(0)", "{a}.requires_grad_()")
# What is done with results and arguments.
EDITS = ("{t}.mul_(3)", "{t}.zero_()", "{t}.data.mul_(3)", "{t}.data.zero_()", "{t}.detach().add_(2)", "{t}[0] = 5",
         "{t}.view(-1).add_(1)",
         "{t}.copy_({t} + 1)", "{t}.set_(torch.ones(2))", "{t}.data = torch.ones(3, 3)", "torch.nn.init.zeros_({t})")
PASSES = ("{t}.sum().backward()", "{t}.sum().backward(retain_graph=True)", "({t} * {t}).sum().backward()",
          "g = torch.autograd.grad({t}.sum(), [v for v in a if v.requires_grad], allow_unused=True)", "{t}.sin().sum().backward()",
          "({t}.sum() + {u}.sum()).backward()")


@dataclass(frozen=True)
class Vocabulary:
    """What programs are made of, with names in the places of `{a}` and `{b}`: inputs, of which the first `usual_inputs` are
    frequent; what computes, makes views, and writes. What plans are made of, with tensors in those of `{t}` and `{u}`.
    module: `m`. steps, returned, planned: at least and at most so many statements, results, and statements of the plan."""

    inputs: tuple[str, ...] = INPUTS
    usual_inputs: int = 9
    computed: tuple[str, ...] = COMPUTED
    views: tuple[str, ...] = VIEWS
    writes: tuple[str, ...] = WRITES
    edits: tuple[str, ...] = EDITS
    usual_edits: int = 7
    passes: tuple[str, ...] = PASSES
    module: str = "None"
    steps: tuple[int, int] = (1, 7)
    returned: tuple[int, int] = (1, 4)
    planned: tuple[int, int] = (1, 5)


NARROW = Vocabulary()


def in_thread(function: Callable[[], Any]) -> None:
    """Calls a function in another thread; raises what it raises."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            raised.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def make_scope(module: str) -> dict[str, Any]:
    """What programs and plans name, besides arguments `a`, results `r` and the program `f`: what hooks see is in `log`, where
    `note` puts it; `S` and `N` are numbers that change from call to call."""
    torch.manual_seed(0)
    log: list[tuple[str, Any]] = []

    def note(name: str) -> Callable[[Any], None]:
        return lambda grad: log.append((name, None if grad is None else grad.detach().clone()))
    scope: dict[str, Any] = {"torch": torch, "F": F, "checkpoint": checkpoint, "in_thread": in_thread, "log": log, "note": note,
                             "S": 1.5, "N": 3}
    return scope | {"m": eval(module, scope)}


def make_inputs(texts: tuple[str, ...], scope: dict[str, Any]) -> list[Any]:
    """The inputs, each of which may be a view of earlier ones, as `a`."""
    made = scope["a"] = []
    for text in texts:
        made.append(eval(text, scope))
    return made


@dataclass(frozen=True)
class Case:
    """inputs: expressions. body: statements of the program, with its `return`. plan: statements after each call. module: `m`.
    sized: the inputs' sizes change from call to call."""

    inputs: tuple[str, ...]
    body: tuple[str, ...]
    plan: tuple[str, ...]
    module: str = "None"
    sized: bool = False

    def inputs_of(self, call: int) -> tuple[str, ...]:
        """The inputs of a call: with 6, 8, 6 in the places of 4, and one more in those of 5."""
        sizes = {"4": str(SIZES[call]), "5": str(SIZES[call] + 1)} if self.sized else {}
        return tuple(re.sub(r"\b[45]\b", lambda found: sizes.get(found[0], found[0]), text) for text in self.inputs)

    @property
    def numbered(self) -> bool:
        """Whether the program takes numbers that change from call to call: its second capture makes inputs of them."""
        return any(re.search(r"\b[SN]\b", line) for line in self.body)

    @property
    def source(self) -> str:
        lines = "\n".join(self.body).replace("\n", "\n    ")
        return f"def f({', '.join(NAMES[:len(self.inputs)])}):\n    {lines}\n"

    def __str__(self) -> str:
        module = [f"m = {self.module}"] if self.module != "None" else []
        plan = map("    {}".format, self.plan)
        module += [f"sizes: {', '.join(map(str, SIZES))}"] if self.sized else []
        return "\n".join([*module, f"inputs: {'; '.join(self.inputs)}", self.source, "after each call:", *plan])


def make(seed: int, words: Vocabulary = NARROW) -> Case:
    """The case with this number."""
    rng = random.Random(seed)
    scope = make_scope(words.module)
    torch.manual_seed(seed)
    inputs = tuple(rng.choice(words.inputs[:words.usual_inputs] if rng.random() < 0.85 else words.inputs)
                   for _ in range(rng.randint(1, 3)))
    try:
        made = make_inputs(inputs, scope)
    except (RuntimeError, IndexError):          # views of earlier inputs that are none
        inputs = words.inputs[:len(inputs)]
        made = make_inputs(inputs, scope)
    scope |= dict(zip(NAMES, made, strict=False))
    names = list(NAMES[:len(inputs)])
    body = []
    for number in range(rng.randint(*words.steps)):
        result = f"t{number}"
        kind = rng.choices(("computed", "view", "write"), (5, 4, 1.5))[0]
        text = rng.choice({"computed": words.computed, "view": words.views, "write": words.writes}[kind])
        text = text.format(a=_recent(rng, names), b=rng.choice(names))
        text = text if kind == "write" else f"{result} = {text}"
        if rng.random() < (0.5 if kind == "write" else 0.1) and not text.startswith("with "):
            text = f"with torch.no_grad(): {text}"
        try:
            exec(text, scope)
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
            continue
        body.append(text)
        names += [result] if isinstance(scope.get(result), torch.Tensor) else []
    returned = rng.sample(names, min(len(names), rng.randint(*words.returned)))
    if names[-1] not in returned and rng.random() < 0.8:
        returned.append(names[-1])
    body.append(f"return {', '.join(returned)},")
    plan = []
    targets = [f"r[{i}]" for i in range(len(returned))] * 2 + [f"a[{i}]" for i in range(len(inputs))]
    for _ in range(rng.randint(*words.planned)):
        edit = rng.random() < 0.6
        text = rng.choice(words.edits[:words.usual_edits] if rng.random() < 0.9 else words.edits) if edit else rng.choice(
            words.passes)
        text = text.format(t=rng.choice(targets), u=rng.choice(targets))
        plan.append(f"with torch.no_grad(): {text}" if edit and rng.random() < 0.6 else text)
    plan.append(f"r[{rng.randrange(len(returned))}].sum().backward()")
    return Case(inputs, tuple(body), tuple(plan), words.module)


def _recent(rng: random.Random, names: list[str]) -> str:
    return names[-1] if rng.random() < 0.5 else rng.choice(names)
