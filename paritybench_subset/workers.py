"""Projects in processes of their own, a few at a time, with limits. One process and no thread watches over them.

The processes are forked from one that has imported torch and has computed on one thread alone, so that a fork lacks none.
"""
from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from paritybench_subset import standins
from paritybench_subset.cases import Case, Project
from paritybench_subset.engines import Engine
from paritybench_subset.judge import EAGER, Judge, reason_of
from paritybench_subset.results import Reason, Result, Verdict

FORK = multiprocessing.get_context("fork")
GIGABYTE = 1 << 30
Key = tuple[str, str, str]          # case, mode, engine ("" for a verdict about the case)


@dataclass(frozen=True)
class Limits:
    """Of one phase of a case (its eager runs, its runs under one engine, or the loading of a project), and of a process."""

    seconds: float = 60.0
    gigabytes: float = 12.0


@dataclass(frozen=True)
class Fault(Exception):
    """Scoring itself failed in a process, with this traceback."""

    text: str


@dataclass(frozen=True)
class Finished:
    """A project has been scored."""

    project: str


@dataclass(frozen=True)
class Assignment:
    """How to score a project: by whom, in which modes, under which engines."""

    judge: Judge
    modes: tuple[str, ...]
    engines: dict[str, Callable[[], Engine]]


@dataclass
class _Worker:
    """A process that scores a project, and what it was doing last: `phase` of `case` in `mode`; of none while it loads."""

    project: Project
    done: set[Key]
    process: Any = None
    connection: Connection | None = None
    case: str = ""
    mode: str = ""
    phase: str = "load"
    since: float = field(default_factory=time.monotonic)


def score(projects: Iterable[tuple[Project, set[Key]]], assignment: Assignment, limits: Limits,
          jobs: int) -> Iterator[Result | Finished]:
    """Scores projects, `jobs` at a time, and yields results as they come. With each project come the results that are known.
    Raises Fault when the scoring itself fails.

    A process that dies, or takes longer than it may for a phase, costs the verdict of that phase; a new one goes on behind it.
    """
    waiting, workers = iter(projects), []
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        try:
            while True:
                for project, done in itertools.islice(waiting, jobs - len(workers)):
                    workers.append(_start(_Worker(project, set(done)), assignment, limits, folder))
                if not workers:
                    return
                wait([worker.connection for worker in workers], timeout=0.5)
                for worker in list(workers):
                    alive = worker.process.is_alive()           # asked first: of a dead process all messages are there
                    yield from _messages(worker)
                    if worker.phase != "end" and alive and time.monotonic() - worker.since <= limits.seconds:
                        continue
                    _stop(worker)
                    if worker.phase != "end":
                        yield _verdict_of_phase(worker, alive, limits)
                    if worker.phase in ("load", "end"):
                        workers.remove(worker)
                        yield Finished(worker.project.name)
                    else:
                        _start(worker, assignment, limits, folder)
        finally:
            for worker in workers:
                _stop(worker)


def _start(worker: _Worker, assignment: Assignment, limits: Limits, folder: str) -> _Worker:
    ours, theirs = FORK.Pipe(duplex=False)
    worker.process = FORK.Process(target=_serve, args=(worker.project, worker.done, assignment, limits, theirs, folder))
    worker.process.start()
    theirs.close()
    worker.connection, worker.case, worker.mode, worker.phase, worker.since = ours, "", "", "load", time.monotonic()
    return worker


def _stop(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _messages(worker: _Worker) -> Iterator[Result]:
    """What a process has said so far."""
    with contextlib.suppress(EOFError):
        while worker.connection.poll():
            message = worker.connection.recv()
            if isinstance(message, Result):
                worker.done.add(message.key)
                yield message
            elif isinstance(message, Fault):
                raise message
            else:
                worker.case, worker.mode, worker.phase = message
            worker.since = time.monotonic()


def _verdict_of_phase(worker: _Worker, alive: bool, limits: Limits) -> Result:
    """The verdict of the phase in which a process was dead, or had to be ended (`alive`)."""
    code = worker.process.exitcode
    if alive:
        reason = Reason("timeout", f"more than {limits.seconds:g} s in {worker.phase}")
    else:
        reason = Reason("died", signal.Signals(-code).name if code < 0 else f"exit code {code}")
    about_case = worker.phase in ("load", EAGER)
    verdict = Verdict.NOT_RUNNABLE if about_case else Verdict.TIMEOUT if alive else Verdict.CRASH
    result = Result(worker.project.name, worker.case, worker.mode, "" if about_case else worker.phase, verdict, [reason])
    worker.done.add(result.key)
    return result


def _serve(project: Project, done: set[Key], assignment: Assignment, limits: Limits, connection: Connection, folder: str) -> None:
    """The life of a process: says what it begins, and each result. It has no output and no network, and a folder of its own."""
    try:
        _isolate(limits, folder)
        _serve_cases(project, done, assignment, connection)
        connection.send(("", "", "end"))
    except BaseException:
        connection.send(Fault(traceback.format_exc()))
        raise


def _isolate(limits: Limits, folder: str) -> None:
    os.chdir(tempfile.mkdtemp(dir=folder))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    socket.create_connection = _no_network
    size = int(limits.gigabytes * GIGABYTE)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _serve_cases(project: Project, done: set[Key], assignment: Assignment, connection: Connection) -> None:
    try:
        cases = project.load()
    except (Exception, SystemExit) as error:
        connection.send(Result(project.name, "", "", "", Verdict.NOT_RUNNABLE, [standins.reason() or reason_of(error)]))
        cases = []
    for case in cases:
        for mode in assignment.modes:
            _serve_case(project, case, mode, done, assignment, connection)


def _serve_case(project: Project, case: Case, mode: str, done: set[Key], assignment: Assignment, connection: Connection) -> None:
    if (case.name, mode, "") in done:
        return
    engines = {name: make for name, make in assignment.engines.items() if (case.name, mode, name) not in done}

    def began(phase: str) -> None:
        connection.send((case.name, mode, phase))
    if engines:
        for result in assignment.judge.judge(project.name, case, mode, engines, began):
            connection.send(result)


def _no_network(*args: Any, **kwargs: Any) -> Any:
    raise OSError("nothing is downloaded while a program is scored")
