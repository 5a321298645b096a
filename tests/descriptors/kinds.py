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
def remembered(tag: str) -> Any:
    return functools.lru_cache(function(tag))


@kind
def remembered_of_one(tag: str) -> Any:
    return functools.cache(lambda one: tag)


@kind
def wrapped(tag: str) -> Any:
    inner = function(tag)

    @functools.wraps(inner)
    def outer(*args):
        return "wrapped", inner(*args)
    return outer


@kind
def partial(tag: str) -> Any:
    return functools.partial(function(tag), tag)


@kind
def partialmethod(tag: str) -> Any:
    return functools.partialmethod(function(tag), tag)


@kind
def partialmethod_of_static(tag: str) -> Any:
    return functools.partialmethod(staticmethod(function(tag)), tag)


@kind
def class_method(tag: str) -> Any:
    return classmethod(function(tag))


@kind
def class_method_of_builtin(tag: str) -> Any:
    return classmethod(repr)


@kind
def class_method_of_remembered(tag: str) -> Any:
    return classmethod(remembered(tag))  # type: ignore[arg-type]


@kind
def class_method_of_property(tag: str) -> Any:
    return classmethod(property(lambda cls: tag))  # type: ignore[arg-type]


@kind
def static_method(tag: str) -> Any:
    return staticmethod(function(tag))


@kind
def static_method_of_remembered(tag: str) -> Any:
    return staticmethod(functools.lru_cache(lambda *args: tag))


@kind
def a_property(tag: str) -> Any:
    return property(lambda self: tag)


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


@kind
def property_of_partial(tag: str) -> Any:
    return property(functools.partial(lambda what, self: what, tag))


@kind
def property_of_builtin(tag: str) -> Any:
    return property(operator.attrgetter("s"))


@kind
def property_without_a_getter(tag: str) -> Any:
    return property()


class OwnProperty(property):
    def __get__(self, obj, cls=None):
        return "own", obj is None


@kind
def own_property(tag: str) -> Any:
    return OwnProperty(lambda self: tag)


@kind
def cached_property(tag: str) -> Any:
    found = functools.cached_property(lambda self: tag)
    found.__set_name__(None, "m")       # type: ignore[arg-type]
    return found


@kind
def number(tag: str) -> Any:
    return len(tag)


@kind
def nothing_at_all(tag: str) -> Any:
    return None


@kind
def a_list(tag: str) -> Any:
    return [tag]


@kind
def inner_class(tag: str) -> Any:
    return type("Inner", (), {"__init__": lambda self, *args: None, "tag": tag, "__qualname__": "<locals>.Inner"})


@kind
def builtin(tag: str) -> Any:
    return math.sqrt


@kind
def method_of_c(tag: str) -> Any:
    return object.__dict__["__ne__"]


@kind
def method_of_another_class(tag: str) -> Any:
    return str.upper                    # which binds to none but strings


@kind
def class_method_of_c(tag: str) -> Any:
    return dict.__dict__["fromkeys"]


@kind
def static_method_of_c(tag: str) -> Any:
    return str.__dict__["maketrans"]


@kind
def bound_method(tag: str) -> Any:
    return types.MethodType(function(tag), tag)


@kind
def bound_method_of_c(tag: str) -> Any:
    return tag.count


@kind
def method_wrapper(tag: str) -> Any:
    return tag.__len__


@kind
def method_of_cython(tag: str) -> Any:
    return numpy.random.mtrand.ranf


@kind
def method_of_pybind(tag: str) -> Any:
    return torch._C.Graph.__dict__["nodes"]


@kind
def property_of_pybind(tag: str) -> Any:
    return torch._C.FunctionSchema.__dict__["name"]


@kind
def function_of_torch(tag: str) -> Any:
    return torch.sin


@kind
def method_of_tensors(tag: str) -> Any:
    return torch.Tensor.sin


@kind
def attribute_of_tensors(tag: str) -> Any:
    return torch.Tensor.__dict__["shape"] if "shape" in torch.Tensor.__dict__ else torch._C.TensorBase.__dict__["shape"]


@kind
def slot(tag: str) -> Any:
    return Root.__dict__["s"]


@kind
def empty_slot(tag: str) -> Any:
    return Root.__dict__["unset"]


@kind
def attribute_of_c(tag: str) -> Any:
    return object.__dict__["__class__"]


@kind
def itemgetter(tag: str) -> Any:
    return operator.itemgetter(0)


@kind
def class_of_c(tag: str) -> Any:
    return complex


class Callable_:
    def __init__(self, tag):
        self.tag = tag

    def __call__(self, *args):
        return self.tag, len(args)


@kind
def callable_instance(tag: str) -> Any:
    return Callable_(tag)


class Reader:
    """A descriptor that can only be read."""

    def __init__(self, tag):
        self.tag = tag

    def __get__(self, obj, cls=None):
        return self.tag, obj is None, cls.__name__


@kind
def reader(tag: str) -> Any:
    return Reader(tag)


class Writer(Reader):
    def __set__(self, obj, value):
        vars(obj)["put"] = self.tag, value


@kind
def reader_and_writer(tag: str) -> Any:
    return Writer(tag)


class WriteOnly:
    def __init__(self, tag):
        self.tag = tag

    def __set__(self, obj, value):
        vars(obj)["put"] = self.tag, value


@kind
def write_only(tag: str) -> Any:
    return WriteOnly(tag)


class Lacking(Reader):
    def __get__(self, obj, cls=None):
        raise AttributeError(self.tag)


@kind
def reader_that_lacks(tag: str) -> Any:
    return Lacking(tag)


class GetterOfC:
    """A descriptor whose `__get__` is of C."""

    __get__ = staticmethod(max)

    def __init__(self, tag):
        self.tag = tag


@kind
def getter_that_binds_nothing(tag: str) -> Any:
    return GetterOfC(tag)


class Remembering:
    """A descriptor whose `__get__` is remembered."""

    def __init__(self, tag):
        self.tag = tag

    @functools.lru_cache
    def __get__(self, obj, cls=None):
        return self.tag, obj is None


@kind
def getter_that_remembers(tag: str) -> Any:
    return Remembering(tag)


class OwnFunction(functools.partial):
    def __get__(self, obj, cls=None):
        return self if obj is None else types.MethodType(self, obj)


@kind
def binding_partial(tag: str) -> Any:
    return OwnFunction(function(tag))


class OwnClassMethod(classmethod):
    def __get__(self, obj, cls=None):
        return "own", super().__get__(obj, cls)()


@kind
def own_class_method(tag: str) -> Any:
    return OwnClassMethod(function(tag))


class OwnStaticMethod(staticmethod):
    pass


@kind
def derived_static_method(tag: str) -> Any:
    return OwnStaticMethod(function(tag))


class Root:
    __slots__ = ("s", "unset", "__dict__", "__weakref__")
