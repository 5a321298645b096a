"""The program's side of the compiling process: starts it, sends jobs, and ends it."""
from __future__ import annotations

import atexit
import contextlib
import heapq
import itertools
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from capture import _process, config
from capture.backends.native import cache, disk_cache, processor
from capture.backends.native.messages import Failure, signal_name

COMPILE_JOB = "capture.backends.native.compiler:compile_to_bytes"       # what does a job, if nothing else is asked for
IDLE = 120.0            # seconds after which a process without work is let go
STOPPING = 3.0          # seconds that a process is given to end: longer than its keeper takes
# How Python was told what decides which modules it finds, and what they mean. Not how it is to talk: what it says is kept in a log.
OPTIONS = {"ignore_environment": "E", "isolated": "I", "safe_path": "P", "no_user_site": "s", "no_site": "S", "optimize": "O",
           "dont_write_bytecode": "B"}
# What a compiling process sees of the machine: one thread, and of GPUs NVIDIA's, which it does not set up (`aot/unused_gpus.py`).
# What is calculated of sizes stays a number: torch puts a tensor in its place, by symbols that are inputs of a graph, which they
# are not here.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HIP_VISIBLE_DEVICES": "", "TENSORIFY_PYTHON_SCALARS": "0"}
A_JOB = ""              # beside names of functions that do jobs
NO_CACHE = disk_cache.DiskCache(None, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One job. seconds: that it will take, roughly. `wanted`: whether anyone waits for it. `done` gets the artifact as bytes or
    the failure, on another thread, and `took` before it the processor seconds of the compiling process. `key`: under which that
    keeps the artifact in `cache`. This process writes no files, whose descriptors the program could close, and use otherwise, in
    between."""

    compile_job: str
    job: bytes
    seconds: float
    wanted: Callable[[], bool]
    done: Callable[[bytes | Failure], None]
    took: Callable[[float], None] = lambda seconds: None
    key: str = ""
    cache: disk_cache.DiskCache = NO_CACHE


class Died(Exception):
    """A compiling process ended in the middle of a job."""


class Process:
    """One compiling process, made ready for jobs of `compile_job`. Raises OSError when it cannot be started."""

    def __init__(self, compile_job: str) -> None:
        environment = [os.fsencode(f"{name}={value}") for name, value in {**os.environ, **ENVIRONMENT}.items()]
        self._process = _process.Process(list(map(os.fsencode, command(compile_job))), environment)
        self.id = self._process.id

    def perform(self, request: Request, seconds: float) -> bytes | Failure:
        """What becomes of a job. Raises Died, and TimeoutError after `seconds`."""
        flags = {name: flag.value for name, flag in config.FLAGS.items()}
        message = pickle.dumps((request.compile_job, request.job, flags, request.key, request.cache), protocol=5)
        try:
            outcome, trouble, used = pickle.loads(self._process.exchange(message, seconds))
        except EOFError:
            raise Died(f"the compiling process {self._end()}") from None
        request.cache.tell(trouble)
        request.took(used)
        return outcome

    def _end(self) -> str:
        """How it ended, in words."""
        status = self._process.status
        if status is None:
            return "ended" if self.id else "ended before it had begun"
        if status >= 0:
            return f"ended with status {status}"
        return f"was ended by {signal_name(-status)}" + ", perhaps for lack of memory" * (-status == signal.SIGKILL)

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return self._process.words.decode(errors="replace")

    def stop(self) -> None:
        """Tells the process to end. While it starts it does so at once; in the middle of a job it cleans up."""
        self._process.stop()

    def close(self) -> None:
        """Ends the process, by force if it does not listen."""
        self.stop()
        if not self._process.wait(STOPPING):
            self._process.kill()
            self._process.wait(STOPPING)

    def forget(self) -> None:
        """In a fork: it is the parent's."""
        self._process.forget()


def command(compile_job: str) -> list[str]:
    """The command line of a compiling process. If Python does not know its own path, `python3` is looked for on PATH. Warnings are
    off: the program's filters might turn warnings of libraries into exceptions."""
    options = [f"-{letter * getattr(sys.flags, name)}" for name, letter in OPTIONS.items() if getattr(sys.flags, name)]
    for name, value in sys._xoptions.items():
        options += ["-X", name if value is True else f"{name}={value}"]
    path = [os.path.join(config.START, entry) for entry in sys.path if isinstance(entry, str)]
    program = (f"import gc, os, sys; os.nice({max(0, config.NICENESS.value)}); gc.disable(); sys.path[:] = {path!a}; "
               f"from capture.backends.native.keeper import become_two; become_two(); "
               f"from capture.backends.native.worker import main; main({compile_job!a})")
    return [sys.executable or "python3", *options, "-W", "ignore", "-c", program]


class Pool:
    """At most `size` compiling processes, each with a thread of ours which talks to it. Small jobs come first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: list[Process] = []
        self.threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()      # what to be ready for; A_JOB; None: the end
        self._jobs: list[tuple[float, int, Request]] = []       # a heap: pushed to by finalizers too, and so without a lock
        self._numbers = itertools.count()
        self._closing = False

    def start(self, compile_job: str) -> None:
        """Has a process ready for the first job."""
        if not self.threads:
            self._put(compile_job)

    def submit(self, request: Request) -> None:
        heapq.heappush(self._jobs, (request.seconds, next(self._numbers), request))
        self._put(A_JOB)

    def _put(self, item: str) -> None:
        self._waiting.put(item)
        if len(self.threads) < self.size and (not self.threads or self._waiting.qsize() > 1):
            thread = threading.Thread(target=self._serve, name="capture-sidecar", daemon=True)
            thread.start()
            self.threads.append(thread)

    def _serve(self) -> None:
        process: Process | None = None
        while not self._closing:
            try:
                item = self._waiting.get(timeout=IDLE if process else None)
            except queue.Empty:
                process = self._end(process)
                continue
            if item == A_JOB:
                *_, request = heapq.heappop(self._jobs)
                if request.wanted():
                    process = self._answer(request, process)
            elif item is not None:
                with contextlib.suppress(OSError):      # a job will tell
                    process = process or self._begin(item)
        self._end(process)

    def _answer(self, request: Request, process: Process | None) -> Process | None:
        """Does one request, with a second attempt when the process dies. Returns the process if it is still good."""
        for _ in range(2):
            try:
                process = process or self._begin(request.compile_job)
                outcome = process.perform(request, config.JOB_TIMEOUT.value)
                if isinstance(outcome, Failure) and outcome.kind == "internal":
                    outcome = replace(outcome, details=f"{outcome.details}\n{process.last_words()}".strip())
                break
            except TimeoutError:
                outcome = Failure("toolchain", f"compiling a graph took longer than {config.JOB_TIMEOUT.value} seconds; "
                                               f"set CAPTURE_JOB_TIMEOUT to more", process.last_words() if process else "")
                process = self._end(process)
                break
            except Died as error:
                words = process.last_words() if process else ""
                outcome = Failure("toolchain", f"{error}, twice", words)
                process = self._end(process)
                if self._closing:
                    break
            except OSError as error:
                outcome = Failure("toolchain", f"the compiling process cannot be started: {error}")
                process = self._end(process)
                break
            except Exception as error:
                outcome = Failure.of(error)
                process = self._end(process)
                break
        if not self._closing:
            request.done(outcome)
        return process

    def _begin(self, compile_job: str) -> Process:
        process = Process(compile_job)
        self.processes.append(process)
        if self._closing:
            process.stop()
        return process

    def _end(self, process: Process | None) -> None:
        if process is not None:
            process.close()
            self.processes.remove(process)

    def close(self) -> None:
        """Ends all processes and threads. What waits is dropped."""
        self._closing = True
        for process in list(self.processes):
            process.stop()          # its thread sees its end, and cleans up
        for _ in self.threads:
            self._waiting.put(None)
        for thread in self.threads:
            thread.join(2 * STOPPING)


def _size() -> int:
    return 2 if processor.count() >= 8 else 1


_pool = Pool(_size())
_lock = threading.RLock()       # a finalizer that runs while it is held may call a compiled function
_parents: list[Any] = []        # what a fork has inherited: kept, since its end is the parent's business


def prepare(compile_job: str = COMPILE_JOB) -> None:
    """Starts a compiling process if one is sure to be needed: if nothing was ever compiled. Otherwise all kernels may come from
    the cache, and the process would cost seconds of a processor for nothing; it starts at the first miss."""
    if not config.DISABLE and not cache.is_warm() and not _was_used(disk_cache.default_cache()):
        with _lock:
            _pool.start(compile_job)


def _was_used(cache: disk_cache.DiskCache) -> bool:
    try:
        if cache.folder is None:
            return False
        with os.scandir(cache.folder) as items:
            return any(items)
    except OSError:
        return False


def submit(request: Request) -> None:
    """Has the job compiled by another process."""
    with _lock:
        _pool.submit(request)


def processes() -> list[int]:
    """The ids of the compiling processes."""
    return [process.id for process in _pool.processes if process.id]


def close() -> None:
    """Ends all compiling processes; later jobs start new ones."""
    global _pool
    with _lock:
        old, _pool = _pool, Pool(_size())
    old.close()


def _forked() -> None:
    global _pool, _lock
    for process in _pool.processes:
        process.forget()
    _parents.extend((_pool, _lock))
    _pool, _lock = Pool(_size()), threading.RLock()


os.register_at_fork(after_in_child=_forked)
atexit.register(close)
