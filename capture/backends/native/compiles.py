"""Compiles under way: each is one job for all graphs that are alike, whose artifact all of them load."""
from __future__ import annotations

import os
import pkgutil
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import fx

from capture.backends.native import cache, disk_cache, installation, sidecar, transport
from capture.backends.native.compilation_policy import Expected, budget
from capture.backends.native.job import Job
from capture.backends.native.messages import Failure


@dataclass(frozen=True, slots=True)
class Compiler:
    """The two halves of the compiler, as "module:function": they are imported only where and when they are needed.

    compile_job(Job) -> bytes runs in any process, and must depend on the job alone. The others run in the user's process and are
    quick: read(bytes) -> artifact; load(artifact, GraphModule) -> callable; describe(artifact) -> (one line, a log);
    size_check(artifact) -> a function that checks, by their sizes, whether it covers some inputs.
    """

    compile_job: str = sidecar.COMPILE_JOB
    read: str = "capture.backends.native.artifact:read"
    load: str = "capture.backends.native.artifact:load"
    describe: str = "capture.backends.native.report:describe"
    size_check: str = "capture.backends.native.artifact:size_check"

    def loaded(self, data: bytes, gm: fx.GraphModule) -> Loaded | Failure:
        """What the bytes of an artifact give."""
        try:
            read, load, describe, size_check = map(pkgutil.resolve_name, (self.read, self.load, self.describe, self.size_check))
            artifact = read(data)
            return Loaded(load(artifact, gm), *describe(artifact), size_check(artifact))
        except Exception as error:
            return Failure.of(error)


SizeCheck = Callable[[Sequence[Any]], bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A compiled graph: its callable, one line on what it consists of, the texts that CAPTURE_DEBUG asked for, and whether it
    covers inputs of some sizes."""

    call: Callable[..., Any]
    summary: str
    log: str
    covers: SizeCheck


class Waiting(Protocol):
    """A graph that waits for a compile: a `tiers.Tier`."""

    def finish(self, outcome: bytes | Failure, compiler: Compiler) -> None: ...
    def abandon(self, reason: str) -> None: ...


class Compile:
    """One job under way, for all graphs that are alike. Keeps none of them alive. reserved: what it has taken from the
    budget, until it is over. Raises NotPortable."""

    def __init__(self, job: Job, compiler: Compiler, expected: Expected) -> None:
        self.compiler, self.expected, self.reserved, self.used = compiler, expected, 0.0, 0.0
        self.job = transport.encode(job)
        self.architecture = str(job.options.get("architecture", ""))       # of the GPU, if it is for one
        self.key = self._key_of(self.job)
        any_sizes = job.for_any_sizes()
        # Under which the key of the artifact lies that was compiled last for this graph, beginning at whatever sizes.
        self.any_sizes = "" if any_sizes is None else self._key_of(transport.encode(any_sizes), "sizes")
        self.tiers: list[weakref.ref[Waiting]] = []

    def _key_of(self, *parts: str | bytes) -> str:
        return disk_cache.key_of(*parts, self.compiler.compile_job,
                                 *(setting.value for setting in installation.settings().values()))

    def cached(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Loaded | None:
        """What an artifact of the cache gives; None when there is none, or none that can be loaded. One that was compiled
        beginning at other sizes will do if it covers the inputs."""
        loaded = self._loaded(gm, self.key)
        if loaded is not None or not self.any_sizes:
            return loaded
        last = cache.get(self.any_sizes)
        loaded = None if last is None else self._loaded(gm, last.decode())
        return loaded if loaded is not None and loaded.covers(inputs) else None

    def _loaded(self, gm: fx.GraphModule, key: str) -> Loaded | None:
        artifact = cache.get(key, self.architecture)
        if artifact is None:
            return None
        loaded = self.compiler.loaded(artifact, gm)
        if isinstance(loaded, Failure):
            cache.drop(key)
            return None
        return loaded

    def start(self, tier: Waiting, reserved: float = 0.0) -> None:
        """Has it done in the compiling process for `tier`, by what is already under way if there is such. reserved: what it has
        taken from the budget."""
        with changed:
            self.reserved = reserved
            known = under_way.get(self.key)
            if known is not None:
                known.tiers.append(weakref.ref(tier))
                self._settle()
                return
            self.tiers.append(weakref.ref(tier))
            under_way[self.key] = self
        try:
            sidecar.submit(sidecar.Request(self.compiler.compile_job, self.job, self.expected.seconds, self.wanted, self.done,
                                           self.took, self.key, disk_cache.default_cache()))
        except RuntimeError as error:
            self.done(Failure("toolchain", f"no thread can be started for the compiling process: {error}"))

    def wanted(self) -> bool:
        """Whether a graph that waits for it is alive; if not, it is over."""
        with changed:
            if any(tier() is not None for tier in self.tiers):
                return True
            self._over()
            return False

    def took(self, seconds: float) -> None:
        """Notes the processor seconds of the job."""
        self.used = seconds
        self.expected.took(seconds)

    def done(self, outcome: bytes | Failure) -> None:
        """Gives the outcome to the graphs."""
        if isinstance(outcome, bytes):
            cache.note(self.key, self.architecture)
            if self.any_sizes:
                cache.put(self.any_sizes, self.key.encode())
        while True:
            with changed:
                if not self.tiers:
                    self._over()
                    return
                reference = self.tiers[0]
            tier = reference()
            if tier is not None:
                tier.finish(outcome, self.compiler)
            with changed:
                self.tiers.remove(reference)
                changed.notify_all()

    def _settle(self) -> None:
        """The budget gets back what the job did not use: all of it where nobody wanted it any more, or another one did it."""
        if self.reserved:
            budget.settle(self.reserved, self.used)

    def _over(self) -> None:
        self._settle()
        under_way.pop(self.key, None)
        changed.notify_all()


under_way: dict[str, Compile] = {}
changed = threading.Condition()             # guards `under_way`, the lists of graphs in it, and the stages of all graphs


def waiting() -> int:
    """How many graphs wait for a compile."""
    with changed:
        return sum(tier() is not None for compile in under_way.values() for tier in compile.tiers)


def forked() -> None:
    """In a new process: what its parent's threads were doing for it is not done for this one."""
    global changed
    changed = threading.Condition()
    for compile in under_way.values():
        for reference in compile.tiers:
            tier = reference()
            if tier is not None:
                tier.abandon("this process was forked while its parent compiled the graph")
    under_way.clear()


os.register_at_fork(after_in_child=forked)
