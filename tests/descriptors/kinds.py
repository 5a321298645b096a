"""What a class may hold under a name: descriptors of Python and of C, and what is none. `KINDS[kind](tag)` makes one that tells its
tag when it is asked or called."""
from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

KINDS: dict[str, Callable[[str], Any]] = {}
Kind = Callable[[str], Any]


def kind(make: Kind) -> Kind:
    KINDS[make.__name__] = make
    return make


@kind
def function(tag: str) -> Any:
    def m(self, *args):
        return tag, len(args)
    return m


@kind
def generator_function(tag: str) -> Any:
    def m(self, *args):
        yield tag
    return m


@kind
def wrapped(tag: str) -> Any:
    inner = function(tag)

    @functools.wraps(inner)
    def outer(*args):
        return "wrapped", inner(*args)
    return outer


@kind
def property_that_is_set(tag: str) -> Any:
    def get(self):
        return tag, len(vars(self))

    def put(self, value):
        vars(self)["put"] = tag, value

    def drop(self):
        vars(self)["put"] = tag
    return property(get, put, drop)


@kind
def property_that_lacks(tag: str) -> Any:
    def get(self):
        raise AttributeError(tag)
    return property(get)


class OwnProperty(property):
    def __get__(self, obj, cls=None):
        return "own", obj is None


@kind
def cached_property(tag: str) -> Any:
    found = functools.cached_property(lambda self: tag)
    found.__set_name__(None, "m")       # type: ignore[arg-type]
    return found


class Callable_:
    def __init__(self, tag):
        self.tag = tag

    def __call__(self, *args):
        return self.tag, len(args)


class Reader:
    """A descriptor that can only be read."""

    def __init__(self, tag):
        self.tag = tag

    def __get__(self, obj, cls=None):
        return self.tag, obj is None, cls.__name__


class Writer(Reader):
    def __set__(self, obj, value):
        vars(obj)["put"] = self.tag, value


class WriteOnly:
    def __init__(self, tag):
        self.tag = tag

    def __set__(self, obj, value):
        vars(obj)["put"] = self.tag, value


class Lacking(Reader):
    def __get__(self, obj, cls=None):
        raise AttributeError(self.tag)


class GetterOfC:
    """A descriptor whose `__get__` is of C."""

    __get__ = staticmethod(max)

    def __init__(self, tag):
        self.tag = tag


class Remembering:
    """A descriptor whose `__get__` is remembered."""

    def __init__(self, tag):
        self.tag = tag

    @functools.lru_cache
    def __get__(self, obj, cls=None):
        return self.tag, obj is None


class OwnFunction(functools.partial):
    def __get__(self, obj, cls=None):
        return self if obj is None else types.MethodType(self, obj)


class OwnClassMethod(classmethod):
    def __get__(self, obj, cls=None):
        return "own", super().__get__(obj, cls)()


class OwnStaticMethod(staticmethod):
    pass


class Root:
    __slots__ = ("s", "unset", "__dict__", "__weakref__")


# Those that are made in one expression.
KINDS |= {
    "remembered": lambda tag: functools.lru_cache(function(tag)),
    "remembered_of_one": lambda tag: functools.cache(lambda one: tag),
    "partial": lambda tag: functools.partial(function(tag), tag),
    "partialmethod": lambda tag: functools.partialmethod(function(tag), tag),
    "partialmethod_of_static": lambda tag: functools.partialmethod(staticmethod(function(tag)), tag),
    "class_method": lambda tag: classmethod(function(tag)),
    "class_method_of_builtin": lambda tag: classmethod(repr),
    "class_method_of_remembered": lambda tag: classmethod(functools.lru_cache(function(tag))),  # type: ignore[arg-type]
    "class_method_of_property": lambda tag: classmethod(property(lambda cls: tag)),  # type: ignore[arg-type]
    "static_method": lambda tag: staticmethod(function(tag)),
    "static_method_of_remembered": lambda tag: staticmethod(functools.lru_cache(lambda *args: tag)),
    "a_property": lambda tag: property(lambda self: tag),
    "property_of_partial": lambda tag: property(functools.partial(lambda what, self: what, tag)),
    "property_of_builtin": lambda tag: property(operator.attrgetter("s")),
    "property_without_a_getter": lambda tag: property(),
    "own_property": lambda tag: OwnProperty(lambda self: tag),
    "number": len,
    "nothing_at_all": lambda tag: None,
    "a_list": lambda tag: [tag],
    "inner_class": lambda tag: type("Inner", (), {
        "__init__": lambda self, *args: None, "tag": tag, "__qualname__": "<locals>.Inner"}),
    "builtin": lambda tag: math.sqrt,
    "method_of_c": lambda tag: object.__dict__["__ne__"],
    "method_of_another_class": lambda tag: str.upper,       # which binds to none but strings
    "class_method_of_c": lambda tag: dict.__dict__["fromkeys"],
    "static_method_of_c": lambda tag: str.__dict__["maketrans"],
    "bound_method": lambda tag: types.MethodType(function(tag), tag),
    "bound_method_of_c": lambda tag: tag.count,
    "method_wrapper": lambda tag: tag.__len__,
    "method_of_cython": lambda tag: numpy.random.mtrand.ranf,
    "method_of_pybind": lambda tag: torch._C.FunctionSchema.__dict__["is_backward_compatible_with"],
    "property_of_pybind": lambda tag: torch._C.FunctionSchema.__dict__["name"],
    "function_of_torch": lambda tag: torch.sin,
    "method_of_tensors": lambda tag: torch.Tensor.sin,
    "attribute_of_tensors": lambda tag: torch._C.TensorBase.__dict__["shape"],
    "slot": lambda tag: Root.__dict__["s"],
    "empty_slot": lambda tag: Root.__dict__["unset"],
    "attribute_of_c": lambda tag: object.__dict__["__class__"],
    "itemgetter": lambda tag: operator.itemgetter(0),
    "class_of_c": lambda tag: complex,
    "callable_instance": Callable_,
    "reader": Reader,
    "reader_and_writer": Writer,
    "write_only": WriteOnly,
    "reader_that_lacks": Lacking,
    "getter_that_binds_nothing": GetterOfC,
    "getter_that_remembers": Remembering,
    "binding_partial": lambda tag: OwnFunction(function(tag)),
    "own_class_method": lambda tag: OwnClassMethod(function(tag)),
    "derived_static_method": lambda tag: OwnStaticMethod(function(tag)),
}
