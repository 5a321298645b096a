"""`make test-fast` runs some tests of every package."""
from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def targets() -> list[Path]:
    """The folders and files of tests that `make test-fast` names."""
    run = subprocess.run(["make", "-n", "test-fast-capture", "test-fast-backends", "VENV=never"], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout
    return [ROOT / word for line in run.splitlines() if "pytest" in line for word in line.split() if word.startswith("tests/")]


def untested(named: list[Path], packages: list[Path]) -> list[Path]:
    """The folders of tests of these packages in which nothing is run."""
    mirrors = [ROOT / "tests" / package for package in packages]
    return [mirror for mirror in mirrors if any(mirror.glob("test_*.py"))
            and not any(mirror in (path, *path.parents) or path in mirror.parents for path in named)]


def test_every_package_is_covered() -> None:
    packages = {path.parent.relative_to(ROOT / "capture") for path in (ROOT / "capture").rglob("__init__.py")}
    named = targets()
    assert len(packages) > 15 and [path for path in named if not path.exists()] == []
    assert untested(named, sorted(packages - {Path()})) == []


def test_a_package_without_tests_is_found() -> None:
    named = [ROOT / "tests/backends/aot/test_min_cut.py", ROOT / "tests/guards"]
    packages = [Path("backends/aot"), Path("guards"), Path("refgraph")]
    assert untested(named, packages) == [ROOT / "tests/refgraph"]
