"""A few random training steps with backward passes inside; `python -m tests.training.random_steps` goes on."""
from __future__ import annotations

import pytest

from tests.training import random_steps

FOUND = [(1, 149), (1, 197), (1, 238), (0, 32), (0, 67)]        # differed once


@pytest.mark.parametrize("number", range(0, 60, 4))
def test_equal_to_eager(number: int) -> None:
    for case in range(number, number + 4):
        random_steps.compare(0, case)


@pytest.mark.parametrize("number", range(0, 24, 4))
def test_equal_to_eager_with_kernels(number: int) -> None:
    for case in range(number, number + 4):
        random_steps.compare(0, case, "native")


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_random_numbers_anywhere(backend: str) -> None:
    for case in range(6):
        random_steps.compare(0, case, backend, draws=True)


@pytest.mark.parametrize(("seed", "number"), FOUND)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_once_differed(seed: int, number: int, backend: str) -> None:
    assert random_steps.compare(seed, number, backend)
