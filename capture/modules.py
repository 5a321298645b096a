"""Compiled modules: an object that shares a module's state and class, and whose calls are captured."""
from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from capture import _C
from capture.errors import ArgumentError
from capture.refgraph.lookup import lookup_class
from capture.unit import Unit

CLASS: Any = object.__dict__["__class__"]


class CompiledModule:
    """Base class of the classes that `compiled_module` makes, each of which has one instance. `capture_unit`: the record of that
    instance. `capture_plain`: the original module, which hooks and the module's own code are given, so that they see its own class.
    (Python only changes the class of an object to one with the same slots.)"""

    __slots__ = ("__weakref__", "capture_plain")
    capture_unit: Unit
    capture_plain: torch.nn.Module


def compiled_module(module: torch.nn.Module, make_unit: Callable[[types.FunctionType, str], Unit],
                    rebuild: Callable[[torch.nn.Module], Any]) -> Any:
    """An instance of a subclass of `module`'s class, over the very same `__dict__`, whose calls are compiled calls of `module`.

    Everything but the call is inherited: `state_dict`, `train`, hooks and `to` act on both objects; `_orig_mod` is the module, as
    in torch.compile. Pickle and deepcopy carry the plain module and `rebuild`, which compiles it again. Raises ArgumentError for
    modules whose calls are no Python functions.
    """
    if isinstance(module, CompiledModule):
        module = plain_module(module)
    cls = type(module)
    function = plain_call(cls)
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(f"{cls.__name__}.__call__ is a {type(function).__name__}; only Python functions can be captured")
    compiled = object.__new__(compiled_class(cls, make_unit(function, cls.__name__), rebuild))
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, "capture_plain", module)
    return compiled


def compiled_class(cls: type, unit: Unit, rebuild: Callable[[torch.nn.Module], Any]) -> type:
    """The subclass whose only instance is a compiled module. If the compiled module or the original gets another class, as lazy
    modules do, the other one follows."""
    def reduce_ex(self: Any, protocol: Any) -> tuple[Any, ...]:
        return rebuild, (plain_module(self),)

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        return rebuild(copy.deepcopy(plain_module(self), memo))

    def become(self: Any, new: Any) -> None:
        if issubclass(new, CompiledModule):
            CLASS.__set__(self, new)
            return
        CLASS.__set__(plain_module(self), new)
        CLASS.__set__(self, compiled_class(new, unit, rebuild))

    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        unit.note_other_call()
        return super(made, self).__call__(*args, **kwargs)  # type: ignore[arg-type]

    def current(self: Any) -> Any:
        """The function to call instead of the compiled one if the class, or a base of it, has got another `__call__`: this is the
        work of tracers and profilers, which restore it later. None as long as it is the same."""
        plain = type(plain_module(self))
        if plain is not cls and not issubclass(plain, CompiledModule):
            CLASS.__set__(self, compiled_class(plain, unit, rebuild))
        return None if plain_call(plain) is unit.function else inherited

    namespace = {"__call__": unit.compiled, "__class__": property(type, become), "__reduce_ex__": reduce_ex,
                 "__deepcopy__": deepcopy, "_orig_mod": property(plain_module), "capture_unit": unit,
                 "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
                 "__annotations__": getattr(cls, "__annotations__", {}),
                 "__jit_unused_properties__": [*getattr(cls, "__jit_unused_properties__", ()), "_orig_mod"]}    # for TorchScript
    made: type = type(cls)(cls.__name__, (CompiledModule, cls), namespace)
    unit.compiled.current = current
    return made


def plain_module(compiled: Any) -> torch.nn.Module:
    """The original of a compiled module. For an instance that its class made itself (a copy), a new plain module with the same
    state."""
    try:
        return object.__getattribute__(compiled, "capture_plain")
    except AttributeError:
        module: Any = object.__new__(next(c for c in type(compiled).__mro__[1:] if not issubclass(c, CompiledModule)))
        object.__setattr__(module, "__dict__", compiled.__dict__)
        object.__setattr__(compiled, "capture_plain", module)
        return module


def plain_call(cls: type) -> Any:
    """The `__call__` of a class's instances; if it is compiled, the original."""
    function = lookup_class(cls, "__call__")
    return function.__wrapped__ if isinstance(function, _C.CompiledFunction) else function
