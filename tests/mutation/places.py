"""The places at which the world of a program holds something: arguments, variables, attributes, items, defaults, modules, classes.

A place is named by its path, so that the same one is found in another world that was built in the same way.
"""
from __future__ import annotations

import collections
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Undo = Callable[[], Any]
# The standard library, of which a part is frozen, and installed packages.
FOREIGN = (os.path.dirname(os.__file__), "<frozen ", os.path.dirname(torch.__path__[0]))
OF_CLASSES = frozenset({"__slotnames__", "__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__slots__"})
DEPTH = 9
MOST_ITEMS = 6      # of one container
SEQUENCES = (list, collections.deque)


@dataclass
class Place:
    """Where `value` was found. `put` has another value there, `drop` none; both return what takes that back, and are None where
    that cannot be done. `names`: the attributes that the program's code asks for."""

    path: str
    value: Any
    put: Callable[[Any], Undo] | None = None
    drop: Callable[[], Undo] | None = None
    names: frozenset[str] = frozenset()
    own: bool = True        # not of Python or of an installed package


def places(roots: dict[str, Any]) -> list[Place]:
    """All places that can be reached from the values of `roots`, in an order that depends on the world alone."""
    names: set[str] = set()
    for place in _walk(roots, names):       # twice: what is looked at in a class depends on what functions ask for
        if isinstance(place.value, types.FunctionType) and is_own(place.value):
            names.update(names_of(place.value.__code__))
    return list(_walk(roots, names))


def _walk(roots: dict[str, Any], names: set[str]) -> Iterator[Place]:
    known, seen = frozenset(names), set()
    queue = collections.deque((Place(name, value), 0) for name, value in roots.items())
    while queue:                            # breadth first: what is near counts most
        place, depth = queue.popleft()
        place.names = known
        yield place
        value = place.value
        if id(value) not in seen and depth < DEPTH and type(value) not in (int, str, float, bool, type(None)):
            seen.add(id(value))
            queue += ((part, depth + 1) for part in parts(place, names))


def names_of(code: types.CodeType) -> set[str]:
    """The names and strings that code uses, with those of the functions in it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_of(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found


def is_own(thing: Any) -> bool:
    """Whether a function, class or module is the program's: neither Python's nor an installed package's."""
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    else:
        module = thing if isinstance(thing, types.ModuleType) else sys.modules.get(getattr(thing, "__module__", None) or "")
        if module is None:
            return True
        file = vars(module).get("__file__") or FOREIGN[0]
    return not file.startswith(FOREIGN) and "/capture/" not in file.replace("/tests/", "/")


# -- what a value holds ------------------------------------------------------------------------------------------------

def parts(place: Place, names: Iterable[str]) -> Iterator[Place]:
    """The places in a value."""
    path, value = place.path, place.value
    if isinstance(value, types.FunctionType):
        if is_own(value):
            yield from _function(path, value)
    elif isinstance(value, type):
        yield from _class(path, value, names)
    elif isinstance(value, types.ModuleType):
        yield from _module(path, value, names)
    elif isinstance(value, types.CellType):
        if (held := cell_contents(value)) is not None:
            yield from held
    elif isinstance(value, dict):
        yield from _entries(value, functools.partial(_subscripted, path))
    elif isinstance(value, SEQUENCES):
        yield from (_item(path, value, i) for i in range(min(len(value), MOST_ITEMS)))
    elif isinstance(value, tuple):
        yield from (_part(place, i, part, functools.partial(_with_item, value, i))
                    for i, part in enumerate(tuple.__iter__(value)) if i < MOST_ITEMS)
    elif isinstance(value, types.MethodType):
        yield _part(place, ".__self__", value.__self__, functools.partial(types.MethodType, value.__func__))
        yield _part(place, ".__func__", value.__func__, lambda new: types.MethodType(new, value.__self__))
    elif isinstance(value, functools.partial):
        yield _part(place, ".func", value.func, lambda new: functools.partial(new, *value.args, **value.keywords))
        yield _part(place, ".args", value.args, lambda new: functools.partial(value.func, *new, **value.keywords))
        yield Place(f"{path}.keywords", value.keywords)
    elif isinstance(value, property):
        yield _part(place, ".fget", value.fget, property)
    elif isinstance(value, (staticmethod, classmethod)):
        yield _part(place, ".__func__", value.__func__, type(value))
    if not isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType, functools.partial, enum.Enum)):
        yield from _attributes(path, value)
        if is_own(type(value)) or isinstance(value, torch.nn.Module):
            yield Place(f"type({path})", type(value), own=is_own(type(value)))


def _part(place: Place, step: Any, value: Any, rebuilt: Callable[[Any], Any]) -> Place:
    """A part of something immutable, which is made anew where it lies with another part."""
    put = place.put
    path = f"{place.path}{step}" if isinstance(step, str) else f"{place.path}[{step}]"
    return Place(path, value, None if put is None else lambda new: put(rebuilt(new)), own=place.own)


def _with_item(items: tuple[Any, ...], index: int, new: Any) -> Any:
    changed = [*items[:index], new, *items[index + 1:]]
    return type(items)._make(changed) if hasattr(items, "_make") else type(items)(changed)  # type: ignore[attr-defined]


def _entries(mapping: dict[Any, Any], path_of: Callable[[Any, int], str], most: int = MOST_ITEMS) -> Iterator[Place]:
    """The values of a dict, and its keys that are no names; `path_of` says what the value of a key, of this number, is called."""
    base = collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict

    def put(key: Any, new: Any) -> Undo:
        old = base.__getitem__(mapping, key)
        base.__setitem__(mapping, key, new)
        return functools.partial(base.__setitem__, mapping, key, old)

    def drop(key: Any) -> Undo:
        undo = restoring(mapping)
        base.__delitem__(mapping, key)
        return undo
    for number, (key, value) in enumerate(list(base.items(mapping))[:most]):
        yield Place(path_of(key, number), value, functools.partial(put, key), functools.partial(drop, key))
        if type(key) not in (str, int):
            yield Place(f"{path_of(key, number)}.key", key)


def _subscripted(path: str, key: Any, number: int) -> str:
    plain = isinstance(key, (str, int, float, bool, bytes, type(None)))
    return f"{path}[{key!r:.40}]" if plain else f"{path}[key {number}]"


def restoring(container: Any) -> Undo:
    """What has a list, dict, set or deque hold what it holds now, in this order."""
    if isinstance(container, dict):
        base: Any = collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict
        items = list(base.items(container))

        def refill() -> None:
            base.clear(container)
            for key, value in items:
                base.__setitem__(container, key, value)
        return refill
    base = next(base for base in (list, set, collections.deque, bytearray) if isinstance(container, base))
    held = list(base.__iter__(container))

    def restore() -> None:
        base.clear(container)
        (base.update if base is set else base.extend)(container, held)
    return restore


def _item(path: str, items: Any, index: int) -> Place:
    base: Any = list if isinstance(items, list) else collections.deque

    def put(new: Any) -> Undo:
        old = base.__getitem__(items, index)
        base.__setitem__(items, index, new)
        return functools.partial(base.__setitem__, items, index, old)

    def drop() -> Undo:
        undo = restoring(items)
        base.__delitem__(items, index)
        return undo
    return Place(f"{path}[{index}]", base.__getitem__(items, index), put, drop)


def cell_contents(cell: types.CellType, path: str = "") -> list[Place] | None:
    """The place in a cell; None for an empty one."""
    try:
        old = cell.cell_contents
    except ValueError:
        return None

    def fill(value: Any) -> None:
        cell.cell_contents = value

    def put(new: Any) -> Undo:
        fill(new)
        return functools.partial(fill, old)

    def drop() -> Undo:
        del cell.cell_contents
        return functools.partial(fill, old)
    return [Place(path, old, put, drop)]


def attribute(path: str, owner: Any, name: str, value: Any, own: bool = True) -> Place:
    """An attribute that is set and deleted past what the class of its owner says of that."""
    setter: Any = type.__setattr__ if isinstance(owner, type) else object.__setattr__
    deleter: Any = type.__delattr__ if isinstance(owner, type) else object.__delattr__

    def put(new: Any) -> Undo:
        setter(owner, name, new)
        return functools.partial(setter, owner, name, value)

    def drop() -> Undo:
        deleter(owner, name)
        return functools.partial(setter, owner, name, value)
    return Place(path, value, put, drop if own else None, own=own)


def _attributes(path: str, value: Any) -> Iterator[Place]:
    try:
        namespace = object.__getattribute__(value, "__dict__")
    except AttributeError:
        namespace = None
    if type(namespace) is dict:
        yield from _entries(namespace, lambda name, _: f"{path}.{name}", most=40)
        yield Place(f"{path}.__dict__", namespace)
    for cls in type(value).__mro__:
        for name, slot in vars(cls).items() if "__slots__" in cls.__dict__ else ():
            if isinstance(slot, types.MemberDescriptorType) and is_own(cls):
                try:
                    yield attribute(f"{path}.{name}", value, name, slot.__get__(value, cls))
                except AttributeError:
                    continue
    if isinstance(value, torch.Tensor) and value.is_leaf:
        def put(new: Any) -> Undo:
            old = value.grad
            value.grad = new
            return functools.partial(setattr, value, "grad", old)
        yield Place(f"{path}.grad", value.grad, put)


def _function(path: str, function: types.FunctionType) -> Iterator[Place]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        yield from cell_contents(cell, f"{path}.<{name}>") or ()
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(function, name) is not None:
            yield attribute(f"{path}.{name}", function, name, getattr(function, name))
    scope = function.__globals__
    for name in sorted(names_of(function.__code__)):
        if name.startswith("__"):
            continue
        if name in scope:
            value = scope[name]
            yield Place(f"globals[{name}]", value, functools.partial(_set, scope, name), functools.partial(_delete, scope, name))
        elif name in function.__builtins__:
            yield Place(f"builtins[{name}]", function.__builtins__[name], functools.partial(_set, scope, name), own=False)
    yield from _attributes(path, function)


def _set(scope: dict[str, Any], name: str, new: Any) -> Undo:
    undo = functools.partial(scope.__setitem__, name, scope[name]) if name in scope else functools.partial(scope.pop, name)
    scope[name] = new
    return undo


def _delete(scope: dict[str, Any], name: str) -> Undo:
    return functools.partial(scope.__setitem__, name, scope.pop(name))


def _class(path: str, cls: type, names: Iterable[str]) -> Iterator[Place]:
    own = is_own(cls)
    if not cls.__flags__ & (1 << 9) or cls.__flags__ & (1 << 8):        # made by C
        return
    for name, value in list(type.__getattribute__(cls, "__dict__").items()):
        if name not in OF_CLASSES and (own or name in names):
            yield attribute(f"{path}.{name}", cls, name, value, own)
    for base in type.__getattribute__(cls, "__mro__")[1:]:
        yield Place(f"{path}.__mro__[{base.__name__}]", base, own=is_own(base))
    if type(cls) is not type:
        yield Place(f"type({path})", type(cls), own=is_own(type(cls)))


def _module(path: str, module: types.ModuleType, names: Iterable[str]) -> Iterator[Place]:
    own, scope = is_own(module), vars(module)
    for name in sorted(names):
        if name in scope and not name.startswith("__"):
            yield Place(f"{path}.{name}", scope[name], functools.partial(_set, scope, name),
                        functools.partial(_delete, scope, name) if own else None, own=own)
