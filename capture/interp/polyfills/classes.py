"""How a class is made, in Python: the class statement, the call of `type`, and the methods of namespaces and bases that they
call."""
from __future__ import annotations

import builtins
import sys
import types
from types import _calculate_meta  # type: ignore[attr-defined]
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import C_METHODS, in_python, is_plain, special_method
from capture.refgraph.classes import bare_type, is_silenced, tells_program
from capture.refgraph.lookup import MISSING, lookup_class

NOTES_ON_NAMING = sys.version_info >= (3, 12)        # before, such an error was the cause of another


def run_body(function: Any, namespace: Any) -> Any:
    """Runs a class body on the mapping that its names go to, and returns its `__class__` cell. The interpreter does that in a
    frame of its own while it traces."""
    exec(function.__code__, function.__globals__, namespace, closure=function.__closure__)
    return namespace.get("__classcell__")


def bare_class(meta: Any, name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> Any:
    """`type.__new__`, without calling `__set_name__` of the namespace's items or an `__init_subclass__` of the program; called by
    the frame whose module the class gets."""
    told = {key: value for key, value in dict.items(namespace) if in_python(value, "__set_name__")}
    module = {} if "__module__" in namespace else {"__module__": sys._getframe(1).f_globals.get("__name__")}
    cls = bare_type(meta, name, bases, {**namespace, **module, **dict.fromkeys(told)}, **kwargs)
    for key, value in told.items():
        type.__setattr__(cls, key, value)
    return cls


def is_python_attribute(cls: type, name: str) -> bool:
    """Whether what a class has under `name` is written in Python. A model gives its shadow."""
    found = lookup_class(cls, name)
    return found is not None and not is_a(found, C_METHODS)


def resolve(bases: Any) -> Any:
    """The bases of a class statement, with those in place of others that `__mro_entries__` of these names."""
    found, changed = [], False
    for base in bases:
        entries: Any = MISSING if is_a(base, type) else getattr(base, "__mro_entries__", MISSING)
        if entries is MISSING:
            found.append(base)
        else:
            named = entries(bases)
            if not is_a(named, tuple):
                raise TypeError("__mro_entries__ must return a tuple")
            found += named
            changed = True
    return tuple(found) if changed else bases


@polyfill(builtins.__build_class__, applies=lambda function, name, /, *bases, **kwargs: type(function) is types.FunctionType)
def build_class(function: Any, name: Any, /, *bases: Any, metaclass: Any = MISSING, **kwargs: Any) -> Any:
    """A `class` statement."""
    resolved = resolve(bases)
    if metaclass is MISSING:
        metaclass = type(resolved[0]) if resolved else type
    if is_a(metaclass, type):
        metaclass = _calculate_meta(metaclass, resolved)
    plain = metaclass is type or type(metaclass) is type and not is_python_attribute(metaclass, "__prepare__")
    prepare = None if plain else getattr(metaclass, "__prepare__", None)
    namespace = {} if prepare is None else prepare(name, resolved, **kwargs)
    if not hasattr(type(namespace), "__getitem__"):
        owner = metaclass.__name__ if is_a(metaclass, type) else "<metaclass>"
        raise TypeError(f"{owner}.__prepare__() must return a mapping, not {type(namespace).__name__}")
    cell = run_body(function, namespace)
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    cls = metaclass(name, resolved, namespace, **kwargs)
    if is_a(cls, type) and is_a(cell, types.CellType):
        check_cell(cell, cls, name)
    return cls


@polyfill(type.__dict__["__prepare__"], applies=lambda meta, *args, **kwargs: True)
def empty_namespace(meta: Any, *args: Any, **kwargs: Any) -> Any:
    """`type.__prepare__(name, bases)`."""
    return {}


def check_cell(cell: Any, cls: type, name: str) -> None:
    """Raises what a metaclass has deserved that lost `__classcell__`."""
    try:
        known = cell.cell_contents
    except ValueError:
        known = None
    if known is None:
        raise RuntimeError(f"__class__ not set defining {name!r} as {cls!r}. Was __classcell__ propagated to type.__new__?")
    if known is not cls:
        raise TypeError(f"__class__ set to {known!r} defining {name!r} as {cls!r}")


def is_made_plainly(meta: Any, name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> bool:
    """Whether `type.__new__` with these arguments runs only Python code that can be written out here."""
    if not (is_a(meta, type) and type(name) is str and type(bases) is tuple and is_a(namespace, dict)):
        return False
    if not all(is_a(base, type) and issubclass(meta, type(base)) for base in bases):
        return False            # an error, or the class of another metaclass
    if not is_plain(dict.get(namespace, "__slots__"), but=()):       # C counts, walks over and hashes what is there
        return False
    silent = not tells_program(bases) or is_silenced(bases, namespace)
    return silent and type(lookup_class(meta, "mro")) is not types.FunctionType


@polyfill(type.__new__, applies=is_made_plainly)
def new_class(meta: Any, name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> Any:
    """`type.__new__(meta, name, bases, namespace)`."""
    cls = bare_class(meta, name, bases, namespace, **kwargs)
    for key, value in list(dict.items(namespace)):
        if in_python(value, "__set_name__"):
            try:
                special_method(value, "__set_name__")(cls, key)
            except BaseException as error:
                text = f"Error calling __set_name__ on '{type(value).__name__}' instance {key!r} in '{name}'"
                if NOTES_ON_NAMING:
                    error.add_note(text)
                    raise
                raise RuntimeError(text) from error
    if tells_program(bases):
        super(cls, cls).__init_subclass__(**kwargs)
    return cls


@polyfill(object.__dict__["__init_subclass__"], applies=lambda cls, **kwargs: True)
def init_subclass(cls: Any, **kwargs: Any) -> None:
    """`object.__init_subclass__`."""
    if kwargs:
        raise TypeError(f"{cls.__name__}.__init_subclass__() takes no keyword arguments")


def are_classes(name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> bool:
    return type(bases) is tuple and all(is_a(base, type) for base in bases)


@polyfill(type, applies=are_classes)
def make_class(name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> Any:
    """`type(name, bases, namespace)`."""
    meta = _calculate_meta(type, bases)
    cls = meta.__new__(meta, name, bases, namespace, **kwargs)
    if is_a(cls, type):
        special_method(cls, "__init__")(name, bases, namespace, **kwargs)
    return cls
