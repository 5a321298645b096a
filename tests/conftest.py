"""Strict mode for every test, and the same start for each: seeds, modes, and an empty cache.

Where a test names no backend it is about capture itself, so the graph runs as it is; nothing of the user's disk cache is touched.
"""
from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import shutil
import signal
import tempfile
import types

gc.disable()            # until the tests are collected: what is imported for them stays
LAST_SECONDS = 120      # that the process may take to end after the last test
SCRATCH = tempfile.mkdtemp(prefix="capture-tests-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)       # who starts us may ignore it: then nobody learns how a child of ours has ended
# read when capture is imported; subprocesses inherit it
os.environ |= {"CAPTURE_STRICT": "1", "CAPTURE_BACKEND": "eager", "CAPTURE_CACHE_DIR": os.path.join(SCRATCH, "cache"),
               "CAPTURE_CAPTURING_SHARE": "100", "CAPTURE_COMPILE_AFTER": "0"}
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")     # threads of operations do not spin on a core that another process could use

import pytest
import torch

import capture
from tests import compile_once, quick_ends
from tests.helpers import seed

compile_once.install(os.path.join(SCRATCH, "compiled"))
quick_ends.install(os.path.join(SCRATCH, "quick ends"))
for device in torch.cuda, torch.mtia, torch.xpu:        # `torch.manual_seed` formats the stack for each, in 0.3 ms
    device.traceback = types.SimpleNamespace(format_stack=list)


@pytest.fixture(autouse=True)
def fresh():
    """Seeds before the test; afterwards no entry, and none of torch's modes, outlives it."""
    seed()
    yield
    capture.reset()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """What was imported, collected and kept before a file of tests stays until the end. Unless the garbage collector is told so it
    looks at all of it each time, and many tests run it: after some thousand tests, for a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A thread that does not end would keep the process for ever: it says where they all are, and fails."""
    faulthandler.dump_traceback_later(LAST_SECONDS, exit=True)
