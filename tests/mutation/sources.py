"""Worlds that are no tests' programs: random ones, and programs in the style of GitHub code."""
from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from paritybench_subset.cases import Case, subset
from tests.fuzz import case as fuzz
from tests.helpers import Call
from tests.mutation.world import World


def random_worlds(seed: int, first: int, count: int) -> Iterator[World]:
    """The worlds of `tests.fuzz`, whose program is called with tensors."""
    for number in range(first, first + count):
        make = functools.partial(_random, seed, number)
        yield World(f"tests.fuzz --seed {seed} --case {number}", make, Call(_random_arguments))


def _random(seed: int, number: int) -> Any:
    case = fuzz.draw(seed, number)
    scope: dict[str, Any] = {"__name__": fuzz.MODULE, "compiled": lambda program: program}
    exec(fuzz._compiled(case.source, "<world>"), scope)
    return scope["program"], SimpleNamespace(scope={k: v for k, v in scope.items() if k not in fuzz.HIDDEN})


def _random_arguments(state: Any) -> tuple[tuple, dict[str, Any]]:
    return (state.scope["x"].clone(), state.scope["y"].clone()), {}


def programs() -> Iterator[World]:
    """The programs of `paritybench_subset`."""
    for project in subset():
        for case in project.load():
            yield World(f"paritybench_subset {case.name}", case.build, Call(lambda state, case=case: _arguments(case)))


def _arguments(case: Case) -> tuple[tuple, dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        return case.arguments()
