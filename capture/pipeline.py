"""Takes one frame through the stages: interpreter, guards, mock function, backend, cache entry."""
from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import threading
import time
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from capture import _C, debug
from capture.backends import registry
from capture.blame import blame
from capture.config import RECAPTURE_LIMIT, STRICT
from capture.errors import (
    REASONS,
    BackendError,
    Break,
    CheckFailed,
    GraphBreakError,
    InternalError,
    Reason,
    Surprise,
    UserFrame,
    user_frames,
)
from capture.guards.collect import collect
from capture.guards.explain import Mismatch
from capture.guards.tree import GuardTree
from capture.history import Departed, Gone, Miss, Times, miss_of
from capture.interp import (
    accessors,
    calls,
    generator_methods,
    generators,
    lookasides,
    loops,
    opcodes,
    protection,
    resume,
    sleepers,
    unwind,
    visible,
)
from capture.interp.frame import Cut, Frame, UserError, Value
from capture.interp.fx_recorder import FxRecorder
from capture.interp.interpreter import Interpreter
from capture.interp.retreat import Retreats
from capture.interp.varying import Numbers
from capture.refgraph import memory, mock, pycode
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import Const, Shadow, TensorState
from capture.refgraph.runtime import INVISIBLE
from capture.refgraph.separateness import require_separateness
from capture.refgraph.shapes import Shapes, of_any_shape
from capture.refgraph.source import Function, Local
from capture.refgraph.verify import verify
from capture.remedies import remedy
from capture.resumption import Loop, Resumption, natively, replay

FRAME_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
REGISTERED = accessors, generator_methods, lookasides, opcodes       # imported for the tables they fill
MOST_ENTRIES = 64       # that a guard tree takes
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
    rewinds: bool = False           # … or draws random numbers, which can be taken back
    compiled: Callable[..., Any] | None = None
    times: Times = field(default_factory=lambda: Times(time.perf_counter()))

    @property
    def tier(self) -> Any:
        return self.compiled.tier if isinstance(self.compiled, _C.Switch) else None


def counts_of(entry: Any) -> Departed:
    """What is kept of an entry that goes."""
    trace: Trace = entry.payload
    if trace.graph_module is None:
        return Departed(1, native_calls=entry.hits)
    return Departed(1, hits=entry.hits, graphs=int(trace.operations > 0), operations=trace.operations)


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
    parent: Unit | None = None          # of a continuation: whose trace it follows
    resumed: BreakReport | None = None  # … and why that ended
    resumption: Resumption | None = None        # … which leads to it
    resumptions: dict[Any, Resumption] = field(default_factory=dict)     # by position; of the whole family of units
    bodies: dict[resume.Position, types.CodeType] = field(default_factory=dict)     # … those of generators
    retreats: Retreats = field(default_factory=Retreats)                # of the whole family of units
    labels: Mapping[str, str] = field(default_factory=dict)             # of a continuation: what users know its parameters as
    shapes: Shapes = field(default_factory=Shapes)                      # … and which of its tensors have any
    uncounted: int = 0                  # native calls past the recapture limit, or on tensors that are not plain
    limited: bool = False
    numbers: Numbers = field(default_factory=Numbers)       # which of those that enter operations change from call to call
    departed: Departed = field(default_factory=Departed)
    start: float = math.inf             # of the first capture

    def __post_init__(self) -> None:
        departed = self.departed
        self.tree = GuardTree(self.function.__code__, lambda entry: departed.add(counts_of(entry)))
        self.compiled = _C.CompiledFunction(self.function, self.tree, self.miss, self.failed)
        key, forget = id(self), UNITS.pop
        UNITS[key] = weakref.ref(self, lambda _: forget(key, None))

    @property
    def family(self) -> list[Unit]:
        """This function and all continuations of it, to which other threads may be adding."""
        return [self, *(unit for resumption in list(self.resumptions.values()) for unit in resumption.units)]

    @property
    def limit(self) -> int:
        """The number of entries after which calls run natively; of a continuation, for each entry of the function it continues."""
        variants = 1 if self.parent is None else len(root_of(self).tree.entries)
        return max(RECAPTURE_LIMIT.value, min(RECAPTURE_LIMIT.value * variants, MOST_ENTRIES))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.parent is None and self.start < math.inf and not is_finalizing():
            family, counts = self.family, Departed()
            for unit in family:
                counts.add(unit.departed)
                for entry in unit.tree.entries:
                    counts.add(counts_of(entry))
            code = self.function.__code__
            GONE.append(Gone(self.name, UserFrame(code.co_filename, code.co_firstlineno, code.co_qualname), self.start,
                             sum(unit.captures for unit in family), sum(unit.uncounted for unit in family), counts,
                             tuple(report for unit in family for report in unit.breaks), tuple(self.misses)))

    def forget(self) -> None:
        """Drops all entries and counts, and all continuations."""
        for unit in self.family[1:]:
            unit.tree.clear()
        self.resumptions.clear()
        self.bodies.clear()
        self.tree.clear()
        self.captures = self.uncounted = 0
        self.start = math.inf
        self.departed.__init__()  # type: ignore[misc]
        self.limited, self.numbers, self.retreats = False, Numbers(), Retreats()
        for record in (self.misses, self.breaks, self.bailouts):
            record.clear()

    def miss(self, function: types.FunctionType, args: list[Any], tree: GuardTree) -> Any:
        """Called by the frame hook when no entry of `tree` fits: captures the call, or asks for a native run."""
        if is_capturing() and not self.fullgraph and _thread.unit is self:      # native code of a capture called back
            return _C.RUN_NATIVELY
        if not all(map(is_plain, args)):
            self.uncounted += 1
            return _C.RUN_NATIVELY
        if len(self.tree.entries) >= self.limit:
            if not self.limited:
                self._tell_limit(tree.explain(function, args))
            self.uncounted += 1
            return _C.RUN_NATIVELY
        if tree.entries:
            self.misses.append(miss_of(tree.explain(function, args), self.labels, limited=False))
        outer = getattr(_thread, "unit", None)
        _thread.capturing, _thread.unit = getattr(_thread, "capturing", 0) + 1, self
        try:
            with during_capture(self.name):
                outcome = capture(self, function, args)
        finally:
            _thread.capturing, _thread.unit = _thread.capturing - 1, outer
        if isinstance(outcome, UserError):
            _C.reraise(outcome.exception)
        return outcome.real if isinstance(outcome, Value) else outcome

    def failed(self, entry: Any, exception: BaseException) -> Any:
        """Called when a mock function raised: its graph did, or a call that it repeats.

        Where nothing was done before that, and the graph has no side effect of its own, the call runs again, natively, so
        that the program's handlers see the exception; else its traceback is made the user's.
        """
        trace: Trace = entry.payload
        if isinstance(exception, InternalError):
            return None
        if isinstance(exception, CheckFailed):
            if trace.rewinds:
                protection.rewind()
            if isinstance(exception, Surprise) and not self.fullgraph:      # the next capture ends where this tensor decides
                self.numbers.surprised = True
                entry._kill()
                self.departed.add(counts_of(entry))
            return _C.RUN_NATIVELY
        line = trace.mock.line_of(exception)
        again = isinstance(exception, Exception) and not unwind.is_asynchronous(exception)
        if trace.repeatable and line < trace.mock.first_effect and again:
            return _C.RUN_NATIVELY
        hidden = frozenset({trace.mock.filename, INVISIBLE})
        blame(exception, self.function, trace.graph_module, hidden, trace.mock.calls.get(line, ()))
        return None

    def _tell_limit(self, mismatches: list[Mismatch]) -> None:
        """Says that calls which no entry fits run natively from now on; the entries stay in use."""
        self.limited = True
        self.misses.append(miss_of(mismatches, self.labels, limited=True))
        cause = self.misses[-1].causes[-1]
        where = "" if cause.place is None else f" ({cause.place})"
        with suppress(Warning):         # made an exception by the user's filters: the program goes on
            warnings.warn(f"capture: {self.name} has {len(self.tree.entries)} entries; calls that none of them fits run natively. "
                          f"The last such call: {cause}{where}. Remedy: {remedy(cause)}, or raise "
                          f"CAPTURE_RECAPTURE_LIMIT.", stacklevel=3)


during_capture: Callable[[str], AbstractContextManager[None]] = nullcontext     # entered for each, with the function's name
UNITS: dict[int, weakref.ref[Unit]] = {}    # by id: those that are alive, oldest first. Without a lock, which a fork could inherit
GONE: deque[Gone[BreakReport]] = deque(maxlen=1000)     # the latest of those that were here
for _entry in (Unit.miss, Unit.failed, GuardTree.explain):      # a torch.compile around us leaves our own code alone
    eval_frame.set_code_exec_strategy(_entry.__code__, FRAME_SKIP)


def is_plain(arg: Any) -> bool:
    """Whether an argument is no tensor of an unknown subclass (fake, functional, distributed …)."""
    return not isinstance(arg, torch.Tensor) or memory.is_plain(type(arg))


def capture(unit: Unit, function: types.FunctionType, args: list[Any]) -> Value | UserError | _C.TailCall:
    """Runs one call in the interpreter and installs an entry for calls like it. Returns the call's outcome, or, where the
    trace was cut, what is left to do.

    args: the frame's arguments in the order of its fast locals. Raises GraphBreakError under fullgraph, after the call
    has come to its end, and InternalError in strict mode.
    """
    graph = RefGraph(unit.shapes)
    recorder = FxRecorder(graph, unit.numbers)
    interp = Interpreter(graph, recorder, None if unit.fullgraph else unit.retreats)
    graph.require(None, "MODES", _C.modes())
    root = Value(function, graph.external(function, Function()))
    frame = calls.make_root_frame(interp, root, [
        Value(arg, interp.track(graph.external, arg, Local(name, index)))
        for index, (arg, name) in enumerate(zip(args, function.__code__.co_varnames))])
    args.clear()
    for value in filter(None, frame.locals):
        generators.watch(interp, value)
    handled = sys.exception()
    recorder.positions, recorder.can_cut, graph.position = interp.positions, lambda: interp.can_cut, interp.place
    times = Times(time.perf_counter())
    unit.start = min(unit.start, times.start)
    outcome: Value | UserError
    try:
        with times.measure("run"):
            left = run(interp, frame)
        if isinstance(left, Cut):           # outside of `except`: the exception being handled is the program's
            interp.at_cut = True
            rest = interp.track(install_cut, unit, interp, left, recorder.is_harmless(), times)
            if rest is not None:
                return rest
            outcome = interp.go_on(lambda: finish(interp, left))
        else:
            outcome = left
        conclude(unit, interp, outcome, recorder.is_harmless(), times)
    except UserError as error:
        outcome = error.with_traceback(None)        # which holds this frame
        conclude(unit, interp, outcome, recorder.is_harmless(), times)
    finally:
        unwind.set_handled(handled)
        interp.tracking, interp.frame = False, None     # states of iterators know the interpreter, whose frames are to die
        recorder.positions, recorder.can_cut, graph.position = tuple, bool, nowhere
        graph.release()
    return outcome


def nowhere() -> None:
    """The position in the user's program while it does not run."""


def run(interp: Interpreter, frame: Frame) -> Value | Cut:
    """Runs a call to its end, or to where its trace is to be cut. Raises UserError."""
    try:
        return interp.run(frame)
    except Cut as cut:
        return cut.with_traceback(None)


def finish(interp: Interpreter, cut: Cut) -> None:
    """Goes on where a cut was to be. Raises UserError."""
    if isinstance(cut.outcome, UserError):
        raise cut.outcome
    if cut.outcome is not None:
        return interp.deliver(cut.outcome, cut.then)
    calls.call_native(interp, cut.function, cut.args_, cut.kwargs, cut.then, cut.on_raise)


def conclude(unit: Unit, interp: Interpreter, outcome: Value | UserError, repeatable: bool, times: Times) -> None:
    """Installs an entry for calls like the one that has ended: its trace, or the reason for a native run.

    Raises GraphBreakError under fullgraph: only now, so that no `with` or `finally` of the program is cut short.
    """
    if isinstance(outcome, UserError):
        exception = outcome.exception
        if interp.is_doubtful(exception) or not isinstance(exception, Exception) or unwind.is_asynchronous(exception):
            return                  # calls like this one may well end otherwise
        if not interp.broken:
            interp.broken = Break("raised", type(exception).__name__), ()
    elif interp.track(install, unit, interp, outcome, repeatable, times) is not None:
        return
    if unit.fullgraph and not isinstance(outcome, UserError):
        reason, stack = interp.broken
        if reason.reason.id == "uninitialized-tensor":      # they have been initialised by now
            return
        raise GraphBreakError(reason.reason, reason.context, stack)
    install_native(unit, interp, times)


def install(unit: Unit, interp: Interpreter, outcome: Value, repeatable: bool, times: Times) -> Shadow:
    """Seals and checks the trace, and makes a cache entry of it. Raises Break when the trace cannot be replayed."""
    graph, recorder = interp.graph, interp.recorder
    graph.sweep(0)
    asleep = sleepers.sleepers(interp, [], None, unit.bodies)
    verify(graph, resume.composite([outcome, *(part for sleeper in asleep for part in sleeper.record)]))
    require_separateness(graph, [node for node in recorder.inputs if recorder.mutates and not recorder.arrays.has_tensor(node)])
    if graph.in_own_decimals():
        raise Break("changing-global-state", "a decimal context is set, and not taken back")
    recorder.settle_expectations()
    graph.seal()
    assert outcome.shadow is not None
    with times.measure("mock"):
        plan = mock.plan(graph, outcome.shadow, recorder.inputs, numbers_of(recorder), acted_before(recorder))
    insert(unit, interp, plan, repeatable, None, times)
    sleepers.lie_down(asleep)
    return outcome.shadow


def numbers_of(recorder: FxRecorder) -> tuple[Shadow, ...]:
    """The numbers that a graph takes."""
    return tuple(number.shadow for number in recorder.number_inputs)  # type: ignore[misc]


def acted_before(recorder: FxRecorder) -> int:
    """How many effects come before the first operation of a graph that may raise, and cannot run again then."""
    return recorder.acted or 0 if recorder.changes and not recorder.expected else 0


def insert(unit: Unit, interp: Interpreter, plan: mock.MockPlan, repeatable: bool, broken: BreakReport | None,
           times: Times) -> None:
    """Makes a cache entry of a planned trace. `broken`: why it ended before the call did."""
    graph, recorder = interp.graph, interp.recorder
    operations = recorder.operations
    with times.measure("graph"):
        gm = recorder.finish(plan.outputs)
        if recorder.leaves_behind:
            gm.forward = protection.protected(gm)
        annotate(gm, graph, recorder, repeatable)
        compiled = None
        if operations or plan.outputs:
            # A graph that leaves torch in other modes than it found sets them itself, each time: no compiled graph does.
            # Nor does one carry tangents.
            inputs = [value.real for value in (*recorder.inputs, *recorder.number_inputs)]
            compiled = compile_graph(unit, gm, inputs) if is_balanced(graph) and not entry_modes(graph).dual_level else gm.forward
    with times.measure("mock"):
        names = argument_names(unit.function.__code__)
        # It draws random numbers, which can be taken back.
        rewinds = bool(recorder.fails or recorder.expected) and not recorder.changes and not repeatable
        graph_callable = protection.rewinding(compiled) if rewinds and compiled is not None else compiled
        code = pycode.generate(plan, names, recorder.inputs, graph_callable, f"{unit.name}_{unit.captures}")
        code = debug.on_disk(code, unit.tree, unit.name, unit.captures)
        function = code.function
    with times.measure("guards"):
        trace = Trace(gm, code, broken, operations, repeatable or rewinds, rewinds and compiled is not None, compiled, times)
        entry = unit.tree.insert(collect(graph), code.lifted, function, trace)
    unit.captures += 1
    debug.captured(unit.name, entry)


def install_cut(unit: Unit, interp: Interpreter, cut: Cut, repeatable: bool, times: Times) -> _C.TailCall:
    """Makes a cache entry of a trace that ends before a call, and returns what makes the call and goes on after it.

    Raises Break where the rest of the program cannot be a continuation.
    """
    graph, recorder = interp.graph, interp.recorder
    frames = resume.suspend(interp, resume.resume_of(cut.then))
    report = BreakReport(cut.reason.reason, cut.reason.context, cut.reason.stack or interp.stack())
    resumption = resumption_of(unit, interp, frames, report)
    taken = resume.arguments(frames, resumption.codes)
    if any(isinstance(node.state, TensorState) and node.state.dynamic for node in graph.nodes):
        parameters = zip(resumption.codes.codes[0].co_varnames, (value.shadow for value in taken))
        resumption.units[0].shapes.known |= of_any_shape(parameters, [cell.shadow for cell in frames[0].cells])
    graph.depend(cut.function.shadow, cut.function.real)  # type: ignore[arg-type]
    entered, left = entry_modes(graph).grad, torch.is_grad_enabled()
    handling = any(resume.Slot.HANDLED in frame.position.stack for frame in frames)
    arguments = [
        resume.function_of(frames[0], resumption.codes.codes[0]),
        resume.composite(taken),
        resume.composite(Value(frame.scope, frame.globals) for frame in frames),
        resume.constant(None if entered == left else left),
        unwind.exception_value(interp, sys.exception()) if handling else resume.constant(None),  # type: ignore[arg-type]
        cut.function, resume.composite(cut.args_), resume.keywords(cut.kwargs)]
    everything = resume.composite(arguments)
    graph.sweep(0)
    asleep = sleepers.sleepers(interp, frames, resumption.codes, unit.bodies)
    records = [part for sleeper in asleep for part in sleeper.record]
    verify(graph, resume.composite([*arguments[:-1], *cut.kwargs.values(), *records]))
    require_separateness(graph, [node for node in recorder.inputs if recorder.mutates and not recorder.arrays.has_tensor(node)])
    recorder.settle_expectations()
    graph.seal()
    proceed = mock.Perform(_C.TailCall, (Const(resumption), Const(None), everything.shadow))  # type: ignore[arg-type]
    with times.measure("mock"):
        plan = mock.plan(graph, proceed, recorder.inputs, numbers_of(recorder), acted_before(recorder))
    works = loops.works(frames[-1], len(frames) - 1, recorder)
    insert(unit, interp, plan, repeatable, report, times)
    sleepers.lie_down(asleep)
    unit.breaks.append(report)
    if unit.resumption is not None:
        unit.resumption.notice(resumption, works)
        if not resumption.is_idle():
            resumption.idle = None
        elif resumption.idle is None and all(frame.generator is None for frame in frames):
            resumption.idle = idle_loop(root_of(unit), resumption, [frame.outline() for frame in frames], report)
    call = everything.real[-3:] if cut.outcome is None else (replay, (cut.outcome,), {})
    return _C.TailCall(resumption, None, (*everything.real[:-3], *call))


def resumption_of(unit: Unit, interp: Interpreter, frames: list[resume.Suspended], report: BreakReport) -> Resumption:
    """The continuations of live frames: those of this function's that wait at the same place, or new ones."""
    stand_ins = []
    frame = interp.frame
    while frame is not None:
        stand_ins.append(visible.stand_in_of(frame))
        frame = frame.back
    return resumption_at(unit, frames, tuple(reversed(stand_ins)), report)


def resumption_at(unit: Unit, frames: list[resume.Suspended], stand_ins: tuple[types.CodeType | None, ...],
                  report: BreakReport) -> Resumption:
    """The known continuations at the positions of `frames`, or new ones."""
    key = tuple(frame.position for frame in frames)
    known = unit.resumptions.get(key)
    if known is None:
        codes = resume.build(frames)
        functions = tuple(itertools.accumulate((frame.taken + 1 for frame in frames[:-1]), initial=-1))[1:]
        known = unit.resumptions[key] = Resumption(codes, stand_ins, functions, maker(unit, frames[0].scope, codes, report))
    return known


def maker(unit: Unit, scope: dict[str, Any], codes: resume.Codes, report: BreakReport) -> Callable[[types.CodeType], Unit]:
    """What makes the unit of an outermost continuation behind a break of `unit`'s. scope: its globals."""
    where = user_frames(report.stack)[-1]
    name = f"{root_of(unit).name} resumed at {os.path.basename(where.file)}:{where.line}"
    shapes = Shapes(resume.RESULT)

    def make_unit(code: types.CodeType) -> Unit:
        cells = tuple(types.CellType() for _ in code.co_freevars)
        function = types.FunctionType(code, scope, code.co_name, None, cells)
        return Unit(function, unit.backend, False, name, parent=unit, resumed=report, resumptions=unit.resumptions,
                    bodies=unit.bodies, retreats=unit.retreats, labels=codes.labels, shapes=shapes)
    return make_unit


def idle_loop(unit: Unit, resumption: Resumption, frames: list[resume.Suspended], report: BreakReport) -> Loop | None:
    """What runs the innermost frame's loop in CPython, whose rounds hold no tensor operation, until it ends and what follows is
    captured. None where that cannot be."""
    told = BreakReport(REASONS["idle-loop"], report.context, report.stack)
    owner = weakref.ref(unit)       # which owns the code that holds `go_on`, and code is unknown to the garbage collector

    def go_on(left: loops.Left) -> _C.TailCall:
        root, rest = owner(), [left.outline()]
        known = None if root is None else resumption_at(root, rest, (None,), told)
        codes = resume.build(rest) if known is None else known.codes
        function = types.FunctionType(codes.codes[0], left.scope, left.code.co_name, None, left.cells)
        if known is None:
            return _C.TailCall(function, None, (*left.values, None))
        return known.proceed(function, left.values, None, False)

    *outer, innermost = frames
    if outer and any(resume.Slot.HANDLED in frame.position.stack for frame in frames):
        return None
    made = loops.left_to_cpython(innermost.code, innermost.position, loops.itself if outer else go_on)
    if made is None:
        return None
    tell = functools.partial(unit.breaks.append, told)
    variants = tuple((code, natively(code, innermost.scope)) for code in made)
    if not outer:
        return Loop(variants, tell)
    stand_ins = resumption.stand_ins[:-1]
    return Loop(variants, tell, resumption_at(unit, outer, stand_ins, told),
                lambda left: resumption_at(unit, [*outer, left.outline()], (*stand_ins, None), told))


def root_of(unit: Unit) -> Unit:
    """The unit of the function whose continuation, or continuation's continuation, this one is."""
    while unit.parent is not None:
        unit = unit.parent
    return unit


def install_native(unit: Unit, interp: Interpreter, times: Times) -> None:
    """Calls like this one will run natively; the entry says why."""
    assert interp.broken is not None
    reason, stack = interp.broken
    report = BreakReport(reason.reason, reason.context, stack)
    if reason.reason.id != "raised":
        (unit.bailouts if reason.reason.id in ("internal-fault", "untracked-mutation") else unit.breaks).append(report)
    debug.broken(unit.name, report)
    if interp.retreated:        # the next call like this one is captured up to a place where the trace can be cut
        return
    with times.measure("guards"):
        unit.tree.insert(collect(interp.graph), [], None, Trace(broken=report, times=times))


def entry_modes(graph: RefGraph) -> Any:
    """The modes of torch in which the call began."""
    return graph.requirements[None, "MODES"][2]


def is_balanced(graph: RefGraph) -> bool:
    """Whether the modes of torch are those in which the call began, but for that of gradients."""
    entered = entry_modes(graph)
    with torch.set_grad_enabled(entered.grad):
        return bool(_C.modes() == entered)


def annotate(gm: torch.fx.GraphModule, graph: RefGraph, recorder: FxRecorder, repeatable: bool) -> None:
    """Notes in the graph whether it can be run again, and what holds at entry, which the example inputs, read at exit, may not
    show any more: the modes, the properties of each input, and, where the graph writes to tensors, which inputs share memory."""
    gm.meta["repeatable"] = repeatable
    gm.meta["modes"] = entry_modes(graph)
    groups: dict[int, int] = {}
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    for placeholder, node in zip(placeholders, recorder.inputs):         # those of numbers come after
        placeholder.meta["properties"] = node.state.properties
        if recorder.mutates and node.state.storage is not None:
            storage, offset = node.state.storage
            placeholder.meta["storage"] = groups.setdefault(storage, len(groups)), offset


def compile_graph(unit: Unit, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The backend's callable; when the backend fails the graph runs as it is, and the user is told. It does so too when numbers, or
    tensors of any shape, are among its inputs, and the backend does not know of such."""
    varying = {"number": "numbers that change", "any_shape": "tensors whose shapes change"}
    found = [what for mark, what in varying.items() if any(mark in node.meta for node in gm.graph.nodes)]
    if found and not registry.takes_numbers(unit.backend):
        gm.meta["note"] = f"runs uncompiled: {' and '.join(found)} from call to call are among its inputs, unknown to this backend"
        return _C.Switch(gm.forward)
    try:
        compiled = unit.backend(gm, inputs)
        if not callable(compiled):
            raise TypeError(f"the backend returned a {type(compiled).__name__}, which is not callable")
        return compiled if isinstance(compiled, _C.Switch) else _C.Switch(compiled)     # which is timed now and then
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
