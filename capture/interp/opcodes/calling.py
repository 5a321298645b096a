"""Opcodes of calls: of any callable, with any arguments."""
from __future__ import annotations

import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Frame, Value
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import is_iterable, type_name
from capture.interp.dispatch import calls
from capture.interp.function_models.shadows import depend_type, refuse
from capture.interp.opcodes.containers import function_name, items_in_c
from capture.interp.polyfills.iteration import spread
from capture.refgraph.node import Const, DictState, RefNode

SPREAD = Value(spread, Const(spread))


@opcode("CALL", does=Does.MAKES | Does.CALLS, effect=lambda instruction, jumps: -instruction.arg - 1)
def call(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    call_with_names(interp, frame, instruction.arg, instruction.value)


@opcode("CALL_KW", does=Does.MAKES | Does.CALLS_NAMED, since=(3, 13))
def call_kw(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    call_with_names(interp, frame, instruction.arg, frame.pop().real)


def call_with_names(interp: Interpreter, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    """A call of what is below so many arguments, the last of which have names."""
    below, above, *args = frame.popn(count + 2)     # NULL and callable (in 3.13 the other way round); or method and self
    if below is None:
        function = above
    else:
        function, args = below, args if above is None else [above, *args]
    if names:
        kwargs = dict(zip(names, args[-len(names):]))
        del args[-len(names):]
        calls.call(interp, function, args, kwargs)
    else:
        calls.call(interp, function, args)


@opcode("CALL_FUNCTION_EX", does=Does.MAKES)
def call_function_ex(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    mapping = frame.pop() if instruction.arg & 1 else None
    arguments, above, below = frame.pop(), frame.pop(), frame.pop()
    function = above if below is None else below    # the other one is NULL
    if mapping is not None and not all(is_a(key, str) for key in mapping.real):
        return call_with_any_keys(interp, frame, function, arguments, mapping)
    kwargs = {} if mapping is None else keywords(interp, mapping)
    items = items_in_c(interp, arguments, "__len__")
    if items is not None:
        return calls.call(interp, function, items, kwargs)
    if not is_iterable(arguments.real):
        refuse(interp, TypeError(f"{function_name(function.real)} argument after * must be an iterable, "
                                 f"not {type_name(arguments.real)}"), arguments)
    interp.track(depend_type, interp, arguments)
    calls.call(interp, SPREAD, [function, arguments], kwargs)


def keywords(interp: Interpreter, mapping: Value) -> dict[str, Value]:
    """The items of a dict that DICT_MERGE has made, whose keys are strings."""
    shadows = interp.track(_item_shadows, mapping) or {}
    return {key: Value(real, shadows.get(key)) for key, real in mapping.real.items()}


def call_with_any_keys(interp: Interpreter, frame: Frame, function: Value, arguments: Value, mapping: Value) -> None:
    """A call with keywords that are not all strings. Functions in Python refuse it; of others CPython knows which are given the
    dict as it is (`str.format`), and which refuse it."""
    if type(function.real) is types.FunctionType:
        unwind.throw(TypeError("keywords must be strings"))
    interp.give_up(Break("opaque-call", f"{function_name(function.real)} is given keywords that are no strings"))
    frame.push(Value(interp.real(lambda: function.real(*arguments.real, **mapping.real)), None))


def _item_shadows(mapping: Value) -> Any:
    if isinstance(mapping.shadow, RefNode) and isinstance(mapping.shadow.state, DictState):
        return mapping.shadow.state.items
    raise Break("opaque-call", "keyword arguments of unknown origin")
