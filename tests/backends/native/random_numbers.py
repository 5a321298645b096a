"""Random programs of tensors and several Python numbers: one compiled graph must give eager mode's results for all numbers.

    python -m tests.backends.native.random_numbers [--seed N] [--first N] [--count N]
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.lowering import lower
from capture.backends.native.numbers import spec_of
from capture.backends.native.sampling import trace
from capture.backends.native.signature import Unsupported
from tests.backends.native.stages import behind_runtime, compare, evaluated, finished

# Operations on tensors x, y and numbers s, t. Without tensors of the program's own they leave them as they are.
OPERATIONS = (
    "{x} + {s}", "{s} - {x}", "{x} * {s}", "{x} / {s}", "{s} / ({x} + 9)", "{x} % {s}", "torch.fmod({x}, {s})", "{x} // {s}",
    "torch.add({x}, {y}, alpha={s})", "torch.sub({x}, {y}, alpha={s})", "torch.rsub({x}, {s}, alpha={t})",
    "torch.addcmul({x}, {y}, {y}, value={s})", "torch.addcdiv({x}, {y}, {y} + 9, value={s})", "{x}.lerp({y}, {s})",
    "torch.where({x} > {s}, {y}, {t})", "torch.where({x} > {y}, {s}, {t}) * {x}", "{x}.masked_fill({y} > {s}, {t})",
    "{x}.clamp({s}, {t})", "{x}.clamp(min={s})", "torch.clamp_max({x}, {s})", "F.threshold({x}, {s}, {t})",
    "F.hardshrink({x}, {s})",
    "F.leaky_relu({x}, {s})", "F.softshrink({x}, {s})", "F.elu({x}, {s})", "F.celu({x}, {s})", "F.softplus({x}, {s}, {t})",
    "F.huber_loss({x}, {y}, reduction='none', delta={s})", "F.smooth_l1_loss({x}, {y}, reduction='none', beta={s})",
    "F.layer_norm({x}, (4,), eps={s})", "F.rms_norm({x}, (4,), eps={s})", "F.normalize({x}, dim=1, eps={s})",
    "F.cosine_similarity({x}, {y}, eps={s}).unsqueeze(1) + {x}", "F.pairwise_distance({x}, {y}, eps={s}).unsqueeze(1) + {y}",
    "({x}.abs() + 0.1) ** {s}", "{s} ** {x}", "torch.full_like({x}, {s}) + {y}", "torch.full((4,), {s}) * {x}",
    "torch._foreach_mul([{x}, {y}], {s})[1]",
    "torch._foreach_add([{x}, {y}], [{y}, {x}], alpha={s})[0]",
    "torch._foreach_addcdiv([{x}, {y}], [{y}, {x}], [{y}.exp(), {x}.exp()], [{s}, {t}])[1]", "{x}.clone().mul_({s}).add_({t})",
    "{x}.clone().addcdiv_({y}, {y}.abs() + 1, value={s})", "{x}.eq({s}) + {x}", "{x}.tanh()", "{x} * {y}",
    "torch.logaddexp({x}, {y})")
MAGNITUDE = 1e4


def draw(random: Random) -> tuple[str, list[type], bool]:
    """The text of a program, the types of its numbers, and whether its tensors require gradients."""
    kinds = [random.choice((float, float, float, int)) for _ in range(random.randint(1, 4))]
    numbers, tensors, lines = [f"s{place}" for place in range(len(kinds))], ["x", "y"], []
    for place in range(random.randint(1, 5)):
        x, y = random.choice(tensors), random.choice(tensors)
        s, t = random.choice(numbers), random.choice(numbers)
        lines.append(f"    v{place} = {random.choice(OPERATIONS).format(x=x, y=y, s=s, t=t)}")
        tensors.append(f"v{place}")
    results = ", ".join(random.sample(tensors[2:], random.randint(1, min(3, len(lines)))))
    return "\n".join([f"def program(x, y, {', '.join(numbers)}):", *lines, f"    return {results},"]), kinds, random.random() < 0.5


def values(random: Random, kind: type) -> Any:
    if kind is int:
        return random.choice((1, 2, 3, 5, 17))
    return random.choice((random.uniform(0.05, 3.0), random.uniform(0.05, 3.0), 1.0, 2.0, 0.5, 1e-3))


def check(seed: int) -> str:
    """How it went: "equal", or why the program cannot be compiled, or is no test. Raises AssertionError for other results."""
    random = Random(seed)
    text, kinds, gradients = draw(random)
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(text, names)
    program: Callable[..., Any] = names["program"]
    torch.manual_seed(seed)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    given = [inputs[0].clone().requires_grad_(gradients), inputs[1].clone().requires_grad_(gradients)]
    sets = [[values(random, kind) for kind in kinds] for _ in range(4)]
    try:
        gm = fx.symbolic_trace(program)
        traced = trace(gm, [*map(TensorSpec.of, given), *map(spec_of, kinds)], Modes.current())
        programs = list(map(lower, traced.graphs))
    except Unsupported as error:
        return str(error)
    function = behind_runtime(gm, traced, list(map(evaluated, programs)))
    for numbers in sets:
        try:
            expected = program(*given, *numbers)
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            return f"eager mode raises {type(error).__name__}"
        if any(isinstance(one, Tensor) and not bool((one.abs() < MAGNITUDE).all()) for one in expected):
            continue
        try:
            compare(lambda *x, numbers=numbers: program(*x, *numbers), lambda *x, numbers=numbers: function(*x, *numbers), given,
                    {"rtol": 1e-3, "atol": 1e-3})
        except AssertionError as error:
            raise AssertionError(f"{text}\n{numbers}, gradients: {gradients}\n{error}") from None
    finished()
    return "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seed", 0), ("first", 0), ("count", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for number in range(options.first, options.first + options.count):
        try:
            found = check(options.seed * 1_000_003 + number)
        except Exception as error:
            found = "DIFFERS"
            print(f"{number}: {type(error).__name__}: {error}\n", flush=True)
        counts[found] = counts.get(found, 0) + 1
    print(counts)


if __name__ == "__main__":
    main()
