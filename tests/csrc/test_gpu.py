"""Plans on a GPU, without one: `on_fake_gpu.py` in a process of its own, with a driver and a part of torch of ours."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from capture import _C

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARIES = Path(torch.__file__).parent / "lib"


def build(source: str, library: Path, *options: str) -> Path:
    source = str(HERE / "fake_cuda" / source)
    command = ["g++", "-shared", "-fPIC", "-std=c++20", f"-Wl,-soname,{library.name}", source, "-o", str(library), *options]
    subprocess.run(command, check=True, timeout=250)
    return library


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a device cuda of its own")
def test_plans_on_a_gpu(tmp_path: Path) -> None:
    build("driver.cpp", tmp_path / "libcuda.so.1")
    includes = [f"-I{path}" for path in include_paths()]
    device = build("torch_device.cpp", tmp_path / "libtorch_cuda.so", *includes, f"-L{LIBRARIES}", "-lc10")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_TORCH_DEVICE": str(device)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "on_fake_gpu.py")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="there may be a driver")
def test_without_a_driver_there_is_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"^NVIDIA's driver cannot be loaded \(.*\); install it, or make libcuda.so.1 visible"):
        _C.cuda_devices()
