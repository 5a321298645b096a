"""Operators on instances whose special methods are Python functions: CPython's rules of dispatch, in Python.

Polyfills are inlined like the user's own code. They must not define functions or use comprehensions, whose globals
would be these modules'. A template is copied for each operator, with its names as defaults.
"""
from __future__ import annotations

import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import SEQUENCES, comparison_method, declines, in_python, special_method, type_name
from capture.refgraph.identical import INTEGERS, LISTS, builtin_base, is_one_of
from capture.refgraph.lookup import is_mutable, lookup_class

BINARY = {"add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%",
          "pow": "** or pow()",
          "lshift": "<<", "rshift": ">>", "and": "&", "xor": "^", "or": "|"}
CONCATENATED = (*SEQUENCES, tuple, str, bytes)
COMPARISONS = {"lt": ("gt", "<"), "le": ("ge", "<="), "gt": ("lt", ">"), "ge": ("le", ">=")}


def named(name: str) -> Callable[..., Any]:
    """The function of `operator` whose special method is `__name__`."""
    return getattr(operator, name + "_" if name in ("and", "or") else name)


def copy(template: Callable[..., Any], name: str, *defaults: Any) -> Callable[..., Any]:
    """The template as the function `name`, with its last parameters bound."""
    function = types.FunctionType(template.__code__, template.__globals__, name, defaults)
    function.__qualname__ = name
    return function


def dispatches(a: Any, b: Any, forward: str, reflected: str) -> bool:
    """Whether Python code decides a binary operation, unless it leaves that to the other operand's method in C."""
    return in_python(a, forward) or in_python(b, reflected) and (goes_first(a, b) or declines(a, b, forward))


def goes_first(a: Any, b: Any) -> bool:
    """Whether the right operand is asked before the left one: its class derives from that of the other."""
    return type(a) is not type(b) and type.__subclasscheck__(type(a), type(b))


# -- binary ------------------------------------------------------------------------------------------------------------

def binary(a: Any, b: Any, forward: str, reflected: str, symbol: str) -> Any:
    first, second = type(a), type(b)
    tried = first is second
    if (not tried and type.__subclasscheck__(first, second) and in_python(b, reflected)
            and getattr(second, reflected) is not getattr(first, reflected, None)):
        result = special_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
        tried = True
        if not in_python(a, forward) and not declines(a, b, forward):
            return getattr(first, forward)(a, b)
    if in_python(a, forward):
        result = special_method(a, forward)(b)
        if result is not NotImplemented:
            return result
    if not tried and not declines(b, a, reflected):
        result = special_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
    if forward == "__add__" and is_a(a, CONCATENATED):
        return (operator.iconcat if symbol == "+=" else operator.concat)(a, b)
    if forward == "__mul__":
        in_place = symbol == "*=" and is_a(a, SEQUENCES) and not in_python(a, "__imul__")
        if in_place or repeats_in_c(a):
            times = index_of_repetition(b)
            return builtin_base(a, SEQUENCES).__imul__(a, times) if in_place else a * times
        if repeats_in_c(b) and not (symbol == "*=" and (is_mutable(type(a)) or is_a(a, CONCATENATED))):
            return b * index_of_repetition(a)
    raise TypeError(f"unsupported operand type(s) for {symbol}: '{type_name(a)}' and '{type_name(b)}'")


def repeats_in_c(x: Any) -> bool:
    """Whether C repeats a sequence where no number multiplies it: a class with a product of its own does not inherit that."""
    return is_a(x, CONCATENATED) and not in_python(x, "__mul__") and not in_python(x, "__rmul__")


def index_of_repetition(number: Any) -> Any:
    if lookup_class(type(number), "__index__") is None:
        raise TypeError(f"can't multiply sequence by non-int of type '{type_name(number)}'")
    return operator.index(number)


def in_place(a: Any, b: Any, method: str, fallback: Callable[[Any, Any], Any]) -> Any:
    if in_python(a, method):
        result = special_method(a, method)(b)
        if result is not NotImplemented:
            return result
    return fallback(a, b)


def applies_binary(forward: str, reflected: str) -> Callable[..., bool]:
    def applies(a: Any, b: Any) -> bool:
        return dispatches(a, b, forward, reflected)
    return applies


def applies_binary_in_place(forward: str, reflected: str, method: str) -> Callable[..., bool]:
    """An operator in place is the binary one where C has no method for it."""
    def applies(a: Any, b: Any) -> bool:
        return dispatches(a, b, forward, reflected) and not in_c(a, method)
    return applies


def in_c(x: Any, method: str) -> bool:
    """Whether C does an operation in place before the binary one is asked for. Sequences are asked last, but for `+=` of classes
    derived from them in Python, which have that as numbers have it."""
    return (lookup_class(type(x), method) is not None and not in_python(x, method)
            and not (method == "__iadd__" and is_one_of(type(x), *SEQUENCES) or method == "__imul__" and is_a(x, SEQUENCES)))


def applies_in_place(method: str) -> Callable[..., bool]:
    def applies(a: Any, b: Any) -> bool:
        return in_python(a, method)
    return applies


for _name, _symbol in BINARY.items():
    _forward, _reflected, _method = f"__{_name}__", f"__r{_name}__", f"__i{_name}__"
    polyfill(named(_name), applies=applies_binary(_forward, _reflected))(
        copy(binary, _name, _forward, _reflected, _symbol))
    _in_place = getattr(operator, f"i{_name}")
    polyfill(_in_place, applies=applies_in_place(_method))(copy(in_place, f"i{_name}", _method, named(_name)))
    polyfill(_in_place, applies=applies_binary_in_place(_forward, _reflected, _method))(
        copy(binary, f"i{_name}", _forward, _reflected, _symbol.replace("** or pow()", "**") + "="))

polyfill(divmod, applies=applies_binary("__divmod__", "__rdivmod__"))(
    copy(binary, "divmod", "__divmod__", "__rdivmod__", "divmod()"))
polyfill(pow, applies=lambda a, b, *modulus: not modulus and dispatches(a, b, "__pow__", "__rpow__"))(
    copy(binary, "pow", "__pow__", "__rpow__", "** or pow()"))


@polyfill(pow, applies=lambda a, b, *modulus: len(modulus) == 1 and modulus[0] is not None and in_python(a, "__pow__"))
def power_modulo(a: Any, b: Any, modulus: Any) -> Any:
    """`pow(a, b, modulus)`: of the three, only `a` is asked, and where it declines, integers are calculated with."""
    result = special_method(a, "__pow__")(b, modulus)
    known = [lookup_class(type(number), "__pow__") for number in (b, modulus)]
    if result is NotImplemented and is_a(a, int) and int.__pow__ in known:
        result = int.__pow__(a, b, modulus)
    if result is NotImplemented and float.__pow__ in known:
        raise TypeError("pow() 3rd argument not allowed unless all arguments are integers")
    if result is NotImplemented:
        names = ", ".join(f"'{type_name(x)}'" for x in (a, b, modulus))
        raise TypeError(f"unsupported operand type(s) for ** or pow(): {names}")
    return result


# -- comparisons -------------------------------------------------------------------------------------------------------

def compare(a: Any, b: Any, forward: str, reflected: str, symbol: str) -> Any:
    first, second = type(a), type(b)
    tried = False
    if first is not second and type.__subclasscheck__(first, second) and in_python(b, reflected):
        result = comparison_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
        tried = True
    if in_python(a, forward) or not declines(a, b, forward):
        result = comparison_method(a, forward)(b)
        if result is not NotImplemented:
            return result
    if not tried and not declines(b, a, reflected):
        result = comparison_method(b, reflected)(a)
        if result is not NotImplemented:
            return result
    raise TypeError(f"'{symbol}' not supported between instances of '{type_name(a)}' and '{type_name(b)}'")


for _name, (_other, _symbol) in COMPARISONS.items():
    polyfill(named(_name), applies=applies_binary(f"__{_name}__", f"__{_other}__"))(
        copy(compare, _name, f"__{_name}__", f"__{_other}__", _symbol))


@polyfill(operator.eq, applies=lambda a, b: dispatches(a, b, "__eq__", "__eq__"))
def eq(a: Any, b: Any) -> Any:
    """`a == b`."""
    first, second = type(a), type(b)
    tried = False
    if first is not second and type.__subclasscheck__(first, second) and in_python(b, "__eq__"):
        result = comparison_method(b, "__eq__")(a)
        if result is not NotImplemented:
            return result
        tried = True
    if in_python(a, "__eq__") or not declines(a, b, "__eq__"):
        result = comparison_method(a, "__eq__")(b)
        if result is not NotImplemented:
            return result
    if not tried and not declines(b, a, "__eq__"):
        result = comparison_method(b, "__eq__")(a)
        if result is not NotImplemented:
            return result
    return a is b


def differs_in_python(x: Any) -> bool:
    """Whether Python code decides `x != y`: as `__ne__`, or as the `__eq__` that `object.__ne__` asks. Other classes of C (str,
    tuple …) have a `__ne__` of their own, which asks no `__eq__`."""
    return in_python(x, "__ne__") or in_python(x, "__eq__") and lookup_class(type(x), "__ne__") is object.__ne__


@polyfill(operator.ne, applies=lambda a, b: differs_in_python(a) or differs_in_python(b) and (
    goes_first(a, b) or declines(a, b, "__ne__")))
def ne(a: Any, b: Any) -> Any:
    """`a != b`."""
    first, second = type(a), type(b)
    tried = False
    if first is not second and type.__subclasscheck__(first, second) and differs_in_python(b):
        result = unequal(b, a)
        if result is not NotImplemented:
            return result
        tried = True
    result = unequal(a, b)
    if result is not NotImplemented:
        return result
    if not tried:
        result = unequal(b, a)
        if result is not NotImplemented:
            return result
    return a is not b


def unequal(a: Any, b: Any) -> Any:
    """`a.__ne__(b)`; the one which `object` has inverts `__eq__`."""
    if in_python(a, "__ne__"):
        return comparison_method(a, "__ne__")(b)
    if differs_in_python(a):
        result = comparison_method(a, "__eq__")(b)
        return result if result is NotImplemented else not result
    return NotImplemented if declines(a, b, "__ne__") else comparison_method(a, "__ne__")(b)


# -- unary -------------------------------------------------------------------------------------------------------------

def unary(x: Any, method: str) -> Any:
    return special_method(x, method)()


def applies_unary(method: str) -> Callable[..., bool]:
    def applies(x: Any) -> bool:
        return in_python(x, method)
    return applies


for _name in ("neg", "pos", "invert", "abs"):
    polyfill(named(_name), applies=applies_unary(f"__{_name}__"))(copy(unary, _name, f"__{_name}__"))
polyfill(abs, applies=applies_unary("__abs__"))(copy(unary, "abs", "__abs__"))


def warning_of_inversion() -> str:
    """What CPython warns of where a bool is inverted: since 3.12, in the words of each version."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        operator.invert(True)
    return str(told[0].message) if told else ""


BOOL_INVERTED = warning_of_inversion()
if BOOL_INVERTED:
    @polyfill(operator.invert, bool.__invert__, applies=lambda x: type(x) in INTEGERS)
    def invert(x: int) -> int:
        """`~x`. A guard that computes this of a bool must not warn."""
        if type(x) is bool:
            warnings.warn(BOOL_INVERTED, DeprecationWarning, stacklevel=1)
        return -1 - x


# -- positions ---------------------------------------------------------------------------------------------------------

@polyfill(operator.getitem, list.__getitem__, tuple.__getitem__,
          applies=lambda sequence, index: type(sequence) in LISTS and is_a(index, torch.Tensor))
def item_at(sequence: Any, index: Any) -> Any:
    """`sequence[index]`, where a tensor says which."""
    return sequence[operator.index(index)]


# -- parts of tensors --------------------------------------------------------------------------------------------------

def is_index_by_python(bound: Any) -> bool:
    return not is_a(bound, int) and in_python(bound, "__index__")


def has_python_bounds(key: Any) -> bool:
    """Whether a subscript has slices whose bounds are asked for their `__index__`, and before the last of them only parts of which
    `is_refused` can tell whether torch takes them: it asks the next one when it has taken that part."""
    parts = key if type(key) is tuple else (key,)
    asking = [type(part) is slice and any(map(is_index_by_python, (part.start, part.stop, part.step))) for part in parts]
    other = [not takes_one(part) and part is not None and part is not ... for part in parts]
    return any(asking) and not (any(other) and any(asking[other.index(True):]))


def takes_one(part: Any) -> bool:
    """Whether a part of a subscript is a slice or number, which is for one dimension."""
    return type(part) is slice or type(part) is int


def is_bound(bound: Any) -> bool:
    return bound is None or lookup_class(type(bound), "__index__") is not None


def numbered(part: Any) -> Any:
    """A part of a subscript, whose bounds have been asked for their numbers, each once and in C's order. After a step of 0 torch
    goes on while its error is set: what the objects are asked then, and what is raised, depends on CPython's state."""
    if type(part) is not slice or not (is_bound(part.start) and is_bound(part.stop) and is_bound(part.step)):
        return part
    step = operator.index(part.step) if is_index_by_python(part.step) else part.step
    if step == 0:
        return slice(part.start, part.stop, step)
    start = operator.index(part.start) if is_index_by_python(part.start) else part.start
    return slice(start, operator.index(part.stop) if is_index_by_python(part.stop) else part.stop, step)


def dimensions_taken(part: Any) -> int:
    """How many dimensions a part of a subscript is for."""
    if takes_one(part):
        return 1
    if part is None or part is ... or type(part) is bool:
        return 0
    return part.dim() if is_a(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def is_refused(part: Any, length: int) -> bool:
    """Whether torch raises when it takes this part of a subscript, in a dimension of this length."""
    if type(part) is int:
        return not -length <= part < length
    return type(part) is slice and not (is_bound(part.start) and is_bound(part.stop) and is_bound(part.step)
                                        and (part.step is None or part.step > 0))


def with_numbers(x: Any, key: Any) -> tuple[Any, bool]:
    """A subscript whose slices are bounded by numbers, as far as torch would come; and whether it comes to the end."""
    parts, found = key if type(key) is tuple else (key,), []
    left = 0                # dimensions of the parts that are yet to come
    for part in parts:
        left += dimensions_taken(part)
    dimension, accepted = 0, left <= x.dim()
    for part in parts:
        if accepted:
            part = numbered(part)
            left -= dimensions_taken(part)
            accepted = not takes_one(part) or not is_refused(part, x.shape[dimension])
            dimension = x.dim() - left if part is ... else dimension + dimensions_taken(part)
        found.append(part)
    return (tuple(found) if type(key) is tuple else found[0]), accepted


def left_to_torch(operate: Any, *args: Any) -> Any:
    """What raises: torch itself asks the objects that it comes to."""
    return operate(*args)


@polyfill(operator.getitem, torch.Tensor.__getitem__,
          applies=lambda x, key: is_a(x, torch.Tensor) and has_python_bounds(key))
def tensor_part(x: Any, key: Any) -> Any:
    """`x[a:]` of a tensor, where `a` has an `__index__` of Python."""
    found, accepted = with_numbers(x, key)
    return x[found] if accepted else left_to_torch(operator.getitem, x, found)


@polyfill(operator.setitem, torch.Tensor.__setitem__,
          applies=lambda x, key, value: is_a(x, torch.Tensor) and has_python_bounds(key))
def set_tensor_part(x: Any, key: Any, value: Any) -> None:
    """`x[a:] = value`."""
    found, accepted = with_numbers(x, key)
    if accepted:
        x[found] = value
    else:
        left_to_torch(operator.setitem, x, found, value)
