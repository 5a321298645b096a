"""Special methods written in Python are called as often as in eager mode: a small sample of the search."""
from __future__ import annotations

import pytest

from tests.universe.special_methods import differences, draw

SEED, BATCHES, BATCH = 0, 4, 12


@pytest.mark.parametrize("batch", range(BATCHES))
def test_special_methods_are_called_as_in_eager_mode(batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        asked = draw(SEED, number)
        problems = differences(asked, backend="eager")
        assert not problems, f"--seed {SEED} --first {number}: {asked}" + "\n".join(problems)
