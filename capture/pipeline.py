"""Takes one frame through the stages: interpreter, guards, mock function, backend, cache entry."""
from __future__ import annotations

import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from capture import _C, debug
from capture.blame import blame
from capture.config import RECAPTURE_LIMIT, STRICT
from capture.errors import BackendError, Break, GraphBreakError, InternalError, Reason, UserFrame
from capture.guards.collect import collect
from capture.guards.explain import Mismatch
from capture.guards.tree import GuardTree
from capture.history import Miss, Times, miss_of
from capture.interp import accessors, calls, lookasides, opcodes, unwind
from capture.interp.frame import UserError, Value
from capture.interp.fx_recorder import FxRecorder
from capture.interp.interpreter import Interpreter
from capture.refgraph import mock, pycode
from capture.refgraph.graph import PLAIN_TENSORS, RefGraph
from capture.refgraph.node import DictState, RefNode, Shadow
from capture.refgraph.source import Function, Local, Source
from capture.refgraph.verify import verify

FRAME_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
REGISTERED = accessors, lookasides, opcodes       # imported for the tables they fill
_thread = threading.local()


def is_capturing() -> bool:
    """Whether this thread is inside of a capturing call."""
    return getattr(_thread, "capturing", 0) > 0


@dataclass(slots=True, eq=False)
class BreakReport:
    """Why a trace ended: `stack` is the user's, outermost first."""

    reason: Reason
    context: str
    stack: tuple[UserFrame, ...]


@dataclass(slots=True, eq=False)
class Trace:
    """What a cache entry knows of the capture that made it. `broken`: entries that run natively, and why; `tier`: how far the
    native backend is with the graph."""

    graph_module: torch.fx.GraphModule | None = None
    mock: pycode.PythonCode | None = None
    broken: BreakReport | None = None
    operations: int = 0
    repeatable: bool = False        # the graph changes nothing: no tensor, no random numbers
    compiled: Callable[..., Any] | None = None
    times: Times = field(default_factory=lambda: Times(time.perf_counter()))

    @property
    def tier(self) -> Any:
        return self.compiled.tier if isinstance(self.compiled, _C.Switch) else None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Unit:
    """One compiled function: its settings, its cache, and what happened to it. `compiled` is what users call."""

    function: types.FunctionType
    backend: Callable[..., Any]
    fullgraph: bool
    name: str
    compiled: Any = field(init=False)
    tree: GuardTree = field(init=False)
    captures: int = 0
    misses: list[Miss] = field(default_factory=list)
    breaks: list[BreakReport] = field(default_factory=list)
    bailouts: list[BreakReport] = field(default_factory=list)
    uncounted: int = 0                  # native calls past the recapture limit, or on tensors that are not plain
    limited: bool = False

    def __post_init__(self) -> None:
        self.tree = GuardTree(self.function.__code__)
        self.compiled = _C.CompiledFunction(self.function, self.tree, self.miss, self.failed)
        UNITS.add(self)

    def forget(self) -> None:
        """Drops all entries and counts."""
        self.tree.clear()
        self.captures = self.uncounted = 0
        self.limited = False
        for record in (self.misses, self.breaks, self.bailouts):
            record.clear()

    def miss(self, function: types.FunctionType, args: list[Any], mismatches: list[Mismatch]) -> Any:
        """Called by the frame hook when no entry fits: captures the call, or asks for a native run."""
        if is_capturing() and not self.fullgraph and _thread.unit is self:      # native code of a capture called back
            return _C.RUN_NATIVELY
        if not all(map(is_plain, args)):
            self.uncounted += 1
            return _C.RUN_NATIVELY
        if len(self.tree.entries) >= RECAPTURE_LIMIT.value:
            self._tell_limit(mismatches)
            self.uncounted += 1
            return _C.RUN_NATIVELY
        if mismatches:
            self.misses.append(miss_of(mismatches, limited=False))
        outer = getattr(_thread, "unit", None)
        _thread.capturing, _thread.unit = getattr(_thread, "capturing", 0) + 1, self
        try:
            outcome = capture(self, function, args)
        finally:
            _thread.capturing, _thread.unit = _thread.capturing - 1, outer
        if isinstance(outcome, UserError):
            _C.reraise(outcome.exception)
        return outcome.real

    def failed(self, entry: Any, exception: BaseException) -> Any:
        """Called when a mock function raised: its graph did, before any side effect.

        Where the graph has none of its own the call runs again, natively, so that the program's handlers see the
        exception; else its traceback is made the user's.
        """
        trace: Trace = entry.payload
        if isinstance(exception, InternalError):
            return None
        if trace.repeatable and isinstance(exception, Exception):
            return _C.RUN_NATIVELY
        blame(exception, self.function, trace.graph_module, frozenset({trace.mock.filename}))
        return None

    def _tell_limit(self, mismatches: list[Mismatch]) -> None:
        """Says once that calls which no entry fits run natively from now on; the entries stay in use."""
        if self.limited:
            return
        self.limited = True
        self.misses.append(miss_of(mismatches, limited=True))
        cause = self.misses[-1].causes[-1]
        where = "" if cause.place is None else f" ({cause.place})"
        with suppress(Warning):         # made an exception by the user's filters: the program goes on
            warnings.warn(f"capture: {self.name} has {len(self.tree.entries)} entries; calls that none of them fits run natively. "
                          f"The last such call: {cause}{where}. Remedy: pass what changes as a tensor, or raise "
                          f"CAPTURE_RECAPTURE_LIMIT.", stacklevel=3)


UNITS: weakref.WeakSet[Unit] = weakref.WeakSet()
for _entry in (Unit.miss, Unit.failed, GuardTree.explain):      # a torch.compile around us leaves our own code alone
    eval_frame.set_code_exec_strategy(_entry.__code__, FRAME_SKIP)


def is_plain(arg: Any) -> bool:
    """Whether an argument is no tensor of an unknown subclass (fake, functional, distributed …)."""
    return not isinstance(arg, torch.Tensor) or type(arg) in PLAIN_TENSORS


def capture(unit: Unit, function: types.FunctionType, args: list[Any]) -> Value | UserError:
    """Runs one call in the interpreter and installs an entry for calls like it. Returns the call's outcome.

    args: the frame's arguments in the order of its fast locals. Raises GraphBreakError under fullgraph, after the call
    has come to its end, and InternalError in strict mode.
    """
    graph = RefGraph()
    recorder = FxRecorder(graph)
    interp = Interpreter(graph, recorder)
    graph.require(None, "MODES", _C.modes())
    random = torch.get_rng_state()
    root = Value(function, graph.external(function, Function()))
    frame = calls.make_root_frame(interp, root, [
        Value(arg, interp.track(graph.external, arg, Local(name, index)))
        for index, (arg, name) in enumerate(zip(args, function.__code__.co_varnames))])
    args.clear()
    handled = sys.exception()
    recorder.positions, graph.position = interp.positions, interp.place
    times = Times(time.perf_counter())
    try:
        with times.measure("run"):
            outcome: Value | UserError = interp.run(frame)
    except UserError as error:
        outcome = error
    finally:
        unwind.set_handled(handled)
        recorder.positions, graph.position = tuple, nowhere
    try:
        repeatable = not recorder.mutates and torch.equal(random, torch.get_rng_state())
        conclude(unit, interp, outcome, repeatable, times)
    finally:
        graph.release()
    return outcome


def nowhere() -> None:
    """The position in the user's program while it does not run."""


def conclude(unit: Unit, interp: Interpreter, outcome: Value | UserError, repeatable: bool, times: Times) -> None:
    """Installs an entry for calls like the one that has ended: its trace, or the reason for a native run.

    Raises GraphBreakError under fullgraph: only now, so that no `with` or `finally` of the program is cut short.
    """
    if isinstance(outcome, UserError):
        exception = outcome.exception
        if interp.doubtful is not None and interp.doubtful[0] is exception or not isinstance(exception, Exception):
            return                  # calls like this one may well end otherwise
        if not interp.broken:
            interp.broken = Break("raised", type(exception).__name__), ()
    elif interp.track(install, unit, interp, outcome, repeatable, times) is not None:
        return
    if unit.fullgraph and not isinstance(outcome, UserError):
        reason, stack = interp.broken
        raise GraphBreakError(reason.reason, reason.context, stack)
    install_native(unit, interp, times)


def install(unit: Unit, interp: Interpreter, outcome: Value, repeatable: bool, times: Times) -> Shadow:
    """Seals and checks the trace, and makes a cache entry of it. Raises Break when the trace cannot be replayed."""
    graph, recorder = interp.graph, interp.recorder
    graph.sweep(0)
    verify(graph, outcome)
    require_separateness(graph, recorder)
    graph.seal()
    assert outcome.shadow is not None
    with times.measure("mock"):
        plan = mock.plan(graph, outcome.shadow, recorder.inputs)
    operations = recorder.operations
    with times.measure("graph"):
        gm = recorder.finish(plan.outputs)
        annotate(gm, graph, recorder, repeatable)
        compiled = compile_graph(unit, gm, [node.real for node in recorder.inputs]) if operations or plan.outputs else None
    with times.measure("mock"):
        names = argument_names(unit.function.__code__)
        code = pycode.generate(plan, names, recorder.inputs, compiled, f"{unit.name}_{unit.captures}")
        function = code.function
    with times.measure("guards"):
        trace = Trace(gm, code, None, operations, repeatable, compiled, times)
        entry = unit.tree.insert(collect(graph), code.lifted, function, trace)
    unit.captures += 1
    debug.captured(unit.name, entry)
    return outcome.shadow


def install_native(unit: Unit, interp: Interpreter, times: Times) -> None:
    """Calls like this one will run natively; the entry says why."""
    assert interp.broken is not None
    reason, stack = interp.broken
    report = BreakReport(reason.reason, reason.context, stack)
    if reason.reason.id != "raised":
        (unit.bailouts if reason.reason.id in ("internal-fault", "untracked-mutation") else unit.breaks).append(report)
    with times.measure("guards"):
        unit.tree.insert(collect(interp.graph), [], None, Trace(broken=report, times=times))
    debug.broken(unit.name, report)


def annotate(gm: torch.fx.GraphModule, graph: RefGraph, recorder: FxRecorder, repeatable: bool) -> None:
    """Notes in the graph whether it can be run again, and what holds at entry, which the example inputs, read at exit, may not
    show any more: the modes, the properties of each input, and, where the graph writes to tensors, which inputs share memory."""
    gm.meta["repeatable"] = repeatable
    gm.meta["modes"] = next(expected for _, kind, expected in graph.requirements.values() if kind == "MODES")
    groups: dict[int, int] = {}
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    for placeholder, node in zip(placeholders, recorder.inputs, strict=True):
        placeholder.meta["properties"] = node.state.properties
        if recorder.mutates and node.state.storage is not None:
            storage, offset = node.state.storage
            placeholder.meta["storage"] = groups.setdefault(storage, len(groups)), offset


def compile_graph(unit: Unit, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The backend's callable; when the backend fails the graph runs as it is, and the user is told."""
    try:
        compiled = unit.backend(gm, inputs)
        if not callable(compiled):
            raise TypeError(f"the backend returned a {type(compiled).__name__}, which is not callable")
        return compiled
    except Exception as error:
        text = f"the backend failed on a graph of {unit.name} ({type(error).__name__}: {error})"
        if STRICT:
            raise BackendError(text) from error
        warnings.warn(f"capture: {text}; the graph runs uncompiled. Remedy: try backend=\"eager\".", stacklevel=2)
        return gm.forward


def argument_names(code: types.CodeType) -> list[str]:
    """The fast locals that hold a call's arguments."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return list(code.co_varnames[:count])


# Guards on what a container holds, beyond single keys of a dict.
CONTENT_KINDS = frozenset({"LENGTH", "TRUTH", "KEYS", "CONTENT", "MEMBER", "NOT_MEMBER"})


def require_separateness(graph: RefGraph, recorder: FxRecorder) -> None:
    """What was mutated must not come to be one with something else that was read or written.

    Tensors: by storage. Other objects: two of them matter to each other only if both know of the key that was set.
    """
    if recorder.mutates and recorder.inputs:
        groups: dict[int, int] = {}
        layout: list[tuple[Source, int, int]] = []
        for node in recorder.inputs:
            if node.state.storage is not None:
                storage, offset = node.state.storage
                layout.append((node.source, groups.setdefault(storage, len(groups)), offset))  # type: ignore[arg-type]
        if layout:
            graph.require(layout[0][0], "STORAGE", tuple(layout))
    looked_at = {source for source, kind, _ in graph.requirements.values() if kind in CONTENT_KINDS}
    outside = [node for node in graph.nodes if node.source is not None]
    for target in dict.fromkeys(effect.target for effect in graph.effects):
        keys = {e.args[0].value for e in graph.effects if e.target is target and e.args and hasattr(e.args[0], "value")
                and isinstance(target.state, DictState)}
        rivals = [n.source for n in outside if n is not target and n.cls is target.cls and (
            n.source in looked_at or concerns(n, target, keys))]
        if rivals:
            graph.require(target.source, "DISTINCT", tuple(rivals))


def concerns(node: RefNode, target: RefNode, keys: Iterable[Any]) -> bool:
    """Whether the trace would be wrong if `node` were the mutated `target`."""
    if isinstance(target.state, DictState) and isinstance(node.state, DictState):
        return node.state.complete or any(key in node.state.items for key in keys)
    return node.state is not None or bool(node.slots)

