"""The programs of `paritybench_subset` with other sizes than their own, wherever eager mode takes them: compared with eager mode,
and how many captures they take."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import capture
from paritybench_subset.cases import Arguments, Case, subset
from paritybench_subset.compare import differences
from paritybench_subset.engines import Engine
from paritybench_subset.judge import MODES, Judge, Run, tensors

GROWTHS: tuple[Callable[[int], int], ...] = (lambda n: n, lambda n: n + 1, lambda n: 2 * n + 1, lambda n: n, lambda n: n + 3)
# What goes by its batch size, and so is captured for each: why.
BY_SIZE = {
    "retina_decoder": "a loop over rows", "image_pool": "a loop over rows", "layer_norm_lstm": "a loop over rows",
    "session_graph": "a loop over rows", "masked_convolutions": "a loop over rows", "hardest_triplets": "a loop over rows",
    "dice_loss_with_module_made_inside": "numpy calculates with sizes", "tabnet": "numpy calculates with sizes",
    "self_attentive_sequences": "numpy calculates with sizes",
    "waveglow_stack": "TorchScript", "language_model_with_cached_mask": "a mask that is kept decides how attention is computed",
}


@dataclass(frozen=True)
class Varied:
    """A program, and which of its sizes becomes another. first: only where it is the first one of a tensor, as batches are."""

    case: Case
    mode: str
    size: int
    first: bool

    def __str__(self) -> str:
        return f"{self.case.name} {self.mode} {'first ' * self.first}size {self.size}"


class Sized(Engine):
    """`capture.compile` with a backend that takes all sizes."""

    def compile(self, module: torch.nn.Module) -> Callable[..., Any]:
        options = {"background": False} if self.backend == "native" else None
        self.compiled = capture.compile(module, backend=self.backend, options=options)
        return self.compiled


def varied(every: int = 1, start: int = 0) -> list[Varied]:
    """All that can be varied, or one of so many."""
    found = []
    for case in (case for project in subset() for case in project.load()):
        torch.manual_seed(0)
        try:
            shapes = [tuple(tensor.shape) for tensor in tensors(case.arguments(), set())]
        except Exception:       # a module of its own has to be there first
            continue
        firsts = {shape[0] for shape in shapes if shape and shape[0] > 1}
        sizes = {size for shape in shapes for size in shape if size > 1}
        found += [Varied(case, mode, size, first) for mode in MODES for first, known in ((True, firsts), (False, sizes))
                  for size in sorted(known)]
    return found[start::every]


def examine(one: Varied, backend: str = "eager") -> tuple[int, int] | None:
    """How many captures one size takes, and how many several do; None if eager mode does not take them. Raises AssertionError with
    what differs from eager mode."""
    judge = Judge(len(GROWTHS), 1e-4 if backend == "native" else 0.0)
    grown = growing(one, GROWTHS)
    reference = judge.reference(grown, one.mode)
    if not isinstance(reference, Run):
        return None
    constant, engine = Sized(backend), Sized(backend)
    judge.run(growing(one, GROWTHS[:1]), one.mode, constant)
    found = differences(reference.state, judge.run(grown, one.mode, engine).state, judge.tolerance)
    assert not found, "\n".join([str(one), *found])
    return capture.stats(constant.compiled).captures, capture.stats(engine.compiled).captures


def growing(one: Varied, growths: Sequence[Callable[[int], int]]) -> Case:
    """The program with these sizes in turn."""
    turns: list[Iterator[Callable[[int], int]]] = []

    def build() -> torch.nn.Module:
        turns[:] = [itertools.cycle(growths)]
        return one.case.build()

    def arguments() -> Arguments:
        return resized(one.case.arguments(), one, next(turns[0])(one.size))
    return Case(one.case.name, build, arguments)


def resized(value: Any, one: Varied, size: int) -> Any:
    """Arguments with another size, whose rows repeat."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        made = value.detach()
        for dim in range(1 if one.first else value.dim()):
            if value.dim() and value.shape[dim] == one.size:
                made = made.index_select(dim, torch.arange(size) % one.size)
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return type(value)((key, resized(item, one, size)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(resized(item, one, size) for item in value)
    return value
