"""Where torch was built without `torch.distributed`, the rest works."""
from __future__ import annotations

from pathlib import Path

from tests.scripts import files, python


def test_programs_are_compiled(tmp_path: Path) -> None:
    """What such a torch lacks is deleted before capture is imported."""
    ended = python(files(tmp_path, program="""
        import torch
        import torch.distributed as dist
        if dist.is_available():
            del torch._C._c10d_init
            for name in ("Reducer", "Logger", "ProcessGroup", "ReduceOp", "all_reduce", "reduce", "broadcast", "all_gather"):
                delattr(dist, name)
        assert not dist.is_available()
        import capture
        function = capture.compile(lambda x: x + 1, backend="eager")
        for _ in range(3):
            assert torch.equal(function(torch.ones(2)), torch.full((2,), 2.0))
        print(capture.stats(function).hits)
    """))
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
