"""Tensor operations that may fail on a hit, because they fail for some values of their arguments.

A call whose graph fails runs again natively, so that the program's effects and handlers come in their order. Before that, changes
are undone as far as possible (`undo_log`, `rollback.Before`). Where they cannot be undone, effects in Python before the first of
these operations are made before the graph, if they need only the state at entry. Where a handler of the program is in force, no
trace holds such an operation together with the change: it is cut between them, unless a guard can promise that the operation does
not raise (`index_ranges.py`).
"""
from __future__ import annotations

import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from capture._C import is_a
from capture.errors import Break, is_internal
from capture.interp.core.frame import Frame, Value
from capture.interp.core.instructions import Cover, Does, decode, decoded, does, exception_table
from capture.interp.core.interpreter import Interpreter
from capture.interp.recording import fx_numbers, index_ranges, rollback, shape_rules, tensors
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.undo_log import MOST_BYTES
from capture.operators.beyond_schemas import MAKING, SIZING
from capture.operators.facts import facts_of
from capture.refgraph.effects import CallEffect, Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import parts
from capture.refgraph.node import Build, Const, Expr, External, RefNode, Shadow, source_of
from capture.refgraph.recipes import Perform
from capture.refgraph.source import Computed

NUMBERS = Classes((int, float))


def note(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Notes an operation that is about to be recorded, if it may fail for values that only a hit meets. Returns whether it may."""
    if not may_fail(interp, real, args, kwargs):
        return False
    may_raise(interp, index_ranges.promises(interp.recorder, real, args, kwargs) if is_watched(interp.frame) else None)
    return True


def may_raise(interp: Interpreter, promises: list[Computed] | None = None) -> None:
    """Notes that the graph may raise from here on, unless guards promise that it does not."""
    interp.recorder.expectations.may_raise(len(interp.graph.effects), is_watched(interp.frame), has_acted(interp), promises)


def may_fail(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether an operation raises for some values of its arguments."""
    facts, values = facts_of(real), [*args, *kwargs.values()]
    follows = facts.is_of_torch and not facts.is_of_program         # … what it does from its arguments
    if index_ranges.are_known(interp.recorder, real, args, kwargs) or follows and is_repeated(interp, values):
        return False
    exact = not any(is_of_floats(value.real) for value in values)
    if any(is_moving(interp, value.shadow, value.real) for value in values[1:]) and (exact or not facts.is_pointwise):
        return True
    if any(tensors.is_dynamic_shape(value.shadow) for value in values) and not (facts.is_pointwise and len(args) == 1):
        return True             # shapes may not go together, or be empty
    if interp.recorder.sizes.are_free(values) and shape_rules.may_fail(real, args):
        return True
    if index_ranges.are_in_range(interp.recorder, real, args, kwargs):
        return False
    if facts.takes_subscript:
        return fx_numbers.has_read(args[1].shadow)
    rounding = kwargs.get("rounding_mode")
    if facts.divides(rounding and rounding.real):
        divisor = args[0] if tensors.operation_name(real).startswith("__r") else values[1]
        return exact and not isinstance(divisor.shadow, Const)
    if facts.name in SIZING and any(fx_numbers.has_read(arg.shadow) for arg in args[facts.name not in MAKING:]):
        return True
    return facts.may_raise([value.real for value in values])


def is_repeated(interp: Interpreter, values: list[Value]) -> bool:
    """Whether an operation with these arguments is the same on each hit: of tensors whose values follow from constants, and numbers
    that stay as they are."""
    return not interp.recorder.sizes.are_free(values) and all(
        interp.recorder.numbers_behind(value.real) == [] if is_a(value.real, torch.Tensor) else
        stays(interp, value.shadow, value.real) for value in values)


def stays(interp: Interpreter, shadow: Shadow | None, real: Any) -> bool:
    """Whether an argument that is no tensor is the same on each hit."""
    if isinstance(shadow, Build):
        return is_a(real, tuple) and all(stays(interp, item, part) for item, part in zip(shadow.items, parts(real)))
    return isinstance(shadow, Const) or isinstance(shadow, External) and not is_moving(interp, shadow, real)


def is_of_floats(real: Any) -> bool:
    """Whether a value is a float, or a tensor of floats."""
    return is_a(real, float) or is_a(real, torch.Tensor) and (
        torch.Tensor.is_floating_point(real) or torch.Tensor.is_complex(real))


def is_moving(interp: Interpreter, shadow: Shadow | None, real: Any) -> bool:
    """Whether an argument is, or holds, a number that changes from call to call. (A slice is never out of range.)"""
    if isinstance(shadow, Build):
        return is_a(real, tuple) and any(is_moving(interp, item, part) for item, part in zip(shadow.items, parts(real)))
    if not isinstance(shadow, (External, Expr)) or type(real) not in NUMBERS:
        return False
    source = source_of(shadow)
    return source is None or interp.recorder.seen.may_vary(source, real)


# -- who would tell ----------------------------------------------------------------------------------------------------

def comes_early(interp: Interpreter, effect: Effect | CallEffect) -> bool:
    """Whether an effect comes before the graph, wherever it stands."""
    return effect in interp.graph.early if isinstance(effect, CallEffect) else effect.early


def has_acted(interp: Interpreter, since: int = 0) -> bool:
    """Whether the trace has effects, but for so many, that come after the graph: where that raises, they are missing."""
    return any(not comes_early(interp, effect) for effect in interp.graph.effects[since:])


def is_watched(frame: Frame | None) -> bool:
    """Whether code that counts runs if an exception is raised now, see `is_handler_of_program`."""
    while frame is not None:
        if any(is_handler_of_program(frame, cover) for cover in covers(frame.code, frame.pc - 1)):
            return True
        frame = frame.back
    return False


def covers(code: types.CodeType, at: int) -> Iterator[Cover]:
    """What takes over an exception that is raised by the instruction of this index, from the inside out."""
    while (cover := next((c for c in exception_table(code) if c.start <= at < c.end), None)) is not None:
        yield cover
        at = cover.target


def handles(code: types.CodeType, cover: Cover) -> str:
    """How a program takes over an exception: by a "handler" or by a block of "with". Empty for what the compiler has added."""
    first, second = decode(code)[cover.target:cover.target + 2]
    if Does.HANDLES not in does(first):
        return ""
    return "with" if Does.EXITS in does(second) else "handler"


def is_handler_of_program(frame: Frame, cover: Cover) -> bool:
    """Whether a handler is the program's: neither torch's own, nor one that the compiler has added, nor that of a `with` block of a
    file or of one of torch's classes, which set modes and put them back. A generator that manages a context, also one of torch's,
    may put back anything, such as the state of random numbers."""
    kind = handles(frame.code, cover)
    if kind != "with":
        return kind == "handler" and not is_internal(frame.code.co_filename)
    exit = frame.stack[cover.depth - 1]
    manager = getattr(None if exit is None else exit.real, "__self__", None)
    return not str(type(manager).__module__).startswith(("torch.", "_io"))


def is_handled(nodes: Iterable[fx.Node]) -> bool:
    """Whether any of these operations was recorded inside of a `try` of the program's."""
    places = {(code, offset) for node in nodes for code, offset, _ in node.meta.get("stack", ())}
    return any(not is_internal(code.co_filename) and any(
        handles(code, cover) == "handler" for cover in covers(code, decoded(code).index[offset])) for code, offset in places)


# -- what is done about it ---------------------------------------------------------------------------------------------

def refusal(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Break | None:
    """Why an operation must not follow what the trace has changed; None if it may."""
    mutations, expectations = interp.recorder.mutations, interp.recorder.expectations
    if mutations.can_take_back() or not may_fail(interp, real, args, kwargs):
        return None
    since = expectations.effects_before_collective
    if since is not None and has_acted(interp, since):
        return Break("failing-operation", f"{tensors.operation_name(real)}() after effects that would be missing if it raised")
    if not is_watched(interp.frame):
        return None
    promises = index_ranges.promises(interp.recorder, real, args, kwargs)
    if promises is not None:
        for promise in promises:
            interp.graph.require(promise, "VALUE", True)
        return None
    change = "a write to a tensor" if mutations.changes else "gradients were dropped"
    return Break("failing-operation", f"{tensors.operation_name(real)}() after {change}")


def before(recorder: FxRecorder) -> Perform | None:
    """What undoes the changes of the call if its graph fails, so that it can run again. None if nothing is changed, if the program
    could not notice, or if a change cannot be undone and nothing is checked before it."""
    mutations, expectations = recorder.mutations, recorder.expectations
    dropped, streams, draws = recorder.refs.dropped, streams_drawn(recorder.refs), mutations.has_drawn()
    if not (mutations.changes or dropped or streams or draws):
        return None
    written, whole = mutations.overwritten.inputs, mutations.can_take_back()
    if not whole or not expectations.fails and not expectations.takes_back and (
            mutations.kept_bytes > MOST_BYTES or expectations.effects_before is None and not is_handled(recorder.fx.nodes)):
        if expectations.stop is None and (whole or not expectations.checks):
            return None
        written = expectations.stop or {}       # a check comes before other writes, and what it does not find is found before them
    storages = {node.state.storage[0] for node in written}
    copied = (node for node, size in written.items() if size)
    counted = [node for node in recorder.inputs.tensors if node.state.storage is not None and node.state.storage[0] in storages]
    kept = (Build(tuple, tuple(nodes)) for nodes in (copied, counted, dropped, streams))
    return Perform(rollback.Before, (*kept, Const(draws)))


def streams_drawn(graph: RefGraph) -> list[RefNode]:
    """The streams of random numbers from which is drawn before the graph: they are set back for the call to run again."""
    drawn = dict.fromkeys(effect.stream for effect in graph.effects if isinstance(effect, CallEffect) and effect in graph.early)
    return [stream for stream in drawn if stream is not None and not issubclass(stream.cls, random.SystemRandom)]


def acted_before(recorder: FxRecorder) -> int:
    """How many effects come before the first operation that may raise, of a graph after which the call cannot run again."""
    expectations = recorder.expectations
    checks = expectations.checks or expectations.stop is not None
    return 0 if recorder.mutations.can_take_back() or checks else expectations.effects_before or 0
