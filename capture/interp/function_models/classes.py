"""Models of what makes classes, and the descriptors in them."""
from __future__ import annotations

import _abc
import operator
import types
import typing
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import asks_python, is_plain
from capture.interp.function_models.identity import depend_ancestry
from capture.interp.function_models.shadows import NONE, dict_node, items_of, node_of, shadow_of
from capture.interp.polyfills.classes import is_python_attribute
from capture.interp.polyfills.copying import slot_names
from capture.interp.polyfills.functional import find_implementation
from capture.interp.polyfills.objects import class_names
from capture.refgraph.class_attributes import pin_mro, pin_special, type_attr
from capture.refgraph.classes import TYPE_VARIABLES, make_type_variable, tells_program
from capture.refgraph.effects import walk
from capture.refgraph.lookup import is_mutable, lookup_class
from capture.refgraph.node import SCALARS, Build, ClassState, Const, Display, Expr, RefNode, Shadow
from capture.refgraph.source import Computed, Constant
from capture.refgraph.state_queries import own_names, subclasses

# Keys of a namespace that are instructions to `type.__new__`.
CONSUMED = ("__classcell__", "__qualname__")
WRAPPERS = {"__new__": staticmethod, "__init_subclass__": classmethod, "__class_getitem__": classmethod}


def class_made(interp: Interpreter, result: type, meta: Value, name: Value, bases: Value, namespace: Value) -> Shadow:
    """The node of a class, just made from these. Its slots are what its `__dict__` holds of the namespace."""
    graph = interp.graph
    for value in (meta, name, bases):
        graph.depend(value.shadow, value.real)
    mapping = dict_node(namespace)
    parents = Build(tuple, tuple(items_of(interp, bases)))
    node = graph.create(result, ClassState(meta.shadow, parents))
    for key in graph.dict_keys(mapping):
        shadow = graph.dict_get(mapping, key)
        if key == "__classcell__":
            shadow.slots["cell_contents"] = node  # type: ignore[attr-defined]
            graph.effect(setattr, shadow, Const("cell_contents"), node)  # type: ignore[arg-type]
        elif key not in CONSUMED:
            node.slots[key] = stored(interp, result.__dict__[key], namespace.real[key], shadow)
    return node


def stored(interp: Interpreter, real: Any, given: Any, shadow: Shadow) -> Shadow:
    """What a class keeps of an entry of its namespace: some functions become static or class methods."""
    if real is given:
        return shadow
    node = interp.graph.create(real, origin=Expr(type(real), (shadow,)))
    node.slots["__func__"] = shadow
    return node


@model(type.__init__)
def init_class(interp: Interpreter, result: None, *args: Value, **kwargs: Value) -> Shadow:
    """`type.__init__`, which only looks at how many arguments there are."""
    return NONE


def is_of_the_trace(interp: Interpreter, cls: Value) -> Break | None:
    return None if node_of(cls).created else Break("untracked-mutation", f"{cls.real.__qualname__} was made an abstract base class")


@model(_abc._abc_init, refuses=is_of_the_trace)
def init_abstract(interp: Interpreter, result: None, cls: Value) -> Shadow:
    """What `ABCMeta` does to a new class follows from the class."""
    return NONE


@model(staticmethod, classmethod)
def make_method(interp: Interpreter, result: Any, function: Value) -> Shadow:
    """`staticmethod(function)`, `classmethod(function)`."""
    node = interp.graph.create(result, origin=Expr(type(result), (function.shadow,)))
    node.slots["__func__"] = function.shadow
    return node


@model(_tuplegetter)
def make_field(interp: Interpreter, result: Any, index: Value, doc: Value) -> Shadow:
    """The descriptor of a field of a named tuple."""
    for value in (index, doc):
        interp.graph.depend(value.shadow, value.real)
    return interp.graph.create(result, origin=Expr(_tuplegetter, (Const(index.real), Const(doc.real))))


@model(*TYPE_VARIABLES)
def new_type_variable(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`TypeVar("T", bound=int)`."""
    for value in (cls, *args, *kwargs.values()):
        interp.graph.depend(value.shadow, value.real)
    given = Build(tuple, tuple(value.shadow for value in args))
    named = Display(dict, tuple(part for name, value in kwargs.items() for part in (Const(name), value.shadow)))
    return interp.graph.create(result, origin=Expr(make_type_variable, (cls.shadow, Const(result.__module__), given, named)))


TYPES = (type, types.GenericAlias, types.UnionType, types.NoneType)
# … and what `typing` puts in the place of types. It substitutes them by code of its own, which acts on nothing.
FORMS = (*TYPES, typing.TypeVar, typing.ParamSpec, type(typing.ClassVar[int]), type(typing.Union))


def is_of_types(cls: Any, item: Any) -> bool:
    """Whether `GenericAlias(cls, item)`, or the substitution of `item` in an alias, asks nothing but types and plain data."""
    parts = item if type(item) is tuple else (item,)
    return all(is_a(x, FORMS) or is_plain(x) for x in parts)


def is_alias(cls: Any, item: Any) -> bool:
    """Whether `cls[item]` is a `GenericAlias`, or a union, made in C of types and plain data."""
    generic = is_a(cls, type) and is_a(lookup_class(cls, "__class_getitem__"), types.ClassMethodDescriptorType)
    if not generic and not is_a(cls, (types.GenericAlias, types.UnionType)):
        return False
    return is_of_types(cls, item)


def makes_alias(function: Any, applies: Callable[..., bool]) -> None:
    """Registers `list[int]`, `int | str` and the like. Of a class that the trace makes, each call has one of its own."""
    def make(interp: Interpreter, result: Any, *args: Value) -> Shadow:
        for value in args:
            interp.graph.depend(value.shadow, value.real)
        parts = Build(tuple, tuple(value.shadow for value in args))
        if any(isinstance(part, RefNode) and part.created for part in walk(parts)):
            return interp.graph.create(result, origin=Expr(function, parts.items))
        return shadow_of(interp, result)
    model(function, applies=applies)(make)


makes_alias(operator.getitem, is_alias)
makes_alias(operator.or_, lambda a, b: all(is_a(x, TYPES) and type(type(x)) is type for x in (a, b)))
makes_alias(types.GenericAlias, is_of_types)
makes_alias(types.GenericAlias.__getitem__, is_of_types)
makes_alias(types.GenericAlias.__new__, lambda kind, cls, item: is_of_types(cls, item))


PARTS = ("fget", "fset", "fdel")


@model(property, applies=lambda fget=None, fset=None, fdel=None, doc=None: not asks_python(fget, "__doc__"))
def make_property(interp: Interpreter, result: property, *args: Value, **kwargs: Value) -> Shadow:
    """`property(fget, fset, fdel, doc)`."""
    given = {**dict(zip((*PARTS, "doc"), args)), **kwargs}
    return new_property(interp, result, {name: given[name].shadow if name in given else NONE for name in (*PARTS, "doc")})


def new_property(interp: Interpreter, result: property, parts: dict[str, Shadow]) -> RefNode:
    node = interp.graph.create(result, origin=Expr(property, tuple(parts[name] for name in (*PARTS, "doc"))))
    node.slots.update((name, parts[name]) for name in PARTS)
    if type(result.__doc__) in SCALARS:
        node.slots["__doc__"] = Const(result.__doc__)
    return node


def replaces(method: Any, part: str) -> None:
    """Registers `getter`, `setter` or `deleter`."""
    def apply(interp: Interpreter, result: property, old: Value, function: Value) -> Shadow:
        node, graph = node_of(old), interp.graph
        parts = {name: function.shadow if name == part else graph.slot(node, name, getattr(old.real, name)) for name in PARTS}
        return new_property(interp, result, {**parts, "doc": Const(result.__doc__)})
    model(method)(apply)


for _method, _part in ((property.getter, "fget"), (property.setter, "fset"), (property.deleter, "fdel")):
    replaces(_method, _part)


@model(is_python_attribute)
def tells_python(interp: Interpreter, result: bool, cls: Value, name: Value) -> Shadow:
    """Whether a class has an attribute that is written in Python."""
    interp.graph.depend(cls.shadow, cls.real)
    type_attr(interp.graph, cls.real, name.real)
    return Const(result)


@model(tells_program)
def tells_of_program(interp: Interpreter, result: bool, bases: Value) -> Shadow:
    """Whether code of the program's runs when a class is made of these bases."""
    interp.graph.depend(bases.shadow, bases.real)
    for base in bases.real:
        pin_mro(interp.graph, base)
        pin_special(interp.graph, base, "__init_subclass__")
    return Const(result)


@model(class_names)
def tell_names(interp: Interpreter, result: list[str], cls: Value) -> Shadow:
    """The attributes of a class and its bases."""
    graph = interp.graph
    graph.depend(cls.shadow, cls.real)
    pin_mro(graph, cls.real)
    for base in cls.real.__mro__:
        known = graph.find(base)
        if known is not None and known.source is not None and known.slots:
            raise Break("opaque-call", f"dir() of class {base.__qualname__}, to which an attribute was assigned")
        if is_mutable(base) and not graph.is_made(base):
            pin_mro(graph, base)            # their order goes by each class's bases
            graph.require(Computed(own_names, (Constant(base),)), "VALUE", own_names(base))
    return shadow_of(interp, result)


@model(type.__subclasses__)
def tell_subclasses(interp: Interpreter, result: list[type], cls: Value) -> Shadow:
    """The classes that derive from a class."""
    graph = interp.graph
    graph.depend(cls.shadow, cls.real)
    if any(map(graph.is_made, (cls.real, *result))):
        raise Break("opaque-call", f"{cls.real.__name__}.__subclasses__() among classes that the call makes")
    graph.require(Computed(subclasses, (Constant(cls.real),)), "VALUE", subclasses(cls.real))
    return shadow_of(interp, result, new=True)


@model(slot_names)
def tell_slots(interp: Interpreter, result: list[str], cls: Value) -> Shadow:
    """What a class and its bases declare in `__slots__`."""
    interp.graph.depend(cls.shadow, cls.real)
    pin_mro(interp.graph, cls.real)
    return shadow_of(interp, result)


@model(find_implementation)
def found_implementation(interp: Interpreter, result: Any, registry: Value, cls: Value) -> Shadow:
    """The choice of `functools.singledispatch`: by what is registered, and what the class derives from."""
    graph, mapping = interp.graph, dict_node(registry)
    graph.depend(cls.shadow, cls.real)
    for known in graph.dict_keys(mapping):
        depend_ancestry(interp, False, cls.real, known, "__subclasscheck__")
    chosen = next(key for key in graph.dict_keys(mapping) if dict.__getitem__(registry.real, key) is result)
    return graph.dict_get(mapping, chosen)
