"""Opcodes of delegation, await, and asynchronous iteration."""
from __future__ import annotations

import inspect
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import generator_drivers, unwind
from capture.interp.core.frame import Continuation, Cut, Frame, OnRaise, Resume, UserError, Value, resuming
from capture.interp.core.generator_drivers import Wrapped
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import in_python, type_name
from capture.interp.coroutines import bodies, protocol
from capture.interp.coroutines.iteration import NEXT, refusal
from capture.interp.dispatch import attributes, calls
from capture.interp.function_models.shadows import depend_type
from capture.interp.opcodes.exceptions import load_special
from capture.refgraph.lookup import lookup_class
from capture.refgraph.node import Const, Shadow

PROTOCOL = ("'async for' requires an object with __aiter__ method, got {}",
            "'async for' received an object from __aiter__ that does not implement __anext__: {}",
            "'async for' requires an iterator with __anext__ method, got {}",
            "'async for' received an invalid object from __anext__: {}")
AWAITED = ("object {} can't be used in 'await' expression",
           "'async with' received an object from __aenter__ that does not implement __await__: {}",
           "'async with' received an object from __aexit__ that does not implement __await__: {}")


# -- delegation --------------------------------------------------------------------------------------------------------

@opcode("GET_YIELD_FROM_ITER", does=Does.SUSPENDS)
def get_yield_from_iter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    iterable = frame.pop()
    if is_a(iterable.real, types.CoroutineType):
        if not frame.code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
            unwind.throw(TypeError("cannot 'yield from' a coroutine object in a non-coroutine generator"))
        frame.stack.append(iterable)
    elif is_a(iterable.real, types.GeneratorType):
        frame.stack.append(iterable)
    else:
        calls.apply(interp, iter, iterable)


@opcode("SEND", does=Does.SUSPENDS | Does.BRANCHES, effect=lambda instruction, jumps: -1 if jumps else 0)
def send(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """Resumes what the frame delegates to. At its end the iterator is popped, as END_SEND does in 3.12."""
    value, receiver = frame.pop(), frame.stack[-1]
    assert receiver is not None

    def returned(result: Value) -> None:
        frame.stack[-1] = result
        frame.pc = instruction.value

    def stopped(exception: BaseException) -> bool:
        if is_a(exception, StopIteration):
            returned(protocol.returned_value(interp, exception))
            return True
        return False

    def push(value: Value) -> None:
        frame.stack.append(value)
    resuming(push, Resume.SEND)
    body = bodies.find(interp, receiver)
    if body is not None:
        body.send(interp, value, push, returned)
    elif value.real is None and lookup_class(type(receiver.real), "__next__") is not None:
        unknown = interp.track(refusal, interp, receiver) if interp.can_cut and not in_python(receiver.real, "__next__") else None
        if isinstance(unknown, Break):
            raise Cut(unknown, NEXT, [receiver], {}, then=push, on_raise=stopped)
        calls.call(interp, NEXT, [receiver], None, push, stopped)
    elif is_a(receiver.real, generator_drivers.GENERATORS):
        method = type(receiver.real).send
        calls.call(interp, Value(method, Const(method)), [receiver, value], on_raise=stopped)
    else:
        attributes.load(interp, receiver, "send", lambda method: calls.call(interp, method, [value], on_raise=stopped))


@opcode("CLEANUP_THROW", does=Does.OPERATES, since=(3, 12), effect=lambda instruction, jumps: -2)     # END_SEND is taken in
def cleanup_throw(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """An exception came out of what the frame delegates to; the jump that follows leads past END_SEND."""
    exception = frame.stack[-1].real
    if not is_a(exception, StopIteration):
        raise UserError(exception, reraised=True)
    frame.popn(3)
    frame.stack.append(protocol.returned_value(interp, exception))


# -- await -------------------------------------------------------------------------------------------------------------

def awaitable(interp: Interpreter, obj: Value, then: Continuation, problem: str,
              on_raise: OnRaise | None = None) -> None:
    """The iterator behind an awaitable. Raises UserError with TypeError, worded by `problem`."""
    real = obj.real
    if is_a(real, types.CoroutineType) or (
            is_a(real, types.GeneratorType) and real.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE):
        return then(obj)

    def check(iterator: Value) -> None:
        result = iterator.real
        if is_a(result, types.CoroutineType) or (
                is_a(result, types.GeneratorType) and result.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE):
            return protocol.fail(TypeError("__await__() returned a coroutine"), on_raise)
        if lookup_class(type(result), "__next__") is None:
            text = f"__await__() returned non-iterator of type {type_name(result)!r}"
            return protocol.fail(TypeError(text), on_raise)
        then(iterator)

    def missing() -> None:
        depend_type(interp, obj)        # whose name is told
        protocol.fail(TypeError(problem.format(type_name(real))), on_raise)
    load_special(interp, obj, "__await__", lambda method: calls.call(interp, method, [], None, check, on_raise), missing)


@opcode("GET_AWAITABLE", does=Does.SUSPENDS | Does.AWAITS)
def get_awaitable(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    def check(iterator: Value) -> None:
        body = bodies.find(interp, iterator)
        if is_a(iterator.real, types.CoroutineType) and (
                iterator.real.cr_await if body is None else body.delegate()) is not None:
            unwind.throw(RuntimeError("coroutine is being awaited already"))
        frame.stack.append(iterator)
    awaitable(interp, frame.pop(), check, AWAITED[instruction.arg])


# -- asynchronous iteration --------------------------------------------------------------------------------------------

@opcode("GET_AITER", does=Does.SUSPENDS)
def get_aiter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    iterable = frame.pop()

    def check(iterator: Value) -> None:
        if lookup_class(type(iterator.real), "__anext__") is None:
            unwind.throw(TypeError(PROTOCOL[1].format(type_name(iterator.real))))
        frame.stack.append(iterator)
    load_special(interp, iterable, "__aiter__", lambda method: calls.call(interp, method, [], then=check),
                 lambda: unwind.throw(TypeError(PROTOCOL[0].format(type_name(iterable.real)))))


@opcode("GET_ANEXT", does=Does.SUSPENDS | Does.AWAITS_ITEM)
def get_anext(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    iterator = frame.stack[-1]
    assert iterator is not None

    def received(obj: Value) -> None:
        def invalid(cause: BaseException) -> bool:
            exception = TypeError(PROTOCOL[3].format(type_name(obj.real)))
            exception.__cause__ = exception.__context__ = cause
            raise UserError(exception)
        if is_a(iterator.real, types.AsyncGeneratorType):
            frame.stack.append(obj)
        else:
            awaitable(interp, obj, frame.stack.append, AWAITED[0], invalid)
    load_special(interp, iterator, "__anext__", lambda method: calls.call(interp, method, [], then=received),
                 lambda: unwind.throw(TypeError(PROTOCOL[2].format(type_name(iterator.real)))))


@opcode("END_ASYNC_FOR", does=Does.OPERATES)
def end_async_for(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exception: Any = frame.pop().real
    if not is_a(exception, StopAsyncIteration):
        raise UserError(exception, reraised=True)
    frame.stack.pop()


@opcode("ASYNC_GEN_WRAP", does=Does.OPERATES, until=(3, 11))
def async_gen_wrap(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(wrap(interp, frame.pop()))


def wrap(interp: Interpreter, value: Value) -> Value:
    """What an asynchronous generator yields to its consumer."""
    real = Wrapped(value.real)
    return Value(real, interp.track(wrapped, interp, real, value))


def wrapped(interp: Interpreter, real: Wrapped, value: Value) -> Shadow:
    node = interp.graph.create(real)
    node.slots["value"] = value.shadow
    return node
