"""What functions of Python's library come to when they run: functions, classes and modules that their code names, and what these
name in turn."""
from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from capture._C import is_a
from capture.code_names import names_of
from capture.refgraph.lookup import is_mutable, mro_of

WRAPPED = (staticmethod, classmethod)
CACHED = functools._lru_cache_wrapper
FIELDS = "__code__", "__defaults__", "__kwdefaults__"
NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, CACHED, *WRAPPED, property)


class Reach:
    """What the code of a function may come to by global names and by attributes of modules and classes. modules, classes: what each
    has under the names that are read of it. called: the function and those that it names itself, with what may be assigned to them.
    foreign: something stands under a name of the library that is none of the library's own.

    Which attributes are read of which object is not known: a class that is reached counts with all of its special methods, and with
    those under a name that any of the code reads as an attribute.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.modules: dict[int, tuple[types.ModuleType, dict[str, Any]]] = {}
        self.classes: dict[int, tuple[type, dict[str, Any]]] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._names: set[str] = set()
        self._open: list[Any] = [function]
        self.foreign = False
        self._take()
        self._take()
        self.called = [(called, name, getattr(called, name)) for called in self._functions.values() for name in FIELDS]
        while self._open:
            self._take()

    def _take(self) -> None:
        """Looks at all that is open, which opens more."""
        found, self._open = self._open, []
        for x in found:
            for part in unwrapped(x):
                if type(part) is types.FunctionType:
                    self._function(part)
                elif is_a(part, type):
                    self._class(part)
                elif not is_a(part, types.ModuleType) and is_mutable(type(part)):
                    self._class(type(part))

    def _function(self, function: types.FunctionType) -> None:
        module: Any = sys.modules.get(function.__globals__.get("__name__"))  # type: ignore[arg-type]
        if module is None or id(function) in self._functions:       # a named tuple's code has globals of its own
            return
        self.foreign |= not is_of_library(module)
        if self.foreign:
            return
        self._functions[id(function)] = function
        names = set(names_of(function.__code__))
        values = self._read(module, names)
        for value in values:
            if is_a(value, types.ModuleType):
                values = [*values, *self._read(value, names)]
        self._open += [*values, *filter(None, function.__defaults__ or ())]
        new = names - self._names
        self._names |= new
        for cls, known in self.classes.values():
            self._attributes(cls, known, new)

    def _read(self, module: types.ModuleType, names: Iterable[str]) -> list[Any]:
        scope = vars(module)
        read = {name: scope[name] for name in names if name in scope and is_kept(scope[name])}
        self.modules.setdefault(id(module), (module, {}))[1].update(read)
        return list(read.values())

    def _class(self, cls: type) -> None:
        for base in mro_of(cls):
            if id(base) not in self.classes and is_mutable(base) and is_of_library(base):
                known: dict[str, Any] = {}
                self.classes[id(base)] = base, known
                self._attributes(base, known, {name for name in vars(base) if name.startswith("__")} | self._names)

    def _attributes(self, cls: type, known: dict[str, Any], names: set[str]) -> None:
        read = {name: value for name, value in vars(cls).items() if name in names and is_a(value, NAMED)}
        known.update(read)
        self._open += read.values()

    def is_so(self) -> bool:
        """Whether all of this is still there, and the library's own."""
        if self.foreign or not all(getattr(called, name) is value for called, name, value in self.called):
            return False
        scopes = [(vars(owner), known) for owner, known in (*self.modules.values(), *self.classes.values())]
        return all(scope.get(name) is value for scope, known in scopes for name, value in known.items())


@functools.cache
def reach_of(function: types.FunctionType) -> Reach:
    """What a function of Python's library reached when this was first asked."""
    return Reach(function)


def unwrapped(x: Any) -> Iterator[Any]:
    """The functions in a descriptor, in a method with the object that it is bound to, or behind a cache; else the object itself."""
    if is_a(x, property):
        yield from filter(None, (x.fget, x.fset, x.fdel))
    elif is_a(x, types.MethodType):
        yield from (x.__func__, x.__self__)
    else:
        yield x.__wrapped__ if is_a(x, (CACHED, *WRAPPED)) else x


def is_kept(value: Any) -> bool:
    """Whether a global variable of a library is one that code calls, or asks for attributes."""
    return is_a(value, NAMED) or is_mutable(type(value)) and is_of_library(type(value))


def is_of_library(x: Any) -> bool:
    """Whether a module, function or class is one of Python's library."""
    return str(x.__name__ if is_a(x, types.ModuleType) else x.__module__).partition(".")[0] in sys.stdlib_module_names
