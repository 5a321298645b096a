"""A stand-in for torch._dynamo, whose import takes a third of the start of a compiling process, which mostly has no use for it.
Tensors without data need only its settings, and dispatch modes only `disable`; anything else that is asked of it imports it."""
from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME, SETTINGS = "torch._dynamo", "torch._dynamo.config"


class _Later(ModuleType):
    """The stand-in."""

    def __init__(self, spec: ModuleSpec | None, config: ModuleType) -> None:
        super().__init__(NAME)
        self.__spec__, self.config = spec, config

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
        """As Dynamo's, or a decorator; here Dynamo is not at work."""
        return _itself if function is None else function

    def __getattr__(self, name: str) -> Any:
        """Imports the package, and reads the attribute there. `__path__` is what each import of another submodule asks for."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)          # for those who look through all modules
        with _lock:
            if sys.modules.get(NAME) is self:
                sys.meta_path.insert(0, _FindsImported())
                del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


_lock = threading.Lock()


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _FindsImported(MetaPathFinder, Loader):
    """Finds submodules that were imported with the package, while one of them was being looked for."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{NAME}.") and name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


def postpone() -> None:
    """Puts the stand-in into the place of the package, with the settings themselves."""
    if NAME in sys.modules:
        return
    path = Path(torch.__file__).with_name("_dynamo") / "config.py"
    spec = importlib.util.spec_from_file_location(SETTINGS, path)
    assert spec is not None and spec.loader is not None
    sys.modules[SETTINGS] = config = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(config)
    except Exception:
        del sys.modules[SETTINGS]               # the package imports it in its own way
        raise
    sys.modules[NAME] = later = _Later(importlib.util.find_spec(NAME), config)
    setattr(torch, "_dynamo", later)        # noqa: B010  # mypy knows the module
