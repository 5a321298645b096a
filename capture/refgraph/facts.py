"""What guards ask where no path tells: what is not there, and what is another in each thread. None of these runs Python code."""
from __future__ import annotations

import _thread
import types
from typing import Any


def from_end(items: Any, index: int) -> Any:
    """The item of a list at an index that counts from the end. Raises IndexError without one, TypeError for other objects."""
    return list.__getitem__(items, index)


def is_of(method: Any, descriptor: Any) -> bool:
    """Whether a method of C is what `descriptor` is for the same instance. (The `__self__` of pybind11's functions is none.)"""
    bound = descriptor.__get__(method.__self__, type(method.__self__))
    return type(bound) is type(method) and bound == method


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


def of_thread(local: Any, name: str) -> Any:
    """The attribute of a `threading.local` in the present thread. Raises AttributeError where there is none, TypeError for a
    subclass, which may run code in each thread."""
    if type(local) is not _thread._local:
        raise TypeError("no threading.local")
    return _thread._local.__getattribute__(local, name)


def is_of_thread(local: Any, name: str) -> bool:
    """Whether a `threading.local` has an attribute in the present thread. Raises TypeError for other objects."""
    try:
        of_thread(local, name)
    except AttributeError:
        return False
    return True
