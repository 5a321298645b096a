"""Immutable values of C types of the standard library. Like numbers they have no identity: they are described by plain data."""
from __future__ import annotations

import datetime
import decimal
import inspect
import re
import struct
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.refgraph import ndarrays
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.lookup import is_heap_type
from capture.refgraph.source import Computed

current_context = decimal.getcontext        # of C, whatever a program puts there

# What tells a value from all others of its exact type.
CONTENTS: dict[type, Callable[[Any], Any]] = {
    decimal.Decimal: str,
    datetime.date: lambda x: x.__reduce_ex__(4)[1],
    datetime.time: lambda x: x.__reduce_ex__(4)[1],         # with its timezone, if any, by identity
    datetime.datetime: lambda x: x.__reduce_ex__(4)[1],
    datetime.timedelta: lambda x: (x.days, x.seconds, x.microseconds),
    re.Pattern: lambda x: (x.pattern, x.flags),
    struct.Struct: lambda x: x.format,
    memoryview: lambda x: (bytes(x), x.format, x.shape),
}
# All such types; the others among them go by identity.
RECORDS = Classes({*CONTENTS, datetime.timezone, re.Match})
TOLD = Classes(CONTENTS)
# Immutable objects whose attributes follow from what they were made of.
DERIVED = (torch.finfo, torch.iinfo, inspect.Signature, inspect.Parameter, types.MappingProxyType, types.GenericAlias,
           types.UnionType)
SIGNALS = tuple(decimal.Context().flags)


def is_record(x: Any) -> bool:
    """Whether `x` is such a value, and no Python code (of a timezone) is part of it."""
    cls = type(x)
    if cls is memoryview:
        return not is_released(x) and type(x.obj) is bytes
    if cls is datetime.datetime or cls is datetime.time:
        return x.tzinfo is None or type(x.tzinfo) is datetime.timezone
    return cls in RECORDS


def is_released(view: memoryview) -> bool:
    """Whether a view shows nothing any more."""
    try:
        _ = view.obj
    except ValueError:
        return True
    return False


def has_content(x: Any) -> bool:
    """Whether an object is an immutable value, and `content` tells which."""
    return type(x) in TOLD or ndarrays.is_all_content(x) and not ndarrays.is_array(x)


def content(x: Any) -> Any:
    """What a value is, for guards. Raises TypeError for an object of another type."""
    told = CONTENTS.get(type(x))
    return ndarrays.content(x) if told is None else told(x)


# -- the decimal context -----------------------------------------------------------------------------------------------

def decimal_rules() -> tuple[Any, ...]:
    """What the thread's decimal context says of results."""
    return rules_of(current_context())


def rules_of(context: Any) -> tuple[Any, ...]:
    """What a decimal context says of results. Raises TypeError for other objects."""
    if not isinstance(context, decimal.Context):
        raise TypeError("no decimal context")
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp,
            tuple(context.traps[signal] for signal in SIGNALS))


def decimal_flags() -> int:
    """The signals which the thread's decimal context has noted, as bits."""
    flags = current_context().flags
    return sum(1 << i for i, signal in enumerate(SIGNALS) if flags[signal])


def has_decimal_flags(wanted: int) -> bool:
    """Whether all these signals were noted already, so that noting them changes nothing."""
    return decimal_flags() & wanted == wanted


def require_decimal_rules(graph: Any) -> None:
    """What decimal numbers come to is about to matter: it follows from the context at entry, or from one of the trace's."""
    if not in_own_decimals(graph):
        graph.require(Computed(decimal_rules, ()), "VALUE", decimal_rules())


def in_own_decimals(graph: Any) -> bool:
    """Whether the decimal context in force is one that the trace made."""
    node = graph.find(current_context())
    return node is not None and node.created


def is_weak(value: Any) -> bool:
    """Whether a constant may belong to the user, so that only a weak reference to it may be held."""
    if is_a(value, type):
        return is_heap_type(value)
    if is_a(value, (types.BuiltinFunctionType, types.CodeType)) or is_record(value) or is_a(value, DERIVED):
        return False
    weak = type.__getattribute__(type(value), "__weakrefoffset__") != 0
    return weak and type(value) is not frozenset        # nobody but the entry may have such a set


def holds_weak(value: Any) -> bool:
    """Whether a constant is such an object, or is made of any."""
    return any(map(holds_weak, value)) if is_one_of(type(value), tuple, frozenset) else is_weak(value)
