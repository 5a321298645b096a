"""Runs a program in a situation with capture and without, and says what differs and what is left behind."""
from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes.situations import RUNNING, Situation

ROOT = Path(__file__).parent.parent.parent
LIMIT = 240             # seconds for a program
LEAVING = 5.0           # seconds in which what a program has started must have ended after it
OURS = {"tmp", "cache", "home", "c++", "report", "hanging", "probed"}
WARNING = re.compile(r".*UserWarning: capture: .*\n(  .*\n)?")

# What torch consists of is not looked through for garbage when the program ends, which takes a quarter as long as to import it.
PROGRAM = f"""
import sys
sys.path[:0] = {[str(ROOT), sysconfig.get_path("purelib")]!r}
import multiprocessing, os, signal, threading, time
HERE, CAPTURED, REPORT = os.environ["HERE"], os.environ["CAPTURED"] == "1", os.path.join(os.environ["HERE"], "report")
if __name__ != "__main__": print = lambda *args, **kwargs: None
def flush():
    for stream in sys.stdout, sys.stderr: stream and stream.flush()
%(first)s
import torch
__import__("gc").freeze()
if CAPTURED:
    import capture
    compile = capture.compile
    {RUNNING.strip().replace(chr(10), chr(10) + "    ")}
else:
    class capture:
        wait = staticmethod(lambda: True)
    def compile(function): return function
@compile
def f(x, w): return torch.relu(x * w + 1) * 2, x + w
x, w = torch.arange(8.), torch.arange(8.) - 3
%(before)s
for _ in range(3): print(*(part.tolist() for part in f(x, w)))
%(during)s
capture.wait()
for _ in range(3): print(*(part.tolist() for part in f(x, w)))
%(after)s
if CAPTURED and __name__ == "__main__":
    stats = capture.stats(f)
    REPORT = os.open(REPORT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(REPORT, ("%%s %%s" %% (stats.compiled, stats.compile_errors)).encode(errors="replace"))
"""


@dataclass(frozen=True)
class Outcome:
    """What a program did. `report`: whether its graph was compiled, and why not."""

    status: int
    output: str
    errors: str
    report: str
    processes: tuple[str, ...]
    files: tuple[str, ...]


def problems(situation: Situation) -> list[str]:
    """What is wrong with capture in a situation, a line each."""
    expected, got = plain(situation), run(situation, captured=True)
    found = []
    if got.status != expected.status:
        found.append(f"it ends with {got.status}, not {expected.status}: {got.errors[-1500:]}")
    if got.output != expected.output:
        found.append(f"its output is {got.output[-800:]!r}, not {expected.output[-800:]!r}; {got.errors[-1500:]}")
    warned, errors = len(WARNING.findall(got.errors)), WARNING.sub("", got.errors)
    if errors != expected.errors and "-v" not in situation.flags:
        found.append(f"its errors are {errors[-1500:]!r}, not {expected.errors[-800:]!r}")
    found += [f"a process is left: {line}" for line in got.processes]
    found += [f"a file is left: {name}" for name in set(got.files) - set(expected.files)]
    if situation.ends and expected.status == 0:
        compiled = got.report.startswith("1 ")
        if situation.compiles is not None and compiled != situation.compiles:
            found.append(f"it is {'' if compiled else 'not '}compiled: {got.report} {got.errors[-800:]}")
        least, most = (not compiled, 1) if situation.warns is None else (situation.warns, situation.warns)
        if not least <= warned <= most:
            found.append(f"it has warned {warned} times; compiled: {compiled}: {got.report} {got.errors[-800:]}")
    return found


def plain(situation: Situation) -> Outcome:
    """What the program does without capture. The compiler is nothing to it."""
    return _plain(Situation("", situation.first, situation.before, situation.during, situation.after, situation.flags,
                            situation.environment, situation.prepare, situation.limit, situation.how, files=situation.files))


@functools.cache
def _plain(situation: Situation) -> Outcome:
    return run(situation, captured=False)


def run(situation: Situation, captured: bool) -> Outcome:
    """Runs the program, in a folder and a session of its own."""
    here = Path(tempfile.mkdtemp(prefix="situation-"))
    try:
        for name in ("tmp", "cache", "home"):
            (here / name).mkdir(mode=0o700)
        program = Path(tempfile.mkdtemp(prefix="program-", dir=here / "home")) / "main.py"
        parts = {name: textwrap.dedent(getattr(situation, name)) for name in ("first", "before", "during", "after")}
        program.write_text(PROGRAM % parts)
        marker = uuid.uuid4().hex
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(here / "home"), "HERE": str(here), "TMPDIR": str(here / "tmp"),
            "LANG": "C.UTF-8", "PYTHON": sys.executable, "PROGRAM": str(program), "CAPTURE_STRICT": "0",
            "CAPTURE_TRIAL_CALLS": "0", "CAPTURE_BACKEND": "native", "CAPTURED": str(int(captured)),
            "CAPTURE_CACHE_DIR": str(here / "cache"), "OMP_NUM_THREADS": "1", "MARKER": marker, **dict(situation.environment)}
        if situation.cxx:
            (here / "c++").write_text(f"#!/bin/sh\n{situation.cxx}\n")
            (here / "c++").chmod(0o700)
            environment["CXX"] = str(here / "c++")
        return _run(situation, program, here, environment, marker)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _run(situation: Situation, program: Path, here: Path, environment: dict[str, str], marker: str) -> Outcome:
    command = shlex.join([*shlex.split(situation.limit), sys.executable, *situation.flags, *_arguments(situation.how, program)])
    source = f" < {shlex.quote(str(program))}" if situation.how == "stdin" else ""
    outputs = [open(here / "home" / name, "w+", errors="replace") for name in ("output", "errors")]
    script = f"{textwrap.dedent(situation.prepare)}\nexec {command}{source}"
    process = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=outputs[0], stderr=outputs[1],
                               cwd=here / "home", env=environment, start_new_session=True)
    try:
        status = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        status = 124
        process.kill()
        process.wait()
    left = _left(marker, process.pid)
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read().replace(str(here), "HERE").replace(program.parent.name, "PROGRAM"))
        output.close()
    report = (here / "report").read_text(errors="replace") if (here / "report").exists() else "no report"
    files = [str(path.relative_to(here)) for path in here.iterdir() if path.name not in OURS] + \
            [str(path.relative_to(here)) for path in (here / "tmp").iterdir()]
    return Outcome(status, *texts, report, tuple(left), tuple(sorted(files)))


def _arguments(how: str, program: Path) -> list[str]:
    if how == "-c":
        return ["-c", program.read_text()]
    if how == "zip":
        with zipfile.ZipFile(program.with_suffix(".zip"), "w") as archive:
            archive.write(program, "__main__.py")
        return [str(program.with_suffix(".zip"))]
    return ["-"] if how == "stdin" else [str(program)]


def _left(marker: str, session: int) -> list[str]:
    """Processes that a program has left behind, which are ended."""
    end = time.monotonic() + LEAVING
    while (found := dict(_processes(marker, session))) and time.monotonic() < end:
        time.sleep(0.05)
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return list(found.values())


def _processes(marker: str, session: int) -> Iterator[tuple[int, str]]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, _, sid = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split(maxsplit=4)[:4]
            if state != b"Z" and (int(sid) == session or marker.encode() in Path(f"/proc/{name}/environ").read_bytes()):
                yield int(name), Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
