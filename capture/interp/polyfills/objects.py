"""Creation of instances and look-up of attributes, in Python."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import special_method


@polyfill(type.__call__, applies=lambda *args, **kwargs: bool(args) and is_a(args[0], type) and args[0] is not type)
def instantiate(cls: type, /, *args: Any, **kwargs: Any) -> Any:
    """`type.__call__`: a new instance of `cls`, initialised when it is one."""
    obj = cls.__new__(cls, *args, **kwargs)
    if type.__instancecheck__(cls, obj):
        result = special_method(obj, "__init__")(*args, **kwargs)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return obj


@polyfill(hasattr, applies=lambda x, name: type(name) is str)
def has_attribute(x: Any, name: str) -> bool:
    """`hasattr(x, name)` of an attribute that Python code computes."""
    try:
        getattr(x, name)
    except AttributeError:
        return False
    return True


@polyfill(getattr, applies=lambda x, name, default: type(name) is str)
def attribute_or(x: Any, name: str, default: Any) -> Any:
    """`getattr(x, name, default)` of an attribute that Python code computes."""
    try:
        return getattr(x, name)
    except AttributeError:
        return default


def or_hook(hook: Callable[[Any, str], Any], obj: Any, name: str, find: Callable[..., Any], *args: Any) -> Any:
    """`find(*args)`, which computes the attribute `name` of `obj`; `hook(obj, name)`, a `__getattr__`, where it is missing."""
    try:
        return find(*args)
    except AttributeError:
        pass
    return hook(obj, name)


def asked_for_missing(obj: Any, name: str) -> Any:
    """`obj.name`, which is missing, of a class whose `__getattr__` is no function."""
    return special_method(obj, "__getattr__")(name)


# -- descriptors of C, asked by hand -----------------------------------------------------------------------------------

@polyfill(types.FunctionType.__get__, applies=lambda function, obj, cls=None: True)
def get_method(function: Any, obj: Any, cls: Any = None) -> Any:
    """`function.__get__(obj, cls)`."""
    return function if obj is None and cls is not type(None) else types.MethodType(function, obj)


@polyfill(property.__get__, applies=lambda descriptor, obj, cls=None: obj is None or descriptor.fget is not None)
def get_property(descriptor: Any, obj: Any, cls: Any = None) -> Any:
    """`descriptor.__get__(obj, cls)` of a property."""
    return descriptor if obj is None else descriptor.fget(obj)


@polyfill(property.__set__, applies=lambda descriptor, obj, value: descriptor.fset is not None)
def set_property(descriptor: Any, obj: Any, value: Any) -> None:
    """`descriptor.__set__(obj, value)` of a property."""
    descriptor.fset(obj, value)


@polyfill(staticmethod.__get__, applies=lambda descriptor, obj, cls=None: True)
def get_static(descriptor: Any, obj: Any, cls: Any = None) -> Any:
    """`descriptor.__get__(obj, cls)` of a static method."""
    return descriptor.__func__


@polyfill(classmethod.__get__, applies=lambda descriptor, obj, cls=None: type(descriptor.__func__) is types.FunctionType)
def get_class_method(descriptor: Any, obj: Any, cls: Any = None) -> Any:
    """`descriptor.__get__(obj, cls)` of a class method."""
    return types.MethodType(descriptor.__func__, type(obj) if cls is None else cls)


OF_CLASSES = tuple(type.__dict__[name] for name in ("__dict__", "__mro__"))


@polyfill(types.GetSetDescriptorType.__get__, types.MemberDescriptorType.__get__,
          applies=lambda descriptor, obj, cls=None: any(descriptor is known for known in OF_CLASSES) and is_a(obj, type)
          and type(obj).__getattribute__ is type.__getattribute__)
def get_of_class(descriptor: Any, obj: Any, cls: Any = None) -> Any:
    """`type.__dict__["__mro__"].__get__(obj)`."""
    return getattr(obj, descriptor.__name__)


# -- exceptions --------------------------------------------------------------------------------------------------------

@polyfill(BaseException.add_note, applies=lambda exception, note: True)
def add_note(self: Any, note: Any) -> None:
    """`exception.add_note(note)`."""
    if not is_a(note, str):
        raise TypeError(f"note must be a str, not '{type(note).__name__}'")
    if not hasattr(self, "__notes__"):
        self.__notes__ = []
    if not is_a(self.__notes__, list):
        raise TypeError("Cannot add note: __notes__ is not a list")
    self.__notes__.append(note)


# -- the names of attributes -------------------------------------------------------------------------------------------

@polyfill(dir, applies=lambda obj, /: True)
def names_of(obj: Any) -> list[str]:
    """`dir(obj)`."""
    if is_a(obj, types.ModuleType) and type(obj).__dir__ is types.ModuleType.__dir__:
        return sorted(module_names(obj))
    return sorted(special_method(obj, "__dir__")())


def class_names(cls: type) -> list[str]:
    """The attributes of a class and its bases, in CPython's order: a class before its bases, each of these with its own. A model
    tells."""
    names: dict[str, None] = {}
    pending = [cls]
    while pending:
        base = pending.pop()
        names.update(dict.fromkeys(type.__getattribute__(base, "__dict__")))
        pending.extend(reversed(type.__getattribute__(base, "__bases__")))
    return list(names)


@polyfill(object.__dir__, applies=lambda self: not is_a(self, type))
def object_dir(self: Any) -> list[str]:
    """`object.__dir__`."""
    return list(dict.fromkeys([*(getattr(self, "__dict__", None) or {}), *class_names(self.__class__)]))


@polyfill(type.__dir__, applies=lambda cls: True)
def class_dir(cls: Any) -> list[str]:
    """`type.__dir__`."""
    return class_names(cls)


def module_names(module: Any) -> list[str]:
    """`types.ModuleType.__dir__`."""
    hook = module.__dict__.get("__dir__")
    return list(module.__dict__) if hook is None else hook()
