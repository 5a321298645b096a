"""Takes one frame through the stages: interpreter, guards, mock function, backend, cache entry."""
from __future__ import annotations

import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from capture import _C, debug, stances
from capture._C import is_a
from capture.backends import registry
from capture.code_names import argument_names
from capture.config import DISABLE
from capture.cuts import install_cut
from capture.entries import install, install_native
from capture.errors import (
    AssumptionFailed,
    Break,
    CheckFailed,
    ConstraintError,
    GraphBreakError,
    InternalError,
    Reformed,
    UserFrame,
    warn,
)
from capture.guards.explain import Mismatch, of_sizes_alone
from capture.guards.tree import GuardTree
from capture.history import (
    DEFERRED,
    DISABLED,
    FORKED,
    LIMITED,
    LOOKED_AT,
    PREPARING,
    STANCE,
    UNINITIALIZED,
    UNKNOWN_TENSORS,
    BreakReport,
    Times,
    labelled,
    miss_of,
)
from capture.interp import function_models, opcodes
from capture.interp.breaks import leaving_stand_ins, suspended_generators
from capture.interp.core import unwind
from capture.interp.core.frame import Cut, Frame, UserError, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import bodies, generator_methods
from capture.interp.dispatch import accessors, calls
from capture.interp.polyfills.stand_ins import turn_all
from capture.interp.recording import recomputable_tensors, rollback, subclass_unwrapping
from capture.interp.recording.fx_recorder import FxRecorder
from capture.refgraph import memory, size_marks
from capture.refgraph.context import Context
from capture.refgraph.effects import Position
from capture.refgraph.given_values import given_values
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import RefNode, Shadow, source_of
from capture.refgraph.runtime import INVISIBLE
from capture.refgraph.source import Function, Local, Source
from capture.refgraph.value_types import in_own_decimals
from capture.remedies import remedy
from capture.reports import progress
from capture.tracebacks import show_program_frames
from capture.unit import MOST_ENTRIES, Trace, Unit

FRAME_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
REGISTERED = accessors, generator_methods, function_models, opcodes       # imported for the tables they fill
_thread = threading.local()


def is_capturing() -> bool:
    """Whether this thread is inside of a capturing call."""
    return getattr(_thread, "capturing", 0) > 0


def at_work(unit: Unit | None, interpreters: tuple[Interpreter, ...]) -> None:
    """Notes that this thread is capturing a call of a unit, for `is_capturing`. Captures may be nested."""
    _thread.unit, _thread.interpreters, _thread.capturing = unit, interpreters, len(interpreters)


def compiled_unit(function: types.FunctionType, backend: Callable[..., Any], fullgraph: bool, name: str, **settings: Any) -> Unit:
    """Makes a `Unit` whose calls are captured. settings: what else it is told."""
    unit = Unit(function, backend, fullgraph, name, **settings)
    unit.compile(miss, failed)
    return unit


# -- what the frame hook calls -------------------------------------------------------------------------------------------

def miss(unit: Unit, function: types.FunctionType, args: list[Any], tree: GuardTree) -> Any:
    """Called when no entry of `tree` fits a call: captures the call, or returns that it shall run natively."""
    if is_capturing() and not unit.fullgraph and _thread.unit is unit:      # native code of a capture called back
        return _C.RUN_NATIVELY
    if not all(map(is_known_tensor, args)):
        unit.note_native(UNKNOWN_TENSORS)
        return _C.RUN_NATIVELY
    if not stances.lets_capture(unit.name, lambda: tree.explain(function, args)):
        unit.note_native(DISABLED if DISABLE else STANCE)
        return _C.RUN_NATIVELY
    unit.follow(tree)
    if unit.looks_first:
        unit.meet(given_values(argument_names(function.__code__), args))
        unit.note_native(LOOKED_AT)
        return _C.RUN_NATIVELY
    kind = _C.call_kind(args)
    mismatches = tree.explain(function, args)
    full = unit.is_full(kind)
    if full and unit.superseded(kind) is None:
        if mismatches and not unit.limited:     # none: another thread has changed what did not fit
            tell_limit(unit, mismatches)
        unit.compiled._refuse(kind)
        unit.note_native(LIMITED)
        return _C.RUN_NATIVELY
    if unit.defers(kind, mismatches):
        unit.note_native(DEFERRED)
        return _C.RUN_NATIVELY
    if full:
        unit.drop(unit.superseded(kind))
    if tree.entries:
        note_miss(unit, mismatches)
    of_sizes = any(mismatch.is_of_sizes for mismatch in mismatches)
    unit.shapes.begin(not (of_sizes and of_sizes_alone(tree.explain(function, args, every=True))), unit.start == math.inf)
    outgrown = [mismatch.entry for mismatch in mismatches if mismatch.is_of_layout and mismatch.entry.payload.kind == kind]
    if unit.start == math.inf:
        unit.recall()
    outer, start = (getattr(_thread, "unit", None), getattr(_thread, "interpreters", ())), time.perf_counter()
    try:
        with progress.capturing(unit.name):
            outcome = capture(unit, function, args)
    finally:
        unit.spending.add(start, time.perf_counter())
        at_work(outer[0], tuple(interp for interp in outer[1] if not interp.dropped))
    unit.note_superseded(outgrown, start)
    unit.remember()
    if isinstance(outcome, UserError):
        _C.reraise(outcome.exception)
    return outcome.real if isinstance(outcome, Value) else outcome


def note_miss(unit: Unit, mismatches: list[Mismatch]) -> None:
    """Keeps why no entry fitted a call: reports show it, and the next capture specialises less."""
    unit.note_miss(miss_of(mismatches, unit.labels, limited=False))
    failed = [(m.guard.kind.name, str(m.guard.source), m.expected) for m in mismatches if m.guard is not None]
    unit.numbers.missed(failed, continued=unit.parent is not None)


def is_known_tensor(arg: Any) -> bool:
    """Whether an argument is anything but a tensor of an unknown subclass (fake, functional, distributed …), or one that hides its
    own methods."""
    return not is_a(arg, torch.Tensor) or memory.is_plain_class(type(arg)) and not memory.hides_methods(arg)


def tell_limit(unit: Unit, mismatches: list[Mismatch]) -> None:
    """Warns that the recapture limit is reached: calls that no entry fits run natively from now on. The entries stay in use."""
    miss = miss_of(mismatches, unit.labels, limited=True)
    unit.note_miss(miss)
    cause = miss.causes[-1]
    where = "" if cause.place is None else f" ({cause.place})"
    full = MOST_ENTRIES in (unit.limit, len(unit.tree.entries))
    more = "; it can have no more" if full else ", or raise CAPTURE_RECAPTURE_LIMIT, or recompile_limit"
    warn(f"{unit.name} has {len(unit.tree.entries)} entries; calls like this one that none of them fits run natively: "
         f"{cause}{where}. Remedy: {remedy(cause)}{more}.")


def failed(unit: Unit, entry: Any, exception: BaseException) -> Any:
    """Called when a mock function raised, in its graph or in a call that it repeats. If all that it did can be undone, the call
    runs again natively, so that the handlers of the program see its own exception; else the traceback is rewritten to the lines of
    the program."""
    trace: Trace = entry.payload
    if isinstance(exception, InternalError):
        return None
    assert trace.mock is not None
    line = trace.mock.line_of(exception)
    again = isinstance(exception, Exception) and not unwind.is_asynchronous(exception) and (
        isinstance(exception, CheckFailed) or trace.mock.can_run_again(line, trace.repeatable))
    if again:
        trace.mock.put_back(exception)
    if isinstance(exception, CheckFailed):
        if isinstance(exception, (AssumptionFailed, Reformed)) and not unit.fullgraph:      # the next capture does without
            unit.numbers.disappointed(exception)
            unit.drop(entry)
        return _C.RUN_NATIVELY
    if again:
        return _C.RUN_NATIVELY
    hidden = frozenset({trace.mock.filename, INVISIBLE, rollback.__file__, subclass_unwrapping.__file__})
    show_program_frames(exception, unit.function, trace.graph_module, hidden, trace.mock.calls.get(line, ()))
    return None


def forked() -> None:
    """Called in the child after a fork: calls that were being captured go on natively where possible, and install nothing. Later
    calls are captured as in any process."""
    _C.note_fork()
    for interp in getattr(_thread, "interpreters", ()):
        interp.drop()
    at_work(None, ())


os.register_at_fork(after_in_child=forked)

for _entry in (miss, failed, GuardTree.explain):        # a torch.compile around us leaves our own code alone
    eval_frame.set_code_exec_strategy(_entry.__code__, FRAME_SKIP)


# -- one call ------------------------------------------------------------------------------------------------------------

def capture(unit: Unit, function: types.FunctionType, args: list[Any]) -> Value | UserError | _C.TailCall:
    """Runs one call in the interpreter and installs an entry for calls like it. args: the frame's arguments, in the order of its
    fast locals.

    Returns the outcome of the call or, if the trace was cut, a TailCall with what is left to do. Raises GraphBreakError under
    fullgraph, after the call has ended, and InternalError in strict mode.
    """
    run = Run(unit, _C.call_kind(args))
    graph = RefGraph(unit.shapes, run)
    recorder = FxRecorder(graph, unit.numbers, *((math.inf,) if unit.fullgraph else ()))
    interp = run.interp = Interpreter(graph, recorder, None if unit.fullgraph else unit.early_breaks)
    at_work(unit, (*getattr(_thread, "interpreters", ()), interp))
    graph.require(None, "MODES", _C.modes())
    root = Value(function, graph.external(function, Function()))
    frame = calls.make_root_frame(interp, root, [
        Value(arg, interp.track(graph.external, arg, Local(name, index)))
        for index, (arg, name) in enumerate(zip(args, function.__code__.co_varnames))])
    args.clear()
    bodies.watch(interp, filter(None, frame.locals))
    handled = sys.exception()
    run.begin()
    times = Times(time.perf_counter())
    unit.begin(times.start)
    outcome: Value | UserError
    try:
        with times.measure("run"):
            left = run_frame(interp, frame)
        if isinstance(left, Cut):           # outside of `except`: the exception being handled is the program's
            interp.left_by_cut()
            if text := contradiction(unit, graph):      # the call is in the midst of what it does
                warn(text)
            rest = interp.track(install_cut, unit, interp, left, recorder.mutations.is_harmless(), times)
            if rest is not None:
                return rest
            outcome = interp.go_on(lambda: finish(interp, left))
        else:
            outcome = left
        conclude(unit, interp, outcome, recorder.mutations.is_harmless(), times)
    except UserError as error:
        outcome = error.with_traceback(None)        # which holds this frame
        conclude(unit, interp, outcome, recorder.mutations.is_harmless(), times)
    finally:
        unwind.set_handled(handled)
        interp.end()
        run.end()
        graph.release()
    return outcome


class Run(Context):
    """The run of one call by `interp`, which is None before the call begins and after it has ended."""

    def __init__(self, unit: Unit, kind: int) -> None:
        self.unit = unit
        self.kind = kind
        self.interp: Interpreter | None = None
        self.begun = False                          # the interpreter has got the arguments

    def begin(self) -> None:
        """The program begins to run."""
        self.begun = True

    def end(self) -> None:
        """The program no longer runs."""
        self.interp = None

    def position(self) -> UserFrame | None:
        return None if self.interp is None or not self.begun else self.interp.place()

    def died(self, node: RefNode) -> None:
        if self.interp is not None:
            self.interp.died(node)

    def replaced(self) -> None:
        if self.interp is not None:
            self.interp.replaced()

    def positions(self) -> tuple[Position, ...]:
        return () if self.interp is None else self.interp.positions()

    def can_cut(self) -> bool:
        return self.interp is not None and self.interp.can_cut

    def takes_backward(self) -> bool:
        return registry.takes_backward(self.unit.backend)

    def takes_numbers(self) -> bool:
        return registry.takes_numbers(self.unit.backend)

    def takes_autograd_functions(self) -> bool:
        return registry.takes_autograd_functions(self.unit.backend)

    def path_to(self, shadow: Shadow) -> Source | None:
        return source_of(shadow) if self.interp is None else recomputable_tensors.path_to(self.interp.recorder, shadow)

    def changes_often(self, source: Source, kind: str) -> str | None:
        often = self.can_cut() and self.interp.at_call and self.unit.numbers.changes_often(source, kind)  # type: ignore[union-attr]
        return str(labelled(source, self.unit.labels)) if often else None

    def took_fewer(self) -> bool:
        return self.position() in self.unit.numbers.short


def run_frame(interp: Interpreter, frame: Frame) -> Value | Cut:
    """Runs a call to its end, or to the operation before which its trace is cut. Raises UserError."""
    try:
        return interp.run(frame)
    except Cut as cut:
        return cut.with_traceback(None)


def finish(interp: Interpreter, cut: Cut) -> None:
    """Runs the rest of the call after a cut that could not be made. Raises UserError."""
    if isinstance(cut.outcome, UserError):
        raise cut.outcome
    if cut.outcome is not None:
        return interp.deliver(cut.outcome, cut.then)
    calls.call_native(interp, cut.function, cut.args_, cut.kwargs, cut.then, cut.on_raise)


def conclude(unit: Unit, interp: Interpreter, outcome: Value | UserError, repeatable: bool, times: Times) -> None:
    """Installs an entry for calls like the one that has ended: its trace, or the reason for a native run.

    Raises GraphBreakError under fullgraph, and ConstraintError: only now, so that no `with` or `finally` of the program is cut
    short.
    """
    if isinstance(outcome, UserError):
        unit.note_raised()
    if interp.dropped:
        if not isinstance(outcome, UserError):
            unit.note_native(FORKED)
        return
    if not isinstance(outcome, UserError) and (text := contradiction(unit, interp.graph)):
        raise ConstraintError(text)
    if isinstance(outcome, UserError):
        exception = outcome.exception
        if interp.is_unrepeatable(exception) or not isinstance(exception, Exception) or unwind.is_asynchronous(exception):
            return                  # calls like this one may well end otherwise
        interp.ended_by(exception)
    elif interp.track(install_whole, unit, interp, outcome, repeatable, times) is not None:
        return
    turn_all([node.real for node in interp.graph.nodes], calls.in_use(interp))
    assert interp.broken is not None
    reason, stack = interp.broken
    if unit.fullgraph and reason.reason.id == "uninitialized-tensor" and not isinstance(outcome, UserError):
        unit.note_native(UNINITIALIZED)         # they have been by now
        return
    if reason.reason.id == "preparing":
        if not isinstance(outcome, UserError):
            unit.note_native(PREPARING)
        return
    report = BreakReport(reason.reason, reason.context, stack)
    if reason.reason.id != "raised":
        is_bailout = reason.reason.id in ("internal-fault", "untracked-mutation")
        (unit.note_bailout if is_bailout else unit.note_break)(report)
    if unit.fullgraph and not isinstance(outcome, UserError):
        raise GraphBreakError(reason.reason, reason.context, stack)
    debug.broken(unit.name, report)
    if interp.breaks_earlier:
        unit.admission.try_again()      # the next call like this one is captured up to a place where the trace can be cut
    else:
        install_native(unit, interp, report, times)


def contradiction(unit: Unit, graph: RefGraph) -> str:
    """The sentence on a size that the trace fixes against what the program says of it; empty if there is none."""
    if graph.heeded is not None and graph.heeded.problems:
        return f"{unit.name}: {graph.heeded.problems[0]}. Remedy: pass sizes that fit shapes_spec, or change it."
    found = size_marks.contradiction(graph.marks, graph.requirements)
    if found is None:
        return ""
    source, what, key = found
    tensor, dim = source.args  # type: ignore[attr-defined]
    where = f" ({graph.places[key]})" if key in graph.places else ""
    instead = "mark another range" if key is None else "use maybe_mark_dynamic, or change what depends on the size"
    return f"{unit.name}: size {dim.value} of {labelled(tensor, unit.labels)} {what}{where}. Remedy: {instead}."


def install_whole(unit: Unit, interp: Interpreter, outcome: Value, repeatable: bool, times: Times) -> Shadow:
    """Makes a cache entry of the trace of a call from its beginning to its end. Raises Break when it cannot be replayed."""
    graph = interp.graph
    graph.sweep(0)
    dormant = suspended_generators.dormant_generators(interp, [], unit.bodies)
    leaving_stand_ins.let_out(interp, [outcome])
    if in_own_decimals(graph):
        raise Break("changing-global-state", "a decimal context is set, and not restored")
    assert outcome.shadow is not None
    install(unit, interp, outcome.shadow, [outcome], dormant, repeatable, None, times)
    return outcome.shadow
