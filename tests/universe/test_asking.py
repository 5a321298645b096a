"""Objects are asked for their attributes, `__class__` among them, as often as in eager mode: on capture, on hits, behind breaks."""
from __future__ import annotations

import pytest
import torch

import capture
from tests.universe.asking import differences, draw, told

SEED, BATCHES, BATCH = 4, 3, 60


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_is_asked_besides_what_eager_mode_asks(batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        case, kinds = draw(SEED, number)
        problems = differences(SEED, number, backend="eager")
        assert not problems, f"--seed {SEED} --first {number}: {', '.join(map(told, kinds))}\n{case.source}" + "\n".join(problems)


def test_a_program_that_asks_is_captured() -> None:
    """What notes that it was asked does not make calls run natively."""
    log: list[str] = []

    class Noting:
        scale = 3.0

        def __getattribute__(self, name: str) -> object:
            log.append(name)
            return object.__getattribute__(self, name)

    noting = Noting()
    compiled = capture.compile(lambda x, a: x * a.scale, fullgraph=True, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2), noting).tolist() == [3.0, 3.0]
    assert log == ["scale"] * 3 and capture.stats(compiled).hits == 2
