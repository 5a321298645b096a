"""Scripts that are run under `python`, and under `python -m capture run`."""
from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import compiling, forkserver


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
    return same(plain, start("run", *before, script, *arguments, **options))


def check_forked(script: Path, before: tuple[str, ...] = (), server: forkserver.Server | None = None,
                 **environment: str) -> subprocess.CompletedProcess[str]:
    """The same of a script that ends well, and is not about how Python and torch start: both runs are forks of one process."""
    server = server or compiling.programs()
    plain = f"import runpy, sys\nsys.path[0] = {str(script.parent)!r}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    return same(*(server.run(command, timeout=200, environment={**os.environ, **environment})
                  for command in (["-c", plain], ["-m", "capture", "run", *before, str(script)])))


def same(plain: subprocess.CompletedProcess, captured: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert (captured.returncode, captured.stdout, captured.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return plain
