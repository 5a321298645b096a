"""Classes are made in two steps here: first the bare class, then what Python code the program has for its being made
(`__set_name__`, `__init_subclass__`), which is part of the trace. A mock function makes the bare class
again, with all that the code gave it."""
from __future__ import annotations

import _abc
import abc
import types
import typing
from typing import Any

from capture._C import is_a
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import is_heap_type, mro_of

# Their `__init_subclass__` looks at the class that is made and at nothing else, and does the same whenever it is made anew.
TRUSTED = frozenset({"typing", "enum", "abc"})


# What makes type variables, where C does: it takes their `__module__` from the frame that calls.
TYPE_VARIABLES = frozenset(
    cls.__new__ for cls in (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple) if type(cls.__new__) is types.BuiltinFunctionType
    and cls.__new__.__self__ is cls)


def make_type_variable(cls: Any, module: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A type variable that code of a module makes."""
    made = cls(*args, **named)
    made.__module__ = module
    return made


class Silent:
    """A base beside others whose `__init_subclass__` is not to run, for as long as a class is made. It fits those of instances with
    attributes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class SilentSlots:
    """… and those of instances without."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def tells_program(bases: tuple[Any, ...]) -> bool:
    """Whether making a class of these bases may run an `__init_subclass__` of the program's."""
    hooks = [type.__getattribute__(cls, "__dict__").get("__init_subclass__")
             for base in bases if is_a(base, type) for cls in type.__getattribute__(base, "__mro__")]
    functions = [hook.__func__ if is_one_of(type(hook), classmethod, staticmethod) else hook for hook in hooks if hook is not None]
    return any(type(function) is not types.FunctionType or function.__module__ not in TRUSTED
               for function in functions if not is_a(function, types.ClassMethodDescriptorType))


def is_silenced(bases: tuple[Any, ...], namespace: dict[str, Any]) -> bool:
    """Whether `bare_type` can make a class of these: one more base neither decides the layout of instances nor adds to it."""
    ancestors = [cls for base in bases for cls in mro_of(base) if cls is not object]
    if "__slots__" not in namespace and not all(map(is_heap_type, ancestors)):
        return True                 # a base of C decides
    return all((base.__dictoffset__ != 0) == (base.__weakrefoffset__ != 0) for base in bases)


def bare_type(meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **kwargs: Any) -> type:
    """`type.__new__`, but that no `__init_subclass__` of the program's runs."""
    if not tells_program(bases):
        return type.__new__(meta, name, bases, namespace, **kwargs)
    silent = Silent if any(base.__dictoffset__ for base in bases) else SilentSlots
    made = type.__new__(meta, name, (silent, *bases), namespace)
    type.__setattr__(made, "__bases__", bases)
    return made


def make_class(meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    """A class that a trace has made, once more: what its making ran of the program's code is part of the trace."""
    told = {key: value for key, value in namespace.items() if hasattr(type(value), "__set_name__")}
    cls = bare_type(meta, name, bases, {**namespace, **dict.fromkeys(told)})
    for key, value in told.items():
        type.__setattr__(cls, key, value)
    if issubclass(meta, abc.ABCMeta):
        _abc._abc_init(cls)
    return cls
