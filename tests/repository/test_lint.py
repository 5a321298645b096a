"""The tree follows the rules of `pyproject.toml`, as `make lint` says."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ruff")

ROOT = Path(__file__).parents[2]


def lint(*arguments: str | Path) -> str:
    """What ruff finds, one finding per line; nothing is read or left in its cache."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet", "--output-format=concise", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_tree_is_clean() -> None:
    found = lint(".")
    assert not found, found


def test_a_violation_is_found(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text(f"x = undefined\ny = '{'long ' * 40}'\n")
    found = lint("--config", ROOT / "pyproject.toml", file)
    assert "F821" in found and "E501" in found
