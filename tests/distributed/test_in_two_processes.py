"""Programs that train in two processes do compiled what they do in eager mode, on each rank."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
if dist.is_available():
    from tests.distributed import programs, ranks

WITH_KERNELS = ("many_buckets_wrapper_compiled", "unused_parameters", "accumulated_wrapper_compiled", "whole_step", "buffers",
                "shards_in_two_precisions", "shards_recomputed", "collectives", "collectives_on_parts")


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_programs_do_what_they_do_in_eager_mode(backend: str, tmp_path: Path) -> None:
    names = tuple(name for name in programs.PROGRAMS if (name in WITH_KERNELS) is (backend == "native"))
    ended, outputs = ranks.run(programs.__name__, "compare", tmp_path, backend, names)
    assert ended == [0, 0], "\n".join(outputs)
