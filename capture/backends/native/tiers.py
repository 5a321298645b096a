"""The callable of a graph: torch's own operations at first, the compiled code when it is there and faster.

The capturing call returns at once with tier 1, the graph as it is (`gm.forward`); compiling goes on in another process, and
what comes of it takes the place of tier 1 between two calls. What cannot be compiled, or fails, leaves tier 1 as it is.
"""
from __future__ import annotations

import contextlib
import difflib
import enum
import os
import pickle
import pkgutil
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capture import _C
from capture.backends.native import disk_cache, sidecar, transport
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.trial import Trial
from capture.backends.native.worker import Failure, attempt
from capture.config import DEBUG, STRICT, TRIAL_CALLS
from capture.errors import ArgumentError, InternalError


@dataclass(frozen=True, slots=True)
class Options:
    """What users can set. background: compile in another process, and use the graph as it is until then; else compile at the
    first hit. freezing: take parameters and buffers for constants. mode: "default"; "max-autotune" allows the compiler to
    spend time on measuring variants; "reduce-overhead" is what every compiled graph has, one call without Python."""

    background: bool = True
    freezing: bool = False
    mode: str = "default"

    @classmethod
    def parse(cls, mode: str | None, options: Mapping[str, Any] | None) -> Options:
        """Raises ArgumentError for an unknown option, or a value that is not True or False."""
        for name, value in (options or {}).items():
            if name not in ("background", "freezing"):
                close = difflib.get_close_matches(str(name), ("background", "freezing"), n=1)
                raise ArgumentError(f"backend 'native' has no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else
                                    "; it has 'background' and 'freezing'"))
            if not isinstance(value, bool):
                raise ArgumentError(f"option {name!r} must be True or False, got {type(value).__name__}: {value!r}")
        return cls(**(options or {}), mode=mode or "default")


@dataclass(frozen=True, slots=True)
class Compiler:
    """The two halves of the compiler, as "module:function": they are imported only where and when they are needed.

    compile_job(Job) -> artifact runs in any process, and must depend on the job alone; the artifact is picklable.
    load(artifact, GraphModule) -> callable runs in the user's process, and is quick.
    """

    compile_job: str = "capture.backends.native.compiler:compile_job"
    load: str = "capture.backends.native.artifact:load"

    def loaded(self, artifact: bytes, gm: fx.GraphModule) -> Callable[..., Any] | Failure:
        """The callable that a pickled artifact gives."""
        try:
            return pkgutil.resolve_name(self.load)(pickle.loads(artifact), gm)
        except Exception as error:
            return Failure.of(error)


DEFAULT, COMPILER = Options(), Compiler()


class Stage(enum.Enum):
    """Where a graph is on its way; the value says so in words."""

    COMPILING = "is being compiled"
    WAITING = "will be compiled at its first hit"
    TRIAL = "is compiled, and being timed"
    COMPILED = "runs compiled"
    SLOWER = "runs uncompiled: compiled it is slower"
    UNSUPPORTED = "runs uncompiled: it cannot be compiled"
    FAILED = "runs uncompiled: compiling failed"


class Tier:
    """How one graph is run, and why. `reason` explains the stage, `failure` is set when compiling failed."""

    __slots__ = ("gm", "asynchronous", "stage", "reason", "failure", "_switch", "_lock", "__weakref__")

    def __init__(self, gm: fx.GraphModule, stage: Stage, asynchronous: bool) -> None:
        self.gm = gm
        self.asynchronous = asynchronous
        self.stage, self.reason = stage, ""
        self.failure: Failure | None = None
        self._lock = threading.RLock()
        self._switch: Callable[[], Any] = lambda: None

    def attach(self, target: Callable[..., Any]) -> _C.Switch:
        """The callable of the graph, which calls `target` at first."""
        switch = _C.Switch(target, self)
        self._switch = weakref.ref(switch)
        return switch

    def describe(self) -> str:
        """One line, or with a failure's details more."""
        lines = [self.stage.value + (f" ({self.reason})" if self.reason else "")]
        if self.failure is not None:
            lines += self.failure.details.splitlines()
        return "\n".join(lines)

    def finish(self, outcome: bytes | Failure, compiler: Compiler) -> None:
        """Compiling has ended. Never raises an Exception."""
        compiled = compiler.loaded(outcome, self.gm) if isinstance(outcome, bytes) else outcome
        if isinstance(compiled, Failure):
            self.refuse(compiled)
        else:
            self.accept(compiled)

    def accept(self, compiled: Callable[..., Any]) -> None:
        """Compiled code is ready: it is tried against tier 1."""
        def decide(faster: bool, figures: str) -> None:
            with self._lock:
                if self.stage is Stage.TRIAL:
                    self._move(*((Stage.COMPILED, compiled) if faster else (Stage.SLOWER, self.gm.forward)), figures)
        with self._lock:
            if TRIAL_CALLS:
                synchronize = torch.accelerator.synchronize if self.asynchronous else (lambda: None)
                self._move(Stage.TRIAL, Trial(self.gm.forward, compiled, TRIAL_CALLS.value, decide, synchronize))
            else:
                self._move(Stage.COMPILED, compiled)

    def refuse(self, failure: Failure) -> None:
        """There is no compiled code: tier 1 stays. In strict mode the next call raises what is a bug of ours."""
        target: Callable[..., Any] = self.gm.forward
        if failure.kind != "unsupported":
            self.failure = failure
            if STRICT and failure.kind == "internal":
                error = InternalError(f"{failure.text}\n{failure.details}")
                target = _Fault(self.gm.forward, error, weakref.ref(self))
                _faults.append(target)
            else:
                _warn(failure)
        with self._lock:
            self._move(Stage.UNSUPPORTED if failure.kind == "unsupported" else Stage.FAILED, target, failure.text)

    def demote(self, error: BaseException) -> None:
        """A call of the graph raised. Compiled code that does so is not called again: it may be a fault of ours, and if not,
        tier 1 knows the user's line."""
        entry = error.__traceback__
        while entry is not None:
            if entry.tb_frame.f_code is self.gm.forward.__func__.__code__:      # not compiled: a call of the trial
                return
            entry = entry.tb_next
        with self._lock:
            if self.stage in (Stage.TRIAL, Stage.COMPILED):
                self._move(Stage.FAILED, self.gm.forward, f"compiled code raised {type(error).__name__}: {error}")

    def abandon(self, reason: str) -> None:
        """Nobody will compile it."""
        self.stage, self.reason = Stage.FAILED, reason

    def _move(self, stage: Stage, target: Callable[..., Any], reason: str = "") -> None:
        self.stage, self.reason = stage, reason
        switch = self._switch()
        if switch is not None:
            switch.target = target
        if DEBUG:
            print(f"capture: a graph of {len(self.gm.graph.nodes)} nodes {self.describe().splitlines()[0]}", file=sys.stderr)


class _Fault:
    """Raises an internal error once: at the next call of its graph, or in `wait`."""

    def __init__(self, plain: Callable[..., Any], error: InternalError, tier: Callable[[], Tier | None]) -> None:
        self.plain, self.error, self.tier = plain, error, tier

    def __call__(self, *inputs: Any) -> Any:
        if self in _faults:
            _faults.remove(self)
            raise self.error
        return self.plain(*inputs)


class _FirstHit:
    """Compiles when it is called, and then is no more."""

    def __init__(self, tier: Tier, compile: Compile) -> None:
        self.tier, self.compile = tier, compile

    def __call__(self, *inputs: Any) -> Any:
        with self.tier._lock:
            if self.tier.stage is Stage.WAITING:
                self.tier.finish(self.compile.here(), self.compile.compiler)
            switch = self.tier._switch()
        return (self.tier.gm.forward if switch is None else switch.target)(*inputs)


class Compile:
    """One job under way, for all the graphs that are alike. Holds none of them alive."""

    def __init__(self, job: Job, compiler: Compiler) -> None:
        self.compiler = compiler
        self.job: Job | bytes
        self.key: str | None
        try:
            self.job = transport.encode(job)
            # CXX as the user wrote it: to ask the compiler who it is takes longer than to load what it made.
            self.key = disk_cache.key_of(self.job, compiler.compile_job, os.environ.get("CXX", ""))
        except transport.NotPortable:
            self.job, self.key = job, None
        self.tiers: list[weakref.ref[Tier]] = []

    def cached(self, gm: fx.GraphModule) -> Callable[..., Any] | None:
        """The callable of an artifact that lies on disk; None when there is none, or none that can be loaded."""
        artifact = None if self.key is None else disk_cache.default_cache().get(self.key)
        compiled = None if artifact is None else self.compiler.loaded(artifact, gm)
        return None if isinstance(compiled, Failure) else compiled

    def here(self) -> bytes | Failure:
        """The artifact, made by this thread."""
        outcome = attempt(self.compiler.compile_job, self.job)
        self.keep(outcome)
        return outcome

    def keep(self, outcome: bytes | Failure) -> None:
        """Writes an artifact to disk."""
        if self.key is not None and isinstance(outcome, bytes):
            with contextlib.suppress(Warning):      # made an exception by the user's filters: not on a thread of ours
                disk_cache.default_cache().put(self.key, outcome)

    def start(self, tier: Tier) -> None:
        """Has it done in the background for `tier`, by what is already under way if there is such."""
        with _changed:
            known = None if self.key is None else _under_way.get(self.key)
            if known is not None:
                known.tiers.append(weakref.ref(tier))
                return
            self.tiers.append(weakref.ref(tier))
            _under_way[self.key or self] = self
        try:
            if isinstance(self.job, bytes):
                sidecar.submit(sidecar.Request(self.compiler.compile_job, self.job, self.wanted, self.done))
            else:
                sidecar.submit_local(lambda: self.done(self.here()) if self.wanted() else None)
        except RuntimeError as error:
            self.done(Failure("unsupported", f"no thread can be started: {error}"))

    def wanted(self) -> bool:
        """Whether a graph that waits for it is alive; if not, it is over."""
        with _changed:
            if any(tier() is not None for tier in self.tiers):
                return True
            self._over()
            return False

    def done(self, outcome: bytes | Failure) -> None:
        """Gives the outcome to the graphs."""
        if isinstance(self.job, bytes):
            self.keep(outcome)
        while True:
            with _changed:
                if not self.tiers:
                    self._over()
                    return
                reference = self.tiers[0]
            tier = reference()
            if tier is not None:
                tier.finish(outcome, self.compiler)
            with _changed:
                self.tiers.remove(reference)

    def _over(self) -> None:
        _under_way.pop(self.key or self, None)
        _changed.notify_all()


_under_way: dict[str | Compile, Compile] = {}
_changed = threading.Condition()            # guards `_under_way` and the lists of graphs in it
_faults: list[_Fault] = []
_warned: set[str] = set()


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options = DEFAULT,
                  compiler: Compiler = COMPILER) -> Callable[..., Any]:
    """A callable of `gm`: at first the graph as it is, later compiled. Returns at once, but for an artifact found on disk.

    gm.meta["modes"] may hold the modes that the guards compare, and placeholders' meta["properties"] and meta["storage"] what
    guards promise of that input (see TensorSpec); without them, the modes and inputs count as they are now.
    """
    asynchronous = any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in example_inputs)
    tier = Tier(gm, Stage.COMPILING if options.background else Stage.WAITING, asynchronous)
    switch = tier.attach(gm.forward)
    try:
        job = Job(gm, specs(gm, example_inputs), Modes.current(), {"freezing": options.freezing, "mode": options.mode})
    except TypeError as error:
        tier.refuse(Failure("unsupported", str(error)))
        return switch
    if gm.meta.get("modes", _C.modes()) != _C.modes():
        tier.refuse(Failure("unsupported", "the call leaves torch's modes other than it found them"))
        return switch
    compile = Compile(job, compiler)
    compiled = compile.cached(gm)
    if compiled is not None:
        tier.accept(compiled)
    elif options.background:
        compile.start(tier)
    else:
        switch.target = _FirstHit(tier, compile)
    return switch


def specs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """What the guards promise of each input."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(TensorSpec.of(tensor, node.meta.get("properties"), node.meta.get("storage"))
                 for node, tensor in zip(placeholders, example_inputs, strict=True))


def prepare(options: Options = DEFAULT, compiler: Compiler = COMPILER) -> None:
    """Starts the compiling process if it is sure to be needed: when nothing was ever compiled. In a program that was compiled
    before all may come from disk, and the process would cost seconds of a processor for nothing; it starts at the first miss."""
    if options.background and not _was_used(disk_cache.default_cache()):
        sidecar.start(compiler.compile_job)


def _was_used(cache: disk_cache.DiskCache) -> bool:
    try:
        return cache.folder is not None and any(os.scandir(cache.folder))
    except OSError:
        return False


def pending() -> int:
    """The number of graphs that are being compiled."""
    with _changed:
        return sum(tier() is not None for compile in _under_way.values() for tier in compile.tiers)


def wait(timeout: float | None = None, progress: Callable[[int], None] = lambda count: None) -> bool:
    """Blocks until no graph is being compiled, for `timeout` seconds at most; False when some still are.

    progress: called now and then with the number of graphs that are left. In strict mode raises InternalError for a
    compile that failed by a bug of ours.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while count := pending():
        left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
        if left <= 0:
            break
        progress(count)
        with _changed:
            _changed.wait(left)         # not longer: a graph that dies tells nobody
    while _faults:
        fault = _faults.pop()
        if fault.tier() is not None:
            raise fault.error
    return not count


def _warn(failure: Failure) -> None:
    """Tells of a failure once."""
    if failure.text in _warned:
        return
    _warned.add(failure.text)
    remedy = "This is a bug in capture: please report it, with what capture.explain says" if failure.kind == "internal" else \
        "capture.explain says more"
    text = f"capture: a graph could not be compiled and runs as it is: {failure.text.rstrip('.')}. {remedy}."
    with contextlib.suppress(Warning):      # made an exception by the user's filters: the program goes on
        warnings.warn(text, stacklevel=2)


def _forked() -> None:
    """In a new process: what its parent's threads were doing for it is not done for this one."""
    global _changed
    for compile in _under_way.values():
        for reference in compile.tiers:
            tier = reference()
            if tier is not None:
                tier._lock = threading.RLock()
                tier.abandon("this process was forked while its parent compiled the graph")
    _under_way.clear()
    _changed = threading.Condition()


os.register_at_fork(after_in_child=_forked)
