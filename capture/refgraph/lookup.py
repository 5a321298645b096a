"""Attributes of objects and classes, read without running Python code of the program (no `__getattr__`, no `__class__`
property)."""
from __future__ import annotations

import _thread
import functools
import types
from collections import deque
from typing import Any

from capture._C import Classes, has, is_a, lookup_class
from capture.refgraph.identical import BOUNDS, is_one_of
from capture.refgraph.source import IMMUTABLE_TYPE
from capture.refgraph.state_queries import is_of, of_thread

HEAP_TYPE = 1 << 9     # a flag of types (object.h)
UNBOUND_IN_C = Classes((types.MethodDescriptorType, types.WrapperDescriptorType))        # the types of methods of classes of C
# What objects of C hold, without a `__getattribute__` of a subclass.
maxlen_of = deque.__dict__["maxlen"].__get__
arguments_of = BaseException.__dict__["args"].__get__
returned_by = StopIteration.__dict__["value"].__get__
PARTS_OF_PARTIALS = "func", "args", "keywords"
func_of, args_of, keywords_of = (functools.partial.__dict__[name].__get__ for name in PARTS_OF_PARTIALS)
MISSING = object()      # what a look-up returns in place of nothing
# What `type.__getattribute__` finds under these names, without the look-up of that itself.
_mro = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
module_of = type.__dict__["__module__"].__get__
name_of = type.__dict__["__name__"].__get__
flags_of = type.__dict__["__flags__"].__get__


def mro_of(cls: type) -> tuple[type, ...]:
    """The MRO of a class. Some classes of C's have none before they are first asked for it, as that of `code.co_lines()`."""
    return _mro(cls) or type.__getattribute__(cls, "__mro__")


def is_heap_type(cls: type) -> bool:
    """Whether a class was made at run time: by a class statement, or by C code that makes its classes so."""
    return bool(flags_of(cls) & HEAP_TYPE)


def is_mutable(cls: type) -> bool:
    """Whether attributes of a class can be assigned: a class of Python."""
    return not flags_of(cls) & IMMUTABLE_TYPE


def can_change_class(cls: type) -> bool:
    """Whether an instance of `cls` can come to be of another class."""
    return is_mutable(cls) or issubclass(cls, types.ModuleType)


def is_hidden(cls: type, *names: str) -> bool:
    """Whether a class has something of its own under one of these names of fields of C, which a class of C below it has: C reads
    the field, and the attribute is the other."""
    namespaces = [namespace_of(base) for base in mro_of(cls)]
    return any(sum(name in namespace for namespace in namespaces) > 1 for name in names)


def has_finalizer(cls: type) -> bool:
    """Whether Python code of the program's runs when an instance of `cls` dies."""
    return is_heap_type(cls) and type(lookup_class(cls, "__del__")) is types.FunctionType


def methods_of(owner: Any, name: str) -> list[Any]:
    """The methods of C that an object has under a name, also those that a subclass hides; of a class, its class methods too."""
    if owner is None:
        return []
    found = [namespace_of(base).get(name) for base in mro_of(type(owner))]
    of_class = [namespace_of(base).get(name) for base in (mro_of(owner) if is_a(owner, type) else ())]
    return [*(method for method in found if type(method) in UNBOUND_IN_C),
            *(method for method in of_class if type(method) is types.ClassMethodDescriptorType)]


def descriptor_of(method: Any) -> Any:
    """What a method of C that is bound to an object was made from; None for a function."""
    owner = method.__self__
    return next((found for found in methods_of(owner, method.__name__) if is_of(method, found)), None)


def parts(real: Any) -> tuple[Any, ...]:
    """The real counterparts of `Build.items`."""
    if is_a(real, types.MethodType):
        return real.__func__, real.__self__
    if is_a(real, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return descriptor_of(real), real.__self__
    if is_a(real, slice):
        return tuple(getattr(real, name) for name in BOUNDS)
    if is_a(real, super):
        return tuple(vars(super)[name].__get__(real) for name in ("__thisclass__", "__self__"))
    return tuple(frozenset.__iter__(real) if is_a(real, frozenset) else tuple.__iter__(real))


def plain_attribute(real: Any, name: str) -> Any:
    """An attribute of an object if reading it runs no Python code: what C tells, or a `__dict__` holds; else None."""
    if is_a(real, type):
        return type.__getattribute__(real, name) if has(type, name) else lookup_class(real, name)
    found = lookup_class(type(real), name)
    if is_one_of(type(found), types.GetSetDescriptorType, types.MemberDescriptorType):
        try:
            return found.__get__(real)
        except AttributeError:
            return None
    held = instance_attributes(real)
    return held[name] if name in held else None if found is not None and has(type(found), "__get__") else found


def instance_dict(real: Any) -> dict[str, Any] | None:
    """The instance `__dict__` of an object past its class's own opinion, or None when it has none or a proxy; of a
    `threading.local` the present thread's, once that has been initialised."""
    if is_a(real, type):
        return None
    if is_a(real, _thread._local):
        try:
            return of_thread(real)
        except LookupError:
            return None
    for base in mro_of(type(real)):
        descriptor = namespace_of(base).get("__dict__")
        if descriptor is not None and is_a(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            namespace = descriptor.__get__(real)
            return namespace if is_a(namespace, dict) else None
    return None


def instance_attributes(real: Any) -> dict[str, Any]:
    """What the instance dict of an object holds. None is made for that of a partial function: with one, it is no longer merged
    into others."""
    if is_a(real, functools.partial):
        return functools.partial.__reduce__(real)[2][3] or {}  # type: ignore[return-value]
    return instance_dict(real) or {}
