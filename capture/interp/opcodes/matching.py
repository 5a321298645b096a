"""Opcodes of the match statement."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from capture._C import is_a
from capture.interp.core import unwind
from capture.interp.core.frame import NONE_VALUE, Frame, Value
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import type_name
from capture.interp.coroutines.iteration import elements
from capture.interp.dispatch import attributes, calls
from capture.interp.function_models.shadows import refuse
from capture.interp.opcodes.containers import make_tuple
from capture.refgraph.lookup import MISSING, flags_of
from capture.refgraph.node import Const, External, RefNode, Shadow

# Flags of types (object.h).
SEQUENCE, MAPPING, MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


def _not_a_class() -> str:  # type: ignore[return]
    """What the running CPython says of a class pattern that names no class."""
    try:
        match 0:
            case SEQUENCE():  # type: ignore[misc]
                raise AssertionError
    except TypeError as error:
        return str(error)


NOT_A_CLASS = _not_a_class()


@opcode("GET_LEN", does=Does.OPERATES)
def get_len(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.apply(interp, len, frame.stack[-1])


@opcode("MATCH_SEQUENCE", does=Does.OPERATES)
def match_sequence(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    push_flag(interp, frame, SEQUENCE)


@opcode("MATCH_MAPPING", does=Does.OPERATES)
def match_mapping(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    push_flag(interp, frame, MAPPING)


def push_flag(interp: Interpreter, frame: Frame, flag: int) -> None:
    """Pushes whether the class of the topmost value has `flag`."""
    value = frame.stack[-1]
    result = bool(flags_of(type(value.real)) & flag)
    frame.stack.append(Value(result, interp.track(_of_type, interp, value, result)))


def _of_type(interp: Interpreter, value: Value, result: bool) -> Shadow:
    if isinstance(value.shadow, RefNode):
        interp.graph.touch(value.shadow)
    elif isinstance(value.shadow, External):
        interp.graph.require(value.shadow.source, "TYPE", type(value.real))
    return Const(result)


@opcode("MATCH_KEYS", does=Does.OPERATES)
def match_keys(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """Pushes a tuple of the values under all the keys, or None."""
    keys, subject = elements(interp, frame.stack[-1]), frame.stack[-2]
    assert subject is not None
    if keys:
        attributes.load(interp, subject, "get", lambda get: _take_key(interp, frame, keys, get, [], set()))
    else:
        frame.stack.append(make_tuple(interp, []))


def _take_key(interp: Interpreter, frame: Frame, keys: Sequence[Value], get: Value, found: list[Value], seen: set[Any]) -> None:
    """Looks up the keys behind those that were `found`, or `seen`, and pushes the result. (A local function that calls itself would
    be a cycle, and keep what the frame held until it is collected.)"""
    if len(found) == len(keys):
        return frame.stack.append(make_tuple(interp, found))
    key = keys[len(found)]
    if interp.real(seen.__contains__, key.real):
        unwind.throw(ValueError(f"mapping pattern checks duplicate key ({key.real!r})"))
    seen.add(key.real)

    def took(value: Value) -> None:
        if value.real is MISSING:
            return frame.stack.append(NONE_VALUE)
        _take_key(interp, frame, keys, get, [*found, value], seen)
    calls.call(interp, get, [key, Value(MISSING, Const(MISSING))], then=took)


@opcode("MATCH_CLASS", does=Does.OPERATES)
def match_class(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """Pushes a tuple of the attributes that a class pattern names, or None."""
    subject, cls, names = frame.popn(3)
    positional, keywords = instruction.arg, elements(interp, names)

    def is_instance(result: Value) -> None:
        if not result.real:
            frame.stack.append(NONE_VALUE)
        elif positional:
            attributes.load(interp, cls, "__match_args__", with_match_args, without_match_args)
        else:
            take(keywords, [])

    def without_match_args(exception: BaseException) -> bool:
        if not is_a(exception, AttributeError):
            return False
        if cls.real.__flags__ & MATCH_SELF:
            check_count(1)
            take(keywords, [subject])
        else:
            check_count(0)
        return True

    def with_match_args(match_args: Value) -> None:
        if type(match_args.real) is not tuple:
            refuse(interp, TypeError(f"{cls.real.__name__}.__match_args__ must be a tuple "
                                     f"(got {type_name(match_args.real)})"), match_args)
        check_count(len(match_args.real))
        attrs = elements(interp, match_args)[:positional]
        for name in attrs:
            if type(name.real) is not str:
                refuse(interp, TypeError(f"__match_args__ elements must be strings (got {type_name(name.real)})"), name)
        take(attrs + keywords, [])

    def check_count(allowed: int) -> None:
        if positional > allowed:
            plural = "" if allowed == 1 else "s"
            unwind.throw(TypeError(
                f"{cls.real.__name__}() accepts {allowed} positional sub-pattern{plural} ({positional} given)"))

    def take(attrs: list[Value], found: list[Value]) -> None:
        names = [name.real for name in attrs]
        for i, name in enumerate(names):
            if name in names[:i]:
                # CPython reads what comes before the repetition first
                error = TypeError(f"{cls.real.__name__}() got multiple sub-patterns for attribute {name!r}")
                fail = functools.partial(unwind.throw, error)
                return collect_attributes(interp, subject, attrs[:i], found, frame, fail)
        collect_attributes(interp, subject, attrs, found, frame, lambda: frame.stack.append(make_tuple(interp, found)))
    if not is_a(cls.real, type):
        refuse(interp, TypeError(NOT_A_CLASS), cls)
    calls.apply(interp, isinstance, subject, cls, then=is_instance)


def collect_attributes(interp: Interpreter, subject: Value, names: list[Value], found: list[Value], frame: Frame,
                       then: Callable[[], None]) -> None:
    """Appends the attributes of `subject` to `found`, then calls `then`; or pushes None where one is missing."""
    if not names:
        return then()

    def took(value: Value) -> None:
        found.append(value)
        collect_attributes(interp, subject, names[1:], found, frame, then)

    def missing(exception: BaseException) -> bool:
        if is_a(exception, AttributeError):
            frame.stack.append(NONE_VALUE)
            return True
        return False
    calls.call(interp, Value(getattr, Const(getattr)), [subject, names[0]], None, took, missing)


