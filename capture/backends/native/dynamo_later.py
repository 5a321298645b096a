"""torch._dynamo, imported only where more of it is used than its settings, which tensors without data ask for, and `disable`,
which all dispatch modes call. To import all of it takes a third of the start of a compiling process, which has no use for it."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME, SETTINGS = "torch._dynamo", "torch._dynamo.config"


class _Later(ModuleType):
    """What stands for the package until then."""

    def __init__(self, config: ModuleType) -> None:
        super().__init__(NAME)
        self.config = config

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """The function itself: Dynamo is not at work."""
        return function

    def __getattr__(self, name: str) -> Any:
        """Also of `__path__`, which each import of another submodule asks for."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)          # those who look through all modules
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
            sys.meta_path.insert(0, _Imported())
        return getattr(importlib.import_module(NAME), name)


class _Imported(MetaPathFinder, Loader):
    """Finds submodules that were imported with the package, while one of them was being looked for."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{NAME}.") and name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


def postpone() -> None:
    """Imports the settings alone."""
    if NAME in sys.modules:
        return
    path = Path(torch.__file__).with_name("_dynamo") / "config.py"
    spec = importlib.util.spec_from_file_location(SETTINGS, path)
    assert spec is not None and spec.loader is not None
    sys.modules[SETTINGS] = config = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    sys.modules[NAME] = later = _Later(config)
    setattr(torch, "_dynamo", later)        # noqa: B010  # mypy knows the module
