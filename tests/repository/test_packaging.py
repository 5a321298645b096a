"""What is in a source distribution and in a wheel. The C++ is not built for this."""
from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("Makefile", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "benchmarks", "capture", "docs", "examples",
         "paritybench_subset", "tests")
MADE = shutil.ignore_patterns("*.so", "__pycache__", ".*")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the source, in which setuptools may leave what it makes."""
    folder = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=MADE)
        else:
            shutil.copy(ROOT / part, folder)
    return folder


def files_in(folder: Path, *parts: str) -> set[str]:
    """The files of a folder, or of these parts of it."""
    found = [path for part in parts or [""] for path in [folder / part, *(folder / part).rglob("*")]]
    return {str(path.relative_to(folder)) for path in found if path.is_file()}


def run_setup(source: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "setup.py", "-q", *arguments], cwd=source, check=True, capture_output=True)


def test_a_source_distribution_has_all_sources(source, tmp_path) -> None:
    expected = files_in(source, *PARTS)
    run_setup(source, "sdist", "--formats", "gztar", "--dist-dir", str(tmp_path))
    archive, = tmp_path.iterdir()
    with tarfile.open(archive) as tar:
        names = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    assert expected - names == set()
    assert {name for name in names - expected if ".egg-info/" not in name} <= {"PKG-INFO", "setup.cfg"}


def test_a_wheel_has_what_a_program_needs(source, tmp_path) -> None:
    expected = {name for name in files_in(source, "capture") if not name.startswith("capture/csrc/")}
    expected.add("capture/csrc/package/capture_package.h")
    run_setup(source, "build_py", "--build-lib", str(tmp_path))
    assert files_in(tmp_path) == expected
