"""The callable of a graph: at first torch's own operations, later the kernels, if they are ready and faster."""
from __future__ import annotations

import enum
import functools
import re
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from capture import _C
from capture.backends.native import compiles, gpus, numbers, transport
from capture.backends.native.by_size import BySize, free_places, graph_with_carriers, graph_with_constants, number_places
from capture.backends.native.compilation_policy import Expected, Postponed, budget, expected_seconds, may_begin, operation_count
from capture.backends.native.compiles import Compile, Compiler, Loaded, SizeCheck
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.messages import Failure
from capture.backends.native.options import Options
from capture.backends.native.piecewise import Piecewise, apart, divisible
from capture.backends.native.trial import Trial
from capture.backends.traceable import runs_backward, runs_engine
from capture.config import DEBUG, STRICT, TARGET, TRIAL_CALLS
from capture.errors import InternalError, note, warn

MODULE_STATE = re.compile(r"\._(parameters|buffers)\['[^']*'\]$")        # the way from a module to its own tensors

DEFAULT, COMPILER = Options(), Compiler()
NOTHING: Mapping[Any, Any] = {}
SECOND_CALL = "in pieces that were not called twice yet"
BESIDE = "between operations that cannot be compiled"     # of too few operations for a piece
PAUSE = 4               # calls for which compiled code that raised is left alone: its powers


class Stage(enum.Enum):
    """The state of a graph in the native backend. The value is the text that reports show."""

    COMPILING = "is being compiled"
    POSTPONED = "will be compiled when its calls have taken long enough"
    WAITING = "will be compiled at its first hit"
    TRIAL = "is compiled; the next calls are timed with and without the kernels"
    COMPILED = "runs compiled"
    BY_SIZE = "takes other sizes from call to call"
    PIECES = "runs in pieces, which are compiled by themselves"
    SLOWER = "runs uncompiled: the kernels were measured to be slower"
    UNSUPPORTED = "runs uncompiled: it cannot be compiled"
    FAILED = "runs uncompiled: compiling failed"


UNDECIDED = (Stage.COMPILING, Stage.POSTPONED, Stage.WAITING)      # there will be compiled code, or not


class Operations(NamedTuple):
    """How many operations of a graph run in compiled code; how many do not, since their kernels were measured to be slower; and how
    many do not for other reasons, or not yet."""

    compiled: int
    slower: int
    others: int


class Tier:
    """How one graph is run, and why. device: the GPU on which it runs, None for the processor. `reason` explains the stage,
    `failure` is set when compiling failed, `summary` and `log` (see Loaded) when it did not. `whole`: the tier of the graph that
    is divided if this one cannot be compiled; `compile_piece` makes the callables of its pieces."""

    __slots__ = ("gm", "device", "stage", "reason", "failure", "summary", "log", "begun", "expected", "whole", "compile_piece",
                 "_pieces", "_switch", "__weakref__")

    def __init__(self, gm: fx.GraphModule, stage: Stage, device: torch.device | None) -> None:
        self.gm = gm
        self.device = device
        self.stage, self.reason = stage, ""
        self.failure: Failure | None = None
        self.summary = self.log = ""
        self.begun = time.monotonic()       # to be compiled, as soon as that is so
        self.expected: Expected | None = None       # of compiling it, for whatever sizes
        self.whole: Callable[[], Tier | None] = weakref.ref(self)       # another one where this is for some sizes alone
        self.compile_piece: Callable[[fx.GraphModule, Sequence[Any]], _C.Switch] = _C.Switch
        self._pieces: Callable[[], Piecewise | None] = lambda: None
        self._switch: Callable[[], Any] = lambda: None

    def attach(self, target: Callable[..., Any]) -> _C.Switch:
        """The callable of the graph, which calls `target` at first."""
        switch = _C.Switch(target, self)
        self._switch = weakref.ref(switch)
        return switch

    def call(self, inputs: tuple[Any, ...]) -> Any:
        """Runs the graph as it is run now."""
        switch = self._switch()
        return (self.gm.forward if switch is None else switch.target)(*inputs)

    def each(self) -> list[tuple[str, Tier]]:
        """The tiers of its pieces, if it runs in such, and what these are, in words."""
        pieces = self._pieces()
        return [] if pieces is None else [(f"piece {number}", piece.switch.tier) for number, piece in enumerate(pieces.pieces, 1)
                                          if piece.switch is not None]

    def all(self) -> list[Tier]:
        """Itself, and the tiers of its pieces, and those of single sizes."""
        return [self, *(inner for _, tier in self.each() for inner in tier.all())]

    def operations(self) -> Operations:
        """How the graph's operations run by now."""
        count = operation_count(self.gm)
        if self.stage is not Stage.PIECES:
            compiled, slower = self.stage in (Stage.TRIAL, Stage.COMPILED), self.stage is Stage.SLOWER
            return Operations(count * compiled, count * slower, count * (not compiled and not slower))
        pieces = [tier.operations() for _, tier in self.each()]
        compiled, slower = sum(piece.compiled for piece in pieces), sum(piece.slower for piece in pieces)
        return Operations(compiled, slower, count - compiled - slower)

    def uncompiled(self) -> Counter[str]:
        """Why operations of the graph do not run in compiled code by now, and how many for each reason."""
        found = sum((tier.uncompiled() for _, tier in self.each()), Counter[str]())
        left = sum(self.operations()[1:]) - found.total()
        if self.stage is Stage.PIECES:
            pieces = self._pieces()
            later = sum(operation_count(piece.gm) for piece in pieces.pieces if piece.switch is None) if pieces is not None else 0
            reasons = Counter(apart(self.gm).values()) + Counter({SECOND_CALL: later})
            return found + reasons + Counter({BESIDE: left - reasons.total()})
        return found + Counter({f"{self.stage.value} ({self.reason})": left})

    def describe(self) -> str:
        """One line, or with a failure's details, or what CAPTURE_DEBUG asked for, more."""
        so_far = f"for {time.monotonic() - self.begun:.1f} s so far" if self.stage is Stage.COMPILING else ""
        if (switch := self._switch()) is not None and isinstance(postponed := switch.target, Postponed):
            so_far = str(postponed)
        notes = "; ".join(filter(None, (self.summary, self.reason, so_far)))
        lines = [self.stage.value + (f" ({notes})" if notes else "")]
        lines += [f"{what}: {tier.describe()}".replace("\n", "\n  ") for what, tier in self.each()]
        if self.failure is not None:
            lines.append(self.failure.details)
        return "\n".join(filter(None, (*lines, self.log)))

    def finish(self, outcome: bytes | Failure, compiler: Compiler) -> None:
        """Compiling has ended. Never raises an Exception."""
        loaded = compiler.loaded(outcome, self.gm) if isinstance(outcome, bytes) else outcome
        if isinstance(loaded, Failure):
            self.refuse(loaded)
        else:
            self.accept(loaded)

    def accept(self, loaded: Loaded) -> None:
        """Compiled code is ready: it is tried against tier 1."""
        unproven = _Unproven(self, loaded.call)

        def decide(before: float, after: float) -> None:
            budget.learn(self.expected.learn(before, after), self.expected.seconds)
            with compiles.changed:
                if self.stage is Stage.TRIAL:
                    self._move(*((Stage.COMPILED, loaded.call) if after <= before else (Stage.SLOWER, self.gm.forward)),
                               f"{after * 1e6:.0f} µs compiled, {before * 1e6:.0f} µs before")
        with compiles.changed:
            self.summary, self.log = loaded.summary, loaded.log
            if TRIAL_CALLS:
                self._move(Stage.TRIAL, self._trial(unproven, decide))
            else:
                self._move(Stage.COMPILED, unproven)
        if self.log:
            note(self.log)

    def _trial(self, unproven: _Unproven, decide: Callable[[float, float], None]) -> Trial:
        has_passes = not any(map(runs_backward, self.gm.graph.nodes))       # else it runs them itself
        trial = functools.partial(Trial, self.gm.forward, unproven, TRIAL_CALLS.value, decide,
                                  kind_of=self._kind_of, has_passes=has_passes)
        if self.device is None:
            return trial()
        records = functools.partial(gpus.records_stream, self.device)       # meanwhile nothing may wait
        return trial(synchronize=functools.partial(gpus.wait_for, self.device), untimed=records)

    def _kind_of(self, inputs: Sequence[Any]) -> Hashable:
        """Of which kind a call is, of those that take different times."""

    def prove(self, unproven: _Unproven) -> None:
        """The compiled code has run: it is called directly from now on."""
        with compiles.changed:
            switch = self._switch()
            if switch is not None and switch.target is unproven:
                switch.target = unproven.compiled

    def divide(self, is_apart: Callable[[fx.Node], bool], reason: str) -> bool:
        """Has the graph run in pieces around the nodes that cannot be compiled, if possible. Returns whether there is nothing else
        to do."""
        whole = self.whole()
        if whole is None or whole.stage is Stage.PIECES:
            return False
        nodes = [node for node in whole.gm.graph.nodes if is_apart(node)]
        if not nodes or not divisible(whole.gm, nodes):
            return False
        pieces = Piecewise(whole.gm, nodes, self.compile_piece,
                           lambda failure: whole.refuse(failure or Failure("unsupported", reason)))
        whole._pieces = weakref.ref(pieces)
        with compiles.changed:
            whole._move(Stage.PIECES, pieces, reason)
        return whole is self

    def refuse(self, failure: Failure) -> None:
        """There is no compiled code, or none that works: tier 1 stays, or the graph runs in pieces. In strict mode the next call
        raises if this is a bug of ours."""
        if failure.place is not None:       # what calls the same would fail as well
            failing = list(self.gm.graph.nodes)[failure.place]
            if self.divide(lambda node: (node.op, node.target) == (failing.op, failing.target), failure.text):
                return
        elif self.divide(runs_engine, failure.text):      # two compiled graphs, before and after a backward pass
            return
        target: Callable[..., Any] = self.gm.forward
        if failure.kind != "unsupported":
            self.failure = failure
            if STRICT and failure.kind == "internal":
                error = InternalError(f"{failure.text}\n{failure.details}")
                target = _Fault(self.gm.forward, error, weakref.ref(self))
                _faults.append(target)
            else:
                _warn(failure)
        with compiles.changed:
            self._move(Stage.UNSUPPORTED if failure.kind == "unsupported" else Stage.FAILED, target, failure.text)

    def postpone(self, compile: Compile, has_passes: bool) -> None:
        """Has it compiled later: see `compilation_policy`."""
        postponed = Postponed(self.gm.forward, functools.partial(self.begin, compile), compile.expected, has_passes)
        with compiles.changed:
            _postponed.add(postponed)
            self._move(Stage.POSTPONED, postponed)

    def begin(self, compile: Compile, reserved: float) -> None:
        """Has it compiled now, if it was postponed. reserved: what that takes from the budget."""
        with compiles.changed:
            if self.stage is Stage.POSTPONED:
                self.begun = time.monotonic()
                self._move(Stage.COMPILING, self.gm.forward)
                compile.start(self, reserved)

    def abandon(self, reason: str) -> None:
        """Nobody will compile it."""
        if self.stage is Stage.COMPILING:
            self._move(Stage.FAILED, self.gm.forward, reason)

    def _move(self, stage: Stage, target: Callable[..., Any], reason: str = "") -> None:
        self.stage, self.reason = stage, reason
        switch = self._switch()
        if switch is not None:
            switch.target = target
        if DEBUG:
            note(f"capture: a graph of {len(self.gm.graph.nodes)} nodes {self.describe().splitlines()[0]}")


class GeneralTier(Tier):
    """How a graph is run whose inputs have other sizes from call to call, as far as its code is for all of them. places: of these.
    changed: called when it is run in another way."""

    __slots__ = ("places", "changed", "_check")

    def __init__(self, gm: fx.GraphModule, stage: Stage, device: torch.device | None, changed: Callable[[], None]) -> None:
        super().__init__(gm, stage, device)
        self.places = free_places(gm)
        self.changed = changed
        self._check: SizeCheck = lambda inputs: False

    def covers(self, inputs: Callable[[], Sequence[Any]], wait: bool) -> bool | None:
        """Whether there is code for inputs of these sizes; None while it is being compiled. inputs: gives these. wait: where it is
        compiled at the first hit, this is one."""
        switch = self._switch()
        if wait and switch is not None and isinstance(target := switch.target, _FirstHit):
            target.finish_compiling()
        if switch is not None and isinstance(target := switch.target, _Fault):
            target.tell()       # nothing calls it: what is for no sizes is not run
        if self.stage in UNDECIDED:
            return None
        return self.stage in (Stage.TRIAL, Stage.COMPILED) and self._check(inputs())

    @property
    def is_slower(self) -> bool:
        """Whether its code was measured to be slower than the graph."""
        return self.stage is Stage.SLOWER

    def accept(self, loaded: Loaded) -> None:
        self._check = loaded.covers
        super().accept(loaded)

    def prove(self, unproven: _Unproven) -> None:
        """With other sizes it may still raise."""

    def _kind_of(self, inputs: Sequence[Any]) -> Hashable:
        return tuple([inputs[place].shape for place in self.places])

    def _move(self, stage: Stage, target: Callable[..., Any], reason: str = "") -> None:
        super()._move(stage, target, reason)
        self.changed()


class SizesTier(Tier):
    """How a graph is run whose inputs have other sizes from call to call."""

    __slots__ = ("by_size",)

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, Stage.BY_SIZE, None)
        self.by_size: Callable[[], BySize | None] = lambda: None

    def choose_by_size(self, by_size: BySize) -> None:
        """Has it called from now on, unless it is known by now that the graph cannot be compiled whole."""
        self.by_size = weakref.ref(by_size)
        with compiles.changed:
            if self.stage is Stage.BY_SIZE:
                self._move(Stage.BY_SIZE, by_size)

    def operations(self) -> Operations:
        """The same, for the sizes for which most are compiled."""
        found = super().operations()
        return found if self.stage is not Stage.BY_SIZE else max((tier.operations() for _, tier in self.each()), default=found)

    def each(self) -> list[tuple[str, Tier]]:
        """For which sizes there are tiers, in words, and these."""
        by_size = self.by_size() if self.stage is Stage.BY_SIZE else None
        return super().each() if by_size is None else [(f"for {sizes}", switch.tier) for sizes, switch in by_size.switches()]


class _Unproven:
    """Compiled code that has not run yet. If it raises in its first run, tier 1 runs too, and shows whose fault it is. After that
    run, exceptions are the program's own, since a graph's operations and shapes never change. If the graph changes something and so
    cannot run again, the exception is raised; tier 1 then serves some calls before the compiled code is tried again."""

    __slots__ = ("tier", "compiled", "failures", "pause")

    def __init__(self, tier: Tier, compiled: Callable[..., Any]) -> None:
        self.tier, self.compiled = tier, compiled
        self.failures = self.pause = 0

    def __call__(self, *inputs: Any) -> Any:
        plain = self.tier.gm.forward
        if self.pause:
            self.pause -= 1
            return plain(*inputs)
        try:
            outputs = self.compiled(*inputs)
        except Exception as error:
            if not self.tier.gm.meta.get("repeatable"):
                self.failures += 1
                self.pause = PAUSE ** self.failures
                raise
            fault = Failure("internal", f"compiled code raised {type(error).__name__}: {error}",
                            "".join(traceback.format_exception(error)))
        else:
            self.tier.prove(self)
            return outputs
        outputs = plain(*inputs)
        self.tier.refuse(fault)
        return outputs


class _Fault:
    """Raises an internal error once: at the next call of its graph, or in `wait`."""

    def __init__(self, plain: Callable[..., Any], error: InternalError, tier: Callable[[], Tier | None]) -> None:
        self.plain, self.error, self.tier = plain, error, tier

    def __call__(self, *inputs: Any) -> Any:
        self.tell()
        return self.plain(*inputs)

    def tell(self) -> None:
        """Raises the error, unless it was raised before."""
        if self in _faults:
            _faults.remove(self)
            raise self.error


class _FirstHit:
    """Has the graph compiled when it is called, waits for that, and then is no more."""

    def __init__(self, tier: Tier, compile: Compile) -> None:
        self.tier, self.compile = tier, compile

    def __call__(self, *inputs: Any) -> Any:
        self.finish_compiling()
        return self.tier.call(inputs)

    def finish_compiling(self) -> None:
        """Has it compiled, and waits for that."""
        with compiles.changed:
            first = self.tier.stage is Stage.WAITING
            if first:
                self.tier.stage, self.tier.begun = Stage.COMPILING, time.monotonic()
        if first:
            self.compile.start(self.tier)
        with compiles.changed:
            compiles.changed.wait_for(lambda: self.tier.stage is not Stage.COMPILING)


_faults: list[_Fault] = []
_postponed: weakref.WeakSet[Postponed] = weakref.WeakSet()
_warned: set[str] = set()


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options = DEFAULT,
                  compiler: Compiler = COMPILER) -> Callable[..., Any]:
    """A callable of `gm`: at first the uncompiled graph, later its kernels. Returns at once, unless it loads an artifact from the
    disk cache.

    gm.meta["modes"] may hold the modes that the guards compare, gm.meta["devices"] the types of the devices that results lie on,
    gm.meta["repeatable"] whether the graph changes nothing: no tensor, no random numbers, no mode. Placeholders'
    meta["properties"] and meta["storage"] are what guards promise of that input (see TensorSpec); without them, the modes and
    inputs count as they are now. meta["source"]: as which expression the program reaches an input. meta["number"]: int or float,
    where it is a Python number that differs on each call.
    """
    places, sizes = free_places(gm), number_places(gm)
    alone = apart(gm)
    if alone or not places and not sizes:
        return _compiled(gm, example_inputs, options, compiler, alone=alone)

    def general(inputs: Sequence[Any], changed: Callable[[], None]) -> _C.Switch:
        return _compiled(graph_with_carriers(gm, sizes), inputs, options, compiler, tier, changed)

    def single(inputs: Sequence[Any]) -> _C.Switch:
        return _compiled(graph_with_constants(gm, sizes, inputs), inputs, options, compiler, tier)
    tier = SizesTier(gm)
    switch = tier.attach(gm.forward)
    tier.choose_by_size(BySize(gm, places, sizes, general, single, example_inputs))
    return switch


def _compiled(gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, compiler: Compiler,
              whole: Tier | None = None, changed: Callable[[], None] | None = None,
              alone: Mapping[fx.Node, str] = NOTHING) -> _C.Switch:
    """The callable of a graph, for inputs of these sizes or, with `changed`, of all sizes (`GeneralTier`). whole: the tier of a
    graph that this one is for some sizes. alone: operations that cannot be compiled."""
    devices = {x.device.type for x in example_inputs if isinstance(x, torch.Tensor)} | gm.meta.get("devices", set())
    stage, device = Stage.COMPILING if options.background else Stage.WAITING, gpus.gpu_of(example_inputs)
    is_general = changed is not None
    tier = Tier(gm, stage, device) if changed is None else GeneralTier(gm, stage, device, changed)
    tier.compile_piece = functools.partial(compile_graph, options=options, compiler=compiler)
    tier.whole = weakref.ref(whole or tier)
    switch = tier.attach(gm.forward)
    if refused := gpus.refusal(devices, example_inputs):
        tier.refuse(Failure("unsupported", refused))
        return switch
    if alone:
        reason = "; ".join(dict.fromkeys(f"the graph {found}" for found in alone.values()))
        if not tier.divide(alone.__contains__, reason):
            tier.refuse(Failure("unsupported", reason))
        return switch
    try:
        chosen = {"freezing": options.freezing, **({"target": TARGET.value} if TARGET else {})}
        job = gpus.on_device(Job(gm, specs(gm, example_inputs, is_general), Modes.current(), chosen))
    except TypeError as error:
        tier.refuse(Failure("unsupported", str(error)))
        return switch
    trains = job.modes.grad and any(spec.requires_grad for spec in job.inputs)
    owner = whole or tier
    owner.expected = tier.expected = owner.expected or Expected(expected_seconds(gm, trains, is_general))
    try:
        compile = Compile(job, compiler, tier.expected)
    except transport.NotPortable as error:
        reason = f"it cannot be sent to the compiling process: {error}"
        if not tier.divide(lambda node: not transport.is_portable(node), reason):
            tier.refuse(Failure("unsupported", reason))
        return switch
    loaded = compile.cached(gm, example_inputs)
    if loaded is not None:
        tier.accept(loaded)
    elif not options.background:
        switch.target = _FirstHit(tier, compile)
    elif may_begin():
        compile.start(tier)
    else:
        tier.postpone(compile, has_passes=trains and not any(map(runs_backward, gm.graph.nodes)))
    return switch


def specs(gm: fx.GraphModule, example_inputs: Sequence[Any], free: bool = False) -> tuple[TensorSpec, ...]:
    """What the guards promise of each input. free: also of those whose sizes change; else these are as they are now."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    own = [] if free else free_places(gm)
    return tuple(numbers.spec_of(node.meta["number"]) if "number" in node.meta else
                 TensorSpec.of(value, None if place in own else node.meta.get("properties"), node.meta.get("storage"),
                               bool(MODULE_STATE.search(node.meta.get("source", ""))))
                 for place, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)))


def pending() -> int:
    """The number of graphs that are being compiled."""
    return compiles.waiting()


def begin_postponed() -> None:
    """Has all graphs compiled whose time was to come later."""
    with compiles.changed:
        for postponed in list(_postponed):
            postponed.begin(0.0)


def wait(timeout: float | None = None, progress: Callable[[int], None] = lambda count: None) -> bool:
    """Blocks until no graph is being compiled, nor is to be, for `timeout` seconds at most; False when some still are.

    progress: called now and then with the number of graphs that are left. In strict mode raises InternalError for a
    compile that failed by a bug of ours.
    """
    deadline = None if timeout is None else time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
    begin_postponed()
    while count := pending():
        left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
        if left <= 0:
            break
        progress(count)
        with compiles.changed:
            compiles.changed.wait(left)         # not longer: a graph that dies tells nobody
        begin_postponed()
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
    warn(f"a graph could not be compiled and runs uncompiled: {failure.text.rstrip('.')}. {remedy}.")
