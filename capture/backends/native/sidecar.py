"""The user's side of compiling elsewhere: the processes that do it, and their end.

`submit` hands a job to a compiling process, and returns at once. Processes start when they are first needed, or by `prepare`, leave
when they have been idle for a while, and end with this process. A fork of it has none of its own at first, and never uses its
parent's.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any

from capture import config
from capture.backends.native import disk_cache
from capture.backends.native.messages import Failure, receive, send

COMPILE_JOB = "capture.backends.native.compiler:compile_job"       # what does a job, if nothing else is asked for
IDLE = 120.0            # seconds after which a process without work is let go
NICENESS = 5            # how far compiling stands back behind the program, from the first import on
STOPPING = 2.0          # seconds that a process is given to end
LOG = 4000              # bytes of a process's last words that are kept
# What a compiling process sees of the machine: one thread, and no GPU. AOTAutograd saves the random state of each GPU that there
# is, which would set the GPU up, for seconds and hundreds of MB, or fail where another process has it to itself.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One job. `wanted`: whether anyone still waits for it. `done` gets the pickled artifact or the failure, on another thread."""

    compile_job: str
    job: bytes
    wanted: Callable[[], bool]
    done: Callable[[bytes | Failure], None]


class Died(Exception):
    """A compiling process ended in the middle of a job."""


class Process:
    """One compiling process, made ready for jobs of `compile_job`. Raises OSError when it cannot be started."""

    def __init__(self, compile_job: str) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        program = (f"import gc, os, sys; os.nice({NICENESS}); gc.disable(); sys.path[:] = {path!r}; "
                   f"from capture.backends.native.worker import main; main({compile_job!r})")
        self.log = _scratch_file()
        # A group of its own: Ctrl-C is for the user's program. Not a session of its own: systems that share processors between
        # sessions would give it as much of them as the program, whatever its niceness. Without a name of Python's own program
        # it is looked for on PATH.
        self._popen = subprocess.Popen(
            [sys.executable or "python3", "-c", program], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log if self.log else subprocess.DEVNULL, process_group=0, env={**os.environ, **ENVIRONMENT})
        self.id = self._popen.pid

    def perform(self, request: Request, seconds: float) -> bytes | Failure:
        """What becomes of a job. Raises Died, and TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        replies = self._popen.stdout.fileno()
        poll = select.poll()
        poll.register(replies, select.POLLIN)

        def ready() -> None:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
        try:
            flags = {name: flag.value for name, flag in config.FLAGS.items()}
            send(self._popen.stdin.fileno(), (request.compile_job, request.job, flags))
            return receive(replies, ready)
        except (BrokenPipeError, EOFError):
            status = self._end()
            how = f"ended with status {status}"
            if status < 0:
                how = f"was ended by {signal.Signals(-status).name}" + ", perhaps for lack of memory" * (-status == signal.SIGKILL)
            raise Died(f"the compiling process {how}") from None

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        if self.log is None:
            return ""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), LOG, max(0, size - LOG)).decode(errors="replace")

    def stop(self) -> None:
        """Tells the process to end. While it starts it does so at once; in the middle of a job it cleans up."""
        self._popen.terminate()
        self._popen.stdin.close()

    def close(self) -> None:
        """Ends the process, by force if it does not listen, and frees what it took here."""
        self.stop()
        self._end()
        self.disconnect()
        if self.log is not None:
            self.log.close()

    def disconnect(self) -> None:
        """Closes this side's ends of the pipes."""
        self._popen.stdin.close()
        self._popen.stdout.close()

    def _end(self) -> int:
        try:
            return self._popen.wait(STOPPING)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()


def _scratch_file() -> IO[bytes] | None:
    try:
        return tempfile.TemporaryFile(prefix="capture-")
    except OSError:
        return None     # nowhere to write: errors come without a log


class Pool:
    """At most `size` compiling processes, each with a thread of ours which talks to it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: list[Process] = []
        self.threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[Request | str | None] = queue.SimpleQueue()
        self._closing = False

    def start(self, compile_job: str) -> None:
        """Has a process ready for the first job."""
        if not self.threads:
            self._put(compile_job)

    def submit(self, request: Request) -> None:
        self._put(request)

    def _put(self, item: Request | str) -> None:
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
            if isinstance(item, str):
                with contextlib.suppress(OSError):      # a job will tell
                    process = process or self._begin(item)
            elif item is not None and item.wanted():
                process = self._answer(item, process)
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
        with _spawning:
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
    return 2 if len(os.sched_getaffinity(0)) >= 8 else 1


_pool = Pool(_size())
_lock = threading.RLock()       # a finalizer that runs while it is held may call a compiled function
_spawning = threading.RLock()   # no fork in the midst of a spawn: it would keep pipes open of which it knows nothing
_parents: list[Any] = []        # what a fork has inherited: kept, since its end is the parent's business


def prepare(compile_job: str = COMPILE_JOB) -> None:
    """Starts a compiling process if it is sure to be needed: when nothing was ever compiled. In a program that was compiled before,
    all may come from disk, and in one that uses a GPU nothing may be there to compile: the process would cost seconds of a
    processor for nothing; it starts at the first miss."""
    if not _was_used(disk_cache.default_cache()) and not _uses_gpu():
        with _lock:
            _pool.start(compile_job)


def _uses_gpu() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


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
    return [process.id for process in _pool.processes]


def close() -> None:
    """Ends all compiling processes; later jobs start new ones."""
    global _pool
    with _lock:
        old, _pool = _pool, Pool(_size())
    old.close()


def _forked() -> None:
    global _pool, _lock
    for process in _pool.processes:
        process.disconnect()
    _parents.extend((_pool, _lock))
    _pool, _lock = Pool(_size()), threading.RLock()
    _spawning.release()


os.register_at_fork(before=_spawning.acquire, after_in_parent=_spawning.release, after_in_child=_forked)
atexit.register(close)
