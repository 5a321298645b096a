"""Functions that guards and mock functions call for facts that no access path reaches: that something is absent, values that differ
by thread, the current GPU, keys that are weak references. None of them runs Python code of the program."""
from __future__ import annotations

import _thread
import contextvars
import ctypes
import gc
import itertools
import sys
import types
import weakref
from typing import Any

import torch

from capture._C import is_a
from capture.refgraph.identical import FORMS, INTEGERS, PROXIES
from capture.refgraph.node import SCALARS

_thread_state = ctypes.pythonapi.PyThreadState_GetDict
_thread_state.restype, _thread_state.argtypes = ctypes.c_void_p, []
_known = _thread._local()


def current_gpu() -> int | None:
    """The index of the current GPU; None before the program has used any."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def are_indices(tensor: torch.Tensor, rows: int, spare: int | None = None) -> bool:
    """Whether all integers of a tensor are indices of so many rows, or `spare`."""
    if tensor.numel() == 0 or tensor.min().item() >= 0 and tensor.max().item() < rows:
        return True
    return spare is not None and bool(((tensor >= 0) & (tensor < rows) | (tensor == spare)).all())


def item_at(items: Any, index: int) -> Any:
    """The item of a list at an index. Raises IndexError without one, TypeError for other objects and indices."""
    if type(index) not in INTEGERS:
        raise TypeError("no integer")
    return list.__getitem__(items, index)


def has_index(items: Any, index: Any, added: int) -> bool:
    """Whether a list that had `added` items more would have one at an index. Raises TypeError for other objects."""
    length = list.__len__(items) + added
    return type(index) is int and -length <= index < length


def length_of(items: Any) -> int:
    """The length of a list. Raises TypeError for other objects."""
    return list.__len__(items)


def joined(*items: Any) -> tuple[Any, ...]:
    """A tuple that is a key, or a part of one. Raises TypeError where an item is no scalar, dtype, device or such a tuple."""
    if not all(type(item) in SCALARS or type(item) in FORMS or type(item) is tuple for item in items):
        raise TypeError("no scalars")
    return items


def stored(mapping: Any, key: Any) -> Any:
    """What a dict holds under a key. Raises KeyError where that is nothing (`dict.__getitem__` would call `__missing__`, which may
    store something), TypeError for other objects."""
    if not dict.__contains__(mapping, key):
        raise KeyError(key)
    return dict.get(mapping, key)


def under_key(mapping: Any, key: Any) -> Any:
    """What a dict has under a scalar, or what `joined` makes. Raises KeyError where that is nothing, TypeError for other objects
    and keys."""
    if type(key) not in SCALARS and type(key) is not tuple:
        raise TypeError("no scalar")
    return stored(mapping, key)


def has_key(mapping: Any, key: Any) -> bool:
    """Whether a dict has something under a scalar, or what `joined` makes. Raises TypeError for other objects and keys."""
    if type(key) not in SCALARS and type(key) is not tuple:
        raise TypeError("no scalar")
    return dict.__contains__(mapping, key)


def is_of(method: Any, descriptor: Any) -> bool:
    """Whether a method of C is what `descriptor` is for the same object. (The `__self__` of pybind11's functions is none.)
    Raises TypeError where a descriptor cannot be of that object."""
    owner = method.__self__
    place = (None, owner) if type(descriptor) is types.ClassMethodDescriptorType else (owner, type(owner))
    bound = descriptor.__get__(*place)
    return type(bound) is type(method) and bound == method


def seed_of(generator: Any) -> int:
    """The seed that a generator of torch was given last. Raises TypeError for other objects."""
    return torch.Generator.initial_seed(generator)


def lacks(cls: Any, name: str) -> bool:
    """Whether a class itself, whatever its bases have, has no attribute of this name. Raises TypeError for other objects."""
    return name not in type.__getattribute__(cls, "__dict__")


def is_unset(x: Any, name: str) -> bool:
    """Whether an object has a slot of this name in which there is nothing."""
    for cls in type.__getattribute__(type(x), "__mro__"):
        slot = type.__getattribute__(cls, "__dict__").get(name)
        if type(slot) is types.MemberDescriptorType:
            try:
                slot.__get__(x)
            except AttributeError:
                return True
            return False
    return False


def has_no_value(variable: Any) -> bool:
    """Whether a context variable has no value in the present context, besides one that it was made with. Raises TypeError for other
    objects."""
    if type(variable) is not contextvars.ContextVar:
        raise TypeError("no context variable")
    return variable not in contextvars.copy_context()


def resets(token: Any, variable: Any) -> bool:
    """Whether a token is of this context variable, and was not used yet, which it tells by its text alone."""
    return type(token) is contextvars.Token and token.var is variable and not repr(token).startswith("<Token used ")


def is_set_up(local: Any) -> bool:
    """Whether a `threading.local` was used in the present thread, so that using it runs no `__init__`. CPython keeps what a thread
    has of it in a dict of the thread's, under a name made of its address; since 3.13 in one of its own, under the thread's name."""
    if sys.version_info >= (3, 13):
        return _name_of_thread() in _dicts_of_threads(local)
    kept = _thread_state()
    return kept is not None and f"thread.local.{id(local):#x}" in ctypes.cast(kept, ctypes.py_object).value


def _dicts_of_threads(local: Any) -> dict[str, dict[str, Any]]:
    """What threads have of a `threading.local` (3.13): the last dict that the garbage collector finds in one."""
    return [held for held in gc.get_referents(local) if type(held) is dict][-1]


def _name_of_thread() -> str:
    """The name of the present thread in `_dicts_of_threads`: the only one in a `threading.local` that no other has used."""
    try:
        return _known.name
    except AttributeError:
        new = _thread._local()
        new.used = True
        _known.name = next(iter(_dicts_of_threads(new)))
        return _known.name


def of_thread(local: Any) -> dict[str, Any]:
    """The attributes of a `threading.local` in the present thread. Raises LookupError where its class has yet to initialise
    them, and TypeError for other objects."""
    if not is_a(local, _thread._local):
        raise TypeError("no threading.local")
    if type(local) is not _thread._local and not is_set_up(local):
        raise LookupError("not initialised in this thread")
    return _thread._local.__getattribute__(local, "__dict__")


def under_reference(mapping: Any, target: Any) -> Any:
    """What a dict has under a weak reference to an object. Raises KeyError where that is nothing, TypeError for no dict."""
    return stored(mapping, weakref.ref(target))


def holds_reference(container: Any, target: Any) -> bool:
    """Whether a dict or set has a weak reference to an object among its keys. Raises TypeError for what is neither."""
    return (dict if is_a(container, dict) else set).__contains__(container, weakref.ref(target))


def key_at(container: Any, index: int) -> Any:
    """The key of this number in a dict or set. Raises StopIteration if there is none, TypeError for other objects."""
    return next(itertools.islice((dict if is_a(container, dict) else set).__iter__(container), index, None))


def keys_of(container: Any) -> tuple[Any, ...]:
    """The keys of a dict or set, in order. Raises TypeError for what is neither."""
    base: Any = next((base for base in (dict, set, frozenset) if is_a(container, base)), set)
    return tuple(base.__iter__(container))


def referents(container: Any) -> tuple[Any, ...]:
    """What the keys of a dict or set refer to, all of them weak references. Raises TypeError for others."""
    return tuple(map(weakref.ref.__call__, (dict if is_a(container, dict) else set).__iter__(container)))


def own_names(cls: Any) -> tuple[str, ...]:
    """The attributes of a class itself, in the order in which it got them. Raises TypeError for other objects."""
    return tuple(type.__getattribute__(cls, "__dict__"))


def subclasses(cls: Any) -> tuple[int, ...]:
    """The identities of the classes that derive from a class directly, in the order in which they were made."""
    return tuple(map(id, type.__subclasses__(cls)))


def stood_for(proxy: Any) -> Any:
    """What a weak proxy stands for; None once that is dead. Raises TypeError for other objects, LookupError where it
    cannot be told."""
    if type(proxy) not in PROXIES:
        raise TypeError("no weak proxy")
    try:
        method = proxy.__sizeof__       # a proxy passes on all questions, this one to a method of C, which is bound to the object
    except ReferenceError:
        return None
    if type(method) is not types.BuiltinFunctionType or not any(known is proxy for known in weakref.getweakrefs(method.__self__)):
        raise LookupError("the object has a method __sizeof__ of its own")
    return method.__self__
