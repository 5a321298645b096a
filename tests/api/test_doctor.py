"""`python -m capture doctor`: what is there, and a sentence for each thing that is not."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from capture import config, doctor
from capture.errors import ToolchainError

SUBJECTS = ["Python", "torch", "extension", "C++ compiler", "cache", "CUDA compiler", "GPUs"]


def found() -> dict[str, doctor.Finding]:
    return {finding.subject: finding for finding in doctor.examine()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path):
    with config.CACHE_DIR.set(str(tmp_path / "cache")), config.CACHE.set(1):
        yield tmp_path / "cache"


def test_the_command(tmp_path: Path) -> None:
    settings = {"PYTHONPATH": str(Path(__file__).parents[2]), "CAPTURE_CACHE_DIR": str(tmp_path / "new"), "CAPTURE_CACHE": "1"}
    ended = subprocess.run([sys.executable, "-m", "capture", "doctor"], capture_output=True, text=True, timeout=200,
                           env={**os.environ, **settings})
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert [line[:doctor.WIDTH].strip() for line in lines[:-1] if line[0] != " "] == SUBJECTS
    assert lines[0].split()[1] == sys.version.split()[0] and lines[1].split()[1] == f"{torch.__version__},"
    assert f"{tmp_path}/new, 1 entries, 0.0 of " in ended.stdout
    assert all(len(line) < 300 for line in lines)
    assert lines[-1] == "capture can do its work here."


def test_each_lack_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise ToolchainError("there is none; install one")
    monkeypatch.setattr(doctor, "find_compiler", none)
    monkeypatch.setattr(doctor, "find_cuda_compiler", none)
    lacks = found()
    assert lacks["C++ compiler"].broken and lacks["C++ compiler"].cost == "graphs run uncompiled: there is none; install one"
    assert not lacks["CUDA compiler"].broken and lacks["CUDA compiler"].cost.endswith("run uncompiled: there is none; install one")
    said: list[str] = []
    assert doctor.report(said.append) == 1 and said[-1] == "capture cannot do its work here."


def test_an_extension_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(name: str) -> None:
        raise ImportError("it was built for another torch")
    monkeypatch.setattr(doctor.extensions, "check", check)
    assert found()["extension"].broken and found()["extension"].cost == "nothing can be captured: it was built for another torch"


def test_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert list(found()) == ["Python", "torch"] and found()["torch"].broken
    assert found()["torch"].cost.startswith("nothing can be compiled: torch cannot be imported (")


def test_the_cache(folder: Path) -> None:
    assert found()["cache"].cost == "" and folder.is_dir()
    os.chmod(folder, 0o777)
    assert "other users can write to it" in found()["cache"].cost and "Remedy: run `chmod 700" in found()["cache"].cost
    with config.CACHE.set(0):
        assert found()["cache"].found == "none" and "compiled again in every process" in found()["cache"].cost
    with config.CACHE_DIR.set(str(Path(__file__) / "below")):
        assert "cannot be written to" in found()["cache"].cost


def test_gpus_are_told_with_what_they_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture._C.cuda_devices", lambda: (12080, [("NVIDIA H200", 9, 0)]))
    for cuda, cost in ((None, "this build of torch is not for CUDA"), ("12.8", "")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert found()["GPUs"].found == "NVIDIA H200 (sm_90); the driver is for CUDA 12.8" and cost in found()["GPUs"].cost
        assert bool(found()["GPUs"].cost) == bool(cost)
    monkeypatch.setattr("capture._C.cuda_devices", lambda: (12080, []))
    assert found()["GPUs"].found == "none; the driver is for CUDA 12.8" and found()["GPUs"].cost == ""
