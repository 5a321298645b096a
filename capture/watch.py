"""Compiles calls in the whole process, of programs that know nothing of capture: `python -m capture run`."""
from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule

from capture import _C
from capture.backends import registry
from capture.config import BACKEND, RECAPTURE_LIMIT
from capture.pipeline import Unit

MODULE_CALL: types.FunctionType = torch.nn.Module._wrapped_call_impl
COMPILED_BY_TORCH = torch.jit.ScriptModule, OptimizedModule


class Watch:
    """Compiled functions for the outermost calls of modules, one for each class of modules, and of functions by name.

    functions: "module:qualified name"; "__main__" is the script. Nothing of the program changes: the frame hook hands over
    the frames of these calls. Raises BackendError for an unknown backend.
    """

    def __init__(self, functions: Iterable[str] = (), backend: str | None = None) -> None:
        self.compiler = registry.lookup(backend or BACKEND.value, mode=None, dynamic=None, options=None)
        self.modules: dict[int, tuple[type, Unit]] = {}
        self.functions: dict[types.CodeType, dict[types.FunctionType, Unit]] = {}
        self.names = {tuple(name.split(":")): name for name in functions}

    def start(self) -> None:
        """Looks at all calls from now on."""
        choosers: dict[str, Callable[[Any, Any], Any]] = {name: self.of_function for _, name in self.names}
        _C.watch({**choosers, MODULE_CALL.__code__.co_qualname: self.of_module})

    def units(self) -> list[Unit]:
        """What was compiled."""
        return [unit for _, unit in self.modules.values()] + [unit for units in self.functions.values() for unit in units.values()]

    def unseen(self) -> list[str]:
        """The names of functions that were never called."""
        seen = {(function.__module__, function.__qualname__) for units in self.functions.values() for function in units}
        return [name for key, name in self.names.items() if key not in seen]

    def of_module(self, function: types.FunctionType, module: Any) -> Any:
        """What runs a call of a module; modules that torch compiles are left to it."""
        if function is not MODULE_CALL:
            return None
        if isinstance(module, COMPILED_BY_TORCH):
            return _C.RUN_NATIVELY
        cls = type(module)
        known = self.modules.get(id(cls))
        if known is None:
            known = self.modules.setdefault(id(cls), (cls, Unit(function, self.compiler, False, cls.__name__)))
        return known[1].compiled

    def of_function(self, function: types.FunctionType, first: Any) -> Any:
        """What runs a call of a function of a watched name. Of functions that are made anew all the time, the first few count."""
        if (function.__module__, function.__qualname__) not in self.names:
            return None
        units = self.functions.setdefault(function.__code__, {})
        unit = units.get(function)
        if unit is None:
            if len(units) >= RECAPTURE_LIMIT.value:
                return None
            unit = units.setdefault(function, Unit(function, self.compiler, False, function.__name__))
        return unit.compiled
