"""Random programs that switch torch's modes, in blocks and by calls, under modes that change from call to call: `python -m
tests.training.random_modes --cases N --seed S [--backend native]` compares them with eager mode, and prints those that differ."""
from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import tests.search_settings  # noqa: F401  # isort: skip
import capture
from capture import _C, config
from tests.training.left_to_torch import Cubed
from tests.training.random_steps import outcome

ROUNDS = 7
OPERATIONS = ["F.linear({a}, w, b)", "F.linear({a}, v)", "{a} @ w", "F.relu({a})", "{a}.sigmoid() * 2", "{a} + {b}", "{a}.float()",
              "F.layer_norm({a}, (4,))", "{a}.softmax(-1)", "{a} * {a}.mean()", "torch.cat([{a}[:1], {b}[1:]])",
              "{a}.detach() + {b}", "F.linear({a}.float(), w.to(torch.bfloat16).float())",
              "{a} * F.mse_loss({a}, {b}).clamp(max=1)", "part({a})",
              "helper({a}, w)", "torch.zeros(2, 4) + {a}", "{a} / {a}.norm().clamp(min=1)",
              # what cannot be compiled
              "Cubed.apply({a}.clamp(-1, 1))", "{a} + {a}[{a} > 0].sum().clamp(max=1)"]
CHANGES = ["with torch.no_grad(): w.mul_(1.5)", "w.data.mul_(0.6)", "torch.clear_autocast_cache()", "v.grad = None",
           "torch.set_grad_enabled({flag})", "{a} = {a} + 1 if torch.is_grad_enabled() else {a}",
           "{a} = {a} * 2 if torch.is_autocast_enabled('cpu') else {a}", "torch._dynamo.graph_break()", "out.append({a})",
           "out.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), {a}.dtype))", "print(end='')"]
BLOCKS = ["torch.autocast('cpu')", "torch.autocast('cpu')", "torch.autocast('cpu', torch.float16)",
          "torch.autocast('cpu', enabled=False)", "torch.autocast('cpu', cache_enabled=False)",
          "torch.amp.autocast('cpu', dtype=torch.bfloat16)", "torch.no_grad()",
          "torch.enable_grad()", "torch.set_grad_enabled({flag})", "torch.inference_mode()", "torch.inference_mode(False)",
          "default_dtype(torch.float64)", "contextlib.nullcontext()"]
AROUND = ["contextlib.nullcontext()", "contextlib.nullcontext()", *BLOCKS]
BEFORE = ["", "", "w.data.mul_(1.5)", "with torch.no_grad(): v.mul_(0.6)", "w.grad = None", "w.requires_grad_(not w.requires_grad)",
          "torch.clear_autocast_cache()", "v.data = v.detach() * 1.2"]
DECORATORS = ["torch.no_grad()", "torch.autocast('cpu')", "torch.autocast('cpu', enabled=False)", "torch.enable_grad()",
              "torch.inference_mode()", ""]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


NAMES: dict[str, Any] = {"torch": torch, "F": F, "contextlib": contextlib, "Cubed": Cubed, "default_dtype": default_dtype}


class Drawn:
    """A program, as text, with what lies around its calls and happens before them."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self.names, self.count = ["x"], 0
        body = self.statements(self.rng.randint(2, 6), "    ", 0)
        decorator = self.rng.choice(DECORATORS)
        self.text = "\n".join([*([f"@{decorator}"] if decorator else []), "def part(a):", "    return a @ w.t() * 0.5", "",
                               "def program(x, helper):", "    out = []", *body, f"    return out, {self.rng.choice(self.names)}"])
        self.rounds = [(self.rng.choice(AROUND).format(flag=self.rng.random() < 0.5),
                        [self.rng.choice(BEFORE) for _ in range(self.rng.randint(1, 2))]) for _ in range(3)]

    def statements(self, count: int, indent: str, depth: int) -> list[str]:
        lines = []
        for _ in range(count):
            drawn, values = self.rng.random(), {"a": self.rng.choice(self.names), "b": self.rng.choice(self.names),
                                                "flag": self.rng.random() < 0.5}
            if drawn < 0.5:
                name = f"y{self.count}"
                self.count += 1
                lines.append(f"{indent}{name} = {self.rng.choice(OPERATIONS)}".format(**values))
                self.names.append(name)
            elif drawn < 0.65 or depth == 3:
                lines.append(f"{indent}{self.rng.choice(CHANGES)}".format(**values))
            elif drawn < 0.7:
                lines.append(f"{indent}try:")
                lines += self.statements(2, indent + "    ", depth + 1)
                lines += [f"{indent}    raise KeyError", f"{indent}except KeyError:", f"{indent}    pass"]
            elif drawn < 0.73:
                lines.append("{indent}if helper is None: return out, {a}".format(indent=indent, **values))
            else:
                lines.append(f"{indent}with {self.rng.choice(BLOCKS)}:".format(**values))
                lines += self.statements(self.rng.randint(1, 4), indent + "    ", depth + 1)
        return lines


def put_back() -> None:
    """The modes that a program left, as they are at the start of a process."""
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_cache_enabled(True)
    torch.set_grad_enabled(True)
    for _ in range(-_C.modes().autocast_nesting):
        torch.autocast_increment_nesting()
    for _ in range(_C.modes().autocast_nesting):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


class World:
    """One of two in which the same happens. engine: makes the function that is called."""

    def __init__(self, drawn: Drawn, engine: Callable[[Any], Any]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.scope = dict(NAMES)
        for name, shape in (("w", (4, 4)), ("v", (4, 4)), ("b", (4,))):
            self.scope[name] = torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.5)
        exec(drawn.text, self.scope)
        self.run, self.generator = engine(self.scope["program"]), generator

    def call(self) -> list[Any]:
        """What a call gives: results, gradients, modes after it, and what a cast is made of that autocast may have kept."""
        x = torch.randn(2, 4, generator=self.generator, dtype=torch.float32)
        found = outcome(self.run, x, torch.matmul)
        facts = [found, _C.modes()]
        if not isinstance(found, str) and isinstance(found[1], torch.Tensor) and found[1].requires_grad:
            facts.append(outcome(lambda: found[1].float().sum().backward()))
        facts.append(outcome(F.linear, x, self.scope["w"]))
        return [*facts, *(None if (grad := self.scope[name].grad) is None else grad.clone() for name in "wvb")]

    def round(self, around: str, before: list[str]) -> list[Any]:
        put_back()
        facts = []
        with eval(around, self.scope):
            for statement in before:
                facts.append(outcome(exec, statement, self.scope))
                facts.append(self.call())
        facts.append(_C.modes())
        put_back()
        return facts


def alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        return found is expected or bool(found == expected)
    same = [(t.shape, t.dtype, t.requires_grad, t.is_leaf, t.is_inference()) for t in (found, expected)]
    scale = float(expected.detach().double().abs().max()) if expected.numel() else 0.0
    near = (found.detach().double() - expected.detach().double()).abs().max() <= 0.05 * scale + 1e-6 if expected.numel() else True
    return same[0] == same[1] and bool(near or not torch.isfinite(expected).all())


def compare(seed: int, number: int, backend: str = "eager") -> bool:
    """Whether a program runs at all. Raises AssertionError where it differs from eager mode."""
    drawn = Drawn(seed, number)
    options = {"background": False} if backend == "native" else None
    theirs = World(drawn, lambda program: program)
    ours = World(drawn, lambda program: capture.compile(program, backend=backend, options=options))
    ran = False
    with config.TRIAL_CALLS.set(0):
        for turn in range(ROUNDS):
            around, before = drawn.rounds[turn % 3 if turn < 5 else 0]
            expected, found = theirs.round(around, before), ours.round(around, before)
            ran |= not isinstance(expected[1][0], str)
            assert alike(found, expected), f"round {turn}, {around}, {before}:\n{found}\nnot\n{expected}"
    return ran


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training.random_modes", description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    found = ran = 0
    for number in range(options.first, options.first + options.cases):
        try:
            ran += compare(options.seed, number, options.backend)
        except Exception as error:
            put_back()
            found += 1
            print(f"\n{number}: {Drawn(options.seed, number).text}\n{type(error).__name__}: {error!s:.2500}", flush=True)
    print(f"\n{options.cases} programs, of which {ran} run in eager mode, {found} differ")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
