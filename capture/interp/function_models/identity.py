"""Identity, types and truth of objects: questions that depend on less than the value."""
from __future__ import annotations

import abc
import array
import datetime
import operator
import re
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import CONTAINERS, has_identity_equality, in_python
from capture.interp.function_models.shadows import depend_type, elements_unordered
from capture.interp.polyfills.stand_ins import class_of
from capture.refgraph.class_attributes import pin_mro, pin_special
from capture.refgraph.entry_state import BOUND_IN_C, VALUES
from capture.refgraph.identical import length_in_c
from capture.refgraph.lookup import lookup_class, name_of
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    DictState,
    Expr,
    External,
    Kept,
    ListStart,
    ListState,
    RefNode,
    SetState,
    Shadow,
    source_of,
)
from capture.refgraph.repetitions import repetition
from capture.refgraph.source import Computed
from capture.refgraph.state_queries import length_of

OF_KEPT = "the program asks for the identity of what a functools.lru_cache keeps"
SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


# -- identity ----------------------------------------------------------------------------------------------------------

@model(operator.is_)
def is_(interp: Interpreter, result: bool, a: Value, b: Value) -> Shadow:
    """`a is b`."""
    relate(interp, a, b)
    return Const(result)


@model(operator.is_not)
def is_not(interp: Interpreter, result: bool, a: Value, b: Value) -> Shadow:
    """`a is not b`."""
    relate(interp, a, b)
    return Const(result)


def relate(interp: Interpreter, a: Value, b: Value) -> None:
    """Guards whether two values are the same object, and nothing more."""
    if a.shadow is b.shadow:
        return
    if type(a.real) is type(b.real) and (is_kept(interp, a.shadow) or is_kept(interp, b.shadow)):
        raise Break("opaque-call", OF_KEPT)
    first, second = where(a.shadow), where(b.shadow)
    if first is not None and second is not None:
        if a.real is not b.real:
            interp.graph.require(first, "DISTINCT", second)
        elif not isinstance(a.shadow, RefNode):
            interp.graph.require(first, "ALIAS", second)
    elif type(a.real) in SCALARS and type(b.real) in SCALARS:
        relate_scalars(interp, a, b)
    elif isinstance(a.shadow, Build) and isinstance(b.shadow, Build) and a.real is b.real:
        raise Break("opaque-call", "the program asks for the identity of a tuple")
    else:                       # an object of the trace's own, or objects of two types
        for value, other in ((a, b), (b, a)):
            if isinstance(value.shadow, (External, Expr)):
                depend_type(interp, value)
            elif isinstance(value.shadow, RefNode) and not isinstance(other.shadow, (RefNode, Build)):     # a value, or a slice
                interp.graph.touch(value.shadow)


def is_kept(interp: Interpreter, shadow: Shadow | None) -> bool:
    """Whether a cache has an object too, so that on a hit it may be any other that the program has of the cache."""
    return isinstance(shadow, Kept) or isinstance(shadow, RefNode) and shadow in interp.graph.kept


def where(shadow: Shadow | None) -> Any:
    """The path to an object with identity, when it came from outside."""
    return shadow.source if isinstance(shadow, (RefNode, Build)) else None


def relate_scalars(interp: Interpreter, a: Value, b: Value) -> None:
    if any(b.real is s for s in SINGLETONS):
        a, b = b, a
    if not any(a.real is s for s in SINGLETONS) or a.real is b.real or type(a.real) is type(b.real):
        depend(interp, a, b)
    else:
        depend_type(interp, a)
        depend_type(interp, b)


def depend(interp: Interpreter, *values: Value) -> None:
    for value in values:
        interp.graph.depend(value.shadow, value.real)


# What else may be compared with an object without an equality of its own: it declines.
EQUATED = (*VALUES, *BOUND_IN_C, type, str, int, tuple, list, dict, set)


def compares_by_identity(a: Any, b: Any) -> bool:
    """Whether `a == b` is `a is b`: an object with the default equality, and another or a builtin scalar."""
    return (has_identity_equality(a) or has_identity_equality(b)) and all(
        has_identity_equality(x) or type(x) in SCALARS or is_a(x, EQUATED)
        and not in_python(x, "__eq__") for x in (a, b))


@model(operator.eq, operator.ne, applies=compares_by_identity)
def equal_by_identity(interp: Interpreter, result: bool, a: Value, b: Value) -> Shadow:
    """`==` and `!=` of objects that define no equality: of another type either might have one."""
    relate(interp, a, b)
    depend_type(interp, a)
    depend_type(interp, b)
    return Const(result)


FAMILIES = ((int, float, complex), (str,), (bytes, bytearray), (list,), (tuple,), (dict,), (set, frozenset),
            (type(None),), (range,), (slice,), BOUND_IN_C, (types.MethodType,), (torch.device,), (re.Pattern,), (deque,),
            (types.SimpleNamespace,), (array.array,), (datetime.date, datetime.time, datetime.timedelta))


def are_unlike(a: Any, b: Any, method: str) -> bool:
    """Whether `a` and `b` are builtin data of two kinds, which are never equal. method: `__eq__` or `__ne__`, the one that is asked
    for: a subclass may have another one of its own, in Python or in C, as numbers of numpy do."""
    kinds = [next((family for family in FAMILIES if any(
        is_a(x, cls) and lookup_class(type(x), method) is lookup_class(cls, method) for cls in family)), None) for x in (a, b)]
    return None not in kinds and kinds[0] is not kinds[1]


@model(operator.eq, applies=lambda a, b: are_unlike(a, b, "__eq__"))
@model(operator.ne, applies=lambda a, b: are_unlike(a, b, "__ne__"))
def unequal(interp: Interpreter, result: bool, a: Value, b: Value) -> Shadow:
    """`==` and `!=` of data of two kinds."""
    depend_type(interp, a)
    depend_type(interp, b)
    return Const(result)


# -- types -------------------------------------------------------------------------------------------------------------

@model(class_of)
@model(type, applies=lambda *args, **kwargs: len(args) == 1)
def type_(interp: Interpreter, result: type, x: Value) -> Shadow:
    """`type(x)`."""
    depend_type(interp, x)
    return interp.graph.constant(result)


def tells_its_class(x: Any) -> bool:
    """Whether `x.__class__` is `type(x)`."""
    cls = type(x)
    teller = lookup_class(cls, "__class__")
    if is_a(x, torch.Tensor):
        return True
    plain = teller is object.__dict__["__class__"] or is_a(teller, property) and teller.fget is type
    return plain and not in_python(x, "__getattribute__")


def classes(info: Any) -> list[Any]:
    """The classes that the second argument of `isinstance` names."""
    if is_a(info, tuple):
        return [cls for part in info for cls in classes(part)]
    if is_a(info, types.UnionType):
        return list(info.__args__)
    return [info]


def checks_in_python(cls: Any, name: str) -> bool:
    """Whether a class decides by Python code what its instances are. Abstract base classes do so by a fixed rule."""
    check = lookup_class(type(cls), name)
    return type(check) is types.FunctionType and check is not getattr(abc.ABCMeta, name)


@model(isinstance)
def isinstance_(interp: Interpreter, result: bool, x: Value, info: Value) -> Shadow:
    """`isinstance(x, info)`, if the only Python code that runs is that of abstract base classes."""
    if type(x.real) is info.real:               # which C finds out without asking anybody
        depend_type(interp, x)
        depend(interp, info)
        return Const(result)
    compiled = type(x.real) is _C.CompiledFunction          # which says that it is a function
    if not compiled and not tells_its_class(x.real):
        raise Break("opaque-call", f"{name_of(type(x.real))} has a __class__ of its own")
    depend_type(interp, x)
    depend(interp, info)
    pin_special(interp.graph, type(x.real), "__class__")
    depend_ancestry(interp, result, types.FunctionType if compiled else type(x.real), info.real, "__instancecheck__")
    return Const(result)


@model(type.__instancecheck__, abc.ABCMeta.__instancecheck__)
def instancecheck(interp: Interpreter, result: bool, cls: Value, x: Value) -> Shadow:
    """`type.__instancecheck__(cls, x)`."""
    return isinstance_(interp, result, x, cls)


@model(issubclass, type.__subclasscheck__, abc.ABCMeta.__subclasscheck__)
def issubclass_(interp: Interpreter, result: bool, x: Value, y: Value) -> Shadow:
    """`issubclass(x, y)`, where no Python code runs."""
    depend(interp, x, y)
    depend_ancestry(interp, result, x.real, y.real, "__subclasscheck__")
    return Const(result)


@model(is_a)
def is_a_(interp: Interpreter, result: bool, x: Value, kinds: Value) -> Shadow:
    """`is_a(x, kinds)`, which polyfills ask."""
    depend_type(interp, x)
    depend(interp, kinds)
    depend_ancestry(interp, result, type(x.real), kinds.real, "__subclasscheck__")
    return Const(result)


def depend_ancestry(interp: Interpreter, result: bool, cls: type, info: Any, check: str) -> None:
    """Guards what a class derives from; where abstract base classes deny it, that no class is registered with any."""
    pin_mro(interp.graph, cls)
    metaclasses = {type(candidate) for candidate in classes(info)}
    for metaclass in metaclasses:
        pin_special(interp.graph, metaclass, check)
    if not result and any(issubclass(metaclass, abc.ABCMeta) for metaclass in metaclasses):
        interp.graph.require(Computed(abc.get_cache_token, ()), "VALUE", abc.get_cache_token())


@model(callable)
def callable_(interp: Interpreter, result: bool, x: Value) -> Shadow:
    """`callable(x)`: a matter of the type."""
    depend_type(interp, x)
    return Const(result)


# -- truth -------------------------------------------------------------------------------------------------------------

def has_plain_truth(x: Any) -> bool:
    """Whether `bool(x)` runs no Python code and reads no tensor."""
    return not is_a(x, torch.Tensor) and not in_python(x, "__bool__") and (
        lookup_class(type(x), "__bool__") is not None or not in_python(x, "__len__"))


@model(operator.truth, applies=has_plain_truth)
def truth(interp: Interpreter, result: bool, x: Value) -> Shadow:
    """The truth of `x`, by which the program decides."""
    depend_truth(interp, x)
    return Const(result)


def asking(function: Callable[..., bool]) -> None:
    """Registers a function that asks for the truth of its argument; the program need not decide by it."""
    @model(function, applies=lambda *args: not args or has_plain_truth(*args))
    def ask(interp: Interpreter, result: bool, *args: Value) -> Shadow:
        if args and isinstance(args[0].shadow, Expr) and source_of(args[0].shadow) is None:
            return Expr(function, (args[0].shadow,))
        return truth(interp, result, *args) if args else Const(result)


asking(bool)
asking(operator.not_)


def depend_truth(interp: Interpreter, x: Value) -> None:
    """Guards whether a value is true."""
    shadow, real, graph = x.shadow, x.real, interp.graph
    if isinstance(shadow, (External, Expr)):
        source = graph.context.path_to(shadow)
        if source is None:
            return graph.depend(shadow, real)
        graph.require(source, "TRUTH", bool(real))
    elif isinstance(shadow, RefNode):
        if is_a(real, (int, float, complex, str, bytes)):
            graph.depend(shadow, real)
        elif is_a(real, CONTAINERS):
            depend_size(interp, x)
        elif lookup_class(type(real), "__bool__") is None and lookup_class(type(real), "__len__") is None:
            graph.touch(shadow)
        else:
            raise Break("opaque-call", f"a branch depends on the truth of a {type(real).__name__}")


def depend_size(interp: Interpreter, x: Value) -> None:
    """Guards whether a container has items; one that was not looked at yet stays so."""
    shadow, graph = x.shadow, interp.graph
    start = shadow.state if isinstance(shadow, RefNode) and isinstance(shadow.state, ListStart) else None
    if start is not None and start.added:
        return
    if (opened := repetition(shadow)) is not None:
        graph.sizes.decide(operator.gt, opened.length, 0)
    elif isinstance(shadow, RefNode) and shadow.source is not None and (start or shadow.state is None) and is_a(
            x.real, (list, dict, set, frozenset)):
        graph.touch(shadow)
        graph.require(shadow.source, "TRUTH", bool(x.real))
    else:
        depend_length(interp, x)


def depend_length(interp: Interpreter, x: Value) -> None:
    """Guards how many items a container has."""
    shadow, graph = x.shadow, interp.graph
    if type(x.real) in SCALARS or is_a(x.real, (str, bytes)):
        graph.depend(shadow, x.real)
    elif (opened := repetition(shadow)) is not None:
        graph.sizes.fix(opened.length)
    elif isinstance(shadow, RefNode) and shadow.created and isinstance(shadow.state, (ListState, DictState, SetState)):
        return      # its size follows from what the trace did
    elif isinstance(shadow, RefNode) and is_a(x.real, (list, dict, set, frozenset)) and untouched(shadow):
        graph.touch(shadow)
        entry_length = shadow.state.length if isinstance(shadow.state, ListStart) else length_in_c(x.real)
        graph.hold(shadow.source, "LENGTH", entry_length)
    elif isinstance(shadow, RefNode):
        elements_unordered(interp, x)


def untouched(node: RefNode) -> bool:
    """Whether a dict or set from outside has the keys that it had at entry, or a list was appended to at most."""
    state = node.state
    if node.source is None or isinstance(state, DictState) and (state.complete or state.entry_keys is not None):
        return False
    return state is None or isinstance(state, (ListStart, DictState))


def changing_length(interp: Interpreter, x: Value) -> Shadow | None:
    """The length of a list from outside that had another one in an earlier capture; None elsewhere, or where items were changed."""
    start = interp.graph.list_start(x.shadow) if isinstance(x.shadow, RefNode) and is_a(x.real, list) else None
    if start is None:
        return None
    path = Computed(length_of, (x.shadow.source,))  # type: ignore[attr-defined]
    if not interp.recorder.seen.varies(path, start.length):
        return None
    at_entry = External(path, start.length)
    return Expr(operator.add, (at_entry, Const(len(start.added)))) if start.added else at_entry


@model(len, *(cls.__len__ for cls in (list, tuple, set, frozenset, deque)),
       applies=lambda x: type(x) not in SCALARS and is_a(x, CONTAINERS))
def length(interp: Interpreter, result: int, x: Value) -> Shadow:
    """`len(x)` of a container."""
    opened = repetition(x.shadow)
    if opened is not None:
        return interp.graph.sizes.shadow(opened.length)
    changing = changing_length(interp, x)
    if changing is not None:
        return changing
    depend_length(interp, x)
    return Const(result)


@model(id)
def id_(interp: Interpreter, result: int, x: Value) -> Shadow:
    """`id(x)`: another number on every run, whose only use is to tell objects apart."""
    if is_kept(interp, x.shadow):
        raise Break("opaque-call", OF_KEPT)
    interp.graph.note_number(result, x.shadow)
    if not isinstance(x.shadow, (RefNode, Build)):
        interp.graph.depend(x.shadow, x.real)
    return Const(result) if isinstance(x.shadow, Const) else Expr(id, (x.shadow,))
