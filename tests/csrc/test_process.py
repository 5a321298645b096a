"""`capture._process`: what a program does to descriptors, children and signals does not reach the process that it talks to."""
from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture import _process
from capture._process import Process

ECHO = """
import os, struct, sys, time
def read(count):
    data = b""
    while len(data) < count:
        part = os.read(3, count - len(data))
        if not part: os._exit(0)
        data += part
    return data
os.write(4, struct.pack("<i", os.getpid()))
while True:
    message = read(struct.unpack("<Q", read(8))[0])
    if message == b"die":
        print("last words", file=sys.stderr, flush=True)
        os.write(4, struct.pack("<i", -9))
        os._exit(0)
    if message == b"sleep": time.sleep(1000)
    if message == b"open": message = repr(sorted(map(int, os.listdir("/proc/self/fd")))).encode()
    if message == b"ignored": message = open("/proc/self/status").read().partition("SigIgn:")[2].split()[0].encode()
    data = struct.pack("<Q", len(message)) + message
    while data: data = data[os.write(3, data):]
"""


def start(program: str = ECHO, **options: bool) -> Process:
    return Process([sys.executable.encode(), b"-I", b"-S", b"-c", program.encode()], [b"A=B"], **options)


@pytest.fixture(params=[False, True], ids=["its own descriptors", "shared descriptors"])
def process(request: pytest.FixtureRequest) -> Iterator[Process]:
    process = start(shared=request.param)
    yield process
    process.stop()
    process.kill()
    assert process.wait(10)


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_messages_of_every_size(process: Process, size: int) -> None:
    message = os.urandom(size)
    for _ in range(3):
        assert process.exchange(message, 20) == message


def test_it_is_nobodys_child(process: Process) -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(process.id, os.WNOHANG)          # who waits for any child (-1) may have others, of other tests
    assert process.id == process.keeper and os.getpgid(process.id) == process.id and os.getsid(process.id) == os.getsid(0)


def test_it_has_the_standard_descriptors_and_two_sockets(process: Process) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    other = start()
    assert other.exchange(b"open", 20) == b"[0, 1, 2, 3, 4, 5]"         # the last one is the folder that is listed
    for file in reading, writing:
        os.close(file)


def test_signals_are_as_in_a_new_process() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ignored = int(start().exchange(b"ignored", 20), 16)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not ignored >> (signal.SIGCHLD - 1) & 1


def test_it_dies(process: Process) -> None:
    with pytest.raises(EOFError):
        process.exchange(b"die", 20)
    assert (process.status, process.words, process.wait(0)) == (-9, b"last words\n", True)
    with pytest.raises(EOFError):
        process.exchange(b"", 20)


def test_it_is_killed_while_sigpipe_ends_the_program() -> None:
    program = f"""if True:
        import os, signal, sys, time
        sys.path[:0] = {sys.path!r}
        from tests.csrc.test_process import start
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for shared in False, True:
            process = start(shared=shared)
            os.kill(process.id, signal.SIGKILL)
            time.sleep(0.1)
            try: process.exchange(b"x" * 1000, 20)
            except EOFError: print("ended")"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ended\nended\n", 0), done.stderr


def test_it_takes_too_long(process: Process) -> None:
    with pytest.raises(TimeoutError):
        process.exchange(b"sleep", 0.1)
    with pytest.raises(TimeoutError):
        process.exchange(b"", 0.1)
    assert not process.wait(0)


def test_it_is_told_to_end_while_somebody_has_stopped_it(process: Process) -> None:
    """Who waits for an answer waits no longer, and it goes on in order to end."""
    ended: list[type[BaseException]] = []

    def ask() -> None:
        try:
            process.exchange(b"x", 1000)
        except EOFError as error:
            ended.append(type(error))
    process.exchange(b"ready?", 1000)
    os.kill(process.id, signal.SIGSTOP)
    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.1)
    process.stop()
    asking.join(100)
    assert ended == [EOFError] and process.wait(100)


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        Process([b"/no/such/program"], [])
    with pytest.raises(FileNotFoundError):
        Process([], [])
    with pytest.raises(TypeError):
        Process(["text"], [])       # type: ignore[list-item]


def test_a_program_that_says_nothing() -> None:
    silent = start("print('words', flush=True)")
    assert silent.wait(10) and (silent.id, silent.status, silent.words) == (None, None, b"words\n")


def test_it_ends_when_nobody_refers_to_it() -> None:
    process = start()
    number = process.keeper
    del process
    for _ in range(500):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, 0)
            time.sleep(0.01)
            continue
        return
    pytest.fail("it lives")


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_program_and_its_forks_have_no_descriptor_of_it() -> None:
    before = open_files()
    process = start()
    process.exchange(b"x", 20)
    assert open_files() == before
    child = os.fork()
    if not child:
        os._exit(len(open_files() - before))
    assert os.waitpid(child, 0)[1] == 0


def test_descriptors_that_the_program_closes_and_uses_otherwise(tmp_path: Path) -> None:
    """In a process of its own, where others' descriptors do not matter. Shared ones are no more used; files and sockets that have
    their numbers are not written to, nor closed."""
    program = f"""if True:
        import os, socket, sys, threading
        sys.path[:0] = {sys.path!r}
        from tests.csrc.test_process import start
        for shared in False, True:
            process = start(shared=shared)
            busy = start(shared=shared)
            thread = threading.Thread(target=lambda: print("slept", end=" ")
                                      if not isinstance(ended(busy, b"sleep"), bytes) else None)
            def ended(process, message):
                try: return process.exchange(message, 3)
                except (EOFError, TimeoutError) as error: return error
            thread.start()
            os.closerange(3, 4096)
            files = [open({str(tmp_path)!r} + f"/{{n}}", "w+") for n in range(5)]
            pairs = [socket.socketpair() for n in range(10)]
            answer = ended(process, b"x" * 100)
            thread.join()
            for one in (process, busy): one.stop(); one.kill(); one.wait(5)
            for pair in pairs:
                for one, other in (pair, pair[::-1]):
                    one.send(b"whole")
                    assert other.recv(1000) == b"whole"
            print(type(answer).__name__, [os.fstat(file.fileno()).st_size for file in files], flush=True)
            for file in files: file.close()
            del pairs, pair, one, other"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "slept bytes [0, 0, 0, 0, 0]\nslept EOFError [0, 0, 0, 0, 0]\n", done.stderr


def test_a_fork_forgets_shared_descriptors() -> None:
    before = open_files()
    process = start(shared=True)
    child = os.fork()
    if not child:
        process.forget()
        os._exit(len(open_files() - before))
    assert os.waitpid(child, 0)[1] == 0
    process.stop()
    assert process.wait(10) and open_files() == before


def test_threads_start_and_end_many() -> None:
    def use() -> None:
        for _ in range(3):
            process = start()
            assert process.exchange(b"x", 20) == b"x"
            process.stop()
            assert process.wait(20)
        done.append(1)
    done: list[int] = []
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4


def test_the_stub_states_what_is_there() -> None:
    stub = ast.parse((Path(_process.__file__).parent / "_process.pyi").read_text())
    stated: set[str] = set()
    for node in stub.body:
        if isinstance(node, ast.AnnAssign):
            stated.add(node.target.id)      # type: ignore[union-attr]
        elif isinstance(node, ast.FunctionDef):
            stated.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names = {item.target.id if isinstance(item, ast.AnnAssign) else item.name for item in node.body
                     if isinstance(item, ast.AnnAssign | ast.FunctionDef)}      # type: ignore[union-attr]
            assert names - {"__init__"} == {name for name in vars(Process) if not name.startswith("_")}
            stated.add(node.name)
    assert stated == {name for name in vars(_process) if not name.startswith("_")}
