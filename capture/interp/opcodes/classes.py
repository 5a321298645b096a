"""Opcodes of bodies of classes and modules, and the intrinsics since 3.12."""
from __future__ import annotations

import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from bytecode import ConcreteBytecode, ConcreteInstr

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import scope, unwind
from capture.interp.core.frame import Continuation, Frame, Value, discard
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import protocol
from capture.interp.coroutines.iteration import elements
from capture.interp.dispatch import calls
from capture.interp.opcodes.asynchronous import wrap
from capture.interp.opcodes.containers import make_tuple
from capture.interp.opcodes.exceptions import group_value, prepare_reraise
from capture.interp.polyfills import intrinsics
from capture.refgraph.node import Const, DictState, Shadow

GETITEM, SETITEM, DELITEM = (Value(f, Const(f)) for f in (operator.getitem, operator.setitem, operator.delitem))
DISPLAY, IMPORT_ALL = (Value(f, Const(f)) for f in (intrinsics.display, intrinsics.import_all))


# -- names in a namespace ----------------------------------------------------------------------------------------------

def lookup(interp: Interpreter, namespace: Value, name: str, otherwise: Callable[[], None]) -> None:
    """Pushes `namespace[name]`, or goes on with `otherwise`."""
    def missing(exception: BaseException) -> bool:
        if is_a(exception, KeyError):
            otherwise()
            return True
        return False
    calls.call(interp, GETITEM, [namespace, Value(name, Const(name))], None, interp.frame.stack.append, missing)  # type: ignore[union-attr]


def namespace_of(interp: Interpreter, frame: Frame) -> Value:
    """The mapping that a class body stores its names into; of a function made from a module's code, its globals."""
    if frame.namespace is None:
        frame.namespace = Value(frame.globals, interp.track(scope.globals_node, interp, frame))
    return frame.namespace


@opcode("LOAD_NAME", does=Does.LOADS_ANY_NAME)
def load_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    lookup(interp, namespace_of(interp, frame), instruction.value,
           lambda: frame.stack.append(scope.load_global(interp, frame, instruction.value)))


@opcode("STORE_NAME", does=Does.STORES_NAME)
def store_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    name = Value(instruction.value, Const(instruction.value))
    calls.call(interp, SETITEM, [namespace_of(interp, frame), name, frame.pop()], None, discard)


@opcode("DELETE_NAME", does=Does.STORES_NAME)
def delete_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    def missing(exception: BaseException) -> bool:
        if is_a(exception, KeyError):
            unwind.throw(NameError(f"name {instruction.value!r} is not defined", name=instruction.value))
        return False
    name = Value(instruction.value, Const(instruction.value))
    calls.call(interp, DELITEM, [namespace_of(interp, frame), name], None, discard, missing)


@opcode("LOAD_CLASSDEREF", does=Does.LOADS_ANY_NAME, until=(3, 11))
def load_classderef(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    lookup(interp, namespace_of(interp, frame), instruction.value,
           lambda: frame.stack.append(scope.load_cell(interp, frame.locals[instruction.arg], instruction.value)))  # type: ignore[arg-type]


@opcode("LOAD_LOCALS", does=Does.LOADS_ANY_NAME, since=(3, 12))
def load_locals(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(namespace_of(interp, frame))


@opcode("LOAD_FROM_DICT_OR_DEREF", does=Does.LOADS_ANY_NAME, since=(3, 12))
def load_from_dict_or_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    lookup(interp, frame.pop(), instruction.value,
           lambda: frame.stack.append(scope.load_cell(interp, frame.locals[instruction.arg], instruction.value)))  # type: ignore[arg-type]


@opcode("LOAD_FROM_DICT_OR_GLOBALS", does=Does.LOADS_ANY_NAME, since=(3, 12))
def load_from_dict_or_globals(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    lookup(interp, frame.pop(), instruction.value,
           lambda: frame.stack.append(scope.load_global(interp, frame, instruction.value)))


@opcode("SETUP_ANNOTATIONS", does=Does.STORES_NAME)
def setup_annotations(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    namespace, name = namespace_of(interp, frame), Value("__annotations__", Const("__annotations__"))

    def missing(exception: BaseException) -> bool:
        if is_a(exception, KeyError):
            real: dict[str, Any] = {}
            annotations = Value(real, interp.track(interp.graph.create, real, DictState({}, complete=True)))
            calls.call(interp, SETITEM, [namespace, name, annotations], None, discard)
            return True
        return False
    calls.call(interp, GETITEM, [namespace, name], None, discard, missing)


@opcode("PRINT_EXPR", does=Does.PRINTS, until=(3, 11))
def print_expr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    show(interp, frame.pop(), discard)


@opcode("IMPORT_STAR", does=Does.IMPORTS | Does.STORES_ANY_NAME, until=(3, 11))
def import_star(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    calls.call(interp, IMPORT_ALL, [frame.pop(), namespace_of(interp, frame)], None, discard)


def show(interp: Interpreter, value: Value, then: Continuation | None = None) -> None:
    """What code compiled for the interactive shell does with the value of a statement."""
    calls.call(interp, DISPLAY, [value], None, then)


@opcode("LOAD_BUILD_CLASS", does=Does.BUILDS_CLASS)
def load_build_class(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if "__build_class__" not in frame.builtins:
        unwind.throw(NameError("__build_class__ not found"))
    frame.stack.append(scope.load_builtin(interp, frame, "__build_class__"))


# -- intrinsics --------------------------------------------------------------------------------------------------------

def _type_parameter(source: str) -> Callable[..., Any]:
    """What CPython makes of type parameter syntax. There is no other way to have one that is evaluated lazily."""
    def make(frame: Frame, name: str, evaluate: Callable[[], Any] | None = None) -> Any:
        namespace = {"__name__": frame.globals.get("__name__"), "evaluate": evaluate}
        exec(f"def function[{source.format(name)}](): pass", namespace)
        return namespace["function"].__type_params__[0]  # type: ignore[union-attr]
    return make


def _type_alias(frame: Frame, parts: tuple[str, Any, Callable[[], Any]]) -> Any:
    """A `type` statement. The value of a generic alias is evaluated now: there is no way to hand it its parameters."""
    name, parameters, evaluate = parts
    if parameters:
        return typing.TypeAliasType(name, evaluate(), type_params=parameters)  # type: ignore[attr-defined]
    namespace = {"__name__": frame.globals.get("__name__"), "evaluate": evaluate}
    exec(f"type {name} = evaluate()", namespace)
    return namespace[name]


def _intrinsic_2(number: int) -> Callable[..., Any]:
    """CPython's own function of this number, for what no Python code says."""
    made = ConcreteBytecode()
    made.varnames, made.argcount = ["frame", "first", "second"], 3
    made.extend([ConcreteInstr("RESUME", 0), ConcreteInstr("LOAD_FAST", 1), ConcreteInstr("LOAD_FAST", 2),
                 ConcreteInstr("CALL_INTRINSIC_2", number), ConcreteInstr("RETURN_VALUE")])
    return types.FunctionType(made.to_code(stacksize=2, compute_exception_stack_depths=False), {})


def _set_type_params(frame: Frame, function: Any, parameters: tuple[Any, ...]) -> Any:
    function.__type_params__ = parameters
    return function


# By number (pycore_intrinsics.h): those that handle values of the language, and so are not interesting to a trace.
TYPING_1: dict[int, Callable[..., Any]] = {
    7: _type_parameter("{}"), 8: _type_parameter("**{}"), 9: _type_parameter("*{}"),
    10: lambda frame, parameters: typing.Generic[parameters], 11: _type_alias}  # type: ignore[index]
TYPING_2: dict[int, Callable[..., Any]] = {
    2: _type_parameter("{}: evaluate()"), 3: _type_parameter("{}: (*evaluate(),)"), 4: _set_type_params,
    **({5: _intrinsic_2(5)} if sys.version_info >= (3, 13) else {})}
STOPITERATION_ERROR, ASYNC_GEN_WRAP, UNARY_POSITIVE, LIST_TO_TUPLE = 3, 4, 5, 6
PRINT, IMPORT_STAR = 1, 2
PREP_RERAISE_STAR = 1


@opcode("CALL_INTRINSIC_1", does=Does.MAKES, since=(3, 12), with_argument={
    STOPITERATION_ERROR: Does.MAKES | Does.WRAPS_STOP, PRINT: Does.PRINTS, IMPORT_STAR: Does.IMPORTS | Does.STORES_ANY_NAME})
def call_intrinsic_1(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    if instruction.arg == STOPITERATION_ERROR:
        frame.stack.append(stop_iteration_error(interp, frame, value))
    elif instruction.arg == ASYNC_GEN_WRAP:
        frame.stack.append(wrap(interp, value))
    elif instruction.arg == UNARY_POSITIVE:
        calls.apply(interp, operator.pos, value)
    elif instruction.arg == LIST_TO_TUPLE:
        frame.stack.append(make_tuple(interp, elements(interp, value)))
    elif instruction.arg == PRINT:
        show(interp, value)
    elif instruction.arg == IMPORT_STAR:
        calls.call(interp, IMPORT_ALL, [value, namespace_of(interp, frame)])
    else:
        frame.stack.append(typing_value(interp, TYPING_1[instruction.arg], frame, value))


@opcode("CALL_INTRINSIC_2", does=Does.MAKES, since=(3, 12))
def call_intrinsic_2(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    first, second = frame.popn(2)
    if instruction.arg == PREP_RERAISE_STAR:
        frame.stack.append(group_value(interp, prepare_reraise(interp, first.real, second.real)))
    else:
        frame.stack.append(typing_value(interp, TYPING_2[instruction.arg], frame, first, second))


def stop_iteration_error(interp: Interpreter, frame: Frame, value: Value) -> Value:
    """What a StopIteration becomes that leaves a generator."""
    replaced = protocol.stop_iteration_error(frame.generator.kind, value.real)
    return value if replaced is None else unwind.exception_value(interp, replaced)


def typing_value(interp: Interpreter, make: Callable[..., Any], frame: Frame, *values: Value) -> Value:
    """A type parameter, alias or generic base."""
    def model() -> Shadow:
        raise Break("opaque-call", "type parameters were made")
    real = interp.real(make, frame, *[value.real for value in values])
    return Value(real, interp.track(model))
