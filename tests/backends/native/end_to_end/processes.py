"""Programs in processes of their own, as a user runs them: not in strict mode, and with the disk cache in a folder of the test."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import compiling

PRELUDE = """
import os, sys, signal, threading, time, torch, capture
from capture.backends.native import sidecar, tiers

def program(x, w):
    return torch.softmax((x @ w).relu() * 2, -1)

x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)

def use(function, calls=3):
    for _ in range(calls):
        w.grad = None
        y = function(x, w)
        y.square().sum().backward()
        gradient, w.grad = w.grad, None
        expected = program(x, w)
        expected.square().sum().backward()
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradient, w.grad)

f = capture.compile(program, backend="native", fullgraph=True)
g = capture.compile(program, backend="native", fullgraph=True, options={"background": False})

def states():
    capture.wait()
    stats = capture.stats(f)
    return stats.compiled, stats.compile_errors
"""


def run(source: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `source` after the prelude above: the result of a process that has ended."""
    settings = {"CAPTURE_STRICT": "0", "CAPTURE_TRIAL_CALLS": "0", "CAPTURE_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(sys.path)}
    text = compiling.prelude() + PRELUDE + textwrap.dedent(source)
    return compiling.programs().run(["-c", text], timeout=120, environment=os.environ | settings | environment)


def output(*arguments: object, warnings: tuple[str, ...] = (), **options: object) -> list[str]:
    """The lines that a program printed, after it ended well and with one warning for each of the texts."""
    done = run(*arguments, **options)
    told = [line for line in done.stderr.splitlines() if "UserWarning: capture:" in line]
    assert done.returncode == 0, done.stderr
    assert len(told) == len(warnings) and all(any(text in line for line in told) for text in warnings), done.stderr
    return done.stdout.splitlines()
