"""Ranks that go apart: other sizes, other tiers, one that raises."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import capture

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
if dist.is_available():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from tests.distributed import ranks, scenarios


@pytest.mark.parametrize("buffers", [False, True], ids=["unused parameters", "buffers"])
@pytest.mark.parametrize("compiled_ranks", [2, 1], ids=["both compiled", "one compiled"])
def test_sizes_and_tiers_may_differ(compiled_ranks: int, buffers: bool, tmp_path: Path) -> None:
    ended, outputs = ranks.run(scenarios.__name__, "soak", tmp_path, 60, compiled_ranks, buffers)
    assert ended == [0, 0], "\n".join(outputs)


@pytest.mark.parametrize("when", [0, 4], ids=["in the capture", "later"])
def test_one_that_raises_ends_all(when: int, tmp_path: Path) -> None:
    ended, outputs = ranks.run(scenarios.__name__, "raising", tmp_path, when)
    assert all(ended) and f"Refused: rank 1 does not like step {when}" in outputs[1], "\n".join(outputs)
    assert "Refused" not in outputs[0] and "RuntimeError" in outputs[0] and "InternalError" not in outputs[0], outputs[0]


def test_another_group_is_asked_again() -> None:
    def program(x, group):
        return x * dist.get_world_size(group) + dist.get_rank(group)
    function, x = capture.compile(program, backend="eager", fullgraph=True), torch.randn(3)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        for group in (None, dist.new_group([0, 1]), dist.new_group([1, 2, 3]), None):
            assert torch.equal(function(x, group), program(x, group))
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
        assert torch.equal(function(x, None), program(x, None)) and torch.equal(function(x, None), x * 3 + 2)
    finally:
        dist.destroy_process_group()
