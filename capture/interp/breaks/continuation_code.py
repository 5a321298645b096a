"""The code objects of continuations, built from the program's own with the package `bytecode`."""
from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label, TryBegin, TryEnd

from capture.interp.breaks.positions import RESULT, Position, Slot, Suspended, closure_names, note_origin, waiting_at
from capture.interp.core import generator_drivers
from capture.interp.core.frame import Resume
from capture.interp.core.instructions import FACTS, NULL_FIRST, TAKE_IN, Does, decode, exception_table, plain, shown, taken_in

Exits = dict[int, tuple[int, Callable[..., Any]]]
JUMP_IF_FALSE = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"
ATTRIBUTE_VALUE: Any = "value" if sys.version_info < (3, 12) else (False, "value")     # LOAD_ATTR's argument
LOAD_CELL = "LOAD_CLOSURE" if sys.version_info < (3, 13) else "LOAD_FAST"
# Whether what reads and writes local variables asks for a cell by the name of its slot, as LOAD_CELL does, or puts variables of an
# inlined comprehension there.
NAMES_CELLS = sys.version_info >= (3, 13)


@dataclass(frozen=True, eq=False)
class Codes:
    """The code objects of the continuations of a chain of frames, outermost first."""

    codes: tuple[types.CodeType, ...]
    innermost: tuple[types.CodeType, Position]      # what the last one was made of
    labels: dict[str, str]              # what users know the outermost one's parameters as

    @property
    def raising(self) -> types.CodeType:
        """What takes the place of the last one where an exception is awaited. Made for the first exception: most operations never
        raise one."""
        made = vars(self).get("raising")
        if made is None:
            made = vars(self).setdefault("raising", continuation(*self.innermost, raises=True))     # of the thread that is first
        return made


def build(frames: list[Suspended], performs: bool = False) -> Codes:
    """The continuations of live frames, outermost first. performs: the innermost makes the call that it waits for itself."""
    codes: list[types.CodeType] = []
    inner: list[str] = []
    innermost = frames[-1]
    at = waiting_at(innermost.position.pc, innermost.position.resume)
    labels = [segment(innermost.code, at)]
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
    return Codes(tuple(codes[::-1]), (innermost.code, innermost.position), known)


def segment(code: types.CodeType, at: int) -> str:
    """The user's text of the expression that instruction `at` computes; the number of its line where it has none in one line."""
    instruction = decode(code)[at]
    line, last, start, end = next(itertools.islice(code.co_positions(), instruction.offset // 2, None))
    text = linecache.getline(code.co_filename, line or 0).encode()[start:end].decode(errors="replace") if line == last else ""
    return text or f"the result of line {instruction.line}"


def continuation(code: types.CodeType, position: Position, raises: bool = False, exits: Exits | None = None,
                 inner: Sequence[str] = (RESULT,), performs: bool = False) -> types.CodeType:
    """The code of one continuation. `raises`: the variant that awaits an exception. `exits`: by the instruction before which the
    code returns, how deep the stack is there, and the function of the value stack and the cells (as tuples) whose result it
    returns. `inner`: the parameters behind its own: RESULT, or the function that it calls and the arguments of that; none for a
    body that stands at a `yield`. performs: RESULT is a call (`debuggers.pending`) that is to be made in its place.
    """
    body = plain(code)
    target, handler, shortcut, stopped = Label(), Label(), Label(), Label()
    waiting = waiting_at(position.pc, position.resume)
    cover = next((c for c in exception_table(code) if c.start <= waiting < c.end), None)
    made = _empty(code, position, inner)
    emit = Emit(made, next(itertools.islice(shown(body), waiting, None)).location)

    _enter(emit, made, code, position)
    outer = None if cover is None else TryBegin(handler, cover.lasti, cover.depth)
    ends = position.resume.takes_stop
    tried = TryBegin(stopped, False, len(position.stack)) if ends else outer
    if tried is not None:
        made.append(tried)
    _await(emit, inner, raises, performs)
    emit("NOP")
    if tried is not None:
        made.append(TryEnd(tried))
    _finish(emit, position, target, shortcut)
    if ends:
        made.append(stopped)
        _end_loop(emit, shortcut, made, outer, keeps_value=position.resume is Resume.SEND)
    prologue = sum(1 for _ in shown(made))
    labels = [(position.pc, target)]
    if cover is not None:
        labels.append((cover.target, handler))
    if ends or position.resume.may_jump:
        labels.append((decode(code)[position.pc - 1].value, shortcut))
    _append_body(made, body, code, labels, exits or {})
    size = code.co_stacksize + len(made.argnames) + len(made.freevars) + 4
    result = made.to_code(stacksize=size, compute_exception_stack_depths=False)
    if exits is None:
        note_origin(result, code, position, prologue)
    return result


class Emit:
    """Appends instructions of one place in the source to a code under construction."""

    def __init__(self, made: Bytecode, location: Any) -> None:
        self.made, self.location = made, location

    def __call__(self, name: str, *arg: object) -> None:
        self.made.append(Instr(name, *arg, location=self.location))  # type: ignore[arg-type]

    def take(self, name: str) -> None:
        """Pushes a variable, which is unbound then."""
        self("LOAD_FAST", name)
        self("DELETE_FAST", name)


def _empty(code: types.CodeType, position: Position, inner: Sequence[str]) -> Bytecode:
    """The code of a continuation before its first instruction: its name, parameters and free variables."""
    stack = [f"__stack{i}" for i, slot in enumerate(position.stack) if slot is not Slot.NULL]
    made = Bytecode()
    made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
    made.first_lineno, made.flags = code.co_firstlineno, code.co_flags & ~0x0C  # type: ignore[assignment]  # CO_VARARGS, CO_VARKEYWORDS
    made.argnames = [*position.bound, *stack, *inner]
    made.argcount = len(made.argnames)
    made.freevars = list(closure_names(code))
    made.docstring = None
    return made


def _enter(emit: Emit, made: Bytecode, code: types.CodeType, position: Position) -> None:
    """What every function begins with; then the value stack as it was."""
    if made.freevars:
        emit("COPY_FREE_VARS", len(made.freevars))
    if code.co_flags & generator_drivers.FLAGS:
        emit("RETURN_GENERATOR")
        emit("POP_TOP")
    emit("RESUME", 0)
    for i, slot in enumerate(position.stack):
        if slot is Slot.NULL:
            emit("PUSH_NULL")
            continue
        emit.take(f"__stack{i}")
        if slot is Slot.HANDLED:                    # leaves the exception that was handled before below
            emit("PUSH_EXC_INFO")
            emit("POP_TOP")


def _await(emit: Emit, inner: Sequence[str], raises: bool, performs: bool) -> None:
    """Pushes the value that the frame waits for, or raises the exception."""
    if not inner:
        emit("LOAD_CONST", None)
    elif performs:
        if NULL_FIRST:
            emit("PUSH_NULL")
        emit.take(RESULT)
        emit("UNPACK_SEQUENCE", 3)
        if not NULL_FIRST:                          # function, arguments, keywords
            for name, *arg in (("PUSH_NULL",), ("SWAP", 3), ("SWAP", 2)):
                emit(name, *arg)
        emit("CALL_FUNCTION_EX", 1)
    elif tuple(inner) == (RESULT,):
        emit.take(RESULT)
        if raises:
            emit("RAISE_VARARGS", 1)
    else:
        if NULL_FIRST:
            emit("PUSH_NULL")
        emit.take(inner[0])
        if not NULL_FIRST:
            emit("PUSH_NULL")
        for name in inner[1:]:
            emit.take(name)
        if sys.version_info < (3, 12):
            emit("PRECALL", len(inner) - 1)
        emit("CALL", len(inner) - 1)


def _finish(emit: Emit, position: Position, target: Label, shortcut: Label) -> None:
    """Does with the awaited value, now on top of the stack, what the waiting instruction would do; then jumps to the program's own
    code."""
    if position.resume.drops:
        emit("POP_TOP")
    if position.resume is Resume.NONE:
        emit("LOAD_CONST", None)
    elif position.resume is Resume.NEGATE:
        emit("UNARY_NOT")
    elif position.resume.may_jump:         # the value that was tested stays where it jumps
        emit("POP_JUMP_FORWARD_IF_FALSE" if position.resume is Resume.AND else "POP_JUMP_FORWARD_IF_TRUE", shortcut)
        emit("POP_TOP")
    emit("JUMP_FORWARD", target)


def _end_loop(emit: Emit, end: Label, made: Bytecode, outer: TryBegin | None, keeps_value: bool) -> None:
    """What `for` does with an exception of its iterator, which is on the stack above the iterator: StopIteration leads to `end`,
    others to the handler `outer`. keeps_value: with the exception's value on the stack, as `yield from` does."""
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
        made.extend([*here, *keywords] if item.name in TAKE_IN else [*keywords, *here])
        keywords.clear()
        if kept in exits:
            made.extend(_exit(*exits[kept], made, item.location))
        kept += 1
        facts = FACTS[item.name]
        if Does.MAKES_CELLS in facts and kept <= len(closure_names(code)) + 1:
            continue                                # done by whoever makes the continuation
        made.append(over_closure(item, in_cell))
    made.extend(keywords)


def over_closure(item: Instr, in_cell: Set[str]) -> Instr:
    """An instruction of a function as one of a function that closes over its cells."""
    if isinstance(item.arg, CellVar):
        return Instr(item.name, FreeVar(item.arg.name), location=item.location)
    named = NAMES_CELLS and FACTS.get(item.name, Does.OPERATES) & (Does.READS_LOCAL | Does.WRITES_LOCAL)
    if named and isinstance(item.arg, str) and item.arg in in_cell:
        return Instr(item.name, FreeVar(item.arg), location=item.location)
    return item
