"""The compiling process and its messages: what is sent, and what happens when it dies, hangs, prints or raises."""
from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture import config
from capture.backends.native import keeper, sidecar, transport, worker
from capture.backends.native.job import Job, Modes
from capture.backends.native.messages import Failure, receive, send
from capture.backends.native.sidecar import Pool, Request
from capture.backends.native.worker import attempt
from capture.errors import BackendError, ToolchainError
from tests.backends.native import fakes
from tests.backends.native.fakes import FAKE
from tests.backends.native.test_transport import graph_of


def job(number: float) -> bytes:
    """A job that has the fake compiler do what `number` says."""
    return transport.encode(Job(graph_of(max, number), (), Modes.current(), {}))


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.close()
    assert not pool.processes and not any(thread.is_alive() for thread in pool.threads)


def outcomes(pool: Pool, *numbers: float) -> list:
    """What becomes of jobs that are submitted all at once."""
    answers: queue.SimpleQueue = queue.SimpleQueue()
    for number in numbers:
        pool.submit(Request(FAKE.compile_job, job(number), 0.0, lambda: True, answers.put))
    return [answers.get(timeout=60) for _ in numbers]


def test_a_fork_inherits_nothing_of_a_process_that_is_being_started(pool: Pool) -> None:
    """It would keep the sockets open: neither side would learn that the other has gone."""
    before = set(os.listdir("/proc/self/fd"))
    pool.start(FAKE.compile_job)
    for _ in range(50):
        child = os.fork()
        if child == 0:
            os._exit(len(set(os.listdir("/proc/self/fd")) - before))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        time.sleep(0.002)


# --- messages

@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_messages_of_every_size_arrive(size: int) -> None:
    reading, writing = os.pipe()
    message = b"x" * size, {"flag": 1}
    thread = threading.Thread(target=send, args=(writing, message))
    thread.start()
    assert receive(reading) == message
    thread.join()
    os.close(writing)
    with pytest.raises(EOFError):
        receive(reading)
    os.close(reading)


@pytest.mark.parametrize(("error", "kind"), [
    (BackendError("no"), "unsupported"), (ToolchainError("no", "log"), "toolchain"), (PermissionError(13, "no"), "toolchain"),
    (MemoryError("no"), "toolchain"), (ValueError("no"), "internal"), (AssertionError(), "internal")])
def test_kinds_of_failures(error: Exception, kind: str) -> None:
    failure = Failure.of(error)
    assert failure.kind == kind and failure.text
    assert not isinstance(error, ToolchainError) or failure.details == "log"


def test_a_compiler_that_cannot_be_imported_is_a_bug_of_ours() -> None:
    assert attempt("no_such_module:f", job(0.0)).kind == "internal"


def test_the_job_for_warming_up_is_like_others() -> None:
    trial = worker.trial_job()
    assert transport.encode(transport.decode(transport.encode(trial))) == transport.encode(trial)


# --- the process

@pytest.mark.usefixtures("forks")
def test_one_process_does_job_after_job(pool: Pool) -> None:
    answers = outcomes(pool, 1.0, fakes.BUG, fakes.UNSUPPORTED, fakes.NOISY, 2.0)
    assert [type(answer) for answer in answers] == [bytes, Failure, Failure, bytes, bytes]
    assert "words on stderr" in answers[1].details
    assert len({fakes.read(answer)["process"] for answer in answers if isinstance(answer, bytes)}) == 1


def test_the_process_stands_back_and_collects_garbage(pool: Pool) -> None:
    answer, = outcomes(pool, 1.0)
    process, = pool.processes
    assert os.getpriority(os.PRIO_PROCESS, process.id) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + config.NICENESS.value)
    assert fakes.read(answer)["collects"]


@pytest.mark.parametrize("niceness, expected", [(0, 0), (11, 11), (-3, 0)])
def test_how_far_it_stands_back_can_be_set(niceness: int, expected: int) -> None:
    with config.NICENESS.set(niceness):
        program = sidecar.command(FAKE)[-1]
    assert f"os.nice({expected});" in program


def test_the_process_is_in_the_programs_session_but_not_in_its_group(pool: Pool) -> None:
    outcomes(pool, 1.0)
    process, = pool.processes
    assert os.getsid(process.id) == os.getsid(0)        # else niceness says nothing where each session has its share of processors
    assert os.getpgid(process.id) == process.id         # Ctrl-C is for the program


def test_the_process_sees_gpus_of_nvidia_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others AOTAutograd would set up; of NVIDIA's torch is asked what kernels there are for them."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0,1")
    answer, = outcomes(pool, 1.0)
    environment = fakes.read(answer)["environment"]
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["HIP_VISIBLE_DEVICES"]) == ("0,1", "")


@pytest.mark.usefixtures("forks")
def test_a_process_made_ready_for_another_compiler(pool: Pool) -> None:
    pool.start("no_such_module:f")
    answer, = outcomes(pool, 1.0)
    assert isinstance(answer, bytes)


@pytest.mark.usefixtures("forks")
def test_a_job_whose_process_dies_is_tried_once_more(pool: Pool, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAKES_MARK", str(tmp_path / "mark"))
    answer, = outcomes(pool, fakes.CRASH_ONCE)
    assert isinstance(answer, bytes) and (tmp_path / "mark").exists()


@pytest.mark.usefixtures("forks")
def test_a_job_that_takes_too_long_is_given_up(pool: Pool) -> None:
    outcomes(pool, 1.0)
    first, = (process.id for process in pool.processes)
    with config.JOB_TIMEOUT.set(1):
        answer, = outcomes(pool, fakes.SLOW)
    assert answer.kind == "toolchain" and "CAPTURE_JOB_TIMEOUT" in answer.text
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert isinstance(outcomes(pool, 2.0)[0], bytes)


def test_a_process_that_cannot_start_is_told(pool: Pool, monkeypatch) -> None:
    monkeypatch.setattr(sidecar.sys, "executable", "/no/such/python")
    answer, = outcomes(pool, 1.0)
    assert answer.kind == "toolchain" and "cannot be started" in answer.text and "/no/such/python" in answer.text


@pytest.mark.usefixtures("forks")
def test_a_job_that_nobody_wants_any_more_is_not_done(pool: Pool) -> None:
    done: list = []
    pool.submit(Request(FAKE.compile_job, job(fakes.CRASH), 0.0, lambda: False, done.append))
    assert isinstance(outcomes(pool, 1.0)[0], bytes) and not done


@pytest.mark.usefixtures("forks")
def test_small_jobs_come_first(pool: Pool, monkeypatch) -> None:
    monkeypatch.setenv("FAKES_SECONDS", "0.5")
    ends: queue.SimpleQueue = queue.SimpleQueue()
    begun = threading.Event()

    def wanted() -> bool:
        begun.set()
        return True
    pool.submit(Request(FAKE.compile_job, job(fakes.SLOW), 0.0, wanted, lambda outcome: ends.put(0.0)))
    assert begun.wait(60)
    for seconds in (3.0, 1.0, 2.0, 1.0):
        pool.submit(Request(FAKE.compile_job, job(seconds), seconds, wanted, lambda outcome, seconds=seconds: ends.put(seconds)))
    assert [ends.get(timeout=60) for _ in range(5)] == [0.0, 1.0, 1.0, 2.0, 3.0]


@pytest.mark.usefixtures("forks")
def test_flags_reach_the_process(pool: Pool) -> None:
    with config.CACHE_SIZE.set(77):
        answer, = outcomes(pool, 1.0)
    assert fakes.read(answer)["cache_size"] == 77


@pytest.mark.usefixtures("forks")
def test_an_idle_process_leaves(pool: Pool, monkeypatch) -> None:
    monkeypatch.setattr(sidecar, "IDLE", 0.1)
    outcomes(pool, 1.0)
    for _ in range(100):
        if not pool.processes:
            break
        time.sleep(0.05)
    assert not pool.processes
    assert isinstance(outcomes(pool, 1.0)[0], bytes)


HALF_ENDED = """
import ctypes, subprocess, sys, threading, time
def start():
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    time.sleep(60)
threading.Thread(target=start).start()
ctypes.CDLL(None).pthread_exit(None)        # ends the main thread alone
"""


def test_a_process_whose_main_thread_has_ended_still_has_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        try:
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
            assert {process.pid, child} <= set(keeper._descendants(os.getpid()))
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)
