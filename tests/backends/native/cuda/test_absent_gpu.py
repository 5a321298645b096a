"""Graphs for a GPU are compiled where there is none: `on_absent_gpu.py` in a process of its own, whose torch is told of one."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[4]


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a device cuda of its own")
def test_graphs_for_a_gpu(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", *(f"-I{path}" for path in include_paths()),
                    str(ROOT / "tests/csrc/fake_cuda/hooks.cpp"), "-o", str(hooks)], check=True, timeout=250)
    command = [sys.executable, "-m", "tests.backends.native.cuda.on_absent_gpu", str(hooks)]
    environment = {**os.environ, "CAPTURE_STRICT": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("compiled ")
