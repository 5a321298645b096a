"""The keeper: a process between the program and the compiling process. When either ends, it ends the compiling process and all that
this has started."""
from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import struct
import tempfile
import time
from typing import NoReturn

from capture import _process, config

GRACE = 1.5         # seconds in which a job may clean up when its time has come
KILLING = 1.0       # seconds after which a process that cannot be killed is left to the system
WORD = struct.Struct("<i")
THREADS = 13        # the place in /proc/*/stat, counted from behind the session

_keeper = 0                         # in the compiling process: who keeps it
_scratch: str | None = None         # … and where both keep what is in the making


def become_two() -> None:
    """Returns in a child of this process, which is to become the compiling process. The process itself becomes the keeper."""
    global _keeper, _scratch
    if not config.START:
        os.chdir("/")       # the program's folder was deleted, and from there MKL cannot be loaded
    _keeper, _scratch = os.getpid(), _scratch_folder()
    worker = os.fork()
    if not worker:
        os.close(_process.LIFE)
        os.setpgid(0, 0)            # Ctrl-C is for the program, and groups are for what is to be signalled together
        _process.end_with_parent(signal.SIGTERM)
        if os.getppid() != _keeper:
            leave(1)
        if _scratch is not None:
            os.environ["TMPDIR"] = tempfile.tempdir = _scratch
        return
    os.close(_process.JOBS)
    status = _keep(worker)
    _clear_up()
    if status is not None:
        _tell(status)
    os._exit(0)


def leave(status: int) -> NoReturn:
    """Ends the compiling process. If the keeper is gone, does first what the keeper would have done."""
    if os.getppid() != _keeper:
        _clear_up()
    os._exit(status)


def _clear_up() -> None:
    kill_descendants()
    if _scratch is not None:
        shutil.rmtree(_scratch, ignore_errors=True)


def _keep(worker: int) -> int | None:
    """How the compiling process ended; None if it had to be killed."""
    poll, ends = select.poll(), _wake_at_a_childs_end()
    poll.register(ends, select.POLLIN)
    poll.register(_process.LIFE, select.POLLIN)
    _tell(worker)
    deadline: float | None = None
    while (status := _reaped(worker)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = [number for number, _ in poll.poll(left)]
        if ends in ready:
            os.read(ends, 4096)
        if _process.LIFE in ready:          # the program never writes: it has gone, or wants us to
            poll.unregister(_process.LIFE)
            os.kill(worker, signal.SIGTERM)
            deadline = time.monotonic() + GRACE
        if not ready:
            break
    return status


def _wake_at_a_childs_end() -> int:
    """A file that has something to read when a child has ended."""
    reading, writing = os.pipe()
    for file in reading, writing:
        os.set_blocking(file, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def _reaped(worker: int) -> int | None:
    """Waits for all children that have ended. Returns how the worker ended."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == worker:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def _tell(number: int) -> None:
    with contextlib.suppress(OSError):      # the program has gone
        os.write(_process.LIFE, WORD.pack(number))


def _scratch_folder() -> str | None:
    """Where the compiling process and its compilers keep what is in the making."""
    try:
        return tempfile.mkdtemp(prefix="capture-")
    except OSError:
        return None     # nowhere to write: a job will tell


def kill_descendants() -> None:
    """Ends all processes that come from this one, except those that have made a session of their own, such as the server of a
    compiler cache. The children of a killed process become this one's: it takes several rounds."""
    _process.adopt_orphans()
    end = time.monotonic() + KILLING
    while (found := _descendants(os.getpid())) and time.monotonic() < end:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.002)


def _descendants(root: int) -> list[int]:
    """The living processes that come from another one. So is one whose main thread has ended, while another thread has not: that
    may have children, and start more."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session, *rest = file.read().rpartition(b")")[2].split()
                if (state != b"Z" or int(rest[THREADS]) > 1) and int(session) == os.getsid(0):
                    children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(root, ()))
    for process in found:       # which grows
        found += children.get(process, ())
    return found
