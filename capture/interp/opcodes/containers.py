"""Opcodes that build containers and strings, and take them apart."""
from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import NONE_VALUE, Frame, Resume, Value, discard, resuming
from capture.interp.core.instructions import NULL_FIRST, Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import asks_python, in_python, is_iterable, is_key, type_name
from capture.interp.coroutines.iteration import elements
from capture.interp.dispatch import calls
from capture.interp.function_models import dicts
from capture.interp.function_models.replays import is_changing
from capture.interp.function_models.shadows import depend_type, key_of, refuse
from capture.interp.polyfills import iteration, text
from capture.interp.polyfills.keys import dict_of, set_of
from capture.interp.polyfills.mappings import is_foreign, merge_dict, merge_foreign
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.node import Build, Const, DictState, Expr, External, ListState, RefNode, SetState, Shadow, source_of

TAKEN = Value(iteration.taken, Const(iteration.taken))
FORMAT_CONVERTED = Value(text.format_converted, Const(text.format_converted))
CONVERSIONS: dict[int, Callable[[Any], str]] = {1: str, 2: repr, 3: ascii}


# -- shadows -----------------------------------------------------------------------------------------------------------

def list_shadow(interp: Interpreter, real: list[Any], values: list[Value]) -> Shadow:
    """Of a list just built."""
    return interp.graph.create(real, ListState([v.shadow for v in values]))


def tuple_shadow(values: list[Value]) -> Shadow:
    """Of a tuple just built."""
    return Build(tuple, tuple([v.shadow for v in values]))


def set_shadow(interp: Interpreter, real: set[Any], values: list[Value]) -> Shadow:
    """Of a set just built."""
    for value in values:
        depend_key(interp, value, values)
    members = {v.real: v.shadow for v in reversed(values)}      # of equal members the first one stays
    return interp.graph.create(real, SetState({v.real: members[v.real] for v in values}))


def dict_shadow(interp: Interpreter, real: dict[Any, Any], keys: list[Value], values: list[Value]) -> Shadow:
    """Of a dict just built."""
    node = interp.graph.create(real, DictState({}, complete=True))
    for key, value in zip(keys, values, strict=True):
        changing = is_changing(interp, key)
        if not changing:
            depend_key(interp, key, keys)
        interp.graph.dict_set(node, key.real, value.shadow, key.shadow if changing else None)
    return node


def depend_key(interp: Interpreter, key: Value, among: list[Value]) -> None:
    """Fixes a key of a dict or member of a set, which no Python code hashes or compares."""
    key_of(interp, key, [other.real for other in among])


def make_slice(interp: Interpreter, parts: list[Value]) -> Value:
    """`slice(*parts)` of two or three parts."""
    third = parts[2:] or [NONE_VALUE]
    real = slice(*[part.real for part in parts])
    shadow = Build(slice, tuple(part.shadow for part in [*parts[:2], *third])) if interp.tracking else None
    return Value(real, shadow)


def make_list(interp: Interpreter, values: list[Value]) -> Value:
    """A new list."""
    real = [v.real for v in values]
    return Value(real, interp.track(list_shadow, interp, real, values))


def make_tuple(interp: Interpreter, values: list[Value]) -> Value:
    """A new tuple."""
    return Value(tuple([v.real for v in values]), interp.track(tuple_shadow, values))


# -- building ----------------------------------------------------------------------------------------------------------

@opcode("BUILD_TUPLE", does=Does.MAKES | Does.BUILDS)
def build_tuple(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(make_tuple(interp, frame.popn(instruction.arg)))


@opcode("BUILD_LIST", does=Does.MAKES | Does.BUILDS)
def build_list(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(make_list(interp, frame.popn(instruction.arg)))


@opcode("LIST_TO_TUPLE", does=Does.BUILDS, until=(3, 11))
def list_to_tuple(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(make_tuple(interp, elements(interp, frame.pop())))


@opcode("BUILD_SET", does=Does.MAKES | Does.BUILDS)
def build_set(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    values = frame.popn(instruction.arg)
    if interp.inlining and not all(is_key(v.real) for v in values):
        return calls.call(interp, Value(set_of, Const(set_of)), [make_tuple(interp, values)])
    real = interp.real(set, [v.real for v in values])
    frame.stack.append(Value(real, interp.track(set_shadow, interp, real, values)))


@opcode("BUILD_MAP", does=Does.MAKES | Does.BUILDS)
def build_map(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    pairs = frame.popn(2 * instruction.arg)
    push_dict(interp, frame, pairs[::2], pairs[1::2])


@opcode("BUILD_CONST_KEY_MAP", does=Does.MAKES | Does.BUILDS)
def build_const_key_map(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    keys = frame.pop()
    push_dict(interp, frame, elements(interp, keys), frame.popn(instruction.arg))


def push_dict(interp: Interpreter, frame: Frame, keys: list[Value], values: list[Value]) -> None:
    if interp.inlining and not all(is_key(k.real) for k in keys):
        return calls.call(interp, Value(dict_of, Const(dict_of)), [make_tuple(interp, keys), make_tuple(interp, values)])
    real = interp.real(dict, zip([k.real for k in keys], [v.real for v in values]))
    frame.stack.append(Value(real, interp.track(dict_shadow, interp, real, keys, values)))


@opcode("BUILD_SLICE", does=Does.MAKES | Does.BUILDS)
def build_slice(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(make_slice(interp, frame.popn(instruction.arg)))


@opcode("BUILD_STRING", does=Does.MAKES | Does.BUILDS)
def build_string(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    parts = frame.popn(instruction.arg)
    frame.stack.append(Value("".join([part.real for part in parts]), interp.track(string_shadow, parts)))


def string_shadow(parts: list[Value]) -> Shadow:
    """Of the concatenation of strings."""
    shadows = [part.shadow for part in parts]
    if all(isinstance(s, Const) for s in shadows):
        return Const("".join([part.real for part in parts]))
    if all(isinstance(s, (Const, External, Expr)) for s in shadows):
        return functools.reduce(lambda left, right: Expr(operator.concat, (left, right)), shadows)
    raise Break("opaque-call", "a string was built of parts of unknown origin")


def has_one_type(interp: Interpreter, value: Value) -> bool:
    """Whether a scalar is of the same type on every call, which is guarded."""
    if interp.graph.type_of(value.shadow) is not None:
        return True
    source = source_of(value.shadow) if isinstance(value.shadow, (External, Expr)) else None
    if source is not None:
        interp.graph.require(source, "TYPE", type(value.real))
    return source is not None


@opcode("FORMAT_VALUE", does=Does.BUILDS, until=(3, 12))
def format_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    spec = [frame.pop()] if instruction.arg & 4 else []
    conversion = CONVERSIONS.get(instruction.arg & 3)

    def format_converted(value: Value) -> None:
        if conversion is not None and type(value.real) is str and not spec:
            frame.stack.append(value)
        else:
            format_simply(interp, frame, value, *spec)
    if conversion is None:
        format_simply(interp, frame, frame.pop(), *spec)
    elif in_python(frame.stack[-1].real, "__str__") or in_python(frame.stack[-1].real, "__repr__"):
        convert = Value(conversion, Const(conversion))
        calls.call(interp, FORMAT_CONVERTED, [frame.pop(), convert, *(spec or [Value("", Const(""))])])
    else:
        calls.apply(interp, conversion, frame.pop(), then=format_converted)


def format_simply(interp: Interpreter, frame: Frame, value: Value, *spec: Value) -> None:
    """Formats a value, without a conversion. Text is its own."""
    if type(value.real) is str and not spec and interp.track(has_one_type, interp, value) is not False:
        frame.stack.append(value)
    else:
        calls.apply(interp, format, value, *spec)


@opcode("FORMAT_SIMPLE", does=Does.BUILDS, since=(3, 13))
def format_without_spec(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    format_simply(interp, frame, frame.pop())


@opcode("FORMAT_WITH_SPEC", does=Does.BUILDS, since=(3, 13))
def format_with_spec(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    format_simply(interp, frame, *frame.popn(2))


@opcode("CONVERT_VALUE", does=Does.BUILDS, since=(3, 13))
def convert_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.apply(interp, CONVERSIONS[instruction.arg], frame.pop())


# -- extending ---------------------------------------------------------------------------------------------------------

@opcode("LIST_APPEND", does=Does.FILLS)
def list_append(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    item = frame.pop()
    calls.apply(interp, list.append, frame.stack[-instruction.arg], item, then=discard)


@opcode("SET_ADD", does=Does.FILLS)
def set_add(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    item = frame.pop()
    calls.apply(interp, set.add, frame.stack[-instruction.arg], item, then=discard)


@opcode("MAP_ADD", does=Does.FILLS)
def map_add(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    key, value = frame.popn(2)
    calls.apply(interp, operator.setitem, frame.stack[-instruction.arg], key, value, then=discard)


@opcode("LIST_EXTEND", does=Does.FILLS)
def list_extend(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    if not is_iterable(items.real):
        refuse(interp, TypeError(f"Value after * must be an iterable, not {type_name(items.real)}"), items)
    interp.track(depend_type, interp, items)        # which says what is raised, also where the trace ends here
    calls.apply(interp, list.extend, frame.stack[-instruction.arg], items, then=discard)


@opcode("SET_UPDATE", does=Does.FILLS)
def set_update(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    calls.apply(interp, set.update, frame.stack[-instruction.arg], items, then=discard)


@opcode("DICT_UPDATE", does=Does.FILLS)
def dict_update(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    if not is_a(items.real, dict) and not interp.real(hasattr, items.real, "keys"):
        error = TypeError(f"{type_name(items.real)!r} object is not a mapping")
        if asks_python(items.real, "keys"):
            interp.cannot_repeat(error, Break("opaque-call", "a mapping was asked for its keys"))
        refuse(interp, error, items)
    interp.track(depend_type, interp, items)
    calls.apply(interp, dict.update, frame.stack[-instruction.arg], items, then=discard)


@opcode("DICT_MERGE", does=Does.FILLS)
def dict_merge(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    items, target = frame.pop(), frame.stack[-instruction.arg]
    function = frame.stack[-instruction.arg - (2 if NULL_FIRST else 3)]
    assert target is not None and function is not None
    if is_known(interp, target) and is_known(interp, items) and target.real.keys().isdisjoint(items.real):
        interp.real(dict.update, target.real, items.real)
        interp.track(dicts.update, interp, None, target, items)
        return
    interp.track(depend_type, interp, items)

    def explained(exception: BaseException) -> bool:
        if is_a(exception, AttributeError):
            unwind.throw(TypeError(f"{function_name(function.real)} argument after ** must be a mapping, "
                                   f"not {type_name(items.real)}"))
        if is_a(exception, KeyError) and len(exception.args) == 1:
            unwind.throw(TypeError(f"{function_name(function.real)} got multiple values for keyword argument "
                                   f"'{exception.args[0]}'"))
        return False
    merge = merge_foreign if is_foreign(items.real) or not is_a(items.real, dict) else merge_dict
    calls.call(interp, Value(merge, Const(merge)), [target, items], None, discard, explained)


def is_known(interp: Interpreter, names: Value) -> bool:
    """Whether the trace made a dict, as it does of keyword arguments, and knows all that it holds: texts as keys."""
    node = names.shadow
    return (interp.tracking and type(names.real) is dict and isinstance(node, RefNode) and node.created
            and type(node.state) is DictState and node.state.complete and type(node.state.items) is dict
            and node not in interp.graph.volatile and all(type(name) is str for name in names.real))


def function_name(function: Any) -> str:
    """How CPython's error messages name a callable."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{qualname}()" if module is None or module == "builtins" else f"{module}.{qualname}()"


# -- taking apart ------------------------------------------------------------------------------------------------------

@opcode("UNPACK_SEQUENCE", does=Does.OPERATES)
def unpack_sequence(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    sequence, count = frame.pop(), instruction.arg

    def unpack(values: list[Value]) -> None:
        if len(values) < count:
            unwind.throw(ValueError(f"not enough values to unpack (expected {count}, got {len(values)})"))
        if len(values) > count:
            unwind.throw(ValueError(f"too many values to unpack (expected {count})"))
        frame.stack.extend(reversed(values))
    take_apart(interp, frame, sequence, count + 1, unpack)


@opcode("UNPACK_EX", does=Does.OPERATES)
def unpack_ex(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    sequence, before, after = frame.pop(), instruction.arg & 0xFF, instruction.arg >> 8

    def unpack(values: list[Value]) -> None:
        if len(values) < before + after:
            unwind.throw(ValueError(f"not enough values to unpack (expected at least {before + after}, "
                                    f"got {len(values)})"))
        end = len(values) - after
        frame.stack.extend(reversed(values[end:]))
        frame.stack.append(make_list(interp, values[before:end]))
        frame.stack.extend(reversed(values[:before]))
    take_apart(interp, frame, sequence, sys.maxsize, unpack)


def items_in_c(interp: Interpreter, sequence: Value, *asked: str) -> list[Value] | None:
    """The items of a list or tuple that is asked for no iterator in Python, nor by other methods, as a guard promises of its class;
    None of another."""
    real = sequence.real
    if not is_a(real, (list, tuple)) or any(in_python(real, name) for name in ("__iter__", *asked)):
        return None
    interp.track(pin_special, interp.graph, type(real), "__iter__", *asked)
    return elements(interp, sequence)


def take_apart(interp: Interpreter, frame: Frame, sequence: Value, limit: int, then: Callable[[list[Value]], None]) -> None:
    """Hands the items of a list or tuple to `then`. Of any other iterable, up to `limit` are put in a list, for which the present
    instruction begins again."""
    real = sequence.real
    items = items_in_c(interp, sequence)
    if items is not None:
        return then(items)
    if not is_iterable(real):
        refuse(interp, TypeError(f"cannot unpack non-iterable {type_name(real)} object"), sequence)
    interp.track(depend_type, interp, sequence)

    def again(items: Value) -> None:
        frame.stack.append(items)
        frame.pc -= 1
    calls.call(interp, TAKEN, [sequence, Value(limit, Const(limit))], None, resuming(again, Resume.RETRY))
