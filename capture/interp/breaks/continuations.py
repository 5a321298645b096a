"""Continuations: ordinary functions that go on in the middle of the program's functions.

For each live frame one function is built with `bytecode`: the frame's own code object, with a prologue that restores the value
stack and jumps to where the frame waits. Its parameters are the frame's live locals, the items of its stack, and, flattened behind
them, the function and the parameters of the frame that it waits for. Cells become its closure. The innermost one takes the value
that it waits for as `__result`; in the raising variant, an exception.

The continuation of a generator's frame is a generator function. If the body waited at a `yield`, starting the continuation brings
it to that `yield`; if it was running, starting the continuation resumes it. Callers are given the generator itself, which holds the
continuation and its parameters (bodies.Dormant).

A continuation is a function like any other: hooked, interpreted, traced, cut again, or run natively. The continuation of a
continuation is made from the program's own code (`positions.own_position`), so that a loop comes back to the same one.
"""
from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.breaks.continuation_code import Codes
from capture.interp.breaks.positions import (
    FIRST,
    Position,
    Slot,
    Suspended,
    closure_names,
    first_in_cell,
    live_while_waiting,
    own_position,
    slot_names,
)
from capture.interp.core import scope, unwind
from capture.interp.core.frame import NONE_VALUE, Frame, Handled, Resume, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import generators
from capture.refgraph.entry_state import PINNED
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import lookup_class, parts
from capture.refgraph.node import Build, Const, Display, Expr, RefNode
from capture.refgraph.source import Attr, Constant, Function, Item

MOST_OBJECTS = 1000     # looked at below a dead local
CONTAINERS = Classes((tuple, list, dict, types.CellType, types.MethodType, types.BuiltinMethodType))


# -- what is alive -----------------------------------------------------------------------------------------------------

def suspend(interp: Interpreter, resume: Resume, given: Iterable[Value] = (), whole: bool = False) -> list[Suspended]:
    """The live frames, outermost first. The innermost one waits for a value; `resume` says what to do with it. given: what the
    operation is given that makes this value. whole: dead locals are kept too, for a debugger to show.

    Raises Break where a frame cannot be continued: it is the body of a class, or was called by an operation of C that cannot be
    resumed half-way.
    """
    frames: list[Suspended] = []
    frame, handled, known = interp.frame, sys.exception(), referable(given)
    while frame is not None:
        if frame.namespace is not None or frame.back is not None and not is_awaited_by_bytecode(frame):
            kind = "class" if frame.namespace is not None else "special method"
            raise Break("opaque-call", f"inside of a {kind} body, {frame.code.co_qualname}")
        suspended, handled = suspend_frame(interp, frame, resume, handled, known, whole)
        if frame.generator is not None:
            body = frame.generator
            suspended.generator = Value(body.alive, interp.graph.find(body.alive))
            handled = body.base
        frames.append(suspended)
        if frame.back is not None:
            resume = resume_of(awaited_by(frame)[0])
        frame = frame.back
    return frames[::-1]


def is_awaited_by_bytecode(frame: Frame) -> bool:
    """Whether the caller of `frame` waits for nothing but its result or exception: so that a continuation can wait in its place."""
    then, on_raise = awaited_by(frame)
    resume: Resume | None = getattr(then, "resume", None)
    return (then is None or resume is not None) and (on_raise is None or resume is not None and resume.takes_stop)


def awaited_by(frame: Frame) -> tuple[Any, Any]:
    """What takes the value that the caller of `frame` waits for, which a generator yields; and what takes an exception."""
    if frame.generator is None:
        return frame.then, frame.on_raise
    return frame.generator.consumer[0], frame.generator.consumer[2]


def resume_of(then: object) -> Resume:
    """What bytecode must do with a value to do what `then` does. Raises Break if nothing says so."""
    if then is None:
        return Resume.PUSH
    resume = getattr(then, "resume", None)
    if resume is None:
        raise Break("opaque-call", "in the middle of an operation of C")
    return resume


def suspend_frame(interp: Interpreter, frame: Frame, resume: Resume, handled: BaseException | None, known: dict[int, Any],
                  whole: bool = False) -> tuple[Suspended, BaseException | None]:
    """One frame, and the exception that was being handled when it was entered; `handled` is being handled now. known: what the
    frames that it waits for may refer to; what this one may comes to it. whole: see `suspend`."""
    code, pc, resume = own_position(frame, resume)
    names = slot_names(frame.code)
    in_cell = {*code.co_cellvars, *code.co_freevars}
    live = live_while_waiting(code, pc, resume)
    by_name = {name: value for name, value in zip(names, frame.locals) if value is not None}
    cells = [by_name[name] if name in by_name else scope.make_cell(interp, None) for name in closure_names(code)]
    known |= referable([*map(by_name.get, live), *frame.stack, *cells])
    whole = whole or any(is_of_autograd(real) for real in known.values())
    bound = tuple(name for name in code.co_varnames if name not in in_cell and name in by_name
                  and (whole or name in live or is_held(interp.graph, by_name[name], known)))
    values = [by_name[name] for name in bound]
    first = first_in_cell(code)
    cell = None if first is None else by_name.get(first)
    if cell is not None and type(cell.real) is types.CellType and scope.is_bound(cell):
        bound, values = (FIRST, *bound), [scope.load_cell(interp, cell, FIRST), *values]
    slots = []
    pending: list[tuple[int, BaseException | None]] = []
    for value in reversed(frame.stack):
        if isinstance(value, Handled) and handled is not None:
            slots.append(Slot.HANDLED)
            pending.append((len(slots), handled))
            handled = value.real
        else:
            slots.append(Slot.NULL if value is None else Slot.OBJECT)
    being_handled = {len(slots) - at: exception for at, exception in pending}
    slots.reverse()
    for at, (slot, item) in enumerate(zip(slots, frame.stack, strict=True)):
        if slot is Slot.HANDLED:
            values.append(unwind.exception_value(interp, being_handled[at]))  # type: ignore[arg-type]
        elif slot is Slot.OBJECT:       # where nothing is handled any more, `RERAISE` will drop what POP_EXCEPT has given back
            values.append(NONE_VALUE if isinstance(item, Handled) else item)
    position = Position(id(code), pc, resume, bound, tuple(slots))
    return Suspended(position, code, frame.globals, scope.globals_shadow(interp, frame), values, cells), handled


def referable(values: Iterable[Value | Handled | None]) -> dict[int, Any]:
    """The objects, by their ids, that code may refer to weakly which has these values: it, or what it calls, may look into plain
    containers, methods and cells."""
    found: dict[int, Any] = {}
    queue = [value.real for value in values if value is not None]
    seen = set(map(id, queue))
    for real in queue:
        if type(real) in CONTAINERS and len(queue) < MOST_OBJECTS:
            inner = [part for part in gc.get_referents(real)[:MOST_OBJECTS] if id(part) not in seen]
            seen.update(map(id, inner))
            queue += inner
        elif type(real).__weakrefoffset__ or is_of_autograd(real):
            found[id(real)] = real
    return found


def is_of_autograd(real: Any) -> bool:
    """Whether an object is a node of autograd, or what one has saved: a part of it, which does not keep it alive. Tensors do. (To
    ask `issubclass` of the program's classes may run code of theirs.)"""
    cls = type(real)
    return cls is torch._C._autograd.SavedTensor or type(cls) is type and (
        getattr(torch._C._functions, cls.__name__, None) is cls or issubclass(cls, torch.autograd.function.BackwardCFunction))


def is_held(graph: RefGraph, value: Value, known: Mapping[int, Any]) -> bool:
    """Whether a dead local must live on as in CPython: something may happen when it dies, or the program has a weak reference to
    it, or may make one, since what goes on knows it: `known`, by their ids. Other tensors, and numbers, just go."""
    shadow = value.shadow
    if isinstance(shadow, Build):
        return any(is_held(graph, Value(real, part), known) for real, part in zip(parts(value.real), shadow.items))
    if not isinstance(shadow, RefNode):
        return False
    if is_a(value.real, torch.Tensor):
        return is_referred_to(graph, value.real)
    if shadow.source is not None:
        return not isinstance(shadow.source, Constant)
    queue, seen = [value.real], set()
    while queue and len(seen) < MOST_OBJECTS:
        real = queue.pop()
        if id(real) in seen or is_a(real, PINNED):
            continue
        seen.add(id(real))
        is_tensor = is_a(real, torch.Tensor)
        if not is_tensor and (id(real) in known or lookup_class(type(real), "__del__") is not None) or is_referred_to(graph, real):
            return True
        if not is_tensor and type(real) is not types.FunctionType:
            queue += gc.get_referents(real)
    return bool(queue)


def is_referred_to(graph: RefGraph, real: Any) -> bool:
    """Whether there are weak references to an object that may call back, or that the trace knows."""
    return any(may_call_back(reference) or graph.find(reference) is not None for reference in weakref.getweakrefs(real))


def may_call_back(reference: Any) -> bool:
    """Whether code may run when what a weak reference refers to dies. A proxy does not tell: it asks what it stands for."""
    return not is_a(reference, weakref.ref) or reference.__callback__ is not None


# -- shadows -----------------------------------------------------------------------------------------------------------

def callee_of(frame: Suspended, code: types.CodeType) -> Value:
    """What calls the continuation of a frame."""
    return function_of(frame, code) if frame.generator is None else constant(generators.go_on)


def function_of(frame: Suspended, code: types.CodeType) -> Value:
    """A continuation as a new function."""
    cells = composite(frame.cells)
    return Value(_C.continuation(code, frame.scope, cells.real), Expr(_C.continuation, (Const(code), frame.globals, cells.shadow)))


def closure_of(frame: Suspended) -> Value:
    """The closure of the outermost frame's continuation: as a whole where it is that of the function which the trace began in."""
    cells = composite(frame.cells)
    whole = Attr(Function(), "__closure__")
    if cells.real and all(getattr(cell.shadow, "source", None) == Item(whole, i) for i, cell in enumerate(frame.cells)):
        return Value(cells.real, Build(tuple, cells.shadow.items, whole))  # type: ignore[attr-defined]
    return cells


def arguments(frames: list[Suspended], codes: Codes) -> list[Value]:
    """What the outermost continuation takes, but for the result."""
    values = list(frames[0].passed)
    for frame, code in zip(frames[1:], codes.codes[1:], strict=True):
        values += [callee_of(frame, code), *frame.passed]
    return values


def constant(real: Any) -> Value:
    return Value(real, Const(real))


def keywords(values: dict[str, Value]) -> Value:
    """A dict of values."""
    shadow = Display(dict, tuple(part for key, value in values.items() for part in (Const(key), value.shadow)))
    return Value({key: value.real for key, value in values.items()}, shadow)


def composite(values: Iterable[Value]) -> Value:
    """A tuple of values."""
    values = list(values)
    return Value(tuple(v.real for v in values), Build(tuple, tuple(v.shadow for v in values)))
