"""Opcodes of raise, try, except*, with and assert."""
from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.interp.core import unwind
from capture.interp.core.frame import Continuation, Frame, Handled, Resume, UserError, Value, resuming
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import type_name
from capture.interp.dispatch import calls, descriptors
from capture.interp.function_models.exception_groups import depend_members, group_shadow
from capture.interp.function_models.shadows import depend_type, refuse
from capture.refgraph.lookup import MISSING, lookup_class
from capture.refgraph.node import Const, Shadow

CAUSES_ARE_CHECKED = sys.version_info >= (3, 13)    # `raise … from cls`: whether `cls()` must be an exception, as in `raise cls`
NOT_AN_EXCEPTION = "catching classes that do not inherit from BaseException is not allowed"


# -- raise -------------------------------------------------------------------------------------------------------------

@opcode("RAISE_VARARGS", does=Does.LEAVES | Does.RAISES)
def raise_varargs(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        handled = sys.exception()
        if handled is None:
            unwind.throw(RuntimeError("No active exception to reraise"))
        raise UserError(handled, reraised=True)
    cause = frame.pop() if instruction.arg == 2 else None
    exception = frame.pop()

    def raise_from(instance: Value, cause: Value) -> None:
        interp.track(depend_type, interp, cause)
        if cause.real is not None and not is_a(cause.real, BaseException):
            unwind.throw(TypeError("exception causes must derive from BaseException"))
        instance.real.__cause__ = cause.real
        unwind.throw(instance.real)

    def raise_from_made(instance: Value, cls: Value, cause: Value) -> None:
        if CAUSES_ARE_CHECKED:
            check_made(cls, cause)
        raise_from(instance, cause)

    def check_made(cls: Value, made: Value) -> None:
        if not is_a(made.real, BaseException):
            refuse(interp, TypeError(f"calling {cls.real!r} should have returned an instance of BaseException, "
                                     f"not {type(made.real)!r}"), made)

    def raise_instance(instance: Value) -> None:
        check_made(exception, instance)
        if cause is None:
            unwind.throw(instance.real)
        elif is_exception_class(cause.real):
            calls.call(interp, cause, [], then=lambda made: raise_from_made(instance, cause, made))
        else:
            raise_from(instance, cause)
    if is_exception_class(exception.real):
        if cause is None:                               # `raise cls()` from here on
            def again(made: Value) -> None:
                if not is_a(made.real, BaseException):
                    raise_instance(made)
                frame.stack.append(made)
                frame.pc -= 1
            resuming(again, Resume.RETRY)
        calls.call(interp, exception, [], then=raise_instance if cause is not None else again)
    elif is_a(exception.real, BaseException):
        raise_instance(exception)
    else:
        refuse(interp, TypeError("exceptions must derive from BaseException"), exception)


def is_exception_class(x: Any) -> bool:
    """Whether `x` is a class of exceptions, whatever its metaclass says."""
    return is_a(x, type) and any(base is BaseException for base in type.__getattribute__(x, "__mro__"))


@opcode("RERAISE", does=Does.LEAVES | Does.RAISES)
def reraise(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raise UserError(frame.pop().real, reraised=True)


@opcode("LOAD_ASSERTION_ERROR", does=Does.OPERATES)
def load_assertion_error(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(Value(AssertionError, interp.track(lambda: interp.graph.constant(AssertionError))))


# -- try ---------------------------------------------------------------------------------------------------------------

@opcode("PUSH_EXC_INFO", does=Does.HANDLES)
def push_exc_info(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exception = frame.pop()
    previous = unwind.swap_handled(frame, exception.real)
    frame.stack.append(Handled(previous, Const(None) if previous is None else unwind.exception_value(interp, previous).shadow))
    frame.stack.append(exception)


@opcode("POP_EXCEPT", does=Does.OPERATES)
def pop_except(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    handled = unwind.swap_handled(frame, frame.pop().real)
    node = interp.track(interp.graph.find, handled)
    del handled
    if node is not None:
        interp.let_go(frame, node)


@opcode("CHECK_EXC_MATCH", does=Does.OPERATES)
def check_exc_match(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    expected, exception = frame.pop(), frame.stack[-1]
    classes = expected.real if is_a(expected.real, tuple) else (expected.real,)
    if not all(is_exception_class(cls) for cls in classes):
        interp.track(interp.graph.depend, expected.shadow, expected.real)
        unwind.throw(TypeError(NOT_AN_EXCEPTION))
    matches = is_one_of(exception.real, classes)
    frame.stack.append(Value(matches, interp.track(_match_shadow, interp, expected, exception, matches)))


def is_one_of(exception: BaseException, classes: tuple[type, ...]) -> bool:
    """Whether an `except` clause catches; it asks no `__instancecheck__`."""
    mro = type.__getattribute__(type(exception), "__mro__")
    return any(cls is base for cls in classes for base in mro)


def depend_classes(interp: Interpreter, expected: Value, exception: Value) -> Shadow:
    """Guards what an `except*` clause catches, and what it is shown."""
    interp.graph.depend(expected.shadow, expected.real)
    depend_members(interp, exception.real)
    return Const(None)


def _match_shadow(interp: Interpreter, expected: Value, exception: Value, matches: bool) -> Shadow:
    interp.graph.touch(exception.shadow)  # type: ignore[arg-type]
    interp.graph.depend(expected.shadow, expected.real)
    return Const(matches)


# -- except* -----------------------------------------------------------------------------------------------------------

@opcode("CHECK_EG_MATCH", does=Does.OPERATES)
def check_eg_match(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    caught = frame.pop()
    interp.track(lambda: depend_classes(interp, caught, frame.stack[-1]))
    expected, exception = caught.real, frame.pop().real
    classes = expected if is_a(expected, tuple) else (expected,)
    if not all(is_exception_class(cls) for cls in classes):
        unwind.throw(TypeError(NOT_AN_EXCEPTION))
    if any(BaseExceptionGroup in type.__getattribute__(cls, "__mro__") for cls in classes):
        unwind.throw(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead."))
    match, rest = split(interp, exception, classes)
    frame.stack.append(group_value(interp, rest))
    frame.stack.append(group_value(interp, match))
    if match is not None:
        unwind.swap_handled(frame, match)


def split(interp: Interpreter, exception: BaseException | None, classes: tuple[type, ...]) -> tuple[Any, Any]:
    """The part of an exception that an `except*` clause catches, and the rest."""
    if exception is None:
        return None, None
    if is_one_of(exception, classes):
        is_group = is_a(exception, BaseExceptionGroup)
        return (exception if is_group else interp.real(BaseExceptionGroup, "", (exception,))), None
    if not is_a(exception, BaseExceptionGroup):
        return None, exception
    pair = interp.real(exception.split, classes)
    if not is_a(pair, tuple) or len(pair) < 2:
        expected, got = ("2-tuple", f"tuple of size {len(pair)}") if is_a(pair, tuple) else (
            "tuple", type_name(pair))
        unwind.throw(TypeError(f"{type_name(exception)}.split must return a {expected}, got {got}"))
    return pair[:2]


def group_value(interp: Interpreter, exception: Any) -> Value:
    """What except* leaves on the stack: an exception that was there, or a group made of such."""
    return Value(exception, interp.track(group_shadow, interp, exception))


def prepare_reraise(interp: Interpreter, original: BaseException,
                    raised: list[BaseException | None]) -> BaseException | None:
    """What an `except*` statement raises in the end, of what its clauses raised and left over."""
    if not is_a(original, BaseExceptionGroup):
        return raised[0] if raised else None
    new, again = [], []
    for exception in raised:
        if exception is not None:
            (again if _same_metadata(exception, original) else new).append(exception)
    kept = set(itertools.chain.from_iterable(map(_leaves, again)))
    projection = BaseExceptionGroup.subgroup(
        original, lambda e: not is_a(e, BaseExceptionGroup) and id(e) in kept) if again else None
    if not new:
        return projection
    if projection is not None:
        new.append(projection)
    return new[0] if len(new) == 1 else interp.real(BaseExceptionGroup, "", new)


def _same_metadata(exception: BaseException, original: BaseException) -> bool:
    return is_a(exception, BaseExceptionGroup) and (
        getattr(exception, "__notes__", None) is getattr(original, "__notes__", None)
        and exception.__traceback__ is original.__traceback__
        and exception.__cause__ is original.__cause__ and exception.__context__ is original.__context__)


def _leaves(exception: BaseException) -> list[int]:
    if is_a(exception, BaseExceptionGroup):
        return list(itertools.chain.from_iterable(map(_leaves, exception.exceptions)))
    return [id(exception)]


@opcode("PREP_RERAISE_STAR", does=Does.OPERATES, until=(3, 11))
def prep_reraise_star(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    original, raised = frame.popn(2)
    frame.stack.append(group_value(interp, prepare_reraise(interp, original.real, raised.real)))


# -- with --------------------------------------------------------------------------------------------------------------

def load_special(interp: Interpreter, obj: Value, name: str, then: Continuation, missing: Callable[[], Any]) -> None:
    """A special method of an object, bound: looked up in its class only."""
    cls = type(obj.real)
    descriptor = lookup_class(cls, name, MISSING)
    if descriptor is MISSING:
        missing()
    descriptors.bind(interp, descriptors.find(interp, cls, name, descriptor, obj), name, obj, then, None)


def enter(interp: Interpreter, frame: Frame, enters: str, exits: str, protocol: str) -> None:
    """Replaces a context manager by its bound `exits`, and pushes the result of its `enters`."""
    manager = frame.pop()
    problem = f"{type_name(manager.real)!r} object does not support the {protocol} protocol"

    def has_enter(method: Value) -> None:
        def has_exit(exit: Value) -> None:
            frame.stack.append(exit)
            calls.call(interp, method, [])
        load_special(interp, manager, exits, has_exit,
                     lambda: unwind.throw(TypeError(f"{problem} (missed {exits} method)")))
    load_special(interp, manager, enters, has_enter, lambda: unwind.throw(TypeError(problem)))


@opcode("BEFORE_WITH", does=Does.ENTERS)
def before_with(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    enter(interp, frame, "__enter__", "__exit__", "context manager")


@opcode("BEFORE_ASYNC_WITH", does=Does.ENTERS)
def before_async_with(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    enter(interp, frame, "__aenter__", "__aexit__", "asynchronous context manager")


@opcode("WITH_EXCEPT_START", does=Does.EXITS)
def with_except_start(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exit, exception = frame.stack[-4], frame.stack[-1]      # exit, lasti, the exception handled before, exception
    assert exit is not None and exception is not None
    traceback = exception.real.__traceback__
    calls.call(interp, exit, [
        Value(type(exception.real), interp.track(descriptors.class_of, interp, exception)), exception,
        Value(traceback, interp.track(_traceback_shadow, interp, exception))])


def _traceback_shadow(interp: Interpreter, exception: Value) -> Shadow:
    node, traceback = exception.shadow, exception.real.__traceback__
    if node.source is not None or "__traceback__" in node.slots:  # type: ignore[attr-defined]
        return interp.graph.slot(node, "__traceback__", traceback)  # type: ignore[arg-type]
    return interp.graph.find(traceback) or interp.graph.create(traceback)
