"""Calls of `__torch_function__`, in Python: of classes and modes, in the order in which torch calls them."""
from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import special_method, type_name
from capture.interp.polyfills.iteration import first_is_generated, list_
from capture.interp.polyfills.operators import BINARY, COMPARISONS, copy, named
from capture.refgraph.node import SCALARS

# Named results of operations, which are tuples of C.
RESULTS = tuple(cls for cls in vars(torch.return_types).values() if is_a(cls, type) and issubclass(cls, tuple))


def ask(asked: Any, question: Any) -> Any:
    """The answer of the first override that does not return NotImplemented."""
    for one in asked:
        result = one.__torch_function__(*question)
        if result is not NotImplemented:
            return result
    raise TypeError(no_answer(None, question))


def ask_mode(asked: Any, question: Any) -> Any:
    """The same if the first is the innermost mode, which is disabled while it runs."""
    mode = torch._C._pop_torch_function_stack()
    try:
        method = mode.__torch_function__
        if getattr(method, "__self__", None) is not mode:
            raise RuntimeError("Defining your mode's `__torch_function__` as a classmethod is not supported, "
                               "please make it a plain method")
        result = method(*question)
    finally:
        torch._C._push_on_torch_function_stack(mode)
    if result is not NotImplemented:
        return result
    for one in asked[1:]:
        result = one.__torch_function__(*question)
        if result is not NotImplemented:
            return result
    raise TypeError(no_answer(mode, question))


def no_answer(mode: Any, question: Any) -> str:
    """The text of torch's TypeError if all overrides return NotImplemented."""
    text = f"Multiple dispatch failed for '{name_of(question[0])}'; all __torch_function__ handlers returned NotImplemented:\n\n"
    if mode is not None:
        text += f"  - mode object {mode!r}\n"
    for cls in question[1]:
        text += f"  - tensor subclass {cls!r}\n"
    return text + "\nFor more information, try re-running with TORCH_LOGS=not_implemented"


def name_of(function: Any) -> str:
    """What torch calls a function there."""
    name = function.__name__
    if name in ("__get__", "__set__"):
        return f"torch.Tensor.{function.__self__.__name__}.{name}"
    if hasattr(function, "__objclass__"):
        return f"torch.Tensor.{name}"
    module = function.__module__
    return ("torch" if module is None else module.replace("_C._", "")) + f".{name}"


@polyfill(torch._C._disabled_torch_function_impl, applies=lambda func, types, args=(), kwargs=None: True)
def disabled(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The `__torch_function__` of a class that overrides nothing."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **({} if kwargs is None else kwargs))


# -- operators ---------------------------------------------------------------------------------------------------------

def ask_operator(asking: Any, asked: Any, question: Any) -> Any:
    """The same for a method that leaves a TypeError to the other operand."""
    try:
        return asking(asked, question)
    except TypeError:
        return NotImplemented


class Refusing(torch.Tensor):
    """Operations on which raise TypeError."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(func.__name__)


def leaving_to_other() -> frozenset[Any]:
    """The methods of C for operators which return NotImplemented where they are refused."""
    refusing, found = torch.Tensor._make_subclass(Refusing, torch.empty(0)), []
    names = [*BINARY, *COMPARISONS, "eq", "ne"]
    for method in {getattr(torch.Tensor, f"__{kind}{name}__", None) for name in names for kind in ("", "r", "i")}:
        if is_a(method, types.MethodDescriptorType):
            try:
                found += [method] if method(refusing, refusing) is NotImplemented else []
            except TypeError:
                pass            # it passes the refusal on
    return frozenset(found)


def operate_in_place(a: Any, b: Any, method: str, forward: str, reflected: str, function: Any) -> Any:
    """`a += b`, where an operand has an override."""
    if hasattr(type(a), method):
        result = special_method(a, method)(b)
        if result is not NotImplemented:
            return result
    return operate(a, b, forward, reflected, function)


def operate(a: Any, b: Any, forward: str, reflected: str, function: Any) -> Any:
    """An operator of which one operand has an override, and the other is a tensor or a number."""
    first, second = type(a), type(b)
    forth, back = getattr(first, forward, None), getattr(second, reflected, None)
    tried = first is second
    if not tried and back is not None and type.__subclasscheck__(first, second) and getattr(first, reflected, None) is not back:
        result = special_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
        tried = True
    if forth is not None and first not in SCALARS:
        result = special_method(a, forward)(b)
        if result is not NotImplemented:
            return result
    if not tried and back is not None and second not in SCALARS:
        result = special_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
    return unsupported(a, b, function)


def unsupported(a: Any, b: Any, function: Any) -> Any:
    """What an operator does that no operand supports, as in CPython: `==` and `!=` compare identity, others raise TypeError.
    (CPython's own error would name other classes.)"""
    if function is operator.eq:
        return a is b
    if function is operator.ne:
        return a is not b
    symbol = SYMBOLS[function]
    if function in COMPARING:
        raise TypeError(f"'{symbol}' not supported between instances of '{type_name(a)}' and '{type_name(b)}'")
    raise TypeError(f"unsupported operand type(s) for {symbol}: '{type_name(a)}' and '{type_name(b)}'")


def specialised() -> dict[Any, Callable[..., Any]]:
    """For each function of the module `operator`, the function that stands for it here."""
    found: dict[Any, Callable[..., Any]] = {}
    for name in BINARY:
        methods = f"__{name}__", f"__r{name}__"
        found[named(name)] = copy(operate, name, *methods, named(name))
        in_place = getattr(operator, f"i{name}")
        found[in_place] = copy(operate_in_place, f"i{name}", f"__i{name}__", *methods, in_place)
    for name, (other, _) in {**COMPARISONS, "eq": ("eq", "=="), "ne": ("ne", "!=")}.items():
        found[named(name)] = copy(operate, name, f"__{name}__", f"__{other}__", named(name))
    return found


OPERATORS = specialised()
LEAVING_TO_OTHER = leaving_to_other()
COMPARING = {named(name): symbol for name, (_, symbol) in COMPARISONS.items()}
SYMBOLS = {**COMPARING, **{named(name): symbol for name, symbol in BINARY.items()},
           **{getattr(operator, f"i{name}"): symbol.split()[0] + "=" for name, symbol in BINARY.items()}}


# -- results of operations, put together again -------------------------------------------------------------------------

def of_class(iterable: Any, cls: Any) -> Any:
    return cls(list_(iterable))


for _cls in (torch.Size, *RESULTS):
    polyfill(_cls, applies=first_is_generated)(copy(of_class, "of_class", _cls))
