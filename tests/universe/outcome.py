"""What a call came to, as plain data: values, types, identity among objects, the state of what was changed."""
from __future__ import annotations

import collections
import enum
import itertools
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

ATOMS = (int, float, complex, bool, str, bytes, range, type(None), type(Ellipsis), type(NotImplemented), slice, torch.dtype,
         torch.device)
BASES = (bool, int, float, complex, str, bytes, bytearray)       # of subclasses: what they are, by the base's own text
KNOWN = (type, types.ModuleType, types.CodeType, enum.Enum, types.WrapperDescriptorType, types.MethodDescriptorType)
CONTAINERS = (list, tuple, set, frozenset, collections.deque)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|Exception raised from (?s:.*)")
MOST_ITEMS, MOST_DEPTH = 5, 12


def describe(roots: Mapping[str, Any]) -> dict[str, Any]:
    """A description of all that can be reached from some objects. What is met again is told by its number."""
    walk = _Walk()
    with torch._C.DisableTorchFunctionSubclass():
        return {name: walk.visit(root) for name, root in roots.items()}


class _Walk:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []

    def visit(self, obj: Any, depth: int = 0) -> Any:
        cls = type(obj)
        if cls in ATOMS:
            return cls.__name__, ADDRESS.sub("0x…", repr(obj))
        if issubclass(cls, KNOWN):
            return self.known(obj)
        if cls is tuple and not obj:
            return "()"
        if id(obj) in self.seen:
            return "same", self.seen[id(obj)]
        if cls is not tuple and cls is not frozenset or depth == 0:
            self.seen[id(obj)] = len(self.seen)
        self.alive.append(obj)
        if depth > MOST_DEPTH:
            return "deep"
        return name_of(cls), *self.parts(obj, cls, depth + 1)

    def known(self, obj: Any) -> Any:
        """An object that the program found, or a class that it has made."""
        made = issubclass(type(obj), type) and type.__getattribute__(obj, "__module__") == "universe"
        return name_of(type(obj)), (name_of(obj), "made") if made else id(obj)

    def parts(self, obj: Any, cls: type, depth: int) -> list[Any]:
        if issubclass(cls, torch.Tensor):
            autograd = obj.requires_grad, obj.grad_fn is not None
            return [str(obj.dtype), tuple(obj.shape), obj.stride(), repr(obj.detach().tolist()), *autograd]
        if issubclass(cls, np.ndarray) or issubclass(cls, np.generic):
            return [str(obj.dtype), obj.shape, repr(obj.tolist())]
        if issubclass(cls, (types.FunctionType, types.BuiltinFunctionType)):
            own = obj.__module__ == "universe" or isinstance(obj, types.BuiltinFunctionType)        # may be made anew
            return [obj.__name__, None if own else id(obj), self.visit(getattr(obj, "__self__", None), depth)]
        if issubclass(cls, types.MethodType):
            return [self.visit(obj.__func__, depth), self.visit(obj.__self__, depth)]
        if issubclass(cls, weakref.ref):
            return [self.visit(obj(), depth)]
        found = [self.visit(part, depth) for part in state_of(obj, cls)]
        for base in BASES:
            if issubclass(cls, base):
                return [ADDRESS.sub("0x…", base.__repr__(obj)), *found]
        for base in CONTAINERS:
            if issubclass(cls, base):
                return [*found, *(self.visit(item, depth) for item in base.__iter__(obj))]
        if issubclass(cls, dict):
            return [*found, *((self.visit(key, depth), self.visit(value, depth)) for key, value in dict.items(obj))]
        if issubclass(cls, BaseException):
            text = [self.visit(part, depth) for part in (obj.args, obj.__cause__, obj.__suppress_context__)]
            return [*found, *text, ADDRESS.sub("0x…", str(obj)) if type(obj).__str__ is BaseException.__str__ else None]
        return [*found, *self.items_left(obj, cls, depth)]

    def items_left(self, obj: Any, cls: type, depth: int) -> list[Any]:
        """What an iterator of C would yield."""
        if not hasattr(cls, "__next__") or cls.__module__ not in ("builtins", "itertools"):
            return []
        try:
            return [self.visit(item, depth) for item in itertools.islice(obj, MOST_ITEMS)]
        except Exception as error:
            return [self.visit(error, depth)]


def state_of(obj: Any, cls: type) -> list[Any]:
    """The attributes of an instance."""
    found: list[Any] = []
    try:
        found.append(dict(object.__getattribute__(obj, "__dict__")))
    except (AttributeError, TypeError):
        pass
    for base in type.__getattribute__(cls, "__mro__"):
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and base.__module__.startswith(("tests", "universe", "functools")):
                with_it = getattr(obj, name, "unset")
                found.append((name, with_it))
    return found if found != [{}] else []


def name_of(cls: Any) -> str:
    """The name of a class; nothing for a module, or another object that is known by its identity."""
    is_class = issubclass(type(cls), type)
    return ".".join(type.__getattribute__(cls, part) for part in ("__module__", "__qualname__")) if is_class else ""
