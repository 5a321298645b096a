"""Random programs through all stages of the compiler, against eager mode."""
from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from tests.backends.native.random_programs import Drawn, draw
from tests.backends.native.stages import Stages, compare, compiled, evaluated, finished, recorded

TOLERANCES = {"rtol": 1e-3, "atol": 1e-3}        # normalisation multiplies what rounding leaves of a difference
LOW_PRECISION = {"rtol": 5e-2, "atol": 5e-2}


def tolerances(program: Drawn) -> dict[str, float]:
    low = any(tensor.dtype == torch.bfloat16 for tensor in program.inputs) or "bfloat16" in program.source
    return LOW_PRECISION if low else TOLERANCES

# Programs that were wrong once.
FOUND = {
    "an element beyond one part of a concatenation": ("""def program(x0):
    v0 = torch.cat([x0, x0], 0)
    return torch.relu(v0.select(0, -1)), v0
""", [torch.tensor([1.0, -2.0])]),
    "an expanded result of what is overwritten": ("""def program(x0):
    v0 = torch.abs(x0).unsqueeze(0).expand(2, -1)
    x0.copy_(x0 * 2)
    return v0,
""", [torch.tensor([1.0, -2.0])]),
    "an index that is a number": ("""def program(x0, x1):
    return x0[x1 % 2],
""", [torch.tensor([1.0, -2.0]), torch.tensor([-1, 2, 3])]),
    "parts without elements": ("""def program(x0):
    return torch.block_diag(x0, x0[:0], x0 + 1),
""", [torch.ones(2, 3)]),
    "a repeated element that several sum up": ("""def program(x0):
    return x0.sum(1, keepdim=True).expand(2, 3).sum(0),
""", [torch.ones(2, 3)]),
}


@settings(max_examples=70, derandomize=True, deadline=None, phases=(Phase.generate,))      # shrinking takes minutes
@given(st.randoms(use_true_random=False), st.booleans())
def test_lowered_and_fused(random: Random, gradients: bool) -> None:
    program = draw(random, mutations=not gradients)
    note(program.source)
    note(str(program.inputs))
    evaluate_stages(program, gradients)


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    source, inputs = FOUND[name]
    evaluate_stages(Drawn(source, inputs, mutates=True), gradients=False)


def evaluate_stages(program: Drawn, gradients: bool) -> None:
    """Lowered and fused, both by the reference interpreter."""
    gm, inputs = recorded(program.function, program.inputs)
    if gradients:
        inputs = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    stages = Stages(gm, inputs)
    for programs in (stages.lowered, stages.fused()):
        compare(gm, stages.callable(list(map(evaluated, programs))), inputs, tolerances(program))
    finished()


@pytest.mark.parametrize("seed", range(2))
def test_compiled(seed: int) -> None:
    drawn = [draw(Random(1000 * seed + number)) for number in range(40)]
    graphs = [recorded(program.function, program.inputs) for program in drawn]
    stages = [Stages(gm, inputs) for gm, inputs in graphs]
    fused = [one.fused() for one in stages]
    plans = iter(compiled([program for programs in fused for program in programs]))
    for program, (gm, inputs), one, programs in zip(drawn, graphs, stages, fused, strict=True):
        own = [next(plans) for _ in programs]
        try:
            compare(gm, one.callable(own), inputs, tolerances(program))
        except AssertionError as error:
            raise AssertionError(f"{program.source}\n{program.inputs}\n{error}") from error
    finished()
