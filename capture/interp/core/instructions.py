"""Decoding, and the registry of opcode handlers, with what is known of each opcode."""
from __future__ import annotations

import dis
import enum
import functools
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecode import Bytecode, ConcreteBytecode, ConcreteInstr, Instr

from capture.interp.core.frame import Value
from capture.refgraph.node import Const

if TYPE_CHECKING:
    from capture.interp.core.frame import Frame
    from capture.interp.core.interpreter import Interpreter

Handler = Callable[["Interpreter", "Frame", "Instruction"], None]
HANDLERS: dict[str, Handler] = {}
FACTS: dict[str, Does] = {}         # of the same opcodes
FACTS_BY_ARGUMENT: dict[tuple[str, int], Does] = {}     # … of those that do something else for some arguments
StackEffect = Callable[["Instruction", bool], int]
STACK_EFFECTS: dict[str, StackEffect] = {}      # … of those with which decoding takes in others; see `stack_effect`


class Does(enum.Flag):
    """What an opcode does, and where it leads to. Every opcode may operate on the values on its frame's stack: call them, look at
    their classes, iterate over them. The flags say what else it does.

    Code that asks what an opcode does names the flags that it allows, so that an opcode with a new flag is not allowed.
    """

    OPERATES = 0                    # no more than that
    MAKES = enum.auto()             # … and nobody else has what is on top of the stack then, as a rule
    BUILDS = enum.auto()            # a container, text or function, which takes the place of what it is made of
    FILLS = enum.auto()             # a container that the code is building, with what is on top of the stack
    COPIES = enum.auto()            # what is at the place of its number on the stack, to the top
    SWAPS = enum.auto()             # that with what is on top
    READS_LOCAL = enum.auto()       # the variable of its name, in the frame itself
    LOADS_LOCAL = enum.auto()       # … which is on top of the stack then
    WRITES_LOCAL = enum.auto()
    LOADS_CELL = enum.auto()        # the variable of its name in a cell, which another function may share
    STORES_CELL = enum.auto()       # … or empties it
    LOADS_CONSTANT = enum.auto()    # of the code; its value holds that
    LOADS_GLOBAL = enum.auto()      # a global variable, or builtin, of its name
    STORES_NAME = enum.auto()       # one of those, or of a class body; or deletes it
    STORES_ANY_NAME = enum.auto()   # all names of a module
    LOADS_ANY_NAME = enum.auto()    # a name in a mapping, which may be of any class
    LOADS_ATTRIBUTE = enum.auto()   # of its name
    ASKS_SUPER = enum.auto()        # … of what comes next in the order of classes
    STORES_ATTRIBUTE = enum.auto()
    DELETES_ATTRIBUTE = enum.auto()
    READS_ITEM = enum.auto()        # of what is below the top of the stack, at the key on top
    TAKES_ITEMS = enum.auto()       # of what is on top of the stack, to iterate over that or to compare with these
    STORES_ITEM = enum.auto()       # or deletes it
    CHANGES_OPERAND = enum.auto()   # where that is a list or the like: `+=`
    CALLS = enum.auto()             # what is below as many arguments as its number says; its value names those with keywords
    CALLS_NAMED = enum.auto()       # the same, where the names are on top of the stack
    PUSHES_NULL = enum.auto()       # CPython's, beside what is called
    IMPORTS = enum.auto()
    BUILDS_CLASS = enum.auto()
    ENTERS = enum.auto()            # a block of `with`
    EXITS = enum.auto()             # one that an exception leaves
    HANDLES = enum.auto()           # an exception, from here on
    WRAPS_STOP = enum.auto()        # StopIteration that leaves a generator
    MAKES_CELLS = enum.auto()       # of the frame, before its code begins
    BEGINS = enum.auto()            # the frame's code, or what follows a `yield`
    DELEGATES = enum.auto()         # … that hands on what the iterator on top of the stack yields
    SUSPENDS = enum.auto()          # its frame, or drives what does
    AWAITS = enum.auto()            # what is on top of the stack
    AWAITS_ITEM = enum.auto()       # … the next item of that
    PRINTS = enum.auto()
    RAISES = enum.auto()            # whatever happens
    # What comes after it, in place of the next instruction.
    JUMPS = enum.auto()             # its target
    BRANCHES = enum.auto()          # its target, or the next one
    LEAVES = enum.auto()            # nothing


# What an opcode does to its own frame alone, besides the stack and the variables.
WITHIN = (Does.EXITS | Does.HANDLES | Does.WRAPS_STOP | Does.MAKES_CELLS | Does.BEGINS | Does.DELEGATES | Does.BUILDS | Does.FILLS
          | Does.COPIES | Does.SWAPS | Does.CALLS_NAMED)

# Opcodes without an effect of their own, which decoding takes in: NOP leaves no trace, KW_NAMES becomes the value of
# the CALL that follows, SET_FUNCTION_ATTRIBUTE part of the argument of the MAKE_FUNCTION before it, EXTENDED_ARG of any.
# In 3.12 FOR_ITER and SEND leave it to END_FOR and END_SEND to pop the iterator, and in 3.13 END_FOR to a POP_TOP; here they do it
# themselves, as in 3.11.
ABSORBED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "KW_NAMES", "SET_FUNCTION_ATTRIBUTE", "END_FOR", "END_SEND"})
# What follows a TO_BOOL, but for where the program is to have the truth itself; here they ask for it, as in 3.12.
ASK_TRUTH = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "UNARY_NOT"})
TAKE_IN = ASK_TRUTH | {"CALL"}      # what decoding takes in before them is part of them
# Since 3.13 an instruction may do what two do: these, and those before a PUSH_NULL or TO_BOOL of their own.
HALVES = {"LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"), "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
          "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST")}

_PY312 = sys.version_info >= (3, 12)
_PY313 = sys.version_info >= (3, 13)
NULL_FIRST = not _PY313         # whether CPython's NULL is below the callable on the stack, or above
_NAME_SHIFT = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, **({"LOAD_ATTR": 1} if _PY312 else {})}
_COMPARE_SHIFT = 5 if _PY313 else 4 if _PY312 else 0
_COMPARE_TRUTH = 16     # of COMPARE_OP's argument
_COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
                ">=": operator.ge}
_BINARY = {"+": "add", "&": "and_", "//": "floordiv", "<<": "lshift", "@": "matmul", "*": "mul", "%": "mod", "|": "or_",
           "**": "pow", ">>": "rshift", "-": "sub", "/": "truediv", "^": "xor"}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "UNARY_POSITIVE": operator.pos, "UNARY_NEGATIVE": operator.neg, "UNARY_NOT": operator.not_, "UNARY_INVERT": operator.invert}
_OPERATORS: list[Callable[[Any, Any], Any]] = [
    getattr(operator, "i" + _BINARY[symbol[:-1]].rstrip("_") if symbol.endswith("=") else _BINARY[symbol])
    for _, symbol in dis._nb_ops]  # type: ignore[attr-defined]
# The arguments with which BINARY_OP changes its first operand.
IN_PLACE = tuple(number for number, (_, symbol) in enumerate(dis._nb_ops) if symbol.endswith("="))  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class Instruction:
    """One decoded instruction. `arg`: the raw argument.

    `value`: for jumps, the index in `decode(code)` of the target; for constants, a Value; for names and variables, the
    name; for operators, the function of module `operator`; for CALL, the keywords' names.
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


def opcode(*names: str, does: Does, with_argument: Mapping[int, Does] = {}, effect: StackEffect | None = None,
           since: tuple[int, int] = (3, 11), until: tuple[int, int] = (3, 13)) -> Callable[[Handler], Handler]:
    """Registers a handler for opcodes of CPython versions `since` to `until`, inclusive. Raises ImportError for an opcode that the
    running version does not have, or that has a handler already. with_argument: what the opcodes do with these arguments, where
    that differs. effect: see `stack_effect`; None for CPython's."""
    def register(handler: Handler) -> Handler:
        if since <= sys.version_info[:2] <= until:
            for name in names:
                if name not in dis.opmap or name in HANDLERS:
                    raise ImportError(f"{name} {'has a handler' if name in HANDLERS else 'is no opcode of this Python'}")
                HANDLERS[name], FACTS[name] = handler, does
                FACTS_BY_ARGUMENT.update(((name, argument), facts) for argument, facts in with_argument.items())
                if effect is not None:
                    STACK_EFFECTS[name] = effect
        return handler
    return register


def does(instruction: Instruction) -> Does:
    """What an instruction does."""
    facts = FACTS_BY_ARGUMENT.get((instruction.opname, instruction.arg))
    return FACTS[instruction.opname] if facts is None else facts


def facts_of(instr: Instr) -> Does:
    """What an instruction of `bytecode` does, as its code says it: in halves (`halves`), and before decoding merges it into another
    one."""
    if instr.name in ABSORBED:
        return Does.OPERATES
    facts = FACTS_BY_ARGUMENT.get((instr.name, instr.arg)) if isinstance(instr.arg, int) and instr.require_arg() else None
    return FACTS[instr.name] if facts is None else facts


def stack_effect(instruction: Instruction, jumps: bool) -> int:
    """By how much an instruction makes the stack deeper, together with the instructions that decoding merges into it."""
    name, number = instruction.opname, dis.opmap[instruction.opname]
    if name in STACK_EFFECTS:
        return STACK_EFFECTS[name](instruction, jumps)
    return dis.stack_effect(number, instruction.arg if number >= dis.HAVE_ARGUMENT else None, jump=jumps)


def successors(instruction: Instruction, at: int) -> tuple[int, ...]:
    """The instructions that may come after the one at index `at`."""
    facts = does(instruction)
    if Does.LEAVES in facts:
        return ()
    if Does.JUMPS in facts:
        return (instruction.value,)
    return (at + 1, instruction.value) if Does.BRANCHES in facts else (at + 1,)


def with_inner(code: types.CodeType) -> Iterator[Instruction]:
    """The instructions of a code object and of those inside of it."""
    return itertools.chain.from_iterable(map(decode, with_parts(code)))


def with_parts(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside of it."""
    yield code
    for part in code.co_consts:
        if type(part) is types.CodeType:
            yield from with_parts(part)


def halves(instr: Any) -> list[Any]:
    """An instruction of `bytecode`, or the two instructions that together do the same."""
    if not _PY313:
        return [instr]
    name, arg = instr.name, instr.arg
    kind: Callable[..., Any] = type(instr)
    make = functools.partial(kind, location=instr.location)
    if name in HALVES:
        return list(map(make, HALVES[name], arg if isinstance(arg, tuple) else divmod(arg, 16)))
    if name in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_SUPER_ATTR") and (arg[0] if isinstance(arg, tuple) else arg & 1):
        return [make(name, (False, *arg[1:]) if isinstance(arg, tuple) else arg & ~1), make("PUSH_NULL")]
    if name == "COMPARE_OP" and arg & _COMPARE_TRUTH:
        return [make(name, type(arg)(arg & ~_COMPARE_TRUTH)), make("TO_BOOL")]
    return [instr]


def taken_in(items: Sequence[Any]) -> list[bool]:
    """Which items of a code object, with the instructions in halves, are instructions that decoding merges into others."""
    names = [item.name if isinstance(item, (Instr, ConcreteInstr)) else "" for item in items]
    found = [name in ABSORBED for name in names]
    shown = [i for i, name in enumerate(names) if name and (not found[i] or name == "END_FOR")]
    for before, after in itertools.pairwise(shown):
        if names[before] == "TO_BOOL" and names[after] in ASK_TRUTH:
            found[before] = True
        elif names[before] == "END_FOR" and names[after] == "POP_TOP" and _PY313:
            found[after] = True
    return found


def plain(code: types.CodeType) -> Bytecode:
    """A code object's bytecode, with the instructions in halves. All callers get the same one, which they leave as it is."""
    known = decoded(code)
    if known.plain is None:
        body = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
        body[:] = [part for item in body for part in (halves(item) if isinstance(item, Instr) else [item])]
        known.plain = body
    return known.plain


def shown(body: Bytecode) -> Iterator[Instr]:
    """The instructions that decoding gives."""
    for item, absorbed in zip(body, taken_in(body), strict=True):
        if isinstance(item, Instr) and not absorbed:
            yield item


class Decoded:
    """A code object's instructions, exception table (in CPython's order of search), index by offset in bytes, and number of
    fast locals, cells and free variables.

    `stand_ins`: what `program_frames.in_sight` has made of it, by line. `live`, `plain`: what `positions.live_locals` has found
    and what the function of that name has made, or None.
    """

    __slots__ = ("instructions", "covers", "index", "size", "stand_ins", "live", "plain")

    def __init__(self, code: types.CodeType) -> None:
        self.stand_ins: dict[int, types.CodeType] = {}
        self.live: tuple[frozenset[str], ...] | None = None
        self.plain: Bytecode | None = None
        self.size = code.co_nlocals + len(set(code.co_cellvars) - set(code.co_varnames)) + len(code.co_freevars)
        concrete = ConcreteBytecode.from_code(code)
        end = 0
        placed: list[tuple[range, ConcreteInstr]] = []      # with the code units of the instruction that it is or is half of
        for instr in concrete:
            assert isinstance(instr, ConcreteInstr)
            own = range(end, end + instr.size // 2)
            if instr.name != "CACHE":
                placed += [(own, half) for half in halves(instr)]
            end = own.stop
        kept: list[tuple[int, ConcreteInstr]] = []
        index: dict[int, int] = {}      # code unit -> instruction; an absorbed one leads to the next that is kept
        keywords: dict[int, tuple[str, ...]] = {}
        attributes: dict[int, int] = {}
        pending: tuple[str, ...] = ()
        for (own, instr), absorbed in zip(placed, taken_in([instr for _, instr in placed]), strict=True):
            for at in own:
                index.setdefault(at, len(kept))
            if instr.name == "KW_NAMES":
                pending = code.co_consts[instr.arg]
            elif instr.name == "SET_FUNCTION_ATTRIBUTE":
                attributes[len(kept) - 1] = attributes.get(len(kept) - 1, 0) | instr.arg
            if absorbed:
                continue
            if instr.name == "CALL":
                keywords[len(kept)], pending = pending, ()
            kept.append((own.stop - 1, instr))
        index[end] = len(kept)
        for at in range(end - 1, -1, -1):       # caches lead to what follows them
            if at not in index:
                index[at] = index[at + 1]
        self.index = {2 * at: i for at, i in index.items()}
        self.instructions = tuple(
            Instruction(instr.name, HANDLERS[instr.name], attributes.get(i, instr.arg if type(instr.arg) is int else 0),
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
        constant = code.co_consts[arg]
        constant = [] if isinstance(constant, list) else constant       # a gate (step_loops.py), which is open for CPython alone
        return Value(constant, Const(constant))
    if number in dis.hasname:
        return code.co_names[arg >> _NAME_SHIFT.get(name, 0)]
    if number in dis.haslocal or number in dis.hasfree:
        return code._varname_from_oparg(arg)  # type: ignore[attr-defined]
    if name == "BINARY_OP":
        return _OPERATORS[arg]
    if name == "COMPARE_OP":
        return _COMPARISONS[dis.cmp_op[arg >> _COMPARE_SHIFT]]
    return _UNARY.get(name)


_cache: dict[int, tuple[weakref.ref[types.CodeType], Decoded]] = {}


def decoded(code: types.CodeType) -> Decoded:
    """Everything decoded of a code object. Kept as long as the code object lives, by identity: equal code objects may
    hold different constants."""
    entry = _cache.get(id(code))
    if entry is None:
        key = id(code)
        entry = _cache[key] = weakref.ref(code, functools.partial(_cache.pop, key)), Decoded(code)
    return entry[1]


def decode(code: types.CodeType) -> tuple[Instruction, ...]:
    """The instructions of a code object."""
    return decoded(code).instructions


def exception_table(code: types.CodeType) -> tuple[Cover, ...]:
    """What covers which instructions of a code object, in the order of search: the first match counts."""
    return decoded(code).covers
