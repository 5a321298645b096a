"""The functions that a guard printed as Python uses. Each is the definition of what the guard tree does in C++.

None of them runs code of the user's program: they use the builtin types' own functions.
"""
from __future__ import annotations

import collections
import sys
import types
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from capture import _C
from capture._C import is_a
from capture.refgraph import source as sources
from capture.refgraph.identical import BUILTIN_SCALARS, Classes, builtin_base, is_one_of, same, same_members
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.state_queries import stored

F = TypeVar("F", bound=Callable[..., Any])
SIZED = (dict, list, tuple, set, frozenset, str, bytes, bytearray, collections.deque)
PLAIN = Classes({*BUILTIN_SCALARS, list, dict, set, frozenset, slice, range, bytearray})
TENSOR_SLOTS = frozenset({"grad", "_backward_hooks", "_post_accumulate_grad_hooks"})    # what a tensor keeps, besides its metadata


class Unreachable(Exception):
    """A path leads nowhere."""


HELPERS: dict[str, Any] = {"same": same, "same_members": same_members, "modes": _C.modes}      # what the text of a guard may call


def helper(function: F) -> F:
    """Lets texts of guards call the function, by its name."""
    HELPERS[function.__name__] = function
    return function


# -- paths -----------------------------------------------------------------------------------------------------


@helper
def imported(name: str) -> Any:
    """`sys.modules[name]`."""
    return item(sys.modules, name)


@helper
def attribute(x: Any, name: str) -> Any:
    """A C-level attribute, through the member or getset descriptor in the type."""
    if type(x) is ContextVar and name == "get()":
        try:
            return x.get()
        except LookupError:
            raise Unreachable(name) from None
    if is_a(x, weakref.ref) and name == "()":
        return weakref.ref.__call__(x)
    descriptor = lookup(type(x), name)
    if is_a(x, torch.Tensor):
        if name not in TENSOR_SLOTS or type(x) not in PLAIN_TENSORS:
            raise Unreachable(name)
    elif not is_one_of(type(descriptor), types.MemberDescriptorType, types.GetSetDescriptorType):
        raise Unreachable(name)
    try:
        return type(descriptor).__get__(descriptor, x, type(x))
    except (AttributeError, ValueError):
        raise Unreachable(name) from None


@helper
def lookup(cls: Any, name: str) -> Any:
    """`capture.refgraph.source.lookup`, for classes only."""
    if not is_a(cls, type):
        raise Unreachable(name)
    try:
        return sources.lookup(cls, name)
    except AttributeError:
        raise Unreachable(name) from None


@helper
def instance_dict(x: Any) -> dict[str, Any]:
    """The `__dict__` of an instance, module or function, whatever its class defines."""
    if is_a(x, type):
        raise Unreachable("a class")
    for cls in type(x).__mro__:
        descriptor: Any = cls.__dict__.get("__dict__")
        if is_a(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            try:
                found = descriptor.__get__(x)
            except AttributeError:
                break
            if type(found) is dict:
                return found
    raise Unreachable("no __dict__")


@helper
def item(x: Any, key: Any) -> Any:
    """`x[key]` by the builtin type's own lookup."""
    base = builtin_base(x, (dict, list, tuple, collections.deque))
    if base is None or base is not dict and not is_a(key, int):
        raise Unreachable(key)
    try:
        return stored(x, key) if base is dict else base.__getitem__(x, key)
    except (KeyError, IndexError):
        raise Unreachable(key) from None


@helper
def computed(op: Callable[..., Any], *args: Any) -> Any:
    """`op(*args)` for exact builtin scalars and ranges; functions of ours check their arguments themselves."""
    ours = type(op) is types.FunctionType or getattr(op, "__self__", None) is _C
    if not ours and not all(type(arg) in BUILTIN_SCALARS or type(arg) is range for arg in args):
        raise Unreachable(op)
    try:
        return op(*args)
    except Exception as error:
        raise Unreachable(op) from error


# -- conditions ------------------------------------------------------------------------------------------------


@helper
def length(x: Any) -> int | None:
    """The builtin length; None for objects without one."""
    base = builtin_base(x, SIZED)
    return None if base is None else base.__len__(x)


@helper
def truth(x: Any) -> bool | None:
    """The builtin truth; None for objects whose truth is their own affair."""
    if type(x) in BUILTIN_SCALARS or type(x) is range or x is Ellipsis:
        return bool(x)
    base = builtin_base(x, SIZED)
    owners = [vars(cls) for cls in type(x).__mro__] if base is not None else []
    own = next((names for names in owners if "__bool__" in names or "__len__" in names), {})
    return None if base is None or "__bool__" in own or own["__len__"] is not base.__len__ else base.__len__(x) > 0


@helper
def keys(x: Any) -> tuple[Any, ...] | None:
    """The keys of a dict, or members of a set, in their builtin order; None for other objects."""
    base = builtin_base(x, (collections.OrderedDict, dict, set, frozenset))
    return None if base is None else tuple(base.__iter__(x))


@helper
def has_key(x: Any, key: Any) -> bool:
    """Whether a dict has a key. Raises Unreachable for other objects."""
    if builtin_base(x, (dict,)) is None:
        raise Unreachable(key)
    return dict.__contains__(x, key)


@helper
def is_member(x: Any, member: Any) -> bool:
    """Whether a set holds a member. Raises Unreachable for other objects."""
    base = builtin_base(x, (set, frozenset))
    if base is None:
        raise Unreachable(member)
    return base.__contains__(x, member)


@helper
def lacks_attribute(x: Any, name: str) -> bool:
    """Whether x is a class without an attribute of that name."""
    if not is_a(x, type):
        return False
    return all(name not in type.__getattribute__(cls, "__dict__") for cls in type.__getattribute__(x, "__mro__"))


@helper
def mro(x: Any) -> tuple[type, ...]:
    """The classes in which a class looks for attributes, in order."""
    if not is_a(x, type):
        raise Unreachable("no class")
    return type.__getattribute__(x, "__mro__")


@helper
def tensor_properties(x: Any, any_shape: bool = False) -> _C.TensorProperties | None:
    """The properties of a plain tensor, of its shape only the number of dimensions if `any_shape`; None for other objects."""
    try:
        properties = _C.tensor_properties(x)
        return properties.of_any_shape() if any_shape else properties
    except TypeError:
        return None


@helper
def fits(x: Any, expected: _C.TensorProperties) -> bool:
    """Whether x is a plain tensor with these properties, of any size where they leave it open."""
    properties = tensor_properties(x)
    return properties is not None and properties.like(expected) == expected


@helper
def distinct(x: Any, other: Callable[[], Any]) -> bool:
    """Whether x is not the object at a path; a path that leads nowhere leads elsewhere."""
    try:
        return other() is not x
    except Unreachable:
        return True


@helper
def separate(*objects: tuple[Callable[[], Any], bool]) -> bool:
    """Whether each object of the first side (True) is none of the others, of either side; a path of the other side that leads
    nowhere leads elsewhere."""
    first = [find() for find, is_first in objects if is_first]
    numbers = set(map(id, first))

    def is_among(find: Callable[[], Any]) -> bool:
        try:
            return id(find()) in numbers
        except Unreachable:
            return False
    return len(numbers) == len(first) and not any(is_among(find) for find, is_first in objects if not is_first)


@helper
def share_memory(*places: tuple[Any, int, int | None]) -> bool:
    """Whether tensors share storage exactly within their groups, each at its offset in bytes (None: anywhere)."""
    storages: dict[int, tuple[int, int]] = {}
    for tensor, group, offset in places:
        if not is_a(tensor, torch.Tensor) or offset not in (None, tensor.storage_offset() * tensor.element_size()):
            return False
        storage = tensor.untyped_storage()
        if storages.setdefault(group, (storage._cdata, storage.data_ptr())) != (storage._cdata, storage.data_ptr()):
            return False
    cdatas = [cdata for cdata, _ in storages.values()]
    pointers = [pointer for _, pointer in storages.values() if pointer]
    return len(set(cdatas)) == len(cdatas) and len(set(pointers)) == len(pointers)
