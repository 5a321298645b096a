"""Scripts that are run under `python`, and under `python -m capture run`."""
from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import compiling


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder / f"{next(iter(texts))}.py"


def python(*command: str | Path, cwd: Path | None = None, **options) -> subprocess.CompletedProcess:
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path, **options.pop("env", {})}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=200, cwd=cwd,
                          env=environment, **options)


def forked(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m capture …` in a process that has imported torch before, where the test is about what comes later."""
    return compiling.programs().run(["-m", "capture", *map(str, command)], timeout=200, cwd=cwd)


def check(script: Path | str, *arguments: str, before: tuple[str, ...] = (), fork: bool = False,
          **options) -> subprocess.CompletedProcess:
    """Runs a script both ways, the second time in a process that has imported torch before if `fork`, and compares exit status,
    stdout and stderr. Returns the plain run."""
    plain = python(script, *arguments, **options)
    start = forked if fork else functools.partial(python, "-m", "capture")
    captured = start("run", *before, script, *arguments, **options)
    assert (captured.returncode, captured.stdout, captured.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return plain
