"""Calls of anything."""
from __future__ import annotations

from typing import Any

from capture.errors import Break
from capture.interp.core import unwind
from capture.interp.core.frame import Frame, Value
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import in_python, is_iterable, type_name
from capture.interp.coroutines.iteration import elements
from capture.interp.dispatch import calls
from capture.interp.lookasides.shadows import depend_type, refuse
from capture.interp.opcodes.containers import function_name
from capture.interp.polyfills.iteration import spread
from capture.refgraph.node import Const, DictState, RefNode

SPREAD = Value(spread, Const(spread))


@opcode("CALL", does=Does.MAKES | Does.CALLS, effect=lambda instruction, jumps: -instruction.arg - 1)
def call(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    call_with_names(interp, frame, instruction.arg, instruction.value)


@opcode("CALL_KW", does=Does.MAKES, since=(3, 13))
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
    kwargs = keywords(interp, frame.pop()) if instruction.arg & 1 else {}
    arguments, above, below = frame.pop(), frame.pop(), frame.pop()
    function = above if below is None else below    # the other one is NULL
    if isinstance(arguments.real, (list, tuple)) and not in_python(arguments.real, "__iter__"):
        return calls.call(interp, function, elements(interp, arguments), kwargs)
    if not is_iterable(arguments.real):
        refuse(interp, TypeError(f"{function_name(function.real)} argument after * must be an iterable, "
                                 f"not {type_name(arguments.real)}"), arguments)
    interp.track(depend_type, interp, arguments)
    calls.call(interp, SPREAD, [function, arguments], kwargs)


def keywords(interp: Interpreter, mapping: Value) -> dict[str, Value]:
    """The items of a dict that DICT_MERGE has made."""
    if not all(isinstance(key, str) for key in mapping.real):
        unwind.throw(TypeError("keywords must be strings"))
    shadows = interp.track(_item_shadows, mapping) or {}
    return {key: Value(real, shadows.get(key)) for key, real in mapping.real.items()}


def _item_shadows(mapping: Value) -> Any:
    if isinstance(mapping.shadow, RefNode) and isinstance(mapping.shadow.state, DictState):
        return mapping.shadow.state.items
    raise Break("opaque-call", "keyword arguments of unknown origin")
