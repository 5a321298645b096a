"""Scripts that are run under `python`, and under `python -m capture run`."""
from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests import compiling

# A package of which torch calls a function when it has been imported: what it consists of is not looked through for garbage when
# the script ends, which takes a quarter as long as to import it.
FREEZING = {"METADATA": "Name: freezing\nVersion: 0\n", "entry_points.txt": "[torch.backends]\nfreezing = gc:freeze\n"}


@functools.cache
def freezing() -> str:
    """The folder of that package, for `sys.path`."""
    folder = tempfile.mkdtemp(prefix="freezing-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = Path(folder, "freezing-0.dist-info")
    package.mkdir()
    for name, text in FREEZING.items():
        (package / name).write_text(text)
    return folder


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder / f"{next(iter(texts))}.py"


def python(*command: str | Path, cwd: Path | None = None, **options) -> subprocess.CompletedProcess:
    path = os.pathsep.join((str(Path(__file__).parents[1]), freezing()))
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
