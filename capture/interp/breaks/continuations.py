"""Continuations: ordinary functions that go on in the middle of the program's.

For each live frame one function is built with `bytecode`: the code object of the frame's, with a prologue that puts the
value stack as it was and jumps to where the frame waits. Its parameters are the frame's live locals, the items of its
stack, and, flattened behind them, the function and the parameters of the frame that it waits for; cells become its closure.
The innermost one takes what it waits for as `__result`: a value, or, in the raising variant, an exception.

The continuation of a generator's frame is a generator function. A body that stands at a `yield` comes to stand there when the
continuation is started; one that runs goes on when it is. What is passed on in its place is the generator, which has the
continuation and its parameters (generators.Dormant).

A continuation is a function like any other: hooked, interpreted, traced, cut anew, or run natively. What is made of a
continuation again goes back to the program's own code (`_origins`), so that a loop comes back to the same one.
"""
from __future__ import annotations

import gc
import itertools
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from bytecode import Bytecode, CellVar, FreeVar, Instr, Label, TryBegin, TryEnd

from capture import _C
from capture.errors import Break
from capture.interp.core import generator_shims, scope, unwind
from capture.interp.core.frame import Frame, Handled, Resume, Value
from capture.interp.core.instructions import (
    ASK_TRUTH,
    NULL_FIRST,
    Does,
    decode,
    decoded,
    does,
    exception_table,
    plain,
    shown,
    successors,
    taken_in,
)
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import generators
from capture.refgraph.graph import PINNED
from capture.refgraph.lookup import lookup_class, parts
from capture.refgraph.node import Build, Const, Display, Expr, RefNode, Shadow
from capture.refgraph.source import Attr, Constant, Function, Item

Exits = dict[int, tuple[int, Callable[..., Any]]]
RESULT = "__result"
MOST_OBJECTS = 1000     # looked at below a dead local
JUMP_IF_FALSE = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"
ATTRIBUTE_VALUE: Any = "value" if sys.version_info < (3, 12) else (False, "value")     # LOAD_ATTR's argument
LOAD_CELL = "LOAD_CLOSURE" if sys.version_info < (3, 13) else "LOAD_FAST"
# What asks for a cell by the name of its slot, as LOAD_CELL does, or puts variables of an inlined comprehension there.
OF_SLOTS = frozenset(() if sys.version_info < (3, 13) else ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST"))
# Names by which a function may look at its own locals, so that none of them is dead.
INTROSPECTION = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint", "set_trace"})


class Slot(Enum):
    """What is in one place of a value stack: an object; CPython's NULL; the exception that was handled before the one that is
    handled from there on."""

    OBJECT = "object"
    NULL = "null"
    HANDLED = "handled"


@dataclass(frozen=True)
class Position:
    """Where a frame waits, in the program's own code: before `decode(code)[pc]`, for a value that `resume` says what to do with.

    `bound`: the live locals that are bound, in order. `cells`: names of cells, in the order of the continuation's closure.
    Code objects are compared by identity: equal ones may hold different constants.
    """

    code_id: int
    pc: int
    resume: Resume
    bound: tuple[str, ...]
    stack: tuple[Slot, ...]

    @property
    def taken(self) -> int:
        """The number of values that its continuation takes, besides what it waits for."""
        return len(self.bound) + sum(slot is not Slot.NULL for slot in self.stack)


@dataclass(slots=True, eq=False)
class Suspended:
    """One live frame at a break: its position, its code, and the values that its continuation takes.

    `generator`: whose body the frame is that runs, or None.
    """

    position: Position
    code: types.CodeType
    scope: dict[str, Any]
    globals: Shadow
    values: list[Value]
    cells: list[Value]
    generator: Value | None = None

    @property
    def passed(self) -> list[Value]:
        """What whoever calls the continuation gives it, but for what is inside."""
        return self.values if self.generator is None else [self.generator]

    @property
    def taken(self) -> int:
        """How many values that are."""
        return self.position.taken if self.generator is None else 1

    def outline(self) -> Suspended:
        """The same without the values."""
        return Suspended(self.position, self.code, self.scope, Const(self.scope), [], [])


# -- what is alive -----------------------------------------------------------------------------------------------------

def suspend(interp: Interpreter, resume: Resume) -> list[Suspended]:
    """The live frames, outermost first; the innermost waits for a value that `resume` says what to do with.

    Raises Break where a frame cannot be continued: it is the body of a class, or was called by an operation of C that cannot be
    resumed half-way.
    """
    frames: list[Suspended] = []
    frame, handled = interp.frame, sys.exception()
    while frame is not None:
        if frame.namespace is not None or frame.back is not None and not is_awaited_by_bytecode(frame):
            kind = "class" if frame.namespace is not None else "special method"
            raise Break("opaque-call", f"inside of a {kind} body, {frame.code.co_qualname}")
        suspended, handled = suspend_frame(interp, frame, resume, handled)
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
    resume = getattr(then, "resume", None)
    return (then is None or resume is not None) and (on_raise is None or resume in (Resume.ADVANCE, Resume.SEND))


def awaited_by(frame: Frame) -> tuple[Any, Any]:
    """What takes the value that the caller of `frame` waits for, which a generator yields; and what takes an exception."""
    if frame.generator is None:
        return frame.then, frame.on_raise
    return frame.generator.consumer[0], frame.generator.consumer[2]


def resume_of(then: object) -> Resume:
    """How bytecode does what `then` does with a value. Raises Break where nothing says so."""
    if then is None:
        return Resume.PUSH
    resume = getattr(then, "resume", None)
    if resume is None:
        raise Break("opaque-call", "in the middle of an operation of C")
    return resume


def suspend_frame(interp: Interpreter, frame: Frame, resume: Resume,
                  handled: BaseException | None) -> tuple[Suspended, BaseException | None]:
    """One frame, and the exception that was being handled when it was entered; `handled` is being handled now."""
    code, pc, resume = own_position(frame, resume)
    names = slot_names(frame.code)
    in_cell = {*code.co_cellvars, *code.co_freevars}
    live = _live_while_waiting(code, pc, resume)
    by_name = {name: value for name, value in zip(names, frame.locals) if value is not None}
    bound = tuple(name for name in code.co_varnames if name not in in_cell and name in by_name
                  and (name in live or is_held(by_name[name])))
    cells = [by_name[name] if name in by_name else scope.make_cell(interp, None) for name in closure_names(code)]
    values = [by_name[name] for name in bound]
    slots = []
    pending: list[tuple[int, BaseException | None]] = []
    for value in reversed(frame.stack):
        if isinstance(value, Handled):
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
        elif slot is Slot.OBJECT:
            values.append(item)
    position = Position(id(code), pc, resume, bound, tuple(slots))
    return Suspended(position, code, frame.globals, scope.globals_shadow(interp, frame), values, cells), handled


def own_position(frame: Frame, resume: Resume) -> tuple[types.CodeType, int, Resume]:
    """Code, pc and what becomes of the value in terms of the program's own code."""
    origin = _origins.get(id(frame.code))
    if origin is None:
        code, pc = frame.code, frame.pc
    else:
        _, code, position, prologue = origin
        if frame.pc <= prologue:                    # it waits where it waited before
            return code, position.pc, position.resume
        pc = len(decode(code)) - (len(decode(frame.code)) - frame.pc)
    return (code, pc - 1, resume) if resume in (Resume.RETRY, Resume.YIELD) else (code, pc, resume)


def has_begun(frame: Frame) -> bool:
    """Whether a frame is past the prologue of a continuation, or past that in which CPython makes cells and generators."""
    origin = _origins.get(id(frame.code))
    if origin is not None:
        return frame.pc > origin[3]
    return any(instruction.opname == "RESUME" for instruction in frame.instructions[:frame.pc])


def is_held(value: Value) -> bool:
    """Whether a dead local must live on as in CPython: something may happen when it dies. Tensors and numbers just go."""
    shadow = value.shadow
    if isinstance(shadow, Build):
        return any(is_held(Value(real, part)) for real, part in zip(parts(value.real), shadow.items))
    if not isinstance(shadow, RefNode) or isinstance(value.real, torch.Tensor):
        return False
    if shadow.source is not None:
        return not isinstance(shadow.source, Constant)
    queue, seen = [value.real], set()
    while queue and len(seen) < MOST_OBJECTS:
        real = queue.pop()
        if id(real) in seen or isinstance(real, (torch.Tensor, *PINNED)):
            continue
        seen.add(id(real))
        if lookup_class(type(real), "__del__") is not None or any(r.__callback__ is not None for r in weakref.getweakrefs(real)):
            return True
        if type(real) is not types.FunctionType:
            queue += gc.get_referents(real)
    return bool(queue)


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of a frame's slots: locals, cells that are not arguments, free variables."""
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames), *code.co_freevars)


def closure_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of the cells that a continuation of `code` closes over, in the order of its closure."""
    return (*code.co_cellvars, *code.co_freevars)


def _live_while_waiting(code: types.CodeType, pc: int, resume: Resume) -> frozenset[str]:
    """The locals that may be read once the waiting instruction is done, or by a handler of it."""
    live, at = live_locals(code), waiting_at(pc, resume)
    after = (pc,) if resume in (Resume.RETRY, Resume.BEGIN) else successors(decode(code)[at], at)
    handlers = (cover.target for cover in exception_table(code) if cover.start <= at < cover.end)
    return frozenset().union(*(live[i] for i in (*after, *handlers)))


def live_locals(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """For each instruction, the fast locals that may be read before they are written, from it on."""
    known = decoded(code)
    if known.live is None:
        known.live = _live_locals(code)
    return known.live


def _live_locals(code: types.CodeType) -> tuple[frozenset[str], ...]:
    instructions, covers = decode(code), exception_table(code)
    if INTROSPECTION.intersection(code.co_names):
        return (frozenset(code.co_varnames),) * (len(instructions) + 1)
    handlers = [[cover.target for cover in covers if cover.start <= i < cover.end] for i in range(len(instructions))]
    unseen = {*code.co_varnames[:1]} if "super" in code.co_names and "__class__" in code.co_freevars else set()     # by `super()`
    live: list[frozenset[str]] = [frozenset()] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            instruction = instructions[i]
            after = set(unseen)
            for successor in (*successors(instruction, i), *handlers[i]):
                after |= live[successor]
            name = instruction.value
            facts = does(instruction)
            if Does.WRITES_LOCAL in facts:
                after.discard(name)
            if Does.READS_LOCAL in facts:
                after.add(name)
            if after != live[i]:
                live[i], changed = frozenset(after), True
    return tuple(live)


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


# -- code --------------------------------------------------------------------------------------------------------------

# By id of a continuation's code: a weak reference to that, the program's code, the position, and the length of the prologue.
_origins: dict[int, tuple[weakref.ref[types.CodeType], types.CodeType, Position, int]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """The code objects of the continuations of a chain of frames, outermost first; `raising` in place of the last one where an
    exception is awaited."""

    codes: tuple[types.CodeType, ...]
    raising: types.CodeType
    labels: dict[str, str]              # what users know the outermost one's parameters as


def build(frames: list[Suspended], performs: bool = False) -> Codes:
    """The continuations of live frames, outermost first. performs: the innermost makes the call that it waits for itself."""
    codes: list[types.CodeType] = []
    inner: list[str] = []
    innermost = frames[-1]
    at = waiting_at(innermost.position.pc, innermost.position.resume)
    labels = [segment(innermost.code, at)]
    raising = continuation(innermost.code, innermost.position, raises=True)
    for depth in range(len(frames) - 1, -1, -1):
        frame = frames[depth]
        names = [RESULT] if frame is innermost else inner
        code = continuation(frame.code, frame.position, inner=names, performs=performs and frame is innermost)
        codes.append(code)
        if frame.generator is not None:
            own = ("generator", *names)
            labels.insert(0, frame.code.co_name)
        else:
            own = code.co_varnames[:code.co_argcount]
            line = decode(frame.code)[waiting_at(frame.position.pc, frame.position.resume)].line
            between = [f"a value computed in line {line}"] * (len(own) - len(frame.position.bound) - len(labels))
            labels = [*frame.position.bound, *between, *labels]
        known = dict(zip(own, labels, strict=True))
        labels.insert(0, frame.code.co_name)
        parameters = (name if name == RESULT else f"__{depth}_{name.lstrip('_')}_{i}" for i, name in enumerate(own))
        inner = [f"__function{depth}", *parameters]
    return Codes(tuple(codes[::-1]), raising, known)


def segment(code: types.CodeType, at: int) -> str:
    """The user's text of the expression that instruction `at` computes; the number of its line where it has none in one line."""
    instruction = decode(code)[at]
    line, last, start, end = next(itertools.islice(code.co_positions(), instruction.offset // 2, None))
    text = linecache.getline(code.co_filename, line or 0).encode()[start:end].decode(errors="replace") if line == last else ""
    return text or f"the result of line {instruction.line}"


def continuation(code: types.CodeType, position: Position, raises: bool = False, exits: Exits | None = None,
                 inner: Sequence[str] = (RESULT,), performs: bool = False) -> types.CodeType:
    """The code of one continuation; `raises`: the variant that awaits an exception. `exits`: instructions before which it returns
    what a function returns that is called with the value stack and the cells as tuples; and how deep the stack is there. `inner`:
    the parameters behind its own: RESULT, or the function that it calls and the arguments of that; none for a body that stands at a
    `yield`. performs: RESULT is a call (`debuggers.pending`) that is to be made in its place.
    """
    body = plain(code)
    target, handler, shortcut = Label(), Label(), Label()
    stack = [f"__stack{i}" for i, slot in enumerate(position.stack) if slot is not Slot.NULL]
    waiting = waiting_at(position.pc, position.resume)
    cover = next((c for c in exception_table(code) if c.start <= waiting < c.end), None)
    location = next(itertools.islice(shown(body), waiting, None)).location

    made = Bytecode()
    made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
    made.first_lineno, made.flags = code.co_firstlineno, code.co_flags & ~0x0C  # type: ignore[assignment]  # CO_VARARGS, CO_VARKEYWORDS
    made.argnames = [*position.bound, *stack, *inner]
    made.argcount = len(made.argnames)
    made.freevars = list(closure_names(code))
    made.docstring = None

    def emit(name: str, *arg: object) -> None:
        made.append(Instr(name, *arg, location=location))  # type: ignore[arg-type]

    def take(name: str) -> None:
        emit("LOAD_FAST", name)
        emit("DELETE_FAST", name)
    if made.freevars:
        emit("COPY_FREE_VARS", len(made.freevars))
    if code.co_flags & generator_shims.FLAGS:
        emit("RETURN_GENERATOR")
        emit("POP_TOP")
    emit("RESUME", 0)
    for i, slot in enumerate(position.stack):
        if slot is Slot.NULL:
            emit("PUSH_NULL")
            continue
        take(f"__stack{i}")
        if slot is Slot.HANDLED:                    # leaves the exception that was handled before below
            emit("PUSH_EXC_INFO")
            emit("POP_TOP")
    stopped = Label()
    outer = None if cover is None else TryBegin(handler, cover.lasti, cover.depth)
    ends = position.resume in (Resume.ADVANCE, Resume.SEND)
    tried = TryBegin(stopped, False, len(position.stack)) if ends else outer
    if tried is not None:
        made.append(tried)
    if not inner:
        emit("LOAD_CONST", None)
    elif performs:
        if NULL_FIRST:
            emit("PUSH_NULL")
        take(RESULT)
        emit("UNPACK_SEQUENCE", 3)
        if not NULL_FIRST:                          # function, arguments, keywords
            for name, *arg in (("PUSH_NULL",), ("SWAP", 3), ("SWAP", 2)):
                emit(name, *arg)
        emit("CALL_FUNCTION_EX", 1)
    elif tuple(inner) == (RESULT,):
        take(RESULT)
        if raises:
            emit("RAISE_VARARGS", 1)
    else:
        if NULL_FIRST:
            emit("PUSH_NULL")
        take(inner[0])
        if not NULL_FIRST:
            emit("PUSH_NULL")
        for name in inner[1:]:
            take(name)
        if sys.version_info < (3, 12):
            emit("PRECALL", len(inner) - 1)
        emit("CALL", len(inner) - 1)
    emit("NOP")
    if tried is not None:
        made.append(TryEnd(tried))
    _finish(emit, code, position, target, shortcut)
    if ends:
        made.append(stopped)
        _end_loop(emit, shortcut, made, outer, keeps_value=position.resume is Resume.SEND)
    prologue = sum(1 for _ in shown(made))
    labels = [(position.pc, target)]
    if cover is not None:
        labels.append((cover.target, handler))
    if ends or position.resume is Resume.SHORT_CIRCUIT:
        labels.append((decode(code)[position.pc - 1].value, shortcut))
    _append_body(made, body, code, labels, exits or {})
    size = code.co_stacksize + len(made.argnames) + len(made.freevars) + 4
    result = made.to_code(stacksize=size, compute_exception_stack_depths=False)
    if exits is not None:
        return result
    key = id(result)
    _origins[key] = weakref.ref(result, lambda _: _origins.pop(key, None)), code, position, prologue
    return result


def waiting_at(pc: int, resume: Resume) -> int:
    """The index of the instruction that waits, whose handlers see exceptions of what it waits for."""
    return pc if resume in (Resume.RETRY, Resume.BEGIN, Resume.YIELD) else pc - 1


def _finish(emit, code: types.CodeType, position: Position, target: Label, shortcut: Label) -> None:  # type: ignore[no-untyped-def]
    """What becomes of the value that was waited for, now on top of the stack; then the program's own code."""
    if position.resume in (Resume.DISCARD, Resume.NONE, Resume.BEGIN):
        emit("POP_TOP")
    if position.resume is Resume.NONE:
        emit("LOAD_CONST", None)
    elif position.resume is Resume.NEGATE:
        emit("UNARY_NOT")
    elif position.resume is Resume.SHORT_CIRCUIT:   # the value that was tested stays where it jumps
        if_false = decode(code)[position.pc - 1].opname == "JUMP_IF_FALSE_OR_POP"
        emit("POP_JUMP_FORWARD_IF_FALSE" if if_false else "POP_JUMP_FORWARD_IF_TRUE", shortcut)
        emit("POP_TOP")
    emit("JUMP_FORWARD", target)


def _end_loop(emit, end: Label, made: Bytecode, outer: TryBegin | None, keeps_value: bool) -> None:  # type: ignore[no-untyped-def]
    """What `for` does with an exception of its iterator's, which is on the stack above that: StopIteration leads to `end`, others
    to the handler `outer`. keeps_value: with the exception's value on the stack, as `yield from` does."""
    other = Label()
    emit("PUSH_EXC_INFO")
    emit("LOAD_CONST", StopIteration)
    emit("CHECK_EXC_MATCH")
    emit(JUMP_IF_FALSE, other)
    if keeps_value:
        emit("LOAD_ATTR", ATTRIBUTE_VALUE)
        emit("SWAP", 2)
        emit("POP_EXCEPT")
        emit("SWAP", 2)
    else:
        emit("POP_TOP")
        emit("POP_EXCEPT")
    emit("POP_TOP")
    emit("JUMP_FORWARD", end)
    made.append(other)
    emit("SWAP", 2)
    emit("POP_EXCEPT")
    if outer is not None:
        made.append(outer)
    emit("RERAISE", 0)
    if outer is not None:
        made.append(TryEnd(outer))


def _exit(depth: int, function: Callable[..., Any], made: Bytecode, location: object) -> list[Instr]:
    """`return function(stack, cells)`"""
    call = [("PRECALL", 2)] if sys.version_info < (3, 12) else []
    below = [("PUSH_NULL",), ("LOAD_CONST", function)]
    (first, second) = below if NULL_FIRST else below[::-1]
    return [Instr(name, *arg, location=location) for name, *arg in (  # type: ignore[arg-type]
        ("BUILD_TUPLE", depth), first, ("SWAP", 2), second, ("SWAP", 2),
        *((LOAD_CELL, FreeVar(name)) for name in made.freevars), ("BUILD_TUPLE", len(made.freevars)),
        *call, ("CALL", 2), ("RETURN_VALUE",))]


def _append_body(made: Bytecode, body: Bytecode, code: types.CodeType, labels: list[tuple[int, Label]], exits: Exits) -> None:
    """Appends the program's own code, with labels before the instructions of these indices, exits in place of these, and cells as
    free variables."""
    kept = 0
    skipping = ("MAKE_CELL", "COPY_FREE_VARS")      # done by whoever makes the continuation
    in_cell = {*closure_names(code)}
    keywords: list[Instr] = []                      # KW_NAMES, TO_BOOL and what else belongs to the instruction that follows
    for item, absorbed in zip(body, taken_in(body), strict=True):
        if not isinstance(item, Instr):
            made.extend(keywords)
            keywords.clear()
            made.append(item)
            continue
        if absorbed:
            keywords.append(item)
            continue
        here = [label for at, label in labels if at == kept]
        made.extend([*here, *keywords] if item.name == "CALL" or item.name in ASK_TRUTH else [*keywords, *here])
        keywords.clear()
        if kept in exits:
            made.extend(_exit(*exits[kept], made, item.location))
        kept += 1
        if item.name in skipping and kept <= len(closure_names(code)) + 1:
            continue
        if isinstance(item.arg, CellVar):
            item = Instr(item.name, FreeVar(item.arg.name), location=item.location)
        elif item.name in OF_SLOTS and isinstance(item.arg, str) and item.arg in in_cell:
            item = Instr(item.name, FreeVar(item.arg), location=item.location)
        made.append(item)
    made.extend(keywords)
