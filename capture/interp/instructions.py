"""Decoding, and the registry of opcode handlers. The only Python file of the project with version differences besides
the ranges that handlers register."""
from __future__ import annotations

import dis
import operator
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecode import ConcreteBytecode, ConcreteInstr

from capture.interp.frame import Value
from capture.refgraph.node import Const

if TYPE_CHECKING:
    from capture.interp.frame import Frame
    from capture.interp.interpreter import Interpreter

Handler = Callable[["Interpreter", "Frame", "Instruction"], None]
HANDLERS: dict[str, Handler] = {}

# Opcodes without an effect of their own, which decoding takes in: NOP leaves no trace, KW_NAMES becomes the value of
# the CALL that follows, EXTENDED_ARG part of the argument. In 3.12 FOR_ITER and SEND leave it to END_FOR and END_SEND
# to pop the iterator; here they do it themselves, as in 3.11.
ABSORBED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "KW_NAMES", "END_FOR", "END_SEND"})

_PY312 = sys.version_info >= (3, 12)
_NAME_SHIFT = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, **({"LOAD_ATTR": 1} if _PY312 else {})}
_COMPARE_SHIFT = 4 if _PY312 else 0
_COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
                ">=": operator.ge}
_BINARY = {"+": "add", "&": "and_", "//": "floordiv", "<<": "lshift", "@": "matmul", "*": "mul", "%": "mod", "|": "or_",
           "**": "pow", ">>": "rshift", "-": "sub", "/": "truediv", "^": "xor"}
_OPERATORS: list[Callable[[Any, Any], Any]] = [
    getattr(operator, "i" + _BINARY[symbol[:-1]].rstrip("_") if symbol.endswith("=") else _BINARY[symbol])
    for _, symbol in dis._nb_ops]  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class Instruction:
    """One decoded instruction. `arg`: the raw argument.

    `value`: for jumps, the index in `decode(code)` of the target; for constants, a Value; for names and variables, the
    name; for BINARY_OP and COMPARE_OP, the function of module `operator`; for CALL, the keywords' names.
    `offset`: in bytes, as `tb_lasti` counts.
    """

    opname: str
    handler: Handler
    arg: int
    value: Any
    offset: int
    line: int | None


@dataclass(frozen=True, slots=True)
class Cover:
    """An entry of an exception table: the instructions `start` to `end` (exclusive) are covered by the handler at
    `target`, which starts with `depth` slots left on the stack, and wants the offset of the failure when `lasti`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def opcode(*names: str, since: tuple[int, int] = (3, 11),
           until: tuple[int, int] = (3, 12)) -> Callable[[Handler], Handler]:
    """Registers a handler for opcodes of CPython versions `since` to `until`, inclusive."""
    def register(handler: Handler) -> Handler:
        if since <= sys.version_info[:2] <= until:
            for name in names:
                HANDLERS[name] = handler
        return handler
    return register


class Decoded:
    """A code object's instructions, exception table (in CPython's order of search), index by offset in bytes, and number of
    fast locals, cells and free variables.

    `stand_ins`: what `visible.in_sight` has made of it, by line. `live`: what `resume.live_locals` has found, or None.
    """

    __slots__ = ("instructions", "covers", "index", "size", "stand_ins", "live")

    def __init__(self, code: types.CodeType) -> None:
        self.stand_ins: dict[int, types.CodeType] = {}
        self.live: tuple[frozenset[str], ...] | None = None
        self.size = code.co_nlocals + len(set(code.co_cellvars) - set(code.co_varnames)) + len(code.co_freevars)
        concrete = ConcreteBytecode.from_code(code)
        unit = 0
        kept: list[tuple[int, ConcreteInstr]] = []
        index: dict[int, int] = {}      # code unit -> instruction; an absorbed one leads to the next that is kept
        keywords: dict[int, tuple[str, ...]] = {}
        pending: tuple[str, ...] = ()
        for instr in concrete:
            assert isinstance(instr, ConcreteInstr)
            for at in range(unit, unit + instr.size // 2):
                index[at] = len(kept)
            unit += instr.size // 2
            if instr.name == "KW_NAMES":
                pending = code.co_consts[instr.arg]
            if instr.name in ABSORBED:
                continue
            if instr.name == "CALL":
                keywords[len(kept)], pending = pending, ()
            kept.append((unit - 1, instr))
        index[unit] = len(kept)
        self.index = {2 * at: i for at, i in index.items()}
        self.instructions = tuple(
            Instruction(instr.name, HANDLERS[instr.name], instr.arg if isinstance(instr.arg, int) else 0,
                        keywords[i] if i in keywords else _value(code, instr, at, index), 2 * at, instr.lineno)
            for i, (at, instr) in enumerate(kept))
        self.covers = tuple(
            Cover(index[entry.start_offset], index[entry.stop_offset + 1], index[entry.target], entry.stack_depth,
                  entry.push_lasti)
            for entry in concrete.exception_table)


def _value(code: types.CodeType, instr: ConcreteInstr, unit: int, index: dict[int, int]) -> Any:
    """`Instruction.value` of the instruction whose opcode (past its EXTENDED_ARGs) is code unit `unit`."""
    name, number, arg = instr.name, instr.opcode, instr.arg
    if number in dis.hasjrel or number in dis.hasjabs:
        return index[instr.get_jump_target(unit - instr.size // 2 + 1)]  # type: ignore[index]
    if number in dis.hasconst:
        return Value(code.co_consts[arg], Const(code.co_consts[arg]))
    if number in dis.hasname:
        return code.co_names[arg >> _NAME_SHIFT.get(name, 0)]
    if number in dis.haslocal or number in dis.hasfree:
        return code._varname_from_oparg(arg)  # type: ignore[attr-defined]
    if name == "BINARY_OP":
        return _OPERATORS[arg]
    if name == "COMPARE_OP":
        return _COMPARISONS[dis.cmp_op[arg >> _COMPARE_SHIFT]]
    return None


_cache: dict[int, tuple[weakref.ref[types.CodeType], Decoded]] = {}


def decoded(code: types.CodeType) -> Decoded:
    """Everything decoded of a code object. Kept as long as the code object lives, by identity: equal code objects may
    hold different constants."""
    entry = _cache.get(id(code))
    if entry is None:
        key = id(code)
        entry = _cache[key] = weakref.ref(code, lambda _: _cache.pop(key, None)), Decoded(code)
    return entry[1]


def decode(code: types.CodeType) -> tuple[Instruction, ...]:
    """The instructions of a code object."""
    return decoded(code).instructions


def exception_table(code: types.CodeType) -> tuple[Cover, ...]:
    """What covers which instructions of a code object, in the order of search: the first match counts."""
    return decoded(code).covers
