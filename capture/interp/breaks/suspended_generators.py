"""Suspended generators, which outlive a trace that is cut: hits make them, or bring them to where they stand, by continuations of
their bodies."""
from __future__ import annotations

import types
from dataclasses import dataclass

from capture.errors import Break
from capture.interp.breaks import continuation_code, continuations, positions
from capture.interp.breaks.continuation_code import Codes
from capture.interp.breaks.continuations import constant
from capture.interp.breaks.positions import Position, Suspended
from capture.interp.core import generator_drivers
from capture.interp.core.frame import Resume, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import generators
from capture.interp.coroutines.generators import Body, State
from capture.refgraph.node import Const, DormantState, Expr, Shadow

NOTHING = constant(None)
STANDING = {State.CREATED: Resume.PUSH, State.SUSPENDED: Resume.YIELD}


@dataclass(frozen=True, slots=True, eq=False)
class DormantGenerator:
    """A generator body and its record (`generators.Dormant`), part by part."""

    body: Body
    record: tuple[Value, Value, Value, Value]

    @property
    def shadows(self) -> tuple[Shadow, ...]:
        return tuple(part.shadow for part in self.record)


def dormant_generators(interp: Interpreter, chains: list[tuple[list[Suspended], Codes]],
                       known: dict[Position, types.CodeType]) -> list[DormantGenerator]:
    """The saved states of the bodies of this capture's generators, which the graph learns. chains: the live frames and their
    continuations, some of them bodies; there are none at the end of a call. known: the continuations of bodies that do not run, by
    position; further ones are added. Raises Break for a body that cannot be continued."""
    found = []
    for frame, code, ends in ((frame, code, codes if frame is frames[-1] else None)
                              for frames, codes in chains for frame, code in zip(frames, codes.codes)):
        if frame.generator is not None:             # the innermost one awaits the result itself, and not an inner continuation
            raising = NOTHING if ends is None else continuations.function_of(frame, ends.raising)
            body = generators.body_of(frame.generator.real)
            if body.kind == "async generator":  # type: ignore[union-attr]
                raise Break("opaque-call", f"inside of an asynchronous generator, {frame.code.co_qualname}")
            found.append(_dormant(body, State.RUNNING, continuations.function_of(frame, code), frame.values, raising))  # type: ignore[arg-type]
    running = {dormant.body for dormant in found}
    for body in [*interp.generators.resumed, *interp.generators.made]:
        lives = body in interp.generators.resumed or body.reference() is not None and body.kind != "async generator"
        if not lives or body in running:
            continue
        try:
            found.append(_saved_state(interp, body, known))
        except Break:
            if chains or body in interp.generators.resumed:
                raise               # else it may be garbage: where the result leads to it, it cannot be made
    for dormant in found:
        _describe(interp, dormant)
    return found


def _saved_state(interp: Interpreter, body: Body, known: dict[Position, types.CodeType]) -> DormantGenerator:
    """The saved state of a generator that is suspended or finished, or that waits on the same call as before."""
    if body.awaiting is not None:
        function, values, raising = body.awaiting
        return _dormant(body, body.state, function, values, raising)
    if body.state is State.FINISHED:
        return _dormant(body, body.state, NOTHING, [], NOTHING)
    kind = STANDING[body.state]
    frame, _ = continuations.suspend_frame(interp, body.frame, kind, body.handled, {})
    code = known.get(frame.position)
    if code is None:
        names = [positions.RESULT] if kind is Resume.PUSH else []
        code = known[frame.position] = continuation_code.continuation(frame.code, frame.position, inner=names)
    return _dormant(body, body.state, continuations.function_of(frame, code), frame.values, NOTHING)


def _dormant(body: Body, state: State, function: Value, values: list[Value], raising: Value) -> DormantGenerator:
    return DormantGenerator(body, (constant(state.value), function, continuations.composite(values), raising))


def _describe(interp: Interpreter, dormant: DormantGenerator) -> None:
    """Says how a hit makes the generator, or what becomes of one from outside."""
    graph, body = interp.graph, dormant.body
    if body in interp.generators.resumed:
        graph.effect(generators.become_dormant, interp.generators.resumed[body], *dormant.shadows)
        return
    real = body.reference()
    node = graph.find(real)
    if node is not None:
        flags = Const(body.frame.code.co_flags & generator_drivers.FLAGS)
        node.origin = Expr(generators.blank, (flags, Const(real.__name__), Const(real.__qualname__)))
        node.state = DormantState(generators.become_dormant, dormant.shadows)


def make_dormant(found: list[DormantGenerator]) -> None:
    """Makes all generators of a trace that has ended dormant."""
    for dormant in found:
        dormant.body.lie_down(tuple(part.real for part in dormant.record))
