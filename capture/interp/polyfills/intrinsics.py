"""Intrinsics of CPython, which were opcodes before 3.12: `from module import *`, and showing the value of a statement."""
from __future__ import annotations

import sys
import types
from collections.abc import MutableMapping
from typing import Any


def display(value: Any) -> None:
    """Shows the value of a statement."""
    hook = getattr(sys, "displayhook", None)
    if hook is None:
        raise RuntimeError("lost sys.displayhook")
    hook(value)


def import_all(module: types.ModuleType, namespace: MutableMapping[str, Any]) -> None:
    """`from module import *`."""
    names = getattr(module, "__all__", None)
    public = names is None
    for name in list(module.__dict__) if public else names:  # type: ignore[union-attr]
        if not (public and name.startswith("_")):
            namespace[name] = getattr(module, name)
