"""A trace that is cut before an operation: its cache entry, and where the program goes on after the operation."""
from __future__ import annotations

import functools
import itertools
import os
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture.entries import entry_modes, install
from capture.errors import REASONS, user_frames
from capture.history import BreakReport, Times
from capture.interp.breaks import (
    continuation_code,
    continuations,
    idle_loops,
    leaving_stand_ins,
    libraries,
    positions,
    suspended_generators,
)
from capture.interp.core import program_frames, unwind
from capture.interp.core.frame import Cut, UserError, Value, frames_from
from capture.interp.core.interpreter import Interpreter
from capture.interp.dispatch import debuggers
from capture.refgraph.node import Const, TensorState
from capture.refgraph.recipes import Perform
from capture.refgraph.shapes import Shapes, of_any_shape
from capture.resumption import Loop, Rest, Resumption, natively, replay
from capture.unit import Unit


def install_cut(unit: Unit, interp: Interpreter, cut: Cut, repeatable: bool, times: Times) -> _C.TailCall:
    """Makes a cache entry of a trace that ends before an operation. Returns a TailCall that performs the operation and calls the
    continuation. Raises Break if there can be no continuation."""
    graph, recorder = interp.graph, interp.recorder
    performs = cut.function.real is debuggers.pending
    given = (cut.function, *cut.args_, *cut.kwargs.values())
    live = continuations.suspend(interp, continuations.resume_of(cut.then), given, whole=performs)
    left = 0 if performs else libraries.left_to_cpython(interp.frame, live, recorder)
    frames, inner = live[:len(live) - left], live[len(live) - left:]
    context = libraries.in_words(cut.reason, inner) if inner else cut.reason.context
    report = BreakReport(cut.reason.reason, context, cut.reason.stack or interp.stack())
    stand_ins = stand_ins_of(interp)
    resumption = resumption_at(unit, frames, stand_ins[:len(frames)], report, performs)
    taken = continuations.arguments(frames, resumption.codes)
    if any(isinstance(node.state, TensorState) and node.state.dynamic for node in graph.nodes):
        parameters = zip(resumption.codes.codes[0].co_varnames, (value.shadow for value in taken))
        resumption.units[0].shapes.note_known(of_any_shape(parameters, [cell.shadow for cell in frames[0].cells]))
    graph.depend(cut.function.shadow, cut.function.real)
    entered, left_grad = entry_modes(graph).grad, torch.is_grad_enabled()
    handling = any(positions.Slot.HANDLED in frame.position.stack for frame in frames)
    chains = [(frames, resumption.codes)]
    operation = Operation(cut.function, cut.args_, cut.kwargs)
    if inner:
        codes = unit.rest(inner)
        chains.append((inner, codes))
        operation = rest_of(frames, inner, codes, stand_ins, operation)
    arguments = [
        continuations.closure_of(frames[0]),
        continuations.composite(taken),
        continuations.composite(Value(frame.scope, frame.globals) for frame in frames),
        continuations.constant(None if entered == left_grad else left_grad),
        unwind.exception_value(interp, sys.exception()) if handling else continuations.constant(None)]  # type: ignore[arg-type]
    everything = continuations.composite([*arguments, *operation.parts])
    graph.sweep(0)
    dormant = suspended_generators.dormant_generators(interp, chains, unit.bodies)
    leaving_stand_ins.let_out(interp, given, live, cut.function.real)
    proceed = Perform(_C.TailCall, (Const(resumption), Const(None), everything.shadow))
    works = idle_loops.works(frames[-1], len(frames) - 1, recorder)
    install(unit, interp, proceed, [*arguments, *operation.held], dormant, repeatable, report, times)
    unit.note_break(report)
    if report.reason.id == "long-loop":
        resumption.leave_loop(lambda: idle_loop(unit.root, resumption, frames, report))
    elif unit.resumption is not None:
        unit.resumption.notice(resumption, works)
        resumption.look_for_idle_loop(lambda: idle_loop(unit.root, resumption, frames, report))
    call = tuple(part.real for part in (operation if cut.outcome is None else operation.performed(cut.outcome)).parts)
    return _C.TailCall(resumption, None, (*everything.real[:-3], *call))


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation between two traces, which no trace can hold."""

    function: Value
    args: list[Value]
    kwargs: dict[str, Value]
    inner: Operation | None = None      # that it makes first, given as the last three of its arguments

    @property
    def parts(self) -> list[Value]:
        return [self.function, continuations.composite(self.args), continuations.keywords(self.kwargs)]

    @property
    def held(self) -> list[Value]:
        """All values that it uses, for `verify`."""
        if self.inner is None:
            return [self.function, *self.args, *self.kwargs.values()]
        return [*self.args[:-3], *self.inner.held]

    def performed(self, outcome: Value | UserError) -> Operation:
        """The same operation when the C function has been called already: it returns or raises what that did."""
        if self.inner is None:
            return Operation(continuations.constant(replay), [Value(outcome, None)], {})
        inner = self.inner.performed(outcome)
        return Operation(self.function, [*self.args[:-3], *inner.parts], {}, inner)


def rest_of(outer: list[positions.Suspended], frames: list[positions.Suspended], codes: continuation_code.Codes,
            stand_ins: tuple[types.CodeType | None, ...], operation: Operation) -> Operation:
    """The operation, followed by the rest of the call of an installed package that it is a part of."""
    chain = [continuations.callee_of(frames[0], codes.codes[0]), *continuations.arguments(frames, codes)]
    at = len(chain) - 1 - len(frames[-1].passed)        # of the innermost one's continuation
    scopes = [continuations.composite(Value(frame.scope, frame.globals) for frame in part) for part in (outer, frames)]
    rest = continuations.constant(Rest(stand_ins, codes, at))
    return Operation(rest, [*scopes, continuations.composite(chain), *operation.parts], {}, operation)


# -- where the program goes on after a break -----------------------------------------------------------------------------

def stand_ins_of(interp: Interpreter) -> tuple[types.CodeType | None, ...]:
    """For each live frame, outermost first, the stand-in frame that a callee shall see as its caller."""
    return tuple(map(program_frames.stand_in_of, frames_from(interp.frame)))[::-1]


def resumption_at(unit: Unit, frames: list[positions.Suspended], stand_ins: tuple[types.CodeType | None, ...],
                  report: BreakReport, performs: bool = False) -> Resumption:
    """The continuations at the positions of `frames`: those known already, or new ones. performs: the continuations run natively,
    and the innermost makes the call itself (for debuggers)."""
    key = *(frame.position for frame in frames), performs
    known = unit.resumptions.get(key)
    if known is None:
        codes = continuation_code.build(frames, performs)
        functions = tuple(itertools.accumulate((frame.taken + 1 for frame in frames[:-1]), initial=-1))[1:]
        make_unit = maker(unit, frames[0].scope, codes, report, performs)
        known = Resumption(codes, stand_ins, functions, make_unit, not frames[0].code.co_cellvars)
        unit.add_resumption(key, known)
    return known


def maker(unit: Unit, scope: dict[str, Any], codes: continuation_code.Codes, report: BreakReport,
          native: bool) -> Callable[[types.CodeType, Resumption], Unit]:
    """A function that makes the unit of an outermost continuation after a break of `unit`. scope: its globals. native: it runs
    natively."""
    where = user_frames(report.stack)[-1]
    name = f"{unit.root.name} resumed at {os.path.basename(where.file)}:{where.line}"
    shapes = Shapes(positions.RESULT)

    def make_unit(code: types.CodeType, resumption: Resumption) -> Unit:
        cells = tuple(types.CellType() for _ in code.co_freevars)
        function = types.FunctionType(code, scope, code.co_name, None, cells)
        made = Unit(function, unit.backend, False, name, parent=unit, resumed=report, resumption=resumption,
                    resumptions=unit.resumptions, bodies=unit.bodies, rests=unit.rests, early_breaks=unit.early_breaks,
                    spending=unit.spending, labels=codes.labels, shapes=shapes, most=unit.most, dynamic=unit.dynamic)
        made.leave_to_cpython() if native else made.compile(*unit.handlers)
        return made
    return make_unit


def idle_loop(unit: Unit, resumption: Resumption, live: list[positions.Suspended], report: BreakReport) -> Loop | None:
    """Leaves the loop of the innermost frame to CPython, if its iterations have no tensor operation (`Loop`); what follows the loop
    is captured. None if that is not possible."""
    idle = BreakReport(REASONS["idle-loop"], report.context, report.stack)
    owner = weakref.ref(unit)       # which owns the code that holds `go_on`, and code is unknown to the garbage collector

    def go_on(left: idle_loops.Left) -> _C.TailCall:
        root, rest = owner(), [left.outline()]
        known = None if root is None else resumption_at(root, rest, (None,), idle)
        codes = continuation_code.build(rest) if known is None else known.codes
        function = types.FunctionType(codes.codes[0], left.scope, left.code.co_name, None, left.cells)
        if known is None:
            return _C.TailCall(function, None, (*left.values, None))
        return known.proceed(function, left.values, None, False)

    if any(frame.generator is not None for frame in live):
        return None
    *outer, innermost = frames = [frame.outline() for frame in live]
    if outer and any(positions.Slot.HANDLED in frame.position.stack for frame in frames):
        return None
    made = idle_loops.left_to_cpython(innermost.code, innermost.position, idle_loops.itself if outer else go_on)
    if made is None:
        return None
    tell = functools.partial(unit.note_break, idle)
    variants = tuple((code, natively(code, innermost.scope)) for code in made)
    if not outer:
        return Loop(variants, tell)
    stand_ins = resumption.stand_ins[:-1]
    return Loop(variants, tell, resumption_at(unit, outer, stand_ins, idle),
                lambda left: resumption_at(unit, [*outer, left.outline()], (*stand_ins, None), idle))
