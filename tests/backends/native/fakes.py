"""A compiler that only pretends, for tests of what is around it: `compile_job` runs in the compiling process.

What it does is said by the graph: a constant that the program adds. Everything else compiles to the graph as it is.
"""
from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import fx

from capture import config
from capture.backends.native import transport
from capture.backends.native.job import Job
from capture.backends.native.tiers import Compiler
from capture.errors import BackendError, ToolchainError

UNSUPPORTED, TOOLCHAIN, BUG, CRASH, CRASH_ONCE, SLOW, LOAD_BUG, NOISY, SIZES_BUG = map(float, range(1001, 1010))
FAKE = Compiler(*(f"{__name__}:{part}" for part in ("compile_job", "read", "load", "describe", "size_check")))

loaded: list[Any] = []          # of this process: what `load` was given
calls: list[str] = []           # one item for each call of a compiled graph


def compile_job(job: Job) -> bytes:
    """The artifact: the job as bytes, and which process made it."""
    order = next((arg for node in job.graph.graph.nodes for arg in node.args if isinstance(arg, float) and arg > 1000), None)
    if order == UNSUPPORTED:
        raise BackendError("this cannot be compiled")
    if order == TOOLCHAIN:
        raise ToolchainError("no C++ compiler was found", "the log of it")
    if order == BUG:
        print("words on stderr", file=sys.stderr)
        raise AssertionError("a fault of ours")
    if order == CRASH:
        os.kill(os.getpid(), signal.SIGKILL)
    if order == CRASH_ONCE and not (mark := Path(os.environ["FAKES_MARK"])).exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if order == SLOW:
        time.sleep(float(os.environ.get("FAKES_SECONDS", "1000")))
    if order == NOISY:
        print("noise on stdout")
        os.write(1, b"more of it\n")
    return json.dumps({"job": transport.encode(job).decode(), "process": os.getpid(), "order": order, "collects": gc.isenabled(),
            "options": dict(job.options), "cache_size": config.CACHE_SIZE.value, "debug": config.DEBUG.value,
            "environment": dict(os.environ)}).encode()


def read(data: bytes) -> dict[str, Any]:
    """The artifact again."""
    return json.loads(data)


def load(artifact: dict[str, Any], gm: fx.GraphModule) -> Callable[..., Any]:
    """The graph as it is; counts its calls."""
    if artifact["order"] == LOAD_BUG:
        raise AssertionError("it does not load")
    loaded.append(artifact)

    def compiled(*inputs: Any) -> Any:
        calls.append("compiled")
        return gm.forward(*inputs)
    return compiled


def describe(artifact: dict[str, Any]) -> tuple[str, str]:
    """The summary, and a log if the compiling process was to keep one."""
    return "7 kernels", f"debug level {artifact['debug']}" if artifact["debug"] else ""


def size_check(artifact: dict[str, Any]) -> Callable[[Any], bool]:
    """It covers all sizes."""
    if artifact["order"] == SIZES_BUG:
        raise AssertionError("no check of sizes can be made")
    return lambda inputs: True
