"""Pure C functions: of scalars, which may stay lazy, and of plain data, whose result is a constant."""
from __future__ import annotations

import builtins
import datetime
import io
import keyword
import math
import operator
import os
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import LAZY, MODELS, PURE, SIDE_EFFECTS, methods_beside, model
from capture.interp.core.special import VIEWS, is_plain
from capture.interp.function_models.replays import lazily
from capture.interp.function_models.shadows import depend_plain, elements, shadow_of
from capture.refgraph.identical import NUMBERS, TEXTS
from capture.refgraph.lookup import UNBOUND_IN_C
from capture.refgraph.node import SCALARS, Build, Const, Shadow
from capture.refgraph.result_types import IN_PLACE

BINARY = "add sub mul truediv floordiv mod pow lshift rshift and_ or_ xor eq ne lt le gt ge"
UNARY = "neg pos invert abs index"
OPERATORS = [*(getattr(operator, name) for name in f"{BINARY} {UNARY} getitem contains concat".split()), *IN_PLACE]
FUNCTIONS = [abs, min, max, int, float, complex, round, len, ord, chr, pow, str, repr, format, ascii, bin, hex, oct]
# Of several scalars, or with a result that is no scalar.
AGGREGATES = [divmod, sum, hash, range, sorted, bytes, int.from_bytes, float.fromhex, bytes.fromhex, str.maketrans,
              bytes.maketrans, math.fsum, math.prod, math.dist, math.frexp, math.modf, math.gcd, math.lcm,
              operator.length_hint, keyword.iskeyword]
if sys.version_info >= (3, 12):
    AGGREGATES.append(math.sumprod)
MATHS = [fn for name, fn in vars(math).items() if is_a(fn, types.BuiltinFunctionType) and fn not in AGGREGATES]
IMMUTABLE = (int, float, complex, bool, str, bytes, range, slice, type(None), torch.Size, torch.dtype, torch.device)
NOT_PURE = {"__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__iter__", "__getnewargs__",
            "__init_subclass__", "__enter__", "__exit__"}


def methods(cls: type) -> list[Any]:
    """The C methods of an immutable builtin type: they can only compute."""
    return [fn for name, fn in vars(cls).items() if type(fn) in UNBOUND_IN_C and name not in NOT_PURE]


LAZY.update(OPERATORS, FUNCTIONS, MATHS, [sys.intern])
PURE.update(AGGREGATES, *(methods(cls) for cls in IMMUTABLE))


# Functions to which the order of a set's members does not matter.
UNORDERED = frozenset({len, sorted, min, max, *OPERATORS})


def is_in_plain(container: Any, item: Any) -> bool:
    """Whether `item in container` is decided by what the container is, not by keys that are looked up."""
    return not is_a(container, (dict, set, frozenset, *VIEWS))


def is_unchanged(a: Any, b: Any) -> bool:
    """Whether `a op= b` makes a new object."""
    return type(a) is tuple or type(a) in TEXTS


def plain(function: Callable[..., Any]) -> None:
    """Registers what a pure function means for plain data: a constant, or a new container of constants."""
    further = is_unchanged if function in IN_PLACE else is_in_plain if function is operator.contains else None

    def applies(*args: Any, **kwargs: Any) -> bool:
        values = (*args, *kwargs.values())
        if all(type(x) in SCALARS for x in values) or further is not None and not further(*args):
            return False
        but = methods_beside(function, values)
        return all(is_plain(x, but=but) for x in values)

    @model(function, applies=applies)
    def result_of(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
        computed = lazily(interp, function, args, kwargs, result)
        if computed is not None:
            return computed
        for value in (*args, *kwargs.values()):
            if is_a(value.real, (set, frozenset)) and function not in UNORDERED:
                elements(interp, value)
            depend_plain(interp, value.shadow, value.real)
        return shadow_of(interp, result)


for _function in [*OPERATORS, *FUNCTIONS, *MATHS, *PURE]:
    if _function not in MODELS or _function in OPERATORS:
        plain(_function)


@model(divmod, applies=lambda a, b: type(a) in NUMBERS and type(b) in NUMBERS)
def divide(interp: Interpreter, result: tuple[Any, Any], a: Value, b: Value) -> Shadow:
    """`divmod(a, b)` of numbers."""
    if isinstance(a.shadow, Const) and isinstance(b.shadow, Const):
        return Const(result)
    parts = zip((operator.floordiv, operator.mod), result)
    return Build(tuple, tuple(interp.graph.computed(part, (a.shadow, b.shadow), value) for part, value in parts))


# -- the world outside of the program ----------------------------------------------------------------------------------

def functions(module: types.ModuleType) -> list[Any]:
    """The C functions of a module."""
    return [fn for fn in vars(module).values() if is_a(fn, types.BuiltinFunctionType)]


SIDE_EFFECTS.update([print, input, open, builtins.breakpoint, warnings.warn, datetime.datetime.now],
                    functions(time), functions(os), functions(io), methods(random.Random.__base__),  # type: ignore[arg-type]
                    methods(io.TextIOWrapper), methods(io.StringIO), methods(io.BufferedWriter))
