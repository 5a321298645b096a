"""Stand-ins: objects written in Python in the place of C objects. `type` and `isinstance` answer as for the C class, and C
functions on its instances accept them. They become C objects when they leave captured code."""
from __future__ import annotations

import abc
import gc
import os
import types
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

from capture import _C
from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.refgraph.identical import is_one_of
from capture.refgraph.native_iterators import ENDED as ENDED
from capture.refgraph.native_iterators import turn_into

OWN_CODE = os.path.dirname(__file__)
# Of classes: what they are made of, not what their instances do.
OWN = frozenset({"__class__", "__dict__", "__doc__", "__module__", "__new__", "__slots__", "__weakref__"})


class StandIn(_C.StandIn):
    """An object whose class is `stands_for`, as far as the program can see. The trace refers to it weakly, so that what it holds
    dies with it. Its constructor calls `begin`: the C class has no `__init__` either, which the program could call again.

    `made_by`: the function of `refgraph.native_iterators` that makes the real object, and its first arguments; its other arguments
    are the attributes that `kept` names. Empty if it always remains a stand-in. `comes_first`: it must become the real object
    before any other does.
    """

    __slots__ = ()
    stands_for: type
    made_by: tuple[Any, ...] = ()
    kept: tuple[str, ...] = ()
    comes_first = True
    begin: Callable[..., None]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        cls.begin(self, *args, **kwargs)
        return self

    def made_anew(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """The function that makes the real object with its first arguments, and the attributes that are its others."""
        return self.made_by, self.kept

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.stands_for


class Iterator(StandIn):
    """An iterator, which is its own."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return self


def stand_in(kind: type, *made_by: Any, applies: Callable[..., bool] | None = None) -> Callable[[type[StandIn]], type[StandIn]]:
    """Makes a class stand for `kind`: its methods for the methods of that and, where `applies` to the arguments, it is what the
    call of `kind` makes."""
    def register(cls: type[StandIn]) -> type[StandIn]:
        cls.stands_for, cls.made_by = kind, made_by
        cls.kept = tuple(name for base in reversed(cls.__mro__) for name in base.__dict__.get("__slots__", ()))
        cls.__module__, cls.__name__, cls.__qualname__ = kind.__module__, kind.__name__, kind.__qualname__
        for name in dir(cls):
            method, own = kind.__dict__.get(name), getattr(cls, name)
            if method is not None and name not in OWN and type(own) is types.FunctionType:
                polyfill(method, applies=lambda self, *args, **kwargs: type(self) is cls)(own)
        if applies is not None:
            polyfill(kind, applies=applies)(cls)
        return cls
    return register


def is_stand_in(x: Any) -> bool:
    return is_a(x, StandIn)


def can_become(x: Any) -> bool:
    """Whether `x` is a stand-in that can become the real object: its constructor has ended."""
    return is_stand_in(x) and bool(x.made_by) and all(hasattr(x, name) for name in x.kept)


def is_code_of_stand_in(code: types.CodeType) -> bool:
    """Whether code may be that of a method of a stand-in."""
    return os.path.dirname(code.co_filename) == OWN_CODE


def turn_all(objects: Iterable[Any], in_use: Collection[int] = ()) -> None:
    """Turns stand-ins that no trace uses any more into the real objects, except those whose methods are held or running. in_use:
    the identities of these."""
    reals = list(filter(can_become, objects))
    if not reals:
        return
    held = {id(method.__self__) for method in gc.get_referrers(*reals) if type(method) is types.MethodType}
    recipes = [(real, *real.made_anew()) for real in sorted(reals, key=lambda real: not real.comes_first)
               if id(real) not in held and id(real) not in in_use]
    for real, made_by, names in recipes:
        turn_into(real, *made_by, *(getattr(real, name) for name in names))


def class_of(x: Any) -> type:
    """`type(x)`, also of a stand-in. A model gives its shadow."""
    return type(x)


@polyfill(type, applies=lambda *args: len(args) == 1 and is_stand_in(args[0]))
def type_(x: Any) -> type:
    """`type(x)` of a stand-in."""
    return x.stands_for


def is_told_by_class(x: Any, info: Any) -> bool:
    """Whether a stand-in belongs to a class, or one of several, by what its own class is, as C tells it."""
    return is_stand_in(x) and all(is_one_of(type(cls), type, abc.ABCMeta) and not issubclass(cls, StandIn)
                                  for cls in (info if is_a(info, tuple) else (info,)))


@polyfill(isinstance, applies=is_told_by_class)
def isinstance_(x: Any, info: Any) -> bool:
    """`isinstance(x, info)` of a stand-in."""
    return issubclass(x.stands_for, info)


def takes_no_reference(x: Any) -> bool:
    """Whether there are no weak references to what an object stands for."""
    return is_stand_in(x) and not x.stands_for.__weakrefoffset__


@polyfill(weakref.ref, weakref.proxy, applies=lambda target, *callback: takes_no_reference(target))
def refer(target: Any, *callback: Any) -> Any:
    """`weakref.ref(target, callback)` of such an object."""
    cls = target.stands_for
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
    raise TypeError(f"cannot create weak reference to '{name}' object")


@polyfill(weakref.ref.__new__, applies=lambda cls, target, *callback: takes_no_reference(target))
def refer_derived(cls: type, target: Any, *callback: Any) -> Any:
    """`weakref.ref.__new__(cls, target, callback)` of such an object."""
    return refer(target)
