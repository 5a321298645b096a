"""`__torch_function__`: which overrides (of classes and modes) a function of torch calls, and with what arguments.

For C functions torch itself shows this: the operation is called under a mode of ours, which comes first and only notes the call.
The interpreter then calls the overrides. Functions of torch that are written in Python are inlined, and call overrides themselves.
"""
from __future__ import annotations

import operator
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import hashable
from capture.interp.dispatch.call_kinds import TENSOR_OPERATORS, VALUE_TAKERS
from capture.interp.recording.tensors import OWNERS, is_operation
from capture.operators.transform_levels import OF_TRANSFORMS
from capture.refgraph.identical import Classes, items_in_c
from capture.refgraph.lookup import MISSING, lookup_class
from capture.refgraph.memory import DISABLED, PLAIN_TENSORS, is_overriding
from capture.refgraph.node import SCALARS, Build, Const, DictState, RefNode, Shadow

OF_FIRST = frozenset({operator.getitem, operator.setitem, operator.delitem, operator.contains})     # … alone, be it a tensor
OPERATORS = TENSOR_OPERATORS | VALUE_TAKERS | {len, operator.index}
SILENT = frozenset(function for function in OF_TRANSFORMS if function.__module__ == torch._C._functorch.__name__)    # ask nobody
GETTER, SETTER = types.GetSetDescriptorType.__get__, types.GetSetDescriptorType.__set__
LITTLE = Classes((*SCALARS, *PLAIN_TENSORS, torch.dtype, torch.device))  # what is never asked
DEEPEST = 3                                                         # containers in containers that operations look into


class WouldOverride(BaseException):
    """Raised by NOTING in place of an override: the call that an operation makes of it."""


class NotingMode(TorchFunctionMode):
    """The mode that notes the override calls of an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = MISSING) -> Any:
        raise WouldOverride(func, types, args, kwargs)


@dataclass(frozen=True)
class OverrideCall:
    """A call of `__torch_function__`: the overrides in order (of_mode: a mode is first), and the arguments."""

    asked: Value
    arguments: Value
    of_mode: bool


class Performed(Exception):
    """The operation had no override and has run. `outcome`: what it returned."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome


def is_overridden(interp: Interpreter, args: Iterable[Value], kwargs: dict[str, Value]) -> bool:
    """Whether an operation on these arguments may call an override, now or when it runs natively."""
    if interp.blocks.modes and torch._C._is_torch_function_mode_enabled():
        return True
    return any(_has_override(value.real) for value in args) or any(_has_override(value.real) for value in kwargs.values())


def _has_override(real: Any, depth: int = DEEPEST) -> bool:
    cls = type(real)
    if cls in LITTLE:
        return False
    return is_overriding(cls) or depth > 0 and any(_has_override(item, depth - 1) for item in items_in_c(real))


def may_be_overridden(function: Any, args: list[Value]) -> bool:
    """Whether a call of a C function is an operation that may call overrides."""
    if not hashable(function) or function in SILENT:
        return False
    if function in OPERATORS:
        return any(is_a(value.real, torch.Tensor) for value in args[:1 if function in OF_FIRST else 2])
    return is_operation(function)


def overrides_enabled(interp: Interpreter) -> bool:
    """Whether `__torch_function__` is enabled."""
    return torch._C._is_torch_function_enabled() or bool(interp.blocks.modes) and torch._C._is_torch_function_mode_enabled()


def override_call_of(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> OverrideCall | None:
    """The override calls of an operation in C. None if there are none, because it raises before, or `__torch_function__` is
    disabled. Raises Performed if the operation has run."""
    modes = bool(interp.blocks.modes) and torch._C._is_torch_function_mode_enabled()
    if not overrides_enabled(interp):
        return None
    if torch._C._len_torch_function_stack() > len(interp.blocks.modes) and modes:
        interp.give_up(Break("unsupported-tensor", "a mode is asked inside of another that was there before"))
        return None
    torch._C._push_on_torch_function_stack(NOTING)
    try:
        named = {name: value.real for name, value in kwargs.items()}
        # Where there are none, some functions of C tell the override that there are: `{}` in place of nothing.
        result = function(*(arg.real for arg in args), **named) if named else function(*(arg.real for arg in args))
    except WouldOverride as asked:
        func, types, given, keywords = asked.args
    except Exception:
        return None                     # about its arguments: so will the call
    else:
        raise Performed(result)
    finally:
        torch._C._pop_torch_function_stack()
    known = dict(_flat([*args, *kwargs.values()]))
    if not types and not modes and not any(map(_has_say, known.values())):
        return None                     # classes that only redefine methods
    interp.graph.note_overriding()
    asked_of = [next(real for real in known.values() if type(real) is cls or real is cls) for cls in types]
    mode = [torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1)] if modes else []

    def shadows() -> tuple[Shadow, Shadow]:
        found = _shadows([*args, *kwargs.values()])
        for real in asked_of:
            if isinstance(found[id(real)], RefNode):
                interp.graph.touch(found[id(real)])  # type: ignore[arg-type]
        first: list[Shadow] = [_shadow_of_function(interp, func), Build(tuple, tuple(map(interp.graph.constant, types))),
                               Build(tuple, tuple(_found(found, real) for real in given))]
        if keywords is not MISSING:
            state = DictState({k: _found(found, v) for k, v in keywords.items()}, complete=True)
            first.append(interp.graph.create(keywords, state))
        whom = [interp.blocks.modes[-1][0]] if modes else []
        return Build(tuple, tuple(whom + [found[id(real)] for real in asked_of])), Build(tuple, tuple(first))
    whom, what = interp.track(shadows) or (None, None)
    arguments = (func, types, given) if keywords is MISSING else (func, types, given, keywords)
    return OverrideCall(Value((*mode, *asked_of), whom), Value(arguments, what), modes)


NOTING = NotingMode()


def about_attribute(interp: Interpreter, descriptor: Any, name: str, args: list[Value]) -> OverrideCall | None:
    """What `descriptor.__get__` or `__set__` of an attribute of tensors asks; None if it asks nobody."""
    try:
        return override_call_of(interp, getattr(descriptor, name), args, {})
    except Performed:
        return None


def _has_say(real: Any) -> bool:
    """Whether the class of a tensor has a `__torch_function__` of its own."""
    return is_a(real, torch.Tensor) and type(real) not in PLAIN_TENSORS and (
        lookup_class(type(real), "__torch_function__", DISABLED) is not DISABLED)


def _flat(values: Iterable[Value]) -> Iterable[tuple[int, Any]]:
    """All that is given to an operation, also in containers, by identity."""
    stack, seen = [value.real for value in values][::-1], set()
    while stack:
        real = stack.pop()
        if id(real) in seen:
            continue
        seen.add(id(real))
        yield id(real), real
        stack.extend(items_in_c(real)[::-1])


def _shadows(values: Iterable[Value]) -> dict[int, Shadow]:
    """The shadows of what an operation is given, by identity."""
    found: dict[int, Shadow] = {}
    stack = [(value.real, value.shadow) for value in values][::-1]
    while stack:
        real, shadow = stack.pop()
        if id(real) in found:
            continue
        found[id(real)] = shadow
        if isinstance(shadow, Build) and is_a(real, tuple):
            stack.extend(zip(items_in_c(real)[::-1], shadow.items[::-1], strict=True))
        elif isinstance(shadow, RefNode) and is_a(real, list) and hasattr(shadow.state, "items"):
            stack.extend(zip(items_in_c(real)[::-1], shadow.state.items[::-1]))
    return found


def _found(found: dict[int, Shadow], real: Any) -> Shadow:
    """The shadow of an argument of a question, which is one of the operation's own."""
    if id(real) in found:
        return found[id(real)]
    raise Break("unsupported-tensor", f"a class is asked about a {type(real).__name__} that an operation made")


def _shadow_of_function(interp: Interpreter, func: Any) -> Shadow:
    if type(func) is types.MethodWrapperType and type(func.__self__) is types.GetSetDescriptorType:
        method = {"__get__": GETTER, "__set__": SETTER}.get(func.__name__)
        return Build(types.MethodWrapperType, (Const(method), Const(func.__self__)))
    return interp.graph.constant(func)


def is_attribute_of_tensors(descriptor: Any) -> bool:
    """Whether a descriptor of C is an attribute of tensors, about which classes are asked."""
    return type(descriptor) is types.GetSetDescriptorType and descriptor.__objclass__ in OWNERS
