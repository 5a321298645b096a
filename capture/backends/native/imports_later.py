"""Stand-ins for modules of torch whose imports take half of the start of a compiling process, which mostly has no use for them:
Dynamo, symbols (with sympy), distributed tensors. Each has what tensors without data and dispatch modes ask of it while sizes are
numbers; anything else that is asked of it imports the module."""
from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

DYNAMO, SETTINGS = "torch._dynamo", "torch._dynamo.config"
SYMBOLS, ALGEBRA = "torch.fx.experimental.symbolic_shapes", "sympy"
DTENSOR = "torch.distributed.tensor"
NUMBERS = (bool, int, float, str, type(None))


class _Later(ModuleType):
    """The stand-in of a module. attributes: what it has itself."""

    def __init__(self, name: str, attributes: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        """Imports the module, and reads the attribute there. `__path__` is what each import of a submodule asks a package for."""
        is_package = self.__spec__ is not None and self.__spec__.submodule_search_locations is not None
        if name.startswith("__") and name != "__version__" and not (name == "__path__" and is_package):
            raise AttributeError(name)          # for those who look through all modules
        return getattr(_imported(self.__name__), name)


_lock = threading.Lock()
_replaced: dict[str, _Later] = {}


def _imported(name: str) -> ModuleType:
    """The module itself. Others may have its stand-in for good, which has from now on what the module has."""
    with _lock:
        if isinstance(later := sys.modules.get(name), _Later):
            sys.meta_path.insert(0, _FindsImported(name))
            _replaced[name] = later
            del sys.modules[name]
    module = importlib.import_module(name)
    _replaced[name].__dict__.update(module.__dict__)
    return module


class _FindsImported(MetaPathFinder, Loader):
    """Finds submodules that were imported with a package, while one of them was being looked for."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{self.package}.") and name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


def postpone() -> None:
    """Puts the stand-ins into the places of the modules that are not imported yet."""
    for name, attributes in STAND_INS.items():
        if name not in sys.modules:
            later = sys.modules[name] = _Later(name, attributes())
            parent, _, own = name.rpartition(".")
            if parent:
                setattr(importlib.import_module(parent), own, later)


# --- what they have themselves

def _of_dynamo() -> dict[str, Any]:
    """The settings themselves, and `disable`: here Dynamo is not at work."""
    path = Path(torch.__file__).with_name("_dynamo") / "config.py"
    spec = importlib.util.spec_from_file_location(SETTINGS, path)
    assert spec is not None and spec.loader is not None
    sys.modules[SETTINGS] = config = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(config)
    except Exception:
        del sys.modules[SETTINGS]               # the package imports it in its own way
        raise
    return {"config": config, "disable": lambda function=None, *_, **__: _itself if function is None else function}


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _of_symbols() -> dict[str, Any]:
    """What its functions make of numbers, and of tensors whose sizes are numbers."""
    class GuardOnDataDependentSymNode(RuntimeError):
        """Is caught, and never raised as long as there is no symbol."""
    return {"GuardOnDataDependentSymNode": GuardOnDataDependentSymNode, "SymTypes": (torch.SymInt, torch.SymFloat, torch.SymBool),
            **{name: _unless_symbolic(name, answer) for answer, names in OF_NUMBERS.items() for name in names.split()}}


def _unless_symbolic(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return (answer if _are_numbers((*args, *kwargs.values())) else getattr(_imported(SYMBOLS), name))(*args, **kwargs)
    return function


def _are_numbers(value: Any) -> bool:
    """Whether a value consists of numbers, and tensors with numbers as sizes."""
    if isinstance(value, (list, tuple)):
        return all(map(_are_numbers, value))
    return isinstance(value, NUMBERS) or isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides


def _first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _are_equal(left: Any, right: Any) -> bool:
    return tuple(left) == tuple(right) if isinstance(left, (list, tuple)) else bool(left == right)


OF_NUMBERS: Mapping[Callable[..., Any], str] = {
    _first: "expect_true guard_bool guard_int guard_or_false guard_or_true guard_scalar guard_size_oblivious "
            "guarding_hint_or_throw optimization_hint statically_known_true",
    lambda *_: False: "has_free_symbols has_free_unbacked_symbols is_nested_int is_symbolic",
    lambda *_: True: "has_guarding_hint",
    lambda *conditions: functools.reduce(operator.and_, conditions): "sym_and",
    lambda *conditions: functools.reduce(operator.or_, conditions): "sym_or",
    _are_equal: "sym_eq",
    lambda *_: set(): "free_symbols free_unbacked_symbols",
    lambda *_: iter(()): "_iterate_exprs _iterate_nodes",
    lambda *_: None: "compute_unbacked_bindings"}


def _of_algebra() -> dict[str, Any]:
    """A class that numbers are asked whether they are of it."""
    class Basic:
        pass
    return {"Basic": Basic}


def _of_distributed_tensors() -> dict[str, Any]:
    """A class that C++ asks of each tensor which a node of autograd saves whether it is one of these: none is here."""
    class DTensor:
        pass
    return {"DTensor": DTensor}


STAND_INS: dict[str, Callable[[], Mapping[str, Any]]] = {DYNAMO: _of_dynamo, SYMBOLS: _of_symbols, ALGEBRA: _of_algebra}
if torch.distributed.is_available():
    STAND_INS[DTENSOR] = _of_distributed_tensors
