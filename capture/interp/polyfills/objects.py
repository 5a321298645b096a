"""Creation of instances and look-up of attributes, in Python."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capture.interp.models import polyfill


@polyfill(type.__call__, applies=lambda *args, **kwargs: args and isinstance(args[0], type) and args[0] is not type)
def instantiate(cls: type, /, *args: Any, **kwargs: Any) -> Any:
    """`type.__call__`: a new instance of `cls`, initialised when it is one."""
    obj = cls.__new__(cls, *args, **kwargs)
    if isinstance(obj, cls):
        type(obj).__init__(obj, *args, **kwargs)
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
