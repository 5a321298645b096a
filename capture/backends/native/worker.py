"""The compiling process: reads jobs from a socket, and writes their results to it.

It is a process and not a thread because compiling is Python, which would hold the interpreter's lock while the user's program waits
for it after every operation. `keeper.py` starts it; it ends when the keeper says so, or the other end of the socket closes.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import os
import pkgutil
import queue
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from capture import _process, config
from capture.backends.native import imports_later, toolchain, transport
from capture.backends.native.disk_cache import DiskCache
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.keeper import GRACE, kill_descendants, leave
from capture.backends.native.messages import Failure, receive, send

LEAVE_GPUS_ALONE = "capture.backends.aot.unused_gpus:leave_gpus_alone"     # imported only where torch knows GPUs


def attempt(compile_job: str, job: bytes) -> bytes | Failure:
    """The artifact, as bytes, that the function named `compile_job` ("module:function") makes of a job; never raises an
    Exception."""
    try:
        return pkgutil.resolve_name(compile_job)(transport.decode(job))
    except Exception as error:
        return Failure.of(error)


def kept(compile_job: str, job: bytes, key: str, cache: DiskCache) -> tuple[bytes | Failure, str]:
    """The outcome of a job that is kept under `key`, and what there is to tell the user of `cache`. Several processes that want the
    same, as those of distributed training do, have it compiled by one of them."""
    with cache.alone(key):
        outcome = cache.get(key) or attempt(compile_job, job)
        return outcome, cache.keep(key, outcome) if isinstance(outcome, bytes) else ""


def seconds_used() -> float:
    """The processor seconds of this process, and of its compilers that have ended."""
    return sum(os.times()[:4])


def main(compile_job: str, jobs: int = _process.JOBS) -> None:
    """Serves until the socket ends. What jobs print goes to standard error, which is a log."""
    torch.set_num_threads(1)
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    try:
        signal.signal(signal.SIGTERM, _stop)
        threading.Thread(target=_listen, args=(jobs, waiting), daemon=True).start()
        _import(compile_job)
        if waiting.empty():
            warm_up(compile_job)
        while (request := waiting.get()) is not None:
            compile_job, job, flags, key, cache = request
            for name, value in flags.items():
                config.FLAGS[name].value = value
            before = seconds_used()
            outcome, trouble = kept(compile_job, job, key, cache) if key else (attempt(compile_job, job), "")
            send(jobs, (outcome, trouble, seconds_used() - before))
    except (SystemExit, BrokenPipeError):
        pass        # the user's process has ended
    leave(0)        # at once: torch takes its time


def _import(compile_job: str) -> None:
    """Imports the compiler, and only then turns the garbage collector on, without which this process starts: during imports there
    is nothing to collect, nor later in what modules consist of, and searching all that takes as long as a small job."""
    with contextlib.suppress(Exception):        # then it is imported with the rest
        imports_later.postpone()
    with contextlib.suppress(Exception):        # a job will tell
        pkgutil.resolve_name(compile_job)
    if torch.version.cuda:
        pkgutil.resolve_name(LEAVE_GPUS_ALONE)()
    gc.freeze()
    gc.enable()


def _listen(jobs: int, waiting: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            waiting.put(receive(jobs))
    except (EOFError, ConnectionError):
        waiting.put(None)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        toolchain.close()
        time.sleep(GRACE)           # the keeper would not wait longer either, but may have gone
        leave(1)


def _stop(*_: object) -> None:
    """Ends the job at hand. Its compilers go first: threads wait for them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)       # once: what cleans up is not interrupted
    toolchain.close()
    kill_descendants()
    raise SystemExit


@functools.cache
def warm_up(compile_job: str) -> None:
    """Compiles a small graph, once: it makes Python import, and torch set up, what all jobs need."""
    attempt(compile_job, transport.encode(trial_job()))


def trial_job() -> Job:
    """That graph."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.tanh, (graph.call_method("sum", (x, -1)),)),))
    spec = TensorSpec.of(torch.zeros(2, 3))
    return Job(fx.GraphModule(torch.nn.Module(), graph), (replace(spec, requires_grad=True),), Modes.current(), {})
