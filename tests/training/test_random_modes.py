"""A few random programs that switch torch's modes; `python -m tests.training.random_modes` goes on."""
from __future__ import annotations

import pytest

from tests.training import random_modes


@pytest.mark.parametrize("number", range(0, 40, 10))
def test_equal_to_eager(number: int) -> None:
    for case in range(number, number + 10):
        random_modes.compare(0, case)


@pytest.mark.parametrize("number", range(0, 12, 4))
def test_equal_to_eager_with_kernels(number: int) -> None:
    for case in range(number, number + 4):
        random_modes.compare(0, case, "native")


@pytest.mark.parametrize("number", [43])        # differed once
def test_what_once_differed(number: int) -> None:
    assert random_modes.compare(0, number, "native")
