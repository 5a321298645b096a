"""capture: a just-in-time compiler for PyTorch programs written in ordinary Python.

The public names are imported when they are first used, so that the compiling process does not import the interpreter.
"""
from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

from capture import config, errors, extensions
from capture.backends.native import sidecar
from capture.version import VERSION as __version__

if TYPE_CHECKING:           # for type checkers
    from capture.api import Stats, compile, disable, explain, is_capturing, load, package, report, reset, save, stats, wait  # noqa: F401

PUBLIC = "Stats", "compile", "disable", "explain", "is_capturing", "load", "package", "report", "reset", "save", "stats", "wait"
__all__ = ["__version__", "errors", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "compile" and config.BACKEND.value == "native":
        sidecar.prepare()                           # the compiling process starts while this one still imports
    state = random.getstate()                       # libraries draw from the program's random numbers when they are imported
    extensions.check("_C")
    api = importlib.import_module("capture.api")
    random.setstate(state)
    globals().update({public: getattr(api, public) for public in PUBLIC})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
