"""Programs that end, are killed or fork while a graph of theirs is being compiled: what becomes of the compiling process."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from tests import compiling


def run(program: str, forks: bool = True) -> subprocess.CompletedProcess:
    """A program in a process of its own. `forks`: whether its compiling process is a fork, too, and needs no time to start."""
    prelude = ("import functools, os, sys, time, torch, capture\nfrom capture.backends.native import sidecar, tiers\n"
               "from tests.backends.native import fakes\nX = torch.ones(3)\n"
               "native = functools.partial(tiers.compile_graph, compiler=fakes.FAKE)\n"
               "def adding(k):\n    f = capture.compile(lambda x: x * 2 + k, backend=native)\n"
               "    f(X)\n    return f\n")
    settings = {"CAPTURE_CACHE": "0", "CAPTURE_TRIAL_CALLS": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    text = (compiling.prelude() if forks else "") + prelude + textwrap.dedent(program)
    return compiling.programs().run(["-c", text], timeout=120, environment=os.environ | settings)


@pytest.mark.parametrize("moment", ["", "time.sleep(3)"], ids=["at once", "while compiling"])
def test_a_program_ends_although_a_graph_is_being_compiled(moment: str) -> None:
    done = run(f"""
        f = adding(fakes.SLOW)
        while not sidecar.processes(): time.sleep(0.01)
        {moment}
        print(sidecar.processes()[0])""", forks=bool(moment))
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_compiling_process_ends_with_a_program_that_is_killed() -> None:
    done = run("""
        f = adding(fakes.SLOW)
        while not sidecar.processes(): time.sleep(0.01)
        time.sleep(3)
        print(sidecar.processes()[0], flush=True)
        os.kill(os.getpid(), 9)""")
    for _ in range(1200):
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.05)
    pytest.fail("it lives")


def test_a_fork_has_a_compiling_process_of_its_own() -> None:
    done = run("""
        import warnings
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)      # so says Python 3.12
        f, g = adding(1.0), adding(fakes.SLOW)
        while len(fakes.loaded) < 1: time.sleep(0.01)
        mine = sidecar.processes()
        child = os.fork()
        if not child:
            assert capture.wait(0) and not sidecar.processes() and "forked" in capture.stats(g).compile_errors[0]
            assert torch.equal(g(X), X * 2 + fakes.SLOW) and torch.equal(f(X), X * 2 + 1)
            h = adding(2.0)
            assert capture.wait(30) and capture.stats(h).compiled == 1 and sidecar.processes() != mine
            sidecar.close()
            os._exit(17)
        _, status = os.waitpid(child, 0)
        assert sidecar.processes() == mine and tiers.pending() == 1
        print(os.waitstatus_to_exitcode(status))""")
    assert (done.stderr, done.stdout) == ("", "17\n")
