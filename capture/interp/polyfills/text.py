"""Builtins that make text of an object by its special methods, when one is a Python function."""
from __future__ import annotations

import types
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.registry import POLYFILLS, covers, polyfill
from capture.interp.core.special import in_python, is_plain, method_or, special_method, type_name
from capture.interp.polyfills.iterators import ENDED
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import is_mutable, lookup_class, namespace_of


@polyfill(str, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and in_python(args[0], "__str__"))
def str_(x: Any) -> Any:
    """`str(x)`."""
    result = special_method(x, "__str__")()
    if not is_a(result, str):
        raise TypeError(f"__str__ returned non-string (type {type(result).__name__})")
    return result


def is_group(x: Any) -> bool:
    return is_a(x, BaseExceptionGroup) and lookup_class(type(x), "__str__") is BaseExceptionGroup.__str__


@polyfill(str, BaseExceptionGroup.__str__, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and is_group(args[0]))
def text_of_group(x: Any) -> Any:
    """`str(exception_group)`."""
    count = len(x.exceptions)
    return f"{x.message} ({count} sub-exception{'s' if count > 1 else ''})"


def is_named_by_repr(x: Any) -> bool:
    """Whether `str(x)` is `repr(x)`, which is Python's."""
    return lookup_class(type(x), "__str__") is object.__str__ and in_python(x, "__repr__")


@polyfill(str, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and is_named_by_repr(args[0]))
def str_by_repr(x: Any) -> Any:
    """`str(x)` of an object whose class has a `__repr__` alone."""
    result = own_text(x)
    if not is_a(result, str):
        raise TypeError(f"__str__ returned non-string (type {type(result).__name__})")
    return result


@polyfill(repr, applies=lambda x: in_python(x, "__repr__"))
def repr_(x: Any) -> Any:
    """`repr(x)`."""
    result = own_text(x)
    if not is_a(result, str):
        raise TypeError(f"__repr__ returned non-string (type {type(result).__name__})")
    return result


def own_text(x: Any) -> Any:
    """What the `__repr__` of `x` returns."""
    method = method_or(x, "__repr__", ENDED)
    return f"<{type_name(x)} object at {hex(id(x))}>" if method is ENDED else method()


def is_told_by_address(x: Any, *names: str) -> bool:
    """Whether C makes the text of an object of its names and its address, and its class has none of these special methods."""
    kind = type(x)
    if kind is types.FunctionType or kind is types.MethodType and type(x.__func__) is types.FunctionType:
        return True
    return all(lookup_class(kind, name) is getattr(object, name) for name in ("__repr__", *names)) and (
        type(kind) is type or lookup_class(type(kind), "__qualname__") is QUALNAME
        and type(namespace_of(kind).get("__module__")) is str)


@polyfill(repr, applies=lambda x: is_told_by_address(x))
@polyfill(str, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and is_told_by_address(args[0], "__str__"))
def text_with_address(x: Any) -> Any:
    """`repr(x)` of a function, a method, or an object whose class says nothing of its text."""
    kind = type(x)
    if kind is types.MethodType:
        return f"<bound method {x.__func__.__qualname__} of {x.__self__!r}>"
    if kind is types.FunctionType:
        name = f"function {x.__qualname__}"
    elif type(kind.__module__) is str and kind.__module__ != "builtins":
        name = f"{kind.__module__}.{kind.__qualname__} object"
    else:
        name = f"{kind.__name__} object"
    return f"<{name} at {hex(id(x))}>"


def is_told_by_name(x: Any) -> bool:
    """Whether C makes the text of a class of its names, which may be assigned."""
    return is_a(x, type) and is_mutable(x) and lookup_class(type(x), "__repr__") is type.__repr__


@polyfill(repr, applies=is_told_by_name)
@polyfill(str, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and is_told_by_name(args[0]) and is_str_repr(args[0]))
def text_of_class(x: Any) -> Any:
    """`repr(cls)`."""
    if type(x.__module__) is str and x.__module__ != "builtins":
        return f"<class '{x.__module__}.{x.__qualname__}'>"
    return f"<class '{x.__name__}'>"


def is_str_repr(x: Any) -> bool:
    """Whether the class of `x` says nothing of how it is written besides its `__repr__`."""
    return lookup_class(type(x), "__str__") is object.__str__


QUALNAME = lookup_class(type, "__qualname__")
WITH_PARTS = Classes((list, tuple, dict, set, frozenset, types.SimpleNamespace))
RECURSIVE: dict[type, str] = {list: "[...]", tuple: "(...)", dict: "{...}", types.SimpleNamespace: "namespace(...)"}


def holds_python_text(x: Any, depth: int = 8) -> bool:
    """Whether the text of a container is made of names of classes, addresses, or texts that Python code writes; it holds no
    tensors, and not itself."""
    if type(x) not in WITH_PARTS:
        return False
    items = [part for entry in x.items() for part in entry] if type(x) is dict else list(
        x.__dict__.values() if type(x) is types.SimpleNamespace else x)
    if depth <= 0 or any(is_a(item, torch.Tensor) for item in items):
        return False
    if not any(in_python(item, "__repr__") or is_a(item, type) or is_told_by_address(item) or holds_python_text(item, depth - 1)
               for item in items):
        return False
    containers = [item for item in items if type(item) in WITH_PARTS]
    return all(is_plain(item) or holds_python_text(item, depth - 1) for item in containers)


def is_shown(x: Any) -> bool:
    """Whether `container_repr` is already running on `x`, besides the call that asks. The interpreter knows from its frames."""
    raise NotImplementedError


@polyfill(repr, str, applies=lambda *args, **kwargs: len(args) == 1 and not kwargs and holds_python_text(args[0]))
def container_repr(x: Any) -> Any:
    """`repr(x)` of a container."""
    if is_shown(x):
        return RECURSIVE.get(type(x), type(x).__name__ + "(...)")
    parts = []
    if type(x) is types.SimpleNamespace:
        for name, value in x.__dict__.items():
            parts.append(name + "=" + repr(value))
        return "namespace(" + ", ".join(parts) + ")"
    if type(x) is dict:
        for key, value in x.items():
            parts.append(repr(key) + ": " + repr(value))
        return "{" + ", ".join(parts) + "}"
    for item in x:
        parts.append(repr(item))
    text = ", ".join(parts)
    if type(x) is list:
        return "[" + text + "]"
    if type(x) is tuple:
        return "(" + text + ("," if len(x) == 1 else "") + ")"
    return "{" + text + "}" if type(x) is set else "frozenset({" + text + "})"


@polyfill(format, applies=lambda x, *spec: in_python(x, "__format__") and len(spec) < 2 and all(is_a(text, str) for text in spec))
def format_(x: Any, spec: Any = "") -> Any:
    """`format(x, spec)`."""
    result = special_method(x, "__format__")(spec)
    if not is_a(result, str):
        raise TypeError(f"__format__ must return a str, not {type(result).__name__}")
    return result


def is_worded_in_python(x: Any) -> bool:
    """Whether `str(x)` is written out here."""
    return any(covers(applies, [x], {}) for applies, _ in POLYFILLS[str])


@polyfill(format, applies=lambda x, *spec: lookup_class(type(x), "__format__") is object.__format__ and is_worded_in_python(x)
          and all(type(text) is str for text in spec))
@polyfill(object.__format__, applies=lambda x, spec: type(spec) is str and is_worded_in_python(x))
def format_by_object(x: Any, spec: Any = "") -> Any:
    """`object.__format__(x, spec)`."""
    if spec:
        raise TypeError(f"unsupported format string passed to {type(x).__name__}.__format__")
    return str(x)


def format_converted(x: Any, convert: Any, spec: Any) -> Any:
    """`f"{x!r:spec}"`; `convert` is `str`, `repr` or `ascii`."""
    text = convert(x)
    return text if type(text) is str and not spec else format(text, spec)
