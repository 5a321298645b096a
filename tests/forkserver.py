"""Programs in processes of their own that need not import torch: forks of a process that has imported it and done nothing else.

To import torch takes longer than most programs of tests. Where a test is about what a process does before that, it starts Python.
A process that somebody else starts, by a command line, can be such a fork, too: see `standing_in`.
"""
from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = str(Path(__file__).resolve().parents[1])
DESCRIPTORS = 8         # that a program may be given
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
    """A process that has imported `modules` and forks. `options`: of Python; `environment`: what else they are imported with.
    Of a module that is `module:function` it has called that function, too: after "gc:freeze" its forks end at once, since they do
    not look for garbage in what was imported."""

    def __init__(self, modules: Sequence[str], options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        settings = {**os.environ, **(environment or {}), **FIXED, "PYTHONPATH": path}
        theirs, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind("")          # the system makes a name that is no file's
            listening.listen()
            self.address = listening.getsockname()
            descriptors = listening.fileno(), theirs
            self._process = subprocess.Popen([sys.executable, *options, "-m", __name__, *map(str, descriptors), *modules],
                                             pass_fds=descriptors, env=settings, stdin=subprocess.DEVNULL)
        os.close(theirs)
        atexit.register(self.close)

    def start(self, command: Sequence[str], stdout: IO[Any], stderr: IO[Any], cwd: str | None = None,
              environment: Mapping[str, str] | None = None) -> Process:
        """Runs `python command` in a session of its own: `-c program …` or `-m module …`."""
        environment = os.environ if environment is None else environment
        with open(os.devnull) as stdin:
            return ask(self.address, command, [stdin.fileno(), stdout.fileno(), stderr.fileno()], cwd or os.getcwd(), environment)

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
        os.close(self._alive)       # at the end of which it ends
        self._process.wait()


def ask(address: bytes, command: Sequence[str], descriptors: Sequence[int], cwd: str, environment: Mapping[str, str]) -> Process:
    """Has the server at `address` run `python command`, with these descriptors as 0, 1, 2 and so on."""
    reading, writing = os.pipe()
    ended = os.fdopen(reading)
    request = json.dumps([list(command), os.path.abspath(cwd), {**environment, **FIXED}]).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(address)
            socket.send_fds(connection, [request], [writing, *descriptors])
            return Process(int(connection.recv(64)), ended)
    finally:
        os.close(writing)


def standing_in(address: bytes, program: str, descriptors: int) -> list[str]:
    """A command line of Python that has `program` run by a fork of the server at `address`, in an environment and a folder that are
    those of whoever uses it, with as many of its descriptors. It ends when and as the fork does."""
    text = (f"import sys; sys.path.append({ROOT!r}); from tests.forkserver import stand_in; "
            f"stand_in({address!r}, {program!r}, {descriptors})")
    return [sys.executable, "-I", "-S", "-c", text]


def stand_in(address: bytes, program: str, descriptors: int) -> None:
    """What such a command line does."""
    process = ask(address, ["-c", program], range(descriptors), os.getcwd(), os.environ)
    os.closerange(3, descriptors)
    status = process.wait()
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


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


def serve(listening: socket.socket, alive: int) -> list[str] | None:
    """Forks for each request. Returns in each fork, with what it is to run; and None in the server when no more can come."""
    children: dict[int, int] = {}
    with listening, _told_of_ends() as ends:
        while True:
            ready, _, _ = select.select([listening, alive, ends], [], [])
            if ends in ready:
                os.read(ends, 4096)
                _tell(children)
            if alive in ready:
                return None
            if listening not in ready:
                continue
            with listening.accept()[0] as connection:
                message, (ended, *descriptors) = _request(connection)
                child = os.fork()
                if not child:
                    for descriptor in ended, alive, *children.values():
                        os.close(descriptor)
                    break
                for descriptor in descriptors:
                    os.close(descriptor)
                children[child] = ended
                connection.send(str(child).encode())
    return _become(message, descriptors)


def _request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What somebody asks for, who is the same user: the name of a socket is known to all."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    assert struct.unpack("3i", credentials)[1] == os.getuid(), "another user asks for a process"
    message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, DESCRIPTORS)
    return message, descriptors


def _tell(children: dict[int, int]) -> None:
    """Tells those who wait how the children have ended that have."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            descriptor = children.pop(ended[0])
            with suppress(BrokenPipeError):
                os.write(descriptor, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(descriptor)


def _become(message: bytes, descriptors: Sequence[int]) -> list[str]:
    """Makes of a fork the process that was asked for. Returns what it is to run."""
    command, cwd, environment = json.loads(message)
    os.setsid()
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(descriptors)) for descriptor in descriptors]
    for place, descriptor in enumerate(above):
        os.dup2(descriptor, place)
    for descriptor in {*descriptors, *above} - set(range(len(descriptors))):
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    if config := sys.modules.get("capture.config"):         # what that reads when it is imported
        config.START = os.getcwd()
        for flag in config.FLAGS.values():
            flag.value = flag.read()
    return command


def main() -> None:
    listening, alive, *modules = sys.argv[1:]
    gc.disable()                # what is imported stays
    for module in modules:
        name, _, function = module.partition(":")
        imported = importlib.import_module(name)
        if function:
            getattr(imported, function)()
    gc.enable()
    for _ in range(500):
        if len(threads := os.listdir("/proc/self/task")) == 1:
            break
        time.sleep(0.01)        # one that has been joined is still seen for a moment
    assert len(threads) == 1, f"what was imported has started {len(threads) - 1} threads, which no fork would have"
    command = serve(socket.socket(fileno=int(listening)), int(alive))
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
