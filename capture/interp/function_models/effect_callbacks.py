"""Code of the program that runs inside of calls which every hit makes again: a `__str__`, a handler of logging, a stream.

It may change objects that the compiled function reads after the call, and that guards have read before it. So no trace holds a call
in which such code runs; for each call in a trace, a guard makes sure that none does. Code of Python and of installed packages is
taken not to touch the program's objects; methods that only read are allowed (`read_only_methods`).
"""
from __future__ import annotations

import collections
import functools
import io
import logging
import os
import sys
import sysconfig
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import GENERATED, Break, is_of_library
from capture.interp.core.frame import NONE_VALUE, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.special import in_python
from capture.interp.function_models.read_only_methods import has_value, only_reads
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.lookup import (
    args_of,
    arguments_of,
    func_of,
    instance_attributes,
    keywords_of,
    lookup_class,
    mro_of,
    namespace_of,
)
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    DictState,
    Display,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
    source_of,
)
from capture.refgraph.source import Computed, Literal, Source

PYTHON = tuple({os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib")})
DEEPEST = 8
# Methods of loggers, filters, handlers, formatters and streams.
TAKING_PART = "_log handle callHandlers makeRecord filter emit format formatMessage write".split()
# The identities of classes of what parts of logging hold that run no code of the program, as long as their methods are Python's.
ORDINARY = frozenset(map(id, (
    *SCALARS, list, dict, io.TextIOWrapper, io.StringIO, type(threading.RLock()),
    logging.Logger, logging.RootLogger, logging.Manager, logging.Formatter, logging.PercentStyle)))
LOCKS = Classes((type(None), type(threading.Lock()), type(threading.RLock())))
ASKED_FOR_LEVELS = "isEnabledFor", "getEffectiveLevel"
CONTAINERS = (list, tuple, set, frozenset, collections.deque)
TEXTS = ("__str__", "__repr__")
OF_MODULES = (*TEXTS, "extra_repr", "_get_name")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING, "error": logging.ERROR,
          "exception": logging.ERROR, "critical": logging.CRITICAL, "fatal": logging.CRITICAL}
LOGGING = {owner.__dict__[name]: owner is logging.Logger for owner in (logging, logging.Logger) for name in (*LEVELS, "log")
           if name in owner.__dict__}


@functools.cache
def is_own_file(file: str) -> bool:
    """Whether a file is part of the program. (What Python generates, as for data classes, is not.)"""
    return not file.startswith(("<frozen ", "<string>", *GENERATED, *PYTHON)) and not is_of_library(file)


def is_own_code(function: Any) -> bool:
    """Whether a callable is a Python function of the program's, or is bound to one; also as a class holds it."""
    if is_one_of(type(function), types.MethodType, classmethod, staticmethod):
        function = function.__func__
    return type(function) is types.FunctionType and is_own_file(function.__code__.co_filename)


def has_own_methods(x: Any, names: Iterable[str]) -> bool:
    """Whether the class of an object has methods of the program's under these names that may do more than read it."""
    cls = type(x)
    return any(type(method) is not types.FunctionType or not only_reads(x, method) for name in names
               if is_own_code(method := lookup_class(cls, name)))


# -- text --------------------------------------------------------------------------------------------------------------

def has_own_text(x: Any, depth: int = DEEPEST) -> bool:
    """Whether code of the program writes the text of an object, or of a part that the text shows, and that code may do more than
    read."""
    cls = type(x)
    if cls in SCALARS or is_a(x, torch.Tensor):
        return False
    if is_a(x, torch.nn.Module):
        return any(has_own_methods(module, OF_MODULES) for module in modules_of(x))
    if has_own_methods(x, TEXTS):
        return True
    return depth > 0 and any(has_own_text(part, depth - 1) for part in shown_by(x))


def modules_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and those that it shows."""
    found, known = [module], {id(module)}
    for one in found:
        inner = instance_attributes(one).get("_modules", {}).values()
        children = [child for child in inner if child is not None and id(child) not in known]
        known.update(map(id, children))
        found += children
    return found


def shown_by(x: Any) -> list[Any]:
    """What the text of a container, an exception, a data class or a namespace shows."""
    parts: list[Any] = []
    if is_a(x, dict):
        parts += [part for entry in dict.items(x) for part in entry]
    elif is_a(x, CONTAINERS):
        parts += next(base for base in CONTAINERS if is_a(x, base)).__iter__(x)
    elif is_a(x, BaseException):
        parts += arguments_of(x)
    elif is_a(x, functools.partial):
        parts += [func_of(x), args_of(x), keywords_of(x)]
    if is_a(x, types.SimpleNamespace):
        parts += instance_attributes(x).values()
    elif (fields := lookup_class(type(x), "__dataclass_fields__")) is not None:
        held = instance_attributes(x)
        slots = [slot for name in fields if type(slot := lookup_class(type(x), name)) is types.MemberDescriptorType]
        parts += [*held.values(), *(slot.__get__(x) for slot in slots if has_value(slot, x))]
    return parts


def require_plain_text(interp: Interpreter, shadow: Shadow | None, depth: int = DEEPEST) -> None:
    """Guards that no code of the program's writes the text of a value, which is so now."""
    graph = interp.graph
    if depth == 0:
        return
    if isinstance(shadow, (Build, Display)):
        for item in shadow.items:
            require_plain_text(interp, item, depth - 1)
    elif isinstance(shadow, RefNode) and type(shadow.state) is not TensorState:
        if shadow.source is not None and not is_a(shadow.real, (type, types.ModuleType)):
            graph.require(Computed(has_own_text, (shadow.source,)), "VALUE", False)
        elif shadow.created:
            if not graph.is_made(shadow.cls):
                pin_special(graph, shadow.cls, *TEXTS)
            for part in shown_parts_of(shadow):
                require_plain_text(interp, part, depth - 1)


def shown_parts_of(node: RefNode) -> list[Shadow]:
    """What an object of the trace holds, as far as its text may show it."""
    state, attrs = node.state, node.attrs
    items: Iterable[Any] = ()
    if isinstance(state, ListState):
        items = state.items
    elif isinstance(state, (DictState, SetState)):
        items = state.items.values()
    held = attrs.state.items.values() if attrs is not None and isinstance(attrs.state, DictState) else ()
    return [*items, *held, *node.slots.values()]


# -- streams, logging, warnings ----------------------------------------------------------------------------------------

def writes_by_own_code(*args: Any, file: Any = None, **kwargs: Any) -> bool:
    """Whether `print` with these arguments writes to a stream of the program's, written in Python."""
    return is_own_stream(sys.stdout if file is None else file)


def is_own_stream(stream: Any, depth: int = DEEPEST) -> bool:
    """Whether code of the program runs when a stream is written to: its class is the program's, a method was replaced, or it passes
    the text on to such a stream."""
    held = instance_attributes(stream)
    if any(map(is_own_code, held.values())):
        return True
    if not in_python(stream, "write"):
        return False
    return has_methods_of_program(type(stream)) or depth > 0 and any(
        is_own_stream(part, depth - 1) for part in held.values() if lookup_class(type(part), "write") is not None)


_OF_PROGRAM: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def has_methods_of_program(cls: type) -> bool:
    """Whether a class has methods of the program. (All are checked once, and on each question those that logging calls, since these
    may be replaced.)"""
    if cls not in _OF_PROGRAM:
        _OF_PROGRAM[cls] = any(is_own_code(item) for base in mro_of(cls) for item in namespace_of(base).values())
    return _OF_PROGRAM[cls] or any(is_own_code(lookup_class(cls, name)) for name in TAKING_PART)


def is_own_part(part: Any) -> bool:
    """Whether code of the program's is a handler or formatter of logging, or a stream that one writes to, or takes part in it; or
    something takes part in it that logging cannot use."""
    if part is None or is_own_code(part):
        return part is not None
    if is_one_of(type(part), io.TextIOWrapper, io.StringIO):
        return False
    if has_methods_of_program(type(part)) or holds_own(part):
        return True
    held = instance_attributes(part)
    filters = held.get("filters", [])
    return type(filters) is not list or not all(map(is_plain_filter, filters)) or not is_a(held.get("level", 0), int) or (
        type(held.get("lock")) not in LOCKS or any(map(is_own_part, map(held.get, ("formatter", "_style", "stream")))))


def is_plain_filter(x: Any) -> bool:
    """Whether an object is a whole filter of Python's, or one or a function of a library's."""
    if is_own_part(x) or not is_a(x, logging.Filter):
        return type(x) is types.FunctionType and not is_own_code(x)
    held = instance_attributes(x)
    return type(held.get("name")) is str and type(held.get("nlen")) is int


def holds_own(x: Any) -> bool:
    """Whether what an object holds has methods of the program's, which Python's code would call: a truth, a number to compare with,
    a list to go through."""
    return any(id(type(value)) not in ORDINARY and (is_own_code(value) or has_methods_of_program(type(value)))
               for value in instance_attributes(x).values())


def is_logged(logger: Any, level: Any) -> bool:
    """Whether a logger takes messages of this level. The root logger is meant by None."""
    return bool((logging.root if logger is None else logger).isEnabledFor(level))


HELD_BY_LOGGERS, HELD_BY_HANDLERS = vars(logging.Logger("")).keys(), vars(logging.Handler()).keys()


def is_plain_logger(x: Any) -> bool:
    """Whether an object is a whole logger of Python's, and what it holds runs no code of the program's when it is asked."""
    held = instance_attributes(x)
    return is_a(x, logging.Logger) and held.keys() >= HELD_BY_LOGGERS and not holds_own(x) and (
        type(held["handlers"]) is type(held["filters"]) is list and type(held["_cache"]) is dict)


def is_plain_handler(x: Any) -> bool:
    """Whether an object is a whole handler of Python's or of a library's, and none of the program's code takes part in it."""
    return is_a(x, logging.Handler) and instance_attributes(x).keys() >= HELD_BY_HANDLERS and not is_own_part(x)


def logs_by_own_code(logger: Any, level: Any) -> bool:
    """Whether code of the program runs when a logger takes a message of this level, or is asked whether it does; or the object is
    no logger of Python's, or not a whole one."""
    first: Any = logging.root if logger is None else logger
    if not is_a(level, int):        # which raises, or not: to ask would leave the level among those that the logger knows
        return True
    if not is_plain_logger(first) or any(is_own_code(lookup_class(type(first), name)) for name in ASKED_FOR_LEVELS) or (
            id(type(level)) not in ORDINARY and has_methods_of_program(type(level))):
        return True
    known = first._cache.get(level) if type(level) is int else None
    if not is_one_of(type(known), bool, type(None)) and has_methods_of_program(type(known)):
        return True
    if first.disabled or known is False:
        return False
    chain, at = [first], first
    while at.propagate and at.parent is not None:
        at = at.parent
        if not is_plain_logger(at):
            return True
        chain.append(at)
    if type(first.manager) is not logging.Manager or holds_own(first.manager):
        return True
    try:
        if not is_logged(logger, level):
            return False
    except Exception:           # so will the call
        return True
    return is_own_code(logging.getLogRecordFactory()) or is_own_part(first) or not all(
        is_plain_handler(part) for one in chain for part in one.handlers)


def warns_by_own_code() -> bool:
    """Whether code of the program's takes part when a warning is shown."""
    show = warnings.showwarning
    return is_own_code(show) or is_own_code(warnings._showwarnmsg_impl) or is_own_code(warnings.formatwarning) or (  # type: ignore[attr-defined]
        getattr(show, "__module__", None) == "logging" and logs_by_own_code(logging.getLogger("py.warnings"), logging.WARNING))


# -- calls in a trace --------------------------------------------------------------------------------------------------

def question(function: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[Callable[..., bool], tuple[Value, ...]] | None:
    """The function that a guard calls, and its arguments, to tell whether code of the program takes part in a call of logging, or
    in a warning."""
    if function is warnings.warn:
        return warns_by_own_code, ()
    if function not in LOGGING:
        return None
    logger = args[0] if LOGGING[function] else NONE_VALUE
    given = [*args[LOGGING[function]:], *([kwargs["level"]] if "level" in kwargs else [])]
    level = LEVELS.get(function.__name__)
    if level is None and not given:             # the call raises
        return None
    return logs_by_own_code, (logger, given[0] if level is None else Value(level, Const(level)))


def refusal(function: Any, args: list[Value], kwargs: dict[str, Value], shown: Iterable[Value]) -> Break | None:
    """Why no trace can hold a call which shows these values; None if no code of the program's runs in it."""
    asked = question(function, args, kwargs)
    if asked is not None and asked[0](*(value.real for value in asked[1])):
        return Break("own-code", f"a handler, filter or stream of {function.__qualname__}()")
    own = next((value.real for value in shown if has_own_text(value.real)), None)
    silent = asked is not None and asked[1] and not is_logged(*(value.real for value in asked[1]))
    return None if own is None or silent else Break("own-code", f"{function.__qualname__}() of a {type(own).__qualname__}")


def require(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value], shown: Iterable[Value]) -> None:
    """Guards that no code of the program runs in a call that the trace has made."""
    asked = question(function, args, kwargs)
    if asked is not None:
        paths = tuple(map(path_of, asked[1]))
        if None in paths:
            raise Break("side-effect-call", f"{function.__qualname__}() of a logger that the call makes")
        interp.graph.require(Computed(asked[0], paths), "VALUE", False)  # type: ignore[arg-type]
        if asked[1] and any(has_own_text(value.real) for value in shown):
            interp.graph.require(Computed(is_logged, paths), "VALUE", False)  # type: ignore[arg-type]
            return
    for value in shown:
        require_plain_text(interp, value.shadow)


def path_of(value: Value) -> Source | None:
    """Where a logger or a level was found."""
    if isinstance(value.shadow, RefNode):
        return value.shadow.source
    return Literal(value.real) if isinstance(value.shadow, Const) else source_of(value.shadow)
