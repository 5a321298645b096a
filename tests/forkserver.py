"""Programs in processes of their own that need not import torch: forks of a process that has imported it and done nothing else.

To import torch takes longer than most programs of tests. Where a test is about what a process does before that, it starts Python.
"""
from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

MESSAGE = 1 << 20       # bytes that a program with its arguments and environment may take
FIXED = {"OMP_NUM_THREADS": "1"}      # read by libraries when they are imported; with more threads they could not be forked


class Process:
    """A fork that runs a program. `status`: as of `subprocess.Popen.returncode`."""

    def __init__(self, pid: int, ended: IO[str]) -> None:
        self.pid, self._ended, self.status = pid, ended, None

    def wait(self, timeout: float | None = None) -> int:
        """How it ended. Raises TimeoutExpired."""
        if self.status is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with self._ended:
                self.status = int(self._ended.read())
        return self.status

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)


class Server:
    """A process that has imported `modules` and forks. `options`: of Python; `environment`: what else they are imported with."""

    def __init__(self, modules: Sequence[str], options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        settings = {**os.environ, **(environment or {}), **FIXED, "PYTHONPATH": path}
        with theirs:
            self._process = subprocess.Popen([sys.executable, *options, "-m", __name__, str(theirs.fileno()), *modules],
                                             pass_fds=[theirs.fileno()], env=settings, stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def start(self, command: Sequence[str], stdout: IO[Any], stderr: IO[Any], cwd: str | None = None,
              environment: Mapping[str, str] | None = None) -> Process:
        """Runs `python command` in a session of its own: `-c program …` or `-m module …`."""
        environment = {**(os.environ if environment is None else environment), **FIXED}
        request = json.dumps([list(command), os.path.abspath(cwd or os.getcwd()), environment]).encode()
        reading, writing = os.pipe()
        ended = os.fdopen(reading)
        try:
            with open(os.devnull) as stdin, self._lock:
                socket.send_fds(self._socket, [request], [stdin.fileno(), stdout.fileno(), stderr.fileno(), writing])
                return Process(int(self._socket.recv(64)), ended)
        finally:
            os.close(writing)

    def run(self, command: Sequence[str], timeout: float, **where: Any) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with output that is captured, as text."""
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            process = self.start(command, stdout, stderr, **where)
            try:
                status = process.wait(timeout)
            except BaseException:
                process.kill()
                raise
            for file in stdout, stderr:
                file.seek(0)
            return subprocess.CompletedProcess(list(command), status, stdout.read(), stderr.read())

    def close(self) -> None:
        self._socket.close()        # at the end of which it ends
        self._process.wait()


@functools.cache
def server(modules: tuple[str, ...], options: tuple[str, ...] = (), **environment: str) -> Server:
    """The one server of its kind, which is started when it is first needed."""
    return Server(modules, options, environment)


@contextmanager
def _told_of_ends() -> Iterator[int]:
    """A descriptor that can be read when a child has ended."""
    reading, writing = os.pipe()
    for descriptor in reading, writing:
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(reading)
        os.close(writing)


def serve(requests: socket.socket) -> list[str] | None:
    """Forks for each request. Returns in each fork, with what it is to run; and None in the server when no more can come."""
    children: dict[int, int] = {}
    with requests, _told_of_ends() as ends:
        while True:
            ready, _, _ = select.select([requests, ends], [], [])
            if ends in ready:
                os.read(ends, 4096)
                _tell(children)
            if requests not in ready:
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE, 4)
            if not message:
                return None
            *standard, ended = descriptors
            child = os.fork()
            if not child:
                for descriptor in ended, *children.values():
                    os.close(descriptor)
                return _become(message, standard)
            for descriptor in standard:
                os.close(descriptor)
            children[child] = ended
            requests.send(str(child).encode())


def _tell(children: dict[int, int]) -> None:
    """Tells those who wait how the children have ended that have."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            descriptor = children.pop(ended[0])
            with suppress(BrokenPipeError):
                os.write(descriptor, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(descriptor)


def _become(message: bytes, standard: Sequence[int]) -> list[str]:
    """Makes of a fork the process that was asked for. Returns what it is to run."""
    command, cwd, environment = json.loads(message)
    os.setsid()
    for place, descriptor in enumerate(standard):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    return command


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"what was imported has started {len(threads) - 1} threads, which no fork would have"
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command is None:
        return
    kind, what, *arguments = command
    sys.argv = [kind, *arguments]
    sys.path[0] = "" if kind == "-c" else os.getcwd()
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()
